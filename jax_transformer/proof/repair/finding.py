"""Search for the smallest edits with which two programs are proven the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from jax_transformer.proof.deciding import Task, drawn
from jax_transformer.proof.programs import UnknownOperation
from jax_transformer.proof.repair.bench import Bench
from jax_transformer.proof.repair.causes import Cause, Repair
from jax_transformer.proof.repair.edits import Edit
from jax_transformer.proof.repair.search import Search
from jax_transformer.proof.repair.twice import either
from jax_transformer.proof.repair.words import Words
from jax_transformer.proof.tape import Stale

MOST_OPERATIONS = 12_000
"""Programs of more operations aren't searched."""
MOST_EDITS, MOST_LAYERS = 8, 64
"""Edits that are made one after another, and how often each is made again in further layers."""


def find_repair(task: Task) -> Repair | None:
    """Returns the smallest edits with which a candidate is proven to equal its reference; None if none are found.

    Args:
      task: two programs that differ. There is no search unless both read the same weights by the same names.
    """
    if not _is_searched(task):
        return None
    made: list[tuple[Edit, Cause]] = []
    try:
        bench, edits_left = Bench(task), MOST_EDITS
        while edits_left and len(made) < MOST_EDITS * MOST_LAYERS:
            bench.edit([edit for edit, _ in made])
            if not bench.different:
                return None
            found, words = Search(bench).search(), Words(bench)
            for edits in found.whole:
                needed = bench.without_idle([*made, *((edit, words.described(edit)) for edit in edits)])
                log2_error = bench.proof([each for each, _ in needed])
                if log2_error is not None:
                    told = zip((edit for edit, _ in needed), words.at_callers(needed), strict=True)
                    causes, log2_error = either(bench, [*told], log2_error)
                    return Repair(_merged(causes), log2_error)
            if not found.part:
                return None
            edits_left -= not found.is_again
            made += [(edit, words.described(edit)) for edit in found.part]
    except (Stale, UnknownOperation, ArithmeticError):
        return None
    return None


def _merged(causes: Sequence[Cause]) -> tuple[Cause, ...]:
    """Merges edits of one line into one cause."""
    found: dict[str, Cause] = {}
    for cause in causes:
        before = found.get(cause.text, replace(cause, modules=()))
        found[cause.text] = replace(before, modules=tuple(dict.fromkeys((*before.modules, *cause.modules))))
    return tuple(found.values())


def _is_searched(task: Task) -> bool:
    """Returns whether both programs read the same weights, and are small enough."""
    programs = task.candidate, task.reference
    if any(program.tape is None for program in programs):
        return False
    if sum(len(program.operations) for program in programs) > MOST_OPERATIONS:
        return False
    if task.candidate.inputs.keys().isdisjoint(task.reference.inputs):
        return False
    ours, theirs = drawn(task, [0])[1]
    inputs = {**task.candidate.tape.weights, **task.reference.tape.weights}
    drawn_weights = [name for name in inputs if name in ours or name in theirs]  # the others are read by neither
    return all(name in ours and name in theirs and np.array_equal(ours[name], theirs[name]) for name in drawn_weights)
