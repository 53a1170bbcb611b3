"""Reports a parity comparison: its verdict, JSON, page, and text, the worst first."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from jax_transformer.comparison.findings import Fault
from jax_transformer.comparison.gates.compare import Comparison
from jax_transformer.comparison.gates.stages import Row, Stage, Verdict
from jax_transformer.comparison.report.console import STYLES, WIDE, describe, row_reasons, stage_lines, stage_table
from jax_transformer.comparison.report.console_faults import REPLAY, Fact, fault_facts, grouped
from jax_transformer.comparison.report.summary import summary_of
from jax_transformer.proof.certificate import Certificate

SCHEMA = 1
"""The version of the JSON; raised when a field changes its meaning or is removed."""
PASSED, NAMED, INCONCLUSIVE, UNEXPLAINED = 0, 1, 3, 4
"""Exit codes. (2 is a user's mistake.)"""
TEXT_WIDTH = 120
"""Columns of the text report where there is no terminal to fill."""
PROOF_MARKS = {"proven": "✓", "refuted": "✗", "unknown": "?"}


class Depth(NamedTuple):
    """Holds the errors of one activation, each a relative RMS; NaN if it wasn't measured."""

    name: str
    propagated: float = math.nan
    """Candidate against reference, each computed from the ids."""
    local_candidate: float = math.nan
    """Candidate against the float64 truth, computed from the candidate's own inputs of this activation."""
    local_reference: float = math.nan
    """The same for the reference."""
    float32_candidate: float = math.nan
    """Candidate in float32 against the float64 truth, both computed from the ids."""
    float32_reference: float = math.nan
    """The same for the reference."""


def depth_of(stage: Stage) -> tuple[Depth, ...]:
    """Returns the propagated errors of a stage that compares activations."""
    return tuple(Depth(row.name, row.error.relative_rms) for row in stage.rows if row.error is not None)


class HeatMap(NamedTuple):
    """Holds the errors inside one activation, by place."""

    name: str
    case: str
    """The problem (weights and inputs) on which it was computed."""
    rows: str
    """The axes that a row represents: "row of the batch, position"."""
    columns: str
    row_labels: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]
    """|candidate − reference| / RMS of the reference; the largest of the values that share a cell."""


class Effect(NamedTuple):
    """Measures the effect of a divergence on the logits, on the problem where it is largest."""

    case: str
    relative_rms: float
    max_error: float
    """Largest difference of two logits / RMS of the reference's logits."""
    divergence: float
    """Mean Kullback-Leibler divergence of the candidate's next-token distribution from the reference's, in nats."""
    changed: int
    """The number of positions whose top-1 token differs."""
    places: int
    """The number of positions that count: all but padding and sentences without a source."""


class Divergence(AssertionError):
    """Raised when two sides differ, or a comparison is inconclusive. The message is the text report.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.parity import Divergence, assert_parity
      >>> try:
      ...     assert_parity({"output": np.ones(3)}, {"output": np.zeros(3)})
      ... except Divergence as error:
      ...     print(error.report.verdict)
      diverged
    """

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


