"""Stages: every array under its gate, and no pass from nothing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from jax_transformer.comparison.gates.stages import Stage, compare_stage
from jax_transformer.comparison.report.report import Report
from jax_transformer.parity import assert_parity


def make_arrays(dtype: str = "float64") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((2, 3, 4)).astype(dtype) for name in ("second", "first", "logits")}
    return {"ids": np.arange(4), "mask": np.array([True, False])} | arrays


def changed(arrays: dict[str, np.ndarray], **by: Any) -> dict[str, np.ndarray]:
    return arrays | by


def noisy(array: np.ndarray, size: float) -> np.ndarray:
    return (array * (1 + size * np.random.default_rng(1).standard_normal(array.shape))).astype(array.dtype)


def test_equal_arrays_pass() -> None:
    reference = make_arrays()
    candidate = {
        name: noisy(array, 1e-14) if array.dtype == float else array for name, array in reversed(reference.items())
    }
    stage = compare_stage("forward", candidate, reference)
    assert stage.verdict == "passed"
    assert [row.name for row in stage.rows] == list(reference), "in the reference's order"
    assert [row.gate for row in stage.rows] == ["equal", "equal"] + 3 * ["relative RMS ≤ 1e-12"]
    assert_parity(candidate, reference)


def test_the_first_that_differs_is_named() -> None:
    reference = make_arrays()
    candidate = changed(reference, first=noisy(reference["first"], 1e-9), logits=noisy(reference["logits"], 1e-6))
    stage = compare_stage("forward", candidate, reference)
    assert stage.verdict == "diverged"
    assert stage.first_divergence is not None
    assert stage.first_divergence.name == "first"
    assert 100 < stage.first_divergence.times_allowed < 10_000
    assert [row.verdict for row in stage.rows] == ["passed", "passed", "passed", "diverged", "diverged"]


@pytest.mark.parametrize(
    ("name", "array", "reason"),
    [
        ("ids", np.array([0, 1, 2, 4]), ""),
        ("mask", np.array([True, True]), ""),
        ("first", np.ones((2, 3, 5)), "shapes [2, 3, 5] and [2, 3, 4]"),
        ("first", make_arrays("float32")["first"], "dtypes float32 and float64"),
        ("ids", np.arange(4.0), "dtypes float64 and int64"),
        ("first", np.full((2, 3, 4), np.nan), "24 values that are not finite"),
        (
            "first",
            np.where(np.arange(24).reshape(2, 3, 4) == 7, np.inf, make_arrays()["first"]),
            "1 values that are not finite",
        ),
    ],
)
def test_every_difference_diverges(name: str, array: np.ndarray, reason: str) -> None:
    stage = compare_stage("forward", changed(make_arrays(), **{name: array}), make_arrays())
    assert stage.verdict == "diverged"
    assert [(row.name, row.reason) for row in stage.rows if row.verdict == "diverged"] == [(name, reason)]


def without(arrays: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    return {key: array for key, array in arrays.items() if key != name}


NAN = changed(make_arrays(), first=np.full((2, 3, 4), np.nan))
INFINITE = changed(make_arrays(), first=np.full((2, 3, 4), np.inf))


@pytest.mark.parametrize(
    ("candidate", "reference", "reason"),
    [
        ({}, {}, "nothing was compared"),
        ({"a": np.ones(2)}, {"b": np.ones(2)}, "nothing was compared"),
        (without(make_arrays(), "logits"), make_arrays(), "only the reference has logits"),
        (make_arrays(), without(make_arrays(), "ids"), "only the candidate has ids"),
        (NAN, NAN, "the reference has 24 values that are not finite"),
        (INFINITE, INFINITE, "the reference has 24 values that are not finite"),
        (make_arrays(), NAN, "the reference has 24 values that are not finite"),
        (make_arrays("float32"), make_arrays("float32"), "float32 has no criterion without a float64 truth"),
        (make_arrays("float16"), make_arrays("float16"), "there is no criterion for float16"),
        ({"a": np.zeros((0, 2))}, {"a": np.zeros((0, 2))}, "no value of it counts"),
    ],
    ids=["nothing", "no_names", "fewer", "more", "nan", "infinite", "nan_in_reference", "float32", "float16", "empty"],
)
def test_nothing_passes_vacuously(
    candidate: dict[str, np.ndarray], reference: dict[str, np.ndarray], reason: str
) -> None:
    stage = compare_stage("forward", candidate, reference)
    assert stage.verdict == "inconclusive"
    assert reason in " ".join([*stage.reasons, *(row.reason for row in stage.rows)])
    assert Report("a", "b", (stage,)).exit_code == 3
    with pytest.raises(AssertionError, match="inconclusive: candidate against reference"):
        assert_parity(candidate, reference)


def test_a_divergence_is_one_whatever_is_missing() -> None:
    reference = make_arrays()
    stage = compare_stage("forward", without(changed(reference, first=reference["first"] + 1), "logits"), reference)
    assert stage.verdict == "diverged"
    assert stage.reasons == ("only the reference has logits",)


def test_a_mask_says_what_counts() -> None:
    reference, where = make_arrays(), np.arange(4) > 0
    candidate = changed(reference, first=np.where(where, reference["first"], 99.0))
    assert compare_stage("forward", candidate, reference).verdict == "diverged"
    assert compare_stage("forward", candidate, reference, where={"first": where}).verdict == "passed"
    nothing = compare_stage("forward", candidate, reference, where={"first": np.zeros(4, bool)})
    assert nothing.verdict == "inconclusive"


@pytest.mark.parametrize(("dtype", "ulp"), [("float32", 2.0**-24), ("bfloat16", 2.0**-8)])
def test_lower_precision_is_judged_by_the_truth(dtype: str, ulp: float) -> None:
    """bfloat16 is kept in float32, and said to be it."""
    truth = make_arrays()
    kept = {name: array.astype(np.float32) if array.dtype == float else array for name, array in truth.items()}
    dtypes = dict.fromkeys(kept, dtype)
    reference = {name: noisy(array, ulp) if array.dtype == np.float32 else array for name, array in kept.items()}
    near = changed(reference, first=noisy(kept["first"], 4 * ulp))
    far = changed(reference, first=noisy(kept["first"], 40 * ulp))
    assert compare_stage("forward", near, reference, truth=truth, dtypes=dtypes).verdict == "passed"
    stage = compare_stage("forward", far, reference, truth=truth, dtypes=dtypes)
    assert [row.name for row in stage.rows if row.verdict == "diverged"] == ["first"]
    assert stage.first_divergence is not None
    assert "times as far from the float64 truth as the reference" in stage.first_divergence.reason


def test_a_tolerance_takes_the_place_of_gates() -> None:
    reference = make_arrays("float32")
    candidate = changed(reference, first=noisy(reference["first"], 1e-4))
    assert compare_stage("forward", candidate, reference, tolerance=1e-3).verdict == "passed"
    assert compare_stage("forward", candidate, reference, tolerance=1e-5).verdict == "diverged"
    assert (
        compare_stage("forward", changed(candidate, ids=np.ones(4, int)), reference, tolerance=1e-3).verdict
        == "diverged"
    )


def test_json_says_it_all_and_is_json() -> None:
    reference = make_arrays()
    stages = (
        compare_stage("forward", changed(reference, first=NAN["first"]), reference),
        Stage("gradients", not_run="no loss"),
    )
    report = Report("a.npz", "b.npz", stages, {"numpy": "2"}, {"a.npz": "00"})
    content = json.loads(report.to_json(), parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))
    assert (content["schema"], content["verdict"], content["exit_code"]) == (1, "diverged", 4)
    assert content["stages"][0]["rows"][3]["error"]["relative_rms"] is None
    assert content["stages"][0]["rows"][3]["reason"] == "24 values that are not finite"
    assert content["stages"][1]["verdict"] == "inconclusive"
    assert content["stages"][1]["reasons"] == ["no loss"]
    assert content["sha256"] == {"a.npz": "00"}


def test_a_stage_that_could_not_run_lets_nothing_pass() -> None:
    fine = compare_stage("forward", make_arrays(), make_arrays())
    assert Report("a", "b", (fine,)).exit_code == 0
    assert Report("a", "b", (fine, Stage("gradients", not_run="no loss"))).exit_code == 3
    assert Report("a", "b", ()).exit_code == 3
