"""Arrays that amplify rounding pass by what rounding does to them; faults in them, and programs that compute badly,
don't."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np
import pytest

from jax_transformer.comparison.gates.rounding import (
    AMPLIFIES,
    TOO_MUCH,
    allow_for_rounding,
    excuse_rounding,
    loss_factor,
    nudged,
)
from jax_transformer.comparison.gates.stages import Stage, compare_stage
from jax_transformer.comparison.gates.tolerances import FACTOR_RMS, FLOOR_ROUNDOFFS, UNIT_ROUNDOFF

Weights = dict[str, np.ndarray]
Program = Callable[[Weights], np.ndarray]


def make(distance: float = 1e-5, mean: float = 0.0) -> Weights:
    """Attention from 40 queries to 16 keys that are so far apart; and numbers of this mean."""
    rng = np.random.default_rng(3)
    names = ("logits", "to_weights", "values")
    return {
        "keys": rng.standard_normal((1, 16)) * distance + rng.standard_normal((8, 1)),
        **{name: rng.standard_normal((40, 16)) + (mean if name == "values" else 0.0) for name in names},
    }


def to_queries(weights: Weights) -> np.ndarray:
    """Of gradients to attention's weights, those to its queries: what is left where the keys are nearly the same."""
    p, d = softmax(weights["logits"]), weights["to_weights"]
    return (p * (d - (p * d).sum(axis=1, keepdims=True))) @ weights["keys"].T


def to_queries_otherwise(weights: Weights) -> np.ndarray:
    p, d = softmax(weights["logits"]), weights["to_weights"]
    products = p * d
    return np.einsum("qk,dk->qd", products - p * products[:, ::-1].cumsum(axis=1)[:, -1:], weights["keys"])


def softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits)
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def variance(weights: Weights) -> np.ndarray:
    """As it should be computed."""
    return weights["values"].var(axis=1)


def fast_variance(weights: Weights) -> np.ndarray:
    """The same, from large numbers that all but cancel."""
    return np.square(weights["values"]).mean(axis=1) - np.square(weights["values"].mean(axis=1))


def judged(candidate: Program, reference: Program, weights: Weights) -> Stage:
    def from_itself(program: Program) -> Stage:
        return compare_stage("gradients", {"a": program(nudged(weights))}, {"a": program(weights)})

    stage = compare_stage("gradients", {"a": candidate(weights)}, {"a": reference(weights)})
    assert stage.verdict == "diverged", "else nothing is tested"
    return allow_for_rounding(stage, [lambda: from_itself(candidate), lambda: from_itself(reference)])


def test_rounding_amplified_on_both_sides_passes() -> None:
    (row,) = judged(to_queries_otherwise, to_queries, make()).rows
    assert (row.verdict, row.reason) == ("passed", AMPLIFIES)
    assert 1e-12 < row.allowed < 1e-9
    assert row.gate == f"relative RMS ≤ {row.allowed:.1e}"
    assert 0 < row.times_allowed <= 1


def test_a_fault_there_is_seen() -> None:
    stage = judged(lambda weights: to_queries(weights) * (1 + 1e-8), to_queries, make())
    assert stage.verdict == "diverged"
    assert "1e-12" in stage.rows[0].gate


@pytest.mark.parametrize("candidate_is_bad", [True, False])
def test_a_program_that_computes_badly_is_seen(candidate_is_bad: bool) -> None:
    programs = (fast_variance, variance) if candidate_is_bad else (variance, fast_variance)
    assert judged(*programs, make(mean=1e3)).verdict == "diverged"


def test_excessive_rounding_is_inconclusive() -> None:
    (row,) = judged(to_queries_otherwise, to_queries, make(1e-10)).rows
    assert (row.verdict, row.reason) == ("inconclusive", TOO_MUCH)


A = make()["values"]


def test_other_rows_stay_and_no_side_runs_needlessly() -> None:
    def sides() -> Iterator[Callable[[], Stage]]:
        yield lambda: pytest.fail("a side ran")

    same = compare_stage("step", {"a": A}, {"a": A})
    assert allow_for_rounding(same, sides()) == same
    for candidate in (A[:3], np.full_like(A, np.nan)):
        stage = compare_stage("step", {"a": candidate}, {"a": A})
        assert allow_for_rounding(stage, sides()) == stage
    far = compare_stage("step", {"a": A + 1.0, "b": A}, {"a": A, "b": A})
    assert allow_for_rounding(far, [lambda: compare_stage("step", {"a": A}, {"a": A}), *sides()]) == far


def test_weights_move_in_the_last_bit() -> None:
    weights = {"kernel": A.astype(np.float32), "bias": np.zeros(3), "ids": np.arange(3), "low": -A}
    moved = nudged(weights)
    assert moved["kernel"].dtype == np.float64
    for name in ("kernel", "low"):
        steps = (moved[name] - weights[name]) / np.spacing(np.abs(weights[name].astype(np.float64)))
        assert {*np.unique(np.abs(steps))} <= {0.5, 1.0}, "half, below a power of two"
        assert {*np.unique(np.sign(steps))} == {-1.0, 1.0}
    assert np.array_equal(moved["bias"], weights["bias"])
    assert moved["ids"] is weights["ids"]
    assert all(np.array_equal(array, moved[name]) for name, array in nudged(weights).items()), "the same each time"


