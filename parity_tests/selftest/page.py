"""What a self-test found, as a page of Markdown."""

from __future__ import annotations

import csv
import io
import os
import platform
from collections.abc import Callable, Iterable, Sequence

from selftest.matrix import Kill
from selftest.run import PLACES, Counts, Result
from selftest.through_command import COMMAND

COLUMNS = ("found", "missed", "located", "named", "wrongly named", "equivalent", "equivalent (noted)", "don't apply")
HEADER = f"| {{}} | {' | '.join(COLUMNS)} |\n|---{'|---' * len(COLUMNS)}|"
EVERY_FAULT = "tables/parity_selftest.csv"
"""The file of `every_fault`, from the page's folder."""


def page(result: Result) -> str:
    """The requirements, the matrix by system, by kind of node and by fault, and whatever wasn't found, located or
    named."""
    known, unknown = result.of(known=True), result.of(known=False)
    parts = [
        "# The parity check, checked",
        _introduction(result),
        "## What is required",
        "\n".join(f"- {'✓' if met else '✗'} {requirement}" for requirement, met in result.requirements.items()),
        "## The catalogue, by system",
        _table("system", known, lambda kill: kill.system),
        "## The catalogue, by what is at fault",
        _table("kind", known, lambda kill: kill.kind),
        "## The open world, by system",
        _table("system", unknown, lambda kill: kill.system),
        "## Through the command",
        "Some of them again, by `jax-transformer parity MODEL --reference …` with the faulty program, from its exit "
        "code and its JSON.",
        _table("system", [kill for kill in result.kills if kill.problem == COMMAND], lambda kill: kill.system),
        "## Real pairs",
        "One published system's weights in another's program, which takes the same checkpoints.",
        _pairs(result),
        "## Without a fault",
        _alarms(result),
        "## What wasn't found, located or named",
        _failures(result.kills),
        "## Every fault",
        f"A [table]({EVERY_FAULT}) has the same counts of each fault.",
    ]
    return "\n\n".join(parts) + "\n"


def every_fault(result: Result) -> str:
    """Returns the counts of each fault as CSV."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["part", "fault", *COLUMNS])
    for part, kills in (("catalogue", result.of(known=True)), ("open world", result.of(known=False))):
        rows.writerows([part, name, *_counts(of_name)] for name, of_name in _groups(kills, lambda kill: kill.fault))
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
diagnosis for the cause. The totals below add up both.

**Found**: the comparison diverges. **Missed**: it doesn't, though the fault changes something. **Located**: that
activation is blamed, and no other. **Named**: the fault is among the causes given. **Wrongly named**: a cause is given,
and it isn't the fault. **Equivalent**: the value is the same, to the last bit, on all of these inputs and weights.
**Equivalent (noted)**: masked logits have another value, which changes nothing else; the comparison passes with a note.
**Doesn't apply**: the system has nothing that it could happen to.

A fault may have several causes that can't be told apart on these inputs; all are given."""


def _table(title: str, kills: Sequence[Kill], key: Callable[[Kill], str]) -> str:
    groups = _groups(kills, key)
    lines = [HEADER.format(title), *(_line(name, of_name) for name, of_name in groups), _line("**all**", kills)]
    return "\n".join(lines)


def _groups(kills: Sequence[Kill], key: Callable[[Kill], str]) -> list[tuple[str, list[Kill]]]:
    groups: dict[str, list[Kill]] = {}
    for kill in kills:
        groups.setdefault(key(kill), []).append(kill)
    return list(groups.items())


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
    lines = [f"| {name} | {count} |" for name, count in result.alarms.items()]
    return "\n".join([f"| system | alarms in {result.seeds} seeds |", "|---|---|", *lines])


def _failures(kills: Iterable[Kill]) -> str:
    lines = [
        f"- {kill.system}: {kill.fault}, at {kill.node}: {'; '.join(kill.shortcomings)}"
        for kill in kills
        if kill.shortcomings
    ]
    return "\n".join(lines) or "Nothing."
