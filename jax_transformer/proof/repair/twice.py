"""Find operations that are applied twice in a row, of which either may be left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from jax_transformer.proof.programs import Ref
from jax_transformer.proof.repair.bench import Bench
from jax_transformer.proof.repair.causes import Cause
from jax_transformer.proof.repair.edits import Edit

MOST_IN_A_ROW = 4
"""Operations of one kind in a row."""


def either(bench: Bench, made: Sequence[tuple[Edit, Cause]], log2_error: float) -> tuple[list[Cause], float]:
    """Adds the other line to causes if an operation is left out that is applied twice in a row: the edits don't tell
    which one is too much.

    Args:
      made: the edits of a proven repair.
      log2_error: the logarithm of a bound on the probability that its proof is wrong.

    Returns:
      The causes, and the bound for all proofs.
    """
    causes = [cause for _, cause in made]
    for line in dict.fromkeys(cause.candidate for cause in causes if cause.kind == "left out"):
        chosen = [number for number, cause in enumerate(causes) if (cause.kind, cause.candidate) == ("left out", line)]
        options = [_others(bench, made[number][0]) for number in chosen]
        for other in [each for each in options[0] if all(each in option for option in options)]:
            moved = {number: option[other] for number, option in zip(chosen, options, strict=True)}
            again = bench.proof([moved.get(number, edit) for number, (edit, _) in enumerate(made)])
            if again is not None:
                log2_error = max(log2_error, again)
                causes = [_with(cause, other) if number in moved else cause for number, cause in enumerate(causes)]
                break
    return causes, log2_error


def _with(cause: Cause, other: str) -> Cause:
    text = cause.text.replace(cause.candidate, f"{cause.candidate} or {other}", 1)
    return replace(cause, text=text, cure="without one of them")


def _others(bench: Bench, edit: Edit) -> dict[str, Edit]:
    """Returns the other lines that apply the operation in a row with the one that is left out → edits that leave out
    theirs."""
    side, first, found = bench.candidate, edit.place.entry, dict[str, Edit]()
    for number in (*_in_a_row(bench, first, -1), *_in_a_row(bench, first, 1)):
        site, kept = side.entry(number).site, _operand(bench, number)
        is_other = site.line != side.entry(first).site.line and site.where == side.entry(first).site.where
        if is_other and kept is not None:
            found.setdefault(site.line, replace(edit, places=(Ref(number, 0),), kept=kept))
    return found


def _in_a_row(bench: Bench, number: int, step: int) -> Iterator[int]:
    """Yields the makers before or behind an entry, as long as they apply the same operation.

    Args:
      step: -1: before; 1: behind.
    """
    side, entry = bench.candidate, bench.candidate.entry(number)
    for _ in range(MOST_IN_A_ROW):
        kept = _operand(bench, number)
        before = set() if kept is None else {side.maker_above(kept.entry)}
        near = before if step < 0 else side.makers_below(side.readers.get(number, ()))
        if len(near) != 1:
            return
        (number,) = near
        if (side.entry(number).name, side.entry(number).site.operation) != (entry.name, entry.site.operation):
            return
        yield number


def _operand(bench: Bench, number: int) -> Ref | None:
    """Returns the only operand that depends on weights, if it has the shape of the result."""
    values, entry = bench.candidate.replay.values, bench.candidate.entry(number)
    found = [ref for ref in entry.operands if values[ref].known is None and values[ref].kind == "float"]
    is_one = len(found) == 1 and values[found[0]].shape == entry.results[0].shape
    return found[0] if is_one else None