@dataclass(frozen=True)
class Report:
    """Holds the result of comparing a candidate with a reference. `compare` returns one.

    `print(report)` shows the text, a notebook shows the page, and `raise_for_divergence` turns it into an assertion.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.parity import compare
      >>> x = np.linspace(0, 1, 6)
      >>> report = compare({"first": x, "second": x + 1e-6}, {"first": x, "second": x})
      >>> report.verdict
      'diverged'
      >>> [(row.name, row.verdict) for stage in report.stages for row in stage.rows]
      [('first', 'passed'), ('second', 'diverged')]
    """

    candidate: str
    """The candidate's name: a path, or the name of a factory or function."""
    reference: str
    """The reference's name."""
    stages: tuple[Stage, ...]
    """The comparisons, in the order in which they were made."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Versions, machine, and the precision in force."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Checksums of both sides' files and weights, by path or name."""
    faults: tuple[Fault, ...] = ()
    """The places where a side computes a wrong value, in execution order."""
    notes: tuple[Fault, ...] = ()
    """The places where a side writes the same function differently: other values of masked logits."""
    remarks: tuple[str, ...] = ()
    """Facts about both sides that aren't compared: tables that were carried over and differ from the formula's."""
    doubts: tuple[str, ...] = ()
    """Reasons why the result is inconclusive regardless of the stages, such as a side that differs from itself."""
    effect: Effect | None = None
    """The effect of the divergence on the logits."""
    depth: tuple[Depth, ...] = ()
    """The errors of every activation, in execution order."""
    heat_map: HeatMap | None = None
    """The error inside the first activation that differs."""
    proof: Certificate | None = None
    """The proof that both sides are one function for all weights, or not; None: none was requested."""

    @property
    def verdict(self) -> Verdict:
        """Returns "passed", "diverged" or "inconclusive".

        Any doubt makes it inconclusive; otherwise one divergence makes it diverged, or a proof that the sides are two
        functions; it passes if every stage passed.
        """
        verdicts = {stage.verdict for stage in self.stages}
        if self.doubts:
            return "inconclusive"
        if "diverged" in verdicts or self._is_refuted:
            return "diverged"
        return "passed" if verdicts == {"passed"} else "inconclusive"

    @property
    def exit_code(self) -> int:
        """Returns the command's exit code: 0 passed, 1 diverged with all faults named, 3 inconclusive, 4 diverged
        otherwise."""
        if self.verdict == "diverged" and self.faults and all(fault.finding.matches for fault in self.faults):
            return NAMED
        if self.verdict == "diverged" and self.proof is not None and not self.faults and self._is_refuted:
            return self.proof.exit_code  # too small a difference for any float to show
        return {"passed": PASSED, "diverged": UNEXPLAINED, "inconclusive": INCONCLUSIVE}[self.verdict]

    @property
    def _is_refuted(self) -> bool:
        return self.proof is not None and self.proof.verdict == "refuted"

    def nature(self, fault: Fault) -> str:
        """Returns whether a fault is one of the function or of rounding; "" if the proof doesn't show it."""
        stages = () if self.proof is None else self.proof.stages
        if any(name == fault.finding.node for stage in stages for name in stage.different):
            return "not the same function"
        if fault.finding.effect == "fully masked rows":
            return ""  # a proof's batch has none
        if any(name == fault.finding.node for stage in stages for name in stage.equal):
            return "the same function, numerically unstable"
        return ""

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """Returns the report as JSON, and writes it to a file if a path is given. Non-finite numbers become null."""
        content = {
            "schema": SCHEMA,
            **summary_of(self),
            "sha256": dict(self.sha256),
            "doubts": list(self.doubts),
            "faults": [{**_fault(fault), "nature": self.nature(fault)} for fault in self.faults],
            "notes": [_fault(note) for note in self.notes],
            "remarks": list(self.remarks),
            "effect": None if self.effect is None else _numbers(self.effect),
            "stages": [_stage(stage) for stage in self.stages],
            "depth": [_numbers(depth) for depth in self.depth],
            "heat_map": None if self.heat_map is None else _numbers(self.heat_map),
            "proof": None if self.proof is None else json.loads(self.proof.to_json()),
            "environment": dict(self.environment),
        }
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        if path is not None:
            _write(path, text)
        return text

    def to_html(self, path: str | os.PathLike[str], discovery: Mapping[str, Any] | None = None) -> None:
        """Writes the report as one HTML page that needs no network.

        Args:
          discovery: the facts of a discovery that the report proves, to begin the page with.
        """
        _write(path, self._page(discovery))

    def show(self, *, verbose: bool = False) -> None:
        """Prints the report, in colour on a terminal.

        Args:
          verbose: print passing rows, versions and checksums, too.
        """
        print_report(self, Console(soft_wrap=not sys.stdout.isatty(), highlight=False), verbose=verbose)

    def raise_for_divergence(self) -> None:
        """Raises Divergence unless the verdict is "passed"."""
        if self.verdict != "passed":
            raise Divergence(self)

    def with_replays(self, command: str) -> Report:
        """Returns the report whose faults in the forward pass carry the command that replays their node alone."""
        faults = tuple(
            fault._replace(command=f"{command} --node {fault.finding.node}")
            if fault.stage in ("masks", "forward", "truth")
            else fault
            for fault in self.faults
        )
        return dataclasses.replace(self, faults=faults)

    def __str__(self) -> str:
        text = io.StringIO()
        plain = Console(
            file=text, width=TEXT_WIDTH, soft_wrap=True, highlight=False, color_system=None, force_jupyter=False
        )
        print_report(self, plain)
        return text.getvalue().rstrip()

    def _repr_html_(self) -> str:
        """Returns the page inside a frame of its own, so that its styles don't reach the notebook."""
        from jax_transformer.pages.parity import framed

        return framed(self._page())

    def _page(self, discovery: Mapping[str, Any] | None = None) -> str:
        from jax_transformer.pages.parity import render

        return render(json.loads(self.to_json()), discovery)