def test_numbers_of_bfloat16_move_to_the_next() -> None:
    weights: Weights = {"a": A.astype(ml_dtypes.bfloat16).astype(np.float32), "zero": np.zeros(3, np.float32)}
    values, moved = weights["a"], nudged(weights, "bfloat16")
    assert moved["a"].dtype == np.float32
    assert np.array_equal(moved["a"].astype(ml_dtypes.bfloat16).astype(np.float32), moved["a"])
    steps = np.abs(moved["a"] - values) / np.abs(values)
    assert (steps >= 2.0**-9).all()
    assert (steps <= 2.0**-7).all()
    assert not moved["zero"].any()
    assert not np.array_equal(moved["a"], nudged(weights, "bfloat16", draw=1)["a"])


def lower(error: float, *moves: float) -> str:
    """Returns the verdict on a bfloat16 candidate so far from a truth that the reference meets exactly, if its and the
    reference's weights move them so far."""
    truth = np.ones(100)
    exact = truth.astype(np.float32)
    stage = compare_stage(
        "forward bfloat16", {"a": exact + np.float32(error)}, {"a": exact}, truth={"a": truth}, dtypes={"a": "bfloat16"}
    )
    assert stage.verdict == "diverged", "else nothing is tested"

    def side(move: float) -> Callable[[int], Stage]:
        return lambda draw: compare_stage("itself", {"a": exact + np.float32(move)}, {"a": exact}, tolerance=1e-6)

    judged = excuse_rounding(
        stage, "bfloat16", {name: side(move) for name, move in zip(("candidate", "reference"), moves, strict=True)}
    )
    return judged.verdict


def test_in_lower_precision_both_sides_must_move_as_far() -> None:
    assert lower(0.2, 0.15, 0.1) == "inconclusive"
    assert lower(0.2, 0.15, 0.01) == "diverged", "the reference is stable"
    assert lower(0.2, 0.01, 0.15) == "diverged", "so is the candidate"
    assert lower(0.9, 0.15, 0.15) == "diverged", "too far for that"


def test_usual_rounding_excuses_nothing() -> None:
    usual = 0.9 * FACTOR_RMS * FLOOR_ROUNDOFFS * UNIT_ROUNDOFF["bfloat16"]
    assert lower(0.06, usual, usual) == "diverged"


def through_softmax(weights: Weights, factor: float = 1.0) -> np.ndarray:
    """The gradient of the first of some logits, of which softmax all but picks the first, with the loss multiplied."""
    p, d = softmax(weights["scores"]), factor * weights["to_weights"]
    return (p * (d - (p * d).sum(axis=1, keepdims=True)))[:, 0] / factor


def one_hot() -> Weights:
    rng = np.random.default_rng(5)
    scores = rng.standard_normal((40, 16))
    scores[:, 0] += 31.0
    return {"scores": scores, "to_weights": 1.0 + np.abs(rng.standard_normal((40, 16)))}


def test_gradients_of_a_nearly_one_hot_softmax_move_with_the_loss_alone() -> None:
    weights = one_hot()
    plain = through_softmax(weights)
    moves = {
        what: [np.abs(through_softmax(nudged(weights, draw=draw), factor(draw)) / plain - 1).max() for draw in range(8)]
        for what, factor in (("weights", lambda draw: 1.0), ("loss", loss_factor))
    }
    assert np.median(moves["loss"]) > 3 * np.median(moves["weights"])
    assert 1 / 2 <= min(map(loss_factor, range(99))) < max(map(loss_factor, range(99))) < 1


def in_float64(error: float, *moves: tuple[float, ...]) -> Stage:
    """Returns a candidate's gradients so far from the reference's, judged by how far each draw moves either side."""
    ones = np.ones(100)

    def side(move: tuple[float, ...]) -> Callable[[int], Stage]:
        return lambda draw: compare_stage("gradients", {"a": ones + move[draw % len(move)]}, {"a": ones})

    stage = compare_stage("gradients", {"a": ones + error}, {"a": ones})
    sides = {name: side(move) for name, move in zip(("candidate", "reference"), moves, strict=True)}
    return excuse_rounding(stage, "float64", sides)


def test_in_float64_one_of_several_draws_must_move_both_sides_as_far() -> None:
    (row,) = in_float64(1e-9, (1e-15, 5e-10), (1e-15, 1e-15, 9e-10)).rows
    assert row.verdict == "inconclusive"
    moved = "weights moved in their last bit and another factor of the loss move a by 5.0e-10 in the candidate"
    assert row.reason == f"{TOO_MUCH}: {moved} and 9.0e-10 in the reference (relative RMS)"
    assert in_float64(1e-9, (1e-15, 5e-10), (1e-15,)).verdict == "diverged", "the reference is stable"
    assert in_float64(1e-9, (1e-15,), (1e-15, 5e-10)).verdict == "diverged", "so is the candidate"
    assert in_float64(1e-9, (1e-10,), (1e-10,)).verdict == "diverged", "too far for that"
