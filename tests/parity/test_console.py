"""The text of a report: the worst first, each cause once, what is left out counted, at 80 columns and at 120."""

from __future__ import annotations

import dataclasses
import io
import json

import numpy as np
import pytest
from rich.console import Console
from sample_report import ACTIVATION, UNKNOWN, make_report

from jax_transformer.comparison.findings import Fault, Finding, Match
from jax_transformer.comparison.gates.stages import Stage, compare_stage
from jax_transformer.comparison.report.console import FEW_ROWS, MOST_ROWS
from jax_transformer.comparison.report.console_faults import grouped
from jax_transformer.comparison.report.report import Depth, HeatMap, Report, print_report

FIRST = "encoder.layers.0.self_attention_norm"


def printed(report: Report, width: int = 120, *, verbose: bool = True) -> list[str]:
    text = io.StringIO()
    print_report(report, Console(file=text, width=width, soft_wrap=True, highlight=False), verbose=verbose)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def joined(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


def diverged(**changes: object) -> Report:
    rng = np.random.default_rng(0)
    reference = {f"layers.{i}.output": rng.standard_normal((2, 3)) for i in range(60)}
    candidate = {name: array + 1e-9 * (i > 9) * (i + 1) for i, (name, array) in enumerate(reference.items())}
    return dataclasses.replace(Report("a", "b", (compare_stage("forward", candidate, reference),)), **changes)  # type: ignore[arg-type]


def make_fault(*matches: Match, node: str = "logits", runner_up: Match | None = None, told_apart_by: str = "") -> Fault:
    return Fault("reference", "forward", Finding(node, "logits", 0.5, matches, runner_up, told_apart_by), 0.25)


def test_the_worst_comes_first() -> None:
    lines = printed(make_report())
    assert lines[0] == "diverged: candidate.safetensors against reference.safetensors"
    assert lines[1].startswith(f"first at {FIRST} (forward, no padding): relative RMS ")
    assert "times what is allowed, most at [" in lines[1]
    order = ["diverged: ", "  cause ", "  effect ", "✓ weights:", "forward", "forward float32", "jax 0.11.1", "sha256 "]
    found = [next(i for i, line in enumerate(lines) if line.startswith(start)) for start in order]
    assert found == sorted(found)


def test_by_default_only_the_worst_rows_are_printed() -> None:
    lines = printed(make_report(), verbose=False)
    assert lines[:-1][: lines.index("forward")] == printed(make_report())[: lines.index("forward")], "up to the tables"
    assert not any(line.startswith(("✓  ", "sha256", "jax")) for line in lines)
    passed = sum(row.verdict == "passed" for stage in make_report().stages for row in stage.rows)
    assert lines[-1] == (
        f"{passed} passing rows, versions and checksums: --verbose (in Python, show(verbose=True)), or the report as "
        "JSON or HTML"
    )
    table = printed(diverged(), verbose=False)
    rows = [line for line in table if line.startswith("✗  ")]
    assert len(rows) == FEW_ROWS
    assert rows[0].startswith("✗  layers.10.output"), "though its error is the smallest"
    assert "10 more that pass, 44 more that don't" in table


def test_a_pass_names_the_row_closest_to_its_gate() -> None:
    lines = printed(make_report(False), verbose=False)
    assert lines[0] == "parity: candidate.safetensors against reference.safetensors: 211 arrays within their gates"
    worst = max((row for stage in make_report(False).stages for row in stage.rows), key=lambda row: row.times_allowed)
    assert lines[1].startswith(f"closest at {worst.name} (forward float32, ")
    assert len(lines) == 2 + len(make_report(False).stages) + 2


def test_each_cause_is_printed_once_with_its_certainty() -> None:
    text = joined(printed(make_report()))
    faults = make_report().faults
    norms = [fault for fault in faults if fault.finding.cause == "norm: ε outside the root"]
    assert len(norms) == 10
    assert text.count("cause norm: ε outside the root, at 10 nodes of the candidate") == 1
    assert (
        f"nodes {FIRST}, encoder.layers.0.feed_forward_norm, encoder.layers.1.self_attention_norm and 7 more (forward"
        in text
    )
    assert f"local {norms[0].finding.local_error:.2e}, propagated {norms[0].propagated_error:.2e}, at the first" in text
    assert f"residual {max(fault.finding.matches[0].residual for fault in norms):.2e} at most" in text
    margins = [
        fault.finding.runner_up.residual / fault.finding.matches[0].residual
        for fault in norms
        if fault.finding.runner_up
    ]
    assert f": {min(margins):.1e} times as much" in text
    assert f"cause tanh GELU, at 1 node of the candidate node {ACTIVATION} (forward" in text
    assert f"cause unexplained, at 1 node of the candidate node {UNKNOWN} (forward" in text


def test_commands_stay_in_one_piece() -> None:
    commands = [fault.command for (fault, *_) in grouped(make_report().faults)]
    for width in (80, 120):
        assert [
            line.removeprefix("  replay      ") for line in printed(make_report(), width) if line.startswith("  replay")
        ] == commands


@pytest.mark.parametrize("width", [80, 120])
def test_printed_lines_fit(width: int) -> None:
    lines = printed(make_report(), width)
    long = [
        line
        for line in lines
        if len(line) > width and not line.startswith(("first at", "  replay", "    ", "sha256", "jax"))
    ]
    assert long == []
    first = next(line for line in lines[lines.index("forward") :] if line.startswith(f"✗  {FIRST} "))
    assert ("[2, 0, 23]" in first) == (width == 120), "the place has room in a wide one alone"
    assert ("110 columns have room for the largest error and its place, too." in lines) == (width == 80)


def test_the_effect_and_the_environment_are_printed() -> None:
    report = make_report()
    text = joined(printed(report))
    assert report.effect is not None
    assert f"logits off by {report.effect.relative_rms:.2e} (relative RMS)" in text
    assert (
        f"the top-1 token changes at {report.effect.changed} of {report.effect.places} positions (padding inside)"
        in text
    )
    assert "tf32 off" in text
    assert all(f"sha256 {digest} {path}" in text for path, digest in report.sha256.items())


def test_indistinguishable_causes_name_a_distinguishing_test() -> None:
    fault = make_fault(
        Match("one", 0.0), Match("two", 0.0), runner_up=Match("three", 0.1), told_apart_by="a longer sentence"
    )
    text = joined(printed(diverged(faults=(fault,))))
    assert "cause one or two, at 1 node of the reference node logits (forward)" in text
    assert "residual 0.00e+00 runner-up three leaves 1.00e-01: more than nothing" in text
    assert "told apart by a longer sentence" in text
    alone = joined(printed(diverged(faults=(make_fault(Match("one", 1e-16)),))))
    assert "residual 1.00e-16; no other variant can be distinguished from it" in alone
    assert "nearest three leaves 1.00e-01, which is too much" in joined(
        printed(diverged(faults=(make_fault(runner_up=Match("three", 0.1)),)))
    )


def test_sides_and_causes_are_grouped_in_execution_order() -> None:
    one, two = Match("one", 0.0), Match("two", 0.0)
    faults = [make_fault(one, node="a"), make_fault(two, node="b"), make_fault(one, node="c")]
    faults.append(faults[0]._replace(side="candidate"))
    assert [[fault.finding.node for fault in group] for group in grouped(faults)] == [["a", "c"], ["b"], ["a"]]


def test_doubts_come_before_what_diverged() -> None:
    lines = printed(diverged(doubts=("the candidate differs from itself", "TF32 was on")))
    assert lines[0] == "inconclusive: a against b"
    assert lines[1].startswith("first at layers.10.output (forward): ")
    assert lines[2:4] == ["  doubt       the candidate differs from itself", "  doubt       TF32 was on"]


def test_errors_by_depth_are_printed_without_faults() -> None:
    depth = (Depth("layers.10.output", propagated=1e-8, local_candidate=2e-8),)
    assert "  error       propagated 1.00e-08, local of the candidate 2.00e-08" in printed(diverged(depth=depth))
    assert not any(line.startswith("  error") for line in printed(diverged()))


def test_a_table_keeps_the_first_divergence_and_says_what_it_leaves_out() -> None:
    lines = printed(diverged())
    table = lines[lines.index("forward") :]
    rows = [line for line in table if line.startswith(("✗  ", "✓  "))]
    assert len(rows) == MOST_ROWS
    assert rows[0].startswith("✗  layers.10.output"), "though its error is the smallest"
    assert "10 more that pass, 10 more that don't" in table
    clean = printed(make_report(False))
    assert clean[0] == "parity: candidate.safetensors against reference.safetensors: 211 arrays within their gates"
    assert "71 more that pass" in clean, "of a stage that passed, eight are enough"
    assert "weights" not in clean, "where all is equal there is nothing to list"


def test_stages_are_columns_with_reasons_below() -> None:
    lines = printed(make_report())
    funnel = [line for line in lines if line.startswith(("✓ ", "✗ ", "? ")) and " arrays pass" in line]
    assert len({line.index(" arrays pass") for line in funnel}) == 1
    assert lines[lines.index("? forward bfloat16: not compared") + 1] == "    the candidate has no bfloat16"
    below = lines[lines.index(funnel[-1]) + 1 :][:5]
    assert all("times as far from the float64 truth" in line for line in below[:4])
    assert below[4].startswith("    and ")
    assert below[4].endswith(" more reasons")


def test_nothing_in_a_name_is_markup() -> None:
    text = joined(printed(diverged(candidate="[bold]x[/bold]", doubts=("[red]y",), environment={"[z]": "[/]"})))
    assert all(part in text for part in ("[bold]x[/bold] against b", "[red]y", "[z] [/]"))


def test_values_that_are_not_finite_are_json() -> None:
    heat_map = HeatMap("a", "", "position", "feature", ("0",), ((float("nan"), float("inf"), 0.5),))
    content = json.loads(Report("a", "b", (Stage("forward"),), heat_map=heat_map).to_json())
    assert content["heat_map"]["values"] == [[None, None, 0.5]]
