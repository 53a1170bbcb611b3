"""A parity run over two sides in NumPy: what passes, and what is inconclusive and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fake_sides import CONFIG, GENERATION, NORM, QUERY, FakeSide, blamed, hiding, own_params, reasons, run_pair, showing

from jax_transformer.parity.backends.side import Gradients, NotFinite, Training
from jax_transformer.parity.problems import Problem
from jax_transformer.parity.run import run
from jax_transformer.parity.run_results import STAGES, Pair
from jax_transformer.parity.stages import precision
from jax_transformer.runtime.trees import map_leaves

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


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (3, ""),
        (
            11,
            "what is compared on sentences of 11 tokens doesn't show the encoder's window of 11; forward does",
        ),
        (15, "no sentence here is longer than the encoder's window of 15: nothing shows how wide it is"),
    ],
)
def test_a_window_that_hides_nothing_is_remarked(window: int, message: str) -> None:
    """Sources have 11 tokens, and the longest 15."""
    encoder = replace(CONFIG.encoder, self_attention=replace(CONFIG.encoder.self_attention, window=window))
    config = replace(CONFIG, encoder=encoder)
    pair = Pair(config, own_params(), FakeSide(config=config), FakeSide(config=config), GENERATION)
    report = run(pair, stages=("masks", "forward"), dtypes=("float64",))
    assert (report.exit_code, "; ".join(report.remarks)) == (0, message), str(report)


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


# --- what is inconclusive


def test_names_on_one_side_alone() -> None:
    for candidate, reference, message in (
        (FakeSide(after=hiding("logits")), FakeSide(), "only the reference has logits"),
        (FakeSide(), FakeSide(after=hiding(QUERY)), f"only the candidate has {QUERY}"),
        (FakeSide(after=hiding("mask.cross")), FakeSide(), "only the reference has mask.cross"),
        (FakeSide(held=hiding("head/kernel")), FakeSide(), "only the reference has head/kernel"),
        (FakeSide(), FakeSide(held=hiding("head/kernel")), "only the candidate has head/kernel"),
    ):
        report = run_pair(candidate, reference)
        assert report.exit_code == 3
        assert message in reasons(report)


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
    for dtype, message in (
        (np.float32, "float32 has no criterion without a float64 truth"),
        (np.float16, "there is no criterion for float16"),
    ):
        narrow = FakeSide(after=showing(QUERY, lambda array, dtype=dtype: array.astype(dtype)))
        report = run_pair(narrow, narrow)
        assert any(message in reason for reason in reasons(report))
        assert report.exit_code != 0


@pytest.mark.parametrize(
    ("force", "message"),
    [
        ({"dtype": "float32"}, "the {} computes in float32 instead of float64"),
        ({"TF32": True}, "the {} multiplies in TF32: matrix products are rounded to 10 bits"),
    ],
)
@pytest.mark.parametrize("name", ["candidate", "reference"])
def test_a_precision_that_was_not_in_force(name: str, force: dict[str, Any], message: str) -> None:
    sides = {"candidate": FakeSide(), "reference": FakeSide()} | {name: FakeSide(force=force)}
    report = run_pair(**sides)
    assert report.exit_code == 3
    assert message.format(name) in report.doubts
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


def test_a_candidate_that_is_not_finite_diverges() -> None:
    report = run_pair(FakeSide(faults={NORM: lambda replay: replay.compute() * np.nan}), FakeSide())
    assert report.exit_code == 4
    assert list(blamed(report)) == [NORM]


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


class SeesEmptySentences(FakeSide):
    """Gives NaN in row 5, a source of nothing but padding."""

    def gradients(self, problem: Problem) -> Gradients:
        self._check(problem)
        return super().gradients(problem)

    def train(self, problem: Problem, steps: int, *, keep_all: bool) -> Training:
        self._check(problem)
        return super().train(problem, steps, keep_all=keep_all)

    def _check(self, problem: Problem) -> None:
        empty = np.flatnonzero((problem.source_ids == CONFIG.source_pad_id).all(axis=1))
        if len(empty):
            raise NotFinite("b has NaN", empty.tolist())


def test_rows_whose_logits_are_not_finite_are_left_out_of_training() -> None:
    report = run_pair(FakeSide("a"), SeesEmptySentences("b"), stages=("loss", "gradients", "step"))
    assert report.verdict == "passed", reasons(report)
    assert report.environment["left out of training"] == "rows [5] of 7: b has NaN"


def test_a_doubt_of_a_side_makes_the_run_inconclusive() -> None:
    report = run_pair(FakeSide("a"), FakeSide("b", doubts=("it computes something else when it is watched",)))
    assert report.verdict == "inconclusive"
    assert report.doubts == ("it computes something else when it is watched",)
    assert report.exit_code == 3
