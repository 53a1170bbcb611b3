"""A parity run over two sides in NumPy: what passes, what is inconclusive and why, and who is blamed for what."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fake_sides import CONFIG, GENERATION, FakeSide, blamed, own_params, reasons, run_pair

from jax_transformer.parity.faults import Replay
from jax_transformer.parity.gates.arrays import ParityError
from jax_transformer.parity.oracle.losses import LossRule
from jax_transformer.parity.problems import Problem
from jax_transformer.parity.run import run
from jax_transformer.parity.run_results import STAGES, Pair
from jax_transformer.parity.stages import precision
from jax_transformer.parity.stages.training import update_rule
from jax_transformer.runtime.trees import map_leaves

LAYER = "encoder.layers.0."
NORM, HIDDEN, QUERY = (
    f"{LAYER}self_attention_norm",
    "decoder.layers.1.feed_forward.hidden",
    "decoder.layers.0.cross_attention.query",
)
Trace = dict[str, np.ndarray]


def other_eps(replay: Replay) -> np.ndarray:
    return replay.under(norm_eps=1e-6)


def other_activation(replay: Replay) -> np.ndarray:
    return replay.under(activation="relu")


def one_percent(replay: Replay) -> np.ndarray:
    """Of no catalogue."""
    value = replay.compute()
    value[..., -1] *= 1.01
    return value


FAULTS = {NORM: other_eps, HIDDEN: other_activation}
NAMES = {NORM: "norm: ε = 1e-06", HIDDEN: "ReLU"}


def showing(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Trace], Trace]:
    """A trace in which one array is shown otherwise than it was computed."""
    return lambda trace: {**trace, name: change(trace[name])}


def hiding(*names: str) -> Callable[[Trace], Trace]:
    return lambda trace: {name: array for name, array in trace.items() if name not in names}


# --- passes


def test_equal_sides_pass_every_stage() -> None:
    report = run_pair(FakeSide("a"), FakeSide("b"), stages=STAGES, dtypes=("float64", "float32", "bfloat16"))
    assert (report.exit_code, reasons(report), report.faults) == (0, [], ())
    assert [stage.name for stage in report.stages] == [
        "weights",
        "inputs",
        "masks",
        "forward",
        "truth",
        "forward float32",
        "forward bfloat16",
        "loss",
        "gradients",
        "step",
        "trajectory",
        "decode",
    ]
    assert all(stage.rows for stage in report.stages)
    cases = {row.case for stage in report.stages for row in stage.rows}
    assert "own weights" in cases
    depth = {one.name: one for one in report.depth}["logits"]
    assert depth.propagated == 0
    assert max(depth.local_candidate, depth.local_reference) < 1e-13
    assert 0 < depth.float32_candidate < 1e-6


def test_all_problems_are_run() -> None:
    side = FakeSide("a")
    run_pair(side, FakeSide("b"), stages=("forward",))
    assert side.runs == ["forward"] * 6, "five problems, and the first once more"


# --- what is inconclusive


def test_names_on_one_side_alone() -> None:
    for candidate, reference, told in (
        (FakeSide(after=hiding("logits")), FakeSide(), "only the reference has logits"),
        (FakeSide(), FakeSide(after=hiding(QUERY)), f"only the candidate has {QUERY}"),
        (FakeSide(after=hiding("mask.cross")), FakeSide(), "only the reference has mask.cross"),
        (FakeSide(held=hiding("head/kernel")), FakeSide(), "only the reference has head/kernel"),
        (FakeSide(), FakeSide(held=hiding("head/kernel")), "only the candidate has head/kernel"),
    ):
        report = run_pair(candidate, reference)
        assert report.exit_code == 3
        assert told in reasons(report)


def test_nothing_to_compare() -> None:
    nothing = FakeSide(after=lambda trace: {})
    assert run_pair(nothing, nothing).exit_code == 3
    assert "nothing was compared: no name is on both sides" in reasons(run_pair(nothing, nothing))
    blind = FakeSide(after=hiding("logits"))
    report = run_pair(blind, blind)
    assert (report.exit_code, reasons(report)) == (3, ["neither side shows its logits"])
    report = run_pair(FakeSide(), FakeSide(), stages=("inputs",))
    assert report.exit_code == 3
    assert reasons(report)[0].startswith("nothing was computed")
    report = run_pair(
        FakeSide(after=hiding("mask.cross", "mask.decoder_self", "mask.encoder_self")),
        FakeSide(),
        visible=frozenset({"logits"}),
        stages=("masks",),
    )
    assert report.exit_code == 3


@pytest.mark.parametrize("stage", ["masks", "loss", "gradients", "step", "trajectory"])
def test_a_stage_that_is_asked_for_and_not_run_is_no_pass(stage: str) -> None:
    report = run_pair(FakeSide(), FakeSide(), stages=("weights", stage), dtypes=("float32", "bfloat16"))
    assert report.exit_code == 3
    assert reasons(report) == ["compared in float64 alone, which isn't among float32, bfloat16"]


def test_float32_alone_is_judged_by_its_own_gate() -> None:
    assert run_pair(FakeSide(), FakeSide(), stages=("forward",), dtypes=("float32",)).exit_code == 0
    farther = FakeSide(after=lambda trace: {**trace, "logits": trace["logits"] * trace["logits"].dtype.type(1 + 1e-5)})
    report = run_pair(farther, FakeSide(), stages=("forward",), dtypes=("float32",))
    assert report.exit_code == 4
    assert "as far from the float64 truth" in report.stages[0].rows[-1].reason


def test_no_criterion() -> None:
    """Nothing else than float64 has one, where float64 was asked for."""
    for dtype, told in (
        (np.float32, "float32 has no criterion without a float64 truth"),
        (np.float16, "there is no criterion for float16"),
    ):
        narrow = FakeSide(after=showing(QUERY, lambda array, dtype=dtype: array.astype(dtype)))
        report = run_pair(narrow, narrow)
        assert any(told in reason for reason in reasons(report))
        assert report.exit_code != 0


@pytest.mark.parametrize(
    ("force", "told"),
    [
        ({"dtype": "float32"}, "the {} computes in float32 instead of float64"),
        ({"TF32": True}, "the {} multiplies in TF32: matrix products are rounded to 10 bits"),
    ],
)
@pytest.mark.parametrize("name", ["candidate", "reference"])
def test_a_precision_that_was_not_in_force(name: str, force: dict[str, Any], told: str) -> None:
    sides = {"candidate": FakeSide(), "reference": FakeSide()} | {name: FakeSide(force=force)}
    report = run_pair(**sides)
    assert report.exit_code == 3
    assert told.format(name) in report.doubts
    assert {stage.verdict for stage in report.stages} == {"passed"}, "or the doubt isn't what decides"


@pytest.mark.parametrize("name", ["candidate", "reference"])
def test_a_side_that_differs_from_itself(name: str) -> None:
    rng = np.random.default_rng(0)
    random = FakeSide(
        after=showing(QUERY, lambda array: array * (1 + 1e-16 * (rng.random(array.shape) > 2) + 1e-14 * rng.random()))
    )
    report = run_pair(**{"candidate": FakeSide(), "reference": FakeSide()} | {name: random})
    assert report.exit_code == 3
    assert report.doubts == (
        f"the {name} differs from itself when it is run again, first at {QUERY}: does it draw random numbers?",
    )


def test_nan_on_both_sides() -> None:
    """A parameter that is NaN: all agree, and nothing follows."""
    params = map_leaves(np.array, own_params())
    params["head"]["kernel"][0, 0] = np.nan
    pair = Pair(CONFIG, params, FakeSide("a"), FakeSide("b"), GENERATION, None)
    report = run(pair, stages=("masks", "forward", "loss"), dtypes=("float64",))
    assert report.exit_code == 3
    assert any("values that are not finite" in reason for reason in reasons(report))


@pytest.mark.parametrize("side", ["candidate", "reference"])
def test_nan_on_one_side_diverges(side: str) -> None:
    broken = FakeSide(faults={NORM: lambda replay: replay.compute() * np.nan})
    report = run_pair(**{"candidate": FakeSide(), "reference": FakeSide()} | {side: broken})
    assert report.exit_code == 4
    assert list(blamed(report, side)) == [NORM]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "stage"),
    [
        ("forward", "forward"),
        ("gradients", "loss"),
        ("gradients", "gradients"),
        ("train", "step"),
        ("train", "trajectory"),
        ("decode", "decode"),
    ],
)
def test_a_stage_that_cannot_run(what: str, stage: str) -> None:
    report = run_pair(FakeSide("a"), FakeSide("b", cannot=(what,)), stages=("weights", stage))
    assert (report.exit_code, report.stages[0].verdict) == (3, "passed")
    assert reasons(report) == [f"b has no {what}"]


def test_a_side_without_beams_is_compared_by_greedy_decoding() -> None:
    report = run_pair(FakeSide(), FakeSide(cannot=("beams",)), stages=("decode",))
    assert report.exit_code == 0
    assert [row.name for row in report.stages[0].rows] == ["greedy"]


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
    assert blamed(report) == {"head/kernel": "unexplained"}


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
    "gradients": (
        {"slope": 0.02},
        "gradients",
        1,
        {"decoder/layers/cross_attention/key/kernel[0]": "all gradients are 2 times as large"},
    ),
    "step": (
        {"update": dataclasses.replace(update_rule(CONFIG), bias_correction=False)},
        "step",
        1,
        {"step": "no bias correction"},
    ),
    "trajectory": (
        {"update": dataclasses.replace(update_rule(CONFIG), bias_correction=False)},
        "trajectory",
        1,
        {"step": "no bias correction"},
    ),
}


@pytest.mark.parametrize("name", LATER)
def test_causes_of_what_comes_after_the_logits(name: str) -> None:
    fields, stage, code, causes = LATER[name]
    report = run_pair(FakeSide(**fields), FakeSide(), stages=("forward", stage))
    assert (report.exit_code, blamed(report)) == (code, causes)
    if stage != "gradients":  # of which it can't be told whose are right
        report = run_pair(FakeSide(), FakeSide(**fields), stages=("forward", stage))
        assert (report.exit_code, blamed(report), blamed(report, "reference")) == (code, {}, causes)


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


def test_stages_come_in_their_own_order() -> None:
    report = run_pair(FakeSide(), FakeSide(), stages=("loss", "weights"))
    assert [stage.name for stage in report.stages] == ["weights", "loss"]


def test_every_parameter_is_rounded_but_constants() -> None:
    """The bias of a tied head is a leaf at the top."""
    third = np.full(2, 1 / 3, np.float32)
    ids = np.zeros((1, 1), int)
    problem = Problem(
        "any", {"head_bias": third, "head": {"kernel": third}, "constants": {"table": third}}, ids, ids, ids
    )
    params = precision.rounded(problem, "bfloat16").params
    assert params["head_bias"][0] == params["head"]["kernel"][0] == np.float32(ml_dtypes.bfloat16(1 / 3))
    assert params["constants"]["table"][0] == third[0]