def _write(path: str | os.PathLike[str], text: str) -> None:
    from jax_transformer.pages.page import write_page

    write_page(Path(path), text)


# --- JSON


def _fault(fault: Fault) -> dict[str, Any]:
    return {
        "side": fault.side,
        "stage": fault.stage,
        "case": fault.case,
        "node": fault.finding.node,
        "kind": fault.finding.kind,
        "cause": fault.finding.cause,
        "changes": fault.finding.effect,
        "local_error": _finite(fault.finding.local_error),
        "propagated_error": _finite(fault.propagated_error),
        "matches": [_numbers(match) for match in fault.finding.matches],
        "runner_up": None if fault.finding.runner_up is None else _numbers(fault.finding.runner_up),
        "told_apart_by": fault.finding.told_apart_by,
        "command": fault.command,
    }


def _numbers(values: Any) -> dict[str, Any]:
    """Returns a named tuple's fields, some of which are tables of numbers."""
    return {name: _finite_all(value) for name, value in values._asdict().items()}


def _finite_all(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_finite_all(inner) for inner in value]
    return _finite(value) if isinstance(value, float) else value


def _stage(stage: Stage) -> dict[str, Any]:
    return {
        "name": stage.name,
        "verdict": stage.verdict,
        "reasons": list(stage.reasons),
        "compared": len(stage.rows),
        "only_in_candidate": list(stage.only_in_candidate),
        "only_in_reference": list(stage.only_in_reference),
        "rows": [_row(row) for row in stage.rows],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "case": row.case,
        "verdict": row.verdict,
        "gate": row.gate,
        "allowed": _finite(row.allowed),
        "times_allowed": _finite(row.times_allowed),
        "local_error": _finite(row.local),
        "reason": row.reason,
        "error": None if row.error is None else _error(row.error),
    }


