"""A parity run over two sides in NumPy that diverge: who is blamed for what, stage by stage and node by node."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_sides import CONFIG, HIDDEN, LAYER, NORM, QUERY, FakeSide, blamed, hiding, reasons, run_pair, showing

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.parity.faults import Replay
from jax_transformer.parity.oracle.losses import LossRule
from jax_transformer.parity.stages.training import update_rule

pytestmark = pytest.mark.usefixtures("quick_compilation")


def other_eps(replay: Replay) -> np.ndarray:
    return replay.under(eps=1e-6)


def other_activation(replay: Replay) -> np.ndarray:
    return replay.under(activation="relu")


def one_percent(replay: Replay) -> np.ndarray:
    """Of no catalogue."""
    value = replay.compute()
    value[..., -1] *= 1.01
    return value


FAULTS = {NORM: other_eps, HIDDEN: other_activation}
NAMES = {NORM: "norm: ε = 1e-06", HIDDEN: "ReLU"}

# --- divergences


def test_faults_are_named_and_all_are_listed() -> None:
    report = run_pair(FakeSide(faults=FAULTS), FakeSide()).with_replays("jax-transformer parity model.pt")
    assert report.exit_code == 1
    assert blamed(report) == NAMES
    assert blamed(report, "reference") == {}
    first = report.faults[0]
    assert (first.stage, first.case, first.command) == (
        "forward",
        "own weights",
        f"jax-transformer parity model.pt --node {NORM}",
    )
    assert min(first.propagated_error, first.finding.local_error) > 1e-9
    assert report.effect is not None
    assert report.effect.relative_rms > 1e-9
    assert report.heat_map is not None
    assert report.heat_map.name == NORM
    assert [fault.finding.node for fault in report.faults] == [NORM, HIDDEN], "in execution order, each once"


def test_a_fault_of_the_reference_is_the_references() -> None:
    report = run_pair(FakeSide(), FakeSide(faults=FAULTS))
    assert report.exit_code == 1
    assert (blamed(report), blamed(report, "reference")) == ({}, NAMES)
    of_truth = {row.name: row.reason for row in report.stages[-1].rows if row.verdict == "diverged"}
    assert of_truth == dict.fromkeys(FAULTS, "the reference computes something else")


def test_a_fault_of_each() -> None:
    report = run_pair(FakeSide(faults={NORM: other_eps}), FakeSide(faults={HIDDEN: other_activation}))
    assert report.exit_code == 1
    assert (blamed(report), blamed(report, "reference")) == ({NORM: NAMES[NORM]}, {HIDDEN: NAMES[HIDDEN]})


def test_a_mistake_that_both_make_is_seen_by_the_truth() -> None:
    report = run_pair(FakeSide(faults={NORM: other_eps}), FakeSide(faults={NORM: other_eps}))
    verdicts = {stage.name: stage.verdict for stage in report.stages}
    assert (verdicts["masks"], verdicts["forward"], verdicts["truth"]) == ("passed", "passed", "diverged")
    assert report.exit_code == 1
    assert blamed(report) == blamed(report, "reference") == {NORM: NAMES[NORM]}


def test_unexplained() -> None:
    report = run_pair(FakeSide(faults={NORM: one_percent}), FakeSide())
    assert report.exit_code == 4
    assert blamed(report) == {NORM: "unexplained"}
    report = run_pair(FakeSide(faults={NORM: one_percent, HIDDEN: other_activation}), FakeSide())
    assert report.exit_code == 4, "one of two has no name"
    assert blamed(report) == {NORM: "unexplained", HIDDEN: NAMES[HIDDEN]}


def test_weights_that_differ() -> None:
    report = run_pair(FakeSide(held=showing("head/kernel", lambda array: array * np.float32(1 + 1e-6))), FakeSide())
    assert report.exit_code == 4
    assert blamed(report, "unknown") == {"head/kernel": "unexplained"}, "either may be wrong"
    assert "unexplained, at 1 node: nothing shows which side is wrong" in str(report)


def test_a_batch_that_a_side_changes() -> None:
    class Spoiling(FakeSide):
        def forward(self, problem: Any, dtype: Any) -> Any:
            found = super().forward(problem, dtype)
            problem.source_ids[0, 0] = (problem.source_ids[0, 0] + 1) % 19
            return found

    report = run_pair(Spoiling(), FakeSide())
    assert {stage.name: stage.verdict for stage in report.stages}["inputs"] == "diverged"
    assert report.exit_code != 0


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (QUERY, lambda array: array.swapaxes(1, 2)),
        (QUERY, lambda array: array[:, :-1]),
        ("logits", lambda array: array[..., :-1]),
        ("mask.cross", lambda array: array[..., :-1]),
        ("mask.cross", lambda array: array.astype(float)),
        (f"{LAYER}self_attention.logits", lambda array: array[..., 0]),
    ],
)
def test_shapes_and_dtypes_that_differ(name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Are told of that array alone: what follows is judged by what should have been there."""
    for side in ("candidate", "reference"):
        report = run_pair(
            **{"candidate": FakeSide(), "reference": FakeSide()} | {side: FakeSide(after=showing(name, change))}
        )
        assert report.exit_code == 4
        assert blamed(report, side) == {name: "unexplained"}  # type: ignore[arg-type]
        (row,) = (row for stage in report.stages for row in stage.rows if row.name == name and stage.name != "truth")
        assert row.reason.startswith(("shapes", "dtypes"))


