"""Writes the result of a self-test: a page of Markdown, and CSV files that it links."""

from __future__ import annotations

import csv
import io
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence

from selftest.matrix import Kill
from selftest.run import PLACES, Counts, Result
from selftest.through_command import COMMAND

COLUMNS = ("found", "missed", "located", "named", "wrongly named", "equivalent", "equivalent (noted)", "don't apply")
HEADER = f"| {{}} | {' | '.join(COLUMNS)} |\n|---{'|---' * len(COLUMNS)}|"
FAULTS, SYSTEMS, KINDS = (f"tables/parity_selftest{part}.csv" for part in ("", "_systems", "_kinds"))
"""Files of counts, from the page's folder."""


def page(result: Result) -> str:
    """Returns the requirements, the totals, links to the counts, and the faults not found, located or named."""
    parts = [
        "# The parity check, checked",
        _introduction(result),
        "## What is required",
        "\n".join(f"- {'✓' if met else '✗'} {requirement}" for requirement, met in result.requirements.items()),
        "## Totals",
        "\n".join([HEADER.format("part"), *(_line(part, kills) for part, kills in _parts(result).items())]),
        f"The same counts [by system]({SYSTEMS}), [by what is at fault]({KINDS}) in the catalogue, and "
        f"[by fault]({FAULTS}).",
        "## Real pairs",
        "One published system's weights in another's program, which takes the same checkpoints.",
        _pairs(result),
        "## Without a fault",
        _alarms(result),
        "## What wasn't found, located or named",
        _failures(result.kills),
    ]
    return "\n\n".join(parts) + "\n"


def files(result: Result) -> dict[str, str]:
    """Returns the text of each CSV file, by its path from the page's folder."""
    parts = _parts(result)
    return {
        FAULTS: _as_csv("fault", {part: parts[part] for part in (CATALOGUE, OPEN_WORLD)}, lambda kill: kill.fault),
        SYSTEMS: _as_csv("system", parts, lambda kill: kill.system),
        KINDS: _as_csv("kind", {CATALOGUE: parts[CATALOGUE]}, lambda kill: kill.kind),
    }


def _parts(result: Result) -> dict[str, list[Kill]]:
    """Returns the faults of each part of the self-test. The command's are of the two other parts, too."""
    through_command = [kill for kill in result.kills if kill.problem == COMMAND]
    return {
        CATALOGUE: result.of(known=True),
        OPEN_WORLD: result.of(known=False),
        "through the command": through_command,
    }


CATALOGUE, OPEN_WORLD = "catalogue", "open world"


def _as_csv(column: str, parts: Mapping[str, Sequence[Kill]], key: Callable[[Kill], str]) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["part", column, *COLUMNS])
    for part, kills in parts.items():
        groups: dict[str, list[Kill]] = {}
        for kill in kills:
            groups.setdefault(key(kill), []).append(kill)
        rows.writerows([part, name, *_counts(group)] for name, group in groups.items())
    return text.getvalue()


def _introduction(result: Result) -> str:
    return f"""`python parity_tests/run_selftest.py --write docs/parity_selftest.md` wrote this page, in
{result.seconds / 60:.1f} minutes on {os.cpu_count()} cores ({platform.machine()}).

The self-test takes every fault of the catalogue, and every fault of an open world that the catalogue doesn't know. It
tries each in every published system in turn, at up to {PLACES} of the activations where it makes sense, with four kinds
of weights, on inputs with every kind of padding.

Faults of activations are **put into a running program**: one activation of the PyTorch program gets the faulty value,
the rest of the forward pass follows from it, and the model here is compared with the result. Faults of the kinds
`loss`, `step` and `decode` are **computed**: they enter no running program. The self-test computes the result of a
faulty side (losses from a right side's logits, steps from drawn gradients, tokens from the NumPy model) and asks the
diagnosis for the cause. The totals below add up both. Some faults run again **through the command**:
`jax-transformer parity MODEL --reference …` with the faulty program, judged by its exit code and its JSON.

**Found**: the comparison diverges. **Missed**: it doesn't, though the fault changes something. **Located**: that
activation is blamed, and no other. **Named**: the fault is among the causes given. **Wrongly named**: a cause is given,
and it isn't the fault. **Equivalent**: the value is the same, to the last bit, on all of these inputs and weights.
**Equivalent (noted)**: masked logits have another value, which changes nothing else; the comparison passes with a note.
**Doesn't apply**: the system has nothing that it could happen to.

A fault may have several causes that can't be told apart on these inputs; all are given."""


def _line(name: str, kills: Sequence[Kill]) -> str:
    return f"| {name} | " + " | ".join(map(str, _counts(kills))) + " |"


def _counts(kills: Sequence[Kill]) -> tuple[int, ...]:
    """Returns the numbers of COLUMNS."""
    counts = Counts.of(kills)
    return (
        counts.found,
        counts.missed,
        counts.located,
        counts.named,
        counts.wrongly_named,
        counts.equivalent,
        counts.noted,
        counts.not_applicable,
    )


def _pairs(result: Result) -> str:
    lines = ["| weights | program | causes, and at how many activations | missing |", "|---|---|---|---|"]
    for verdict in result.real_pairs:
        causes = "; ".join(
            f"{cause} ({count})" for cause, count in verdict.causes.items() if cause in verdict.pair.expected
        )
        others = len(verdict.causes) - sum(cause in verdict.pair.expected for cause in verdict.causes)
        also = f"; and {others} more that can't be told apart from these here" if others else ""
        lines.append(
            f"| {verdict.pair.weights} | {verdict.pair.program} | {causes}{also} | "
            f"{', '.join(verdict.missing) or 'none'} |"
        )
    return "\n".join(lines)


def _alarms(result: Result) -> str:
    alarms = [f"{name} ({count})" for name, count in result.alarms.items() if count]
    return (
        f"{result.seeds} seeds of each of {len(result.alarms)} systems: "
        f"{sum(result.alarms.values())} alarms{', in ' if alarms else ''}{', '.join(alarms)}."
    )


def _failures(kills: Iterable[Kill]) -> str:
    lines = [
        f"- {kill.system}: {kill.fault}, at {kill.node}: {'; '.join(kill.shortcomings)}"
        for kill in kills
        if kill.shortcomings
    ]
    return "\n".join(lines) or "Nothing."