def _error(error: Comparison) -> dict[str, Any]:
    return {
        "relative_rms": _finite(error.relative_rms),
        "max_error": _finite(error.max_error),
        "worst_index": list(error.worst_index),
        "exact": error.exact,
        "non_finite_candidate": error.non_finite_candidate,
        "non_finite_reference": error.non_finite_reference,
        "compared": error.compared,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# --- text


def print_report(report: Report, console: Console, *, verbose: bool = False) -> None:
    """Prints the verdict, the causes, a line for each stage, and the worst of the rows that fail.

    Args:
      verbose: print passing rows, versions and checksums, too; otherwise the last line says where to find them.
    """
    _print(_headline(report), console, STYLES[report.verdict])
    _print_facts([("doubt", doubt) for doubt in report.doubts], console)
    for facts in filter(None, [_local(report), *_causes_and_effect(report)]):
        _print_facts(facts, console)
        _print("", console)
    if report.notes or report.remarks:
        _print_facts([*_notes(report), *(("remark", remark) for remark in report.remarks)], console)
        _print("", console)
    for line, stage in zip(stage_lines(report.stages), report.stages, strict=True):
        _print(line, console, STYLES[stage.verdict])
        for reason in (*stage.reasons, *row_reasons(stage)):
            _print(f"    {reason}", console)
    if report.proof is not None:
        first, *rest = report.proof.summary()
        width = max((len(stage.name) for stage in report.stages), default=5) + 1
        _print(f"{PROOF_MARKS[report.proof.verdict]} {'proof:':{width}} {first}", console)
        for line in rest:
            _print(line, console)
    for stage in _tabled(report, verbose):
        _print("", console)
        console.print(stage_table(stage, console.width, verbose))
    if verbose:
        if console.width < WIDE:
            _print(f"\n{WIDE} columns have room for the largest error and its place, too.", console)
        _print_environment(report, console)
    else:
        _print(f"\n{_rest(report)}", console)


def _tabled(report: Report, verbose: bool) -> list[Stage]:
    """Returns the stages to print tables of: those with failing rows; if there are none, verbose, those with errors."""
    failing = [stage for stage in report.stages if any(row.verdict != "passed" for row in stage.rows)]
    if failing or not verbose:
        return failing
    return [
        stage for stage in report.stages if any(row.error is not None and not row.error.exact for row in stage.rows)
    ]


def _rest(report: Report) -> str:
    """Writes the line that names the omitted parts, and where to find them."""
    passed = sum(row.verdict == "passed" for stage in report.stages for row in stage.rows)
    parts = [f"{passed:,} passing row{'' if passed == 1 else 's'}"] if passed else []
    parts += ["versions"] if report.environment else []
    parts += ["checksums"] if report.sha256 else []
    listed = " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]])) or "All rows"
    return f"{listed}: --verbose (in Python, show(verbose=True)), or the report as JSON or HTML"


def _print(text: str, console: Console, style: str = "") -> None:
    console.print(Text(text, style=style), highlight=False)


def _print_facts(facts: Sequence[Fact], console: Console) -> None:
    """Prints labels in a column, and their wrapped texts in the next; commands stay on one line, to be copied."""
    wrapper = textwrap.TextWrapper(max(40, console.width - 14), break_long_words=False, break_on_hyphens=False)
    for label, text in facts:
        for i, line in enumerate([text] if label == REPLAY else wrapper.wrap(text)):
            console.print(Text(f"  {'' if i else label:<10}  {line}"), highlight=False, soft_wrap=True)


def _headline(report: Report) -> str:
    sides = f"{report.candidate} against {report.reference}"
    if report.verdict == "passed":
        compared = sum(len(stage.rows) for stage in report.stages)
        arrays = "1 array within its gate" if compared == 1 else f"{compared:,} arrays within their gates"
        return f"parity: {sides}: {arrays}{_closest(report)}"
    first = _first_divergence(report)
    if first is None and report.verdict == "diverged":
        return f"{report.verdict}: {sides}\ntwo functions, though no float shows it: see the proof"
    where = "" if first is None else f"\nfirst at {first[1].name} ({_place(*first)}): {describe(first[1])}"
    return f"{report.verdict}: {sides}{where}"


def _closest(report: Report) -> str:
    """Returns a line on the row that comes closest to its gate; "" if all arrays are equal."""
    rows = [(stage, row) for stage in report.stages for row in stage.rows if 0 < row.times_allowed < math.inf]
    if not rows:
        return ""
    stage, row = max(rows, key=lambda pair: pair[1].times_allowed)
    return f"\nclosest at {row.name} ({_place(stage, row)}): {describe(row)}"


def _first_divergence(report: Report) -> tuple[Stage, Row] | None:
    """Returns the first stage that diverges, and its first row that does."""
    rows = ((stage, stage.first_divergence) for stage in report.stages)
    return next(((stage, row) for stage, row in rows if row is not None), None)


def _place(stage: Stage, row: Row) -> str:
    return f"{stage.name}, {row.case}" if row.case else stage.name


def _local(report: Report) -> list[Fact]:
    """Returns the errors of the first divergence if no fault gives them."""
    first = _first_divergence(report)
    depth = next((depth for depth in report.depth if first is not None and depth.name == first[1].name), None)
    if report.faults or depth is None:
        return []
    measured = {
        "propagated": depth.propagated,
        "local of the candidate": depth.local_candidate,
        "local of the reference": depth.local_reference,
    }
    return [("error", ", ".join(f"{name} {value:.2e}" for name, value in measured.items() if not math.isnan(value)))]


def _print_environment(report: Report, console: Console) -> None:
    if report.environment or report.sha256:
        _print("", console)
    if report.environment:
        _print(", ".join(f"{name} {value}" for name, value in report.environment.items()), console)
    for path, digest in report.sha256.items():
        _print(f"sha256 {digest} {path}", console)


def _causes_and_effect(report: Report) -> list[list[Fact]]:
    """Returns the facts of each cause, and then of the effect."""
    causes = [[*fault_facts(faults), *_nature(report, faults)] for faults in grouped(report.faults)]
    return [*causes, *([] if report.effect is None else [[("effect", _effect(report.effect))]])]


def _nature(report: Report, faults: Sequence[Fault]) -> list[Fact]:
    """Lists the proof's verdict on faults: another function, or rounding alone."""
    natures = dict.fromkeys(nature for fault in faults if (nature := report.nature(fault)))
    return [("proof", " or ".join(natures))] if natures else []


def _notes(report: Report) -> list[Fact]:
    """Lists the differences of a side that don't change its function."""
    return [
        (
            "note",
            f"{found[0].finding.matches[0].variant}, at {len(found)} node{'s' if len(found) > 1 else ''} of the "
            f"{found[0].side}: the same function",
        )
        for found in grouped(report.notes)
    ]


def _effect(effect: Effect) -> str:
    changed = f"the top-1 token changes at {effect.changed:,} of {effect.places:,} positions"
    size = f"logits off by {effect.relative_rms:.2e} (relative RMS), {effect.max_error:.2e} at most"
    return f"{size}; KL divergence {effect.divergence:.2e} nats; {changed}{f' ({effect.case})' if effect.case else ''}"