# --- later stages


LATER: dict[str, tuple[dict[str, Any], str, int, dict[str, str]]] = {
    "loss": ({"loss_rule": LossRule(CONFIG.target_pad_id, 0.0)}, "loss", 1, {"loss": "smoothing missing"}),
    "unknown loss": ({"loss_rule": LossRule(CONFIG.target_pad_id, 0.0917)}, "loss", 4, {"loss": "unexplained"}),
    "step": ({"bias_correction": False}, "step", 1, {"step": "no bias correction"}),
    "trajectory": ({"bias_correction": False}, "trajectory", 1, {"step": "no bias correction"}),
}


@pytest.mark.parametrize("name", LATER)
def test_causes_of_what_comes_after_the_logits(name: str) -> None:
    fields, stage, code, causes = LATER[name]
    if stage in {"step", "trajectory"}:
        fields = {"update": dataclasses.replace(update_rule(CONFIG), **fields)}
    report = run_pair(FakeSide(**fields), FakeSide(), stages=("forward", stage))
    assert (report.exit_code, blamed(report)) == (code, causes)
    report = run_pair(FakeSide(), FakeSide(**fields), stages=("forward", stage))
    assert (report.exit_code, blamed(report), blamed(report, "reference")) == (code, {}, causes)


def test_gradients_of_both_sides_that_do_not_fit_the_loss() -> None:
    report = run_pair(FakeSide(slope=0.02), FakeSide(), stages=("forward", "gradients"))
    assert report.exit_code == 4
    assert blamed(report) == blamed(report, "reference") == dict.fromkeys(blamed(report), "unexplained")
    assert len(report.faults) == 2


def test_tokens_that_differ() -> None:
    other = FakeSide(decoded=lambda tokens: np.where(np.arange(tokens.shape[1]) == 2, (tokens + 5) % 19, tokens))
    report = run_pair(other, FakeSide(), stages=("decode",))
    assert report.exit_code == 4
    assert blamed(report) == {"decode": "unexplained"}


def test_the_first_stage_that_diverges_is_explained_and_the_rest_is_reported() -> None:
    wrong = FakeSide(faults={NORM: other_eps}, slope=0.02, loss_rule=LossRule(CONFIG.target_pad_id, 0.0))
    report = run_pair(wrong, FakeSide(), stages=("forward", "loss", "gradients"))
    assert {stage.name: stage.verdict for stage in report.stages} == dict.fromkeys(
        ["forward", "truth", "loss", "gradients"], "diverged"
    )
    assert blamed(report) == {NORM: NAMES[NORM]}


# --- one node


def test_a_node_alone() -> None:
    report = run_pair(FakeSide(faults=FAULTS), FakeSide(), node=HIDDEN)
    assert report.exit_code == 1
    assert blamed(report) == {HIDDEN: NAMES[HIDDEN]}
    assert {row.name for stage in report.stages for row in stage.rows} == {HIDDEN}
    assert (
        run_pair(FakeSide(faults={NORM: other_eps}), FakeSide(), node="decoder.layers.0.cross_attention.key").exit_code
        == 4
    ), "it has the fault's consequences"
    assert run_pair(FakeSide(), FakeSide(after=hiding("logits")), node=QUERY).exit_code == 0, "whatever else is missing"


def test_a_node_that_is_nowhere() -> None:
    with pytest.raises(
        ParityError, match=r"expected an activation of this model, such as logits; received 'encoder.layers.7.output'"
    ):
        run_pair(FakeSide(), FakeSide(), node="encoder.layers.7.output")
    hidden = FakeSide(after=hiding(QUERY))
    report = run_pair(FakeSide(), hidden, node=QUERY)
    assert (report.exit_code, f"only the candidate has {QUERY}" in reasons(report)) == (3, True)
    report = run_pair(FakeSide(), hidden, node=QUERY, visible=frozenset({"logits"}))
    assert (report.exit_code, reasons(report)) == (3, [f"{QUERY} can't be seen in the reference"])


# --- a reference that isn't finite


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_reference_that_is_not_finite_is_inconclusive(number: float) -> None:
    def not_finite(replay: Replay) -> np.ndarray:
        value = replay.compute()
        value[0, 0, 0] = number
        return value

    report = run_pair(FakeSide(), FakeSide(faults={HIDDEN: not_finite}), stages=("masks", "forward", "decode"))
    assert report.exit_code == 3
    assert f"the reference isn't finite: {HIDDEN} has NaN or infinity (first on own weights)" in report.doubts
    assert not any(fault.finding.node == HIDDEN for fault in report.faults)
    report = run_pair(FakeSide(), FakeSide(faults={HIDDEN: not_finite, NORM: other_eps}))
    assert (report.exit_code, blamed(report, "reference")) == (3, {NORM: NAMES[NORM]}), "what is finite is judged"
    report = run_pair(FakeSide(faults={HIDDEN: not_finite}), FakeSide())
    assert (report.exit_code, blamed(report)) == (4, {HIDDEN: "unexplained"})


def test_logits_that_are_infinite_in_the_reference_do_not_stop_the_run() -> None:
    def infinite(replay: Replay) -> np.ndarray:
        value = replay.compute()
        value[0, 0, 0] = np.inf
        return value

    report = run_pair(FakeSide(), FakeSide(faults={"logits": infinite}), stages=("forward", "decode"))
    assert report.exit_code == 3
