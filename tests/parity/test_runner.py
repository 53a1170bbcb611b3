"""The runner of stages, over sides that are arrays: what it reports, and of what it makes a run inconclusive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from jax_transformer.comparison.findings import Fault, Finding, Match
from jax_transformer.comparison.gates.stages import Stage, compare_stage
from jax_transformer.comparison.report.report import Report
from jax_transformer.comparison.run import Order, Results, Work, run
from jax_transformer.comparison.sides import CannotRun

ORDER = Order(("inputs", "first", "first float32", "second"), explained_together=(("first", "second"),))
ONES = {"x": np.ones(3)}


def off(by: float, stage: str = "first") -> Stage:
    return compare_stage(stage, {"x": np.ones(3) + by}, ONES)


def ran(
    *works: tuple[str, str, Callable[[], Stage | None]], results: Results | None = None, node: str | None = None
) -> Report:
    made = (Work("", stage, problem, compare) for stage, problem, compare in works)
    requested = ("inputs", "first", "second")
    return run(
        ("ours", "theirs"),
        made,
        results or Results(),
        ORDER,
        requested,
        inputs=lambda: {"ids": np.arange(3)},
        node=node,
    )


def test_stages_are_listed_in_order_and_the_worst_problem_counts() -> None:
    report = ran(
        ("second", "a", partial(off, 0.0, "second")),
        ("first", "a", partial(off, 0.0)),
        ("first", "b", partial(off, 1.0)),
        ("third", "a", partial(off, 1.0, "third")),
    )
    assert [stage.name for stage in report.stages] == ["inputs", "first", "second"]
    assert (report.candidate, report.reference, report.verdict) == ("ours", "theirs", "diverged")
    (fault,) = report.faults
    assert (fault.side, fault.stage, fault.finding.node, fault.case) == ("unknown", "first", "x", "b")


def test_a_side_that_cannot_run_a_stage_makes_it_inconclusive_and_the_others_run() -> None:
    def fails() -> Stage:
        raise CannotRun("it can't")

    report = ran(("first", "", fails), ("second", "", partial(off, 0.0, "second")))
    assert [(stage.name, stage.not_run) for stage in report.stages] == [
        ("inputs", ""),
        ("first", "it can't"),
        ("second", ""),
    ]
    assert report.verdict == "inconclusive"


def test_faults_of_stages_that_are_explained_together() -> None:
    results = Results()

    def finds(stage: str) -> Stage:
        finding = Finding("x", stage, 1.0, (Match("doubled", 0.0),), None)
        results.faults.append(Fault("candidate", stage, finding, 1.0))
        return off(1.0, stage)

    report = ran(("first", "", partial(off, 1.0)), ("second", "", partial(finds, "second")), results=results)
    assert [(fault.stage, fault.finding.cause) for fault in report.faults] == [("second", "doubled")]
    report = ran(("first", "", partial(off, 1.0)), ("third", "", partial(finds, "third")))
    assert [(fault.side, fault.stage) for fault in report.faults] == [("unknown", "first")]


def test_work_that_changes_the_inputs_diverges() -> None:
    ids = np.arange(3)

    def changes() -> None:
        ids[0] = 7

    works = [Work("", "first", "", changes)]
    report = run(("a", "b"), works, Results(), ORDER, ("inputs",), inputs=lambda: {"ids": ids.copy()})
    assert [(stage.name, stage.verdict) for stage in report.stages] == [("inputs", "diverged")]


def test_work_is_asked_for_when_the_last_is_done() -> None:
    """So that later work may rest on what earlier stages found."""
    results, seen = Results(), list[bool]()

    def works() -> Iterator[Work]:
        yield Work("the first", "first", "", partial(off, 1.0))
        seen.append(results.have_diverged)
        yield Work("", "second", "", partial(off, 0.0, "second"))

    lines = list[str]()
    results.progress = lines.append
    run(("a", "b"), works(), results, ORDER, ("second",), inputs=lambda: ONES)
    assert (seen, lines) == ([True], ["the first"])


def test_depth_without_the_other_stages_and_a_single_node() -> None:
    results = Results()
    works = [Work("", "forward", "", partial(off, 1e-3, "forward"))]
    report = run(("a", "b"), works, results, Order(("forward",)), ("forward",), inputs=lambda: ONES)
    assert [one.name for one in report.depth] == ["x"]
    assert [row.name for stage in ran(("first", "", partial(off, 1.0)), node="x").stages for row in stage.rows] == ["x"]
    report = ran(("first", "", partial(off, 0.0)), node="y")
    assert [stage.not_run for stage in report.stages] == ["y can't be seen in the reference"]
