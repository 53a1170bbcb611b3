"""Comparisons and verdicts: what passes, and above all what never does."""

import numpy as np
import pytest

from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.compare import compare, float32_rule, max_error, precision_rule, relative_rms


def make_reference(dtype="float64"):
    return np.random.default_rng(0).standard_normal((3, 4, 5)).astype(dtype)


def test_the_measures():
    reference = np.array([3.0, 4.0, 0.0, 0.0])  # RMS 2.5
    candidate = np.array([3.0, 4.0, 1.0, 0.0])  # RMS of the difference 0.5
    assert relative_rms(candidate, reference) == pytest.approx(0.2)
    assert max_error(candidate, reference) == pytest.approx(0.4)
    result = compare(candidate, reference)
    assert result.worst_index == (2,)
    assert result.compared == 4
    assert not result.exact
    assert compare(reference, reference).exact


def test_the_gate_has_its_limit_on_the_right_side():
    reference = make_reference()
    assert compare(reference * (1 + 0.9e-12), reference).within(tolerances.FLOAT64_RELATIVE_RMS)
    assert not compare(reference * (1 + 1.1e-12), reference).within(tolerances.FLOAT64_RELATIVE_RMS)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sides", ["candidate", "reference", "both"])
def test_values_that_are_not_finite_never_pass(value, sides):
    """Not even where both sides have the same infinity."""
    candidate, reference = make_reference(), make_reference()
    for side, array in (("candidate", candidate), ("reference", reference)):
        if sides in (side, "both"):
            array[1, 2, 3] = value
    result = compare(candidate, reference)
    assert not result.within(np.inf)
    assert not result.exact
    assert result.worst_index == (1, 2, 3)
    assert (result.non_finite_candidate, result.non_finite_reference) == (sides != "reference", sides != "candidate")
    single = make_reference("float32")
    bad = single.copy()
    bad[1, 2, 3] = value
    truth = make_reference("float32").astype("float64")
    assert not float32_rule(bad, single, truth).passed
    assert not float32_rule(single, bad, truth).passed
    truth[1, 2, 3] = value
    assert not float32_rule(single, single, truth).passed


def test_positions_that_are_left_out():
    reference = make_reference()
    candidate = reference.copy()
    candidate[0], reference[1, 0] = np.nan, np.inf
    where = np.ones((3, 4, 1), bool)
    where[0], where[1, 0] = False, False
    result = compare(candidate, reference, where)
    assert result.exact
    assert result.within(0.0)
    assert result.compared == 7 * 5
    assert (result.non_finite_candidate, result.non_finite_reference) == (0, 0)
    candidate[2, 3, 4] += 1
    assert compare(candidate, reference, where).worst_index == (2, 3, 4)


def test_left_out_values_do_not_count_in_the_references_size():
    """A mask's fill value would hide every error in the unmasked logits."""
    reference = np.array([1.0, 1.0, np.finfo(np.float64).min])
    candidate = np.array([1.0, 1.1, np.finfo(np.float64).min])
    assert relative_rms(candidate, reference) < 1e-300
    assert relative_rms(candidate, reference, np.array([True, True, False])) == pytest.approx(0.1 / np.sqrt(2))


def test_the_lowest_number_does_not_overflow():
    lowest = np.full(4, np.finfo(np.float64).min)
    assert relative_rms(lowest, lowest) == 0.0
    assert relative_rms(np.zeros(4), lowest) == pytest.approx(1.0)
    assert not compare(-lowest, lowest).within(1e300)


def test_zeros():
    assert relative_rms(np.zeros(3), np.zeros(3)) == 0.0
    assert relative_rms(np.full(3, 1e-300), np.zeros(3)) == np.inf
    assert compare(np.array([-0.0]), np.array([0.0])).exact


def test_integers_and_booleans():
    assert compare(np.array([True, False]), np.array([True, False])).exact
    assert compare(np.array([1, 2]), np.array([1, 3])).worst_index == (1,)


def test_nothing_to_compare_is_no_parity():
    with pytest.raises(ValueError, match=r"expected equal shapes; received \(2,\) and \(2, 1\)"):
        compare(np.ones(2), np.ones((2, 1)))
    with pytest.raises(ValueError, match="no position"):
        compare(np.ones((0, 3)), np.ones((0, 3)))
    with pytest.raises(ValueError, match="no position"):
        compare(np.ones(3), np.ones(3), np.zeros(3, bool))


def errors(rms, dtype="float32"):
    """A truth in float64, and an array of `dtype` at that distance from it (far above the dtype's own rounding)."""
    truth = np.random.default_rng(0).standard_normal((30, 40, 5)).astype(dtype).astype("float64")
    noise = np.random.default_rng(1).standard_normal(truth.shape)
    noise *= rms * np.sqrt(np.mean(truth**2) / np.mean(noise**2))
    return truth, (truth + noise).astype(dtype)


def test_the_float32_rule_allows_three_times_the_references_error():
    truth, reference = errors(1e-4)
    assert float32_rule(errors(2.9e-4)[1], reference, truth).passed
    verdict = float32_rule(errors(3.1e-4)[1], reference, truth)
    assert not verdict.passed
    assert verdict.candidate.relative_rms == pytest.approx(3.1e-4, rel=1e-2)
    assert verdict.allowed_rms == pytest.approx(3e-4, rel=1e-2)


def test_the_float32_rule_allows_eight_times_the_references_largest_error():
    truth, reference = errors(1e-4)
    size = np.sqrt(np.mean(truth**2))
    largest = np.abs(reference - truth).max() / size
    for factor, passed in ((7.5, True), (8.5, False)):
        candidate = truth.copy()
        candidate[0, 0, 0] += factor * largest * size
        verdict = float32_rule(candidate.astype("float32"), reference, truth)
        assert verdict.candidate.relative_rms < verdict.allowed_rms
        assert verdict.passed == passed


def test_an_exact_reference_still_leaves_a_floor():
    truth, _ = errors(0)
    exact = truth.astype("float32")
    assert float32_rule(errors(6 * 2.0**-24)[1], exact, truth).passed
    assert not float32_rule(errors(14 * 2.0**-24)[1], exact, truth).passed


def test_the_rule_in_bfloat16():
    import ml_dtypes

    truth, reference = errors(0, ml_dtypes.bfloat16)
    candidate = (truth * 1.02).astype(ml_dtypes.bfloat16)
    assert precision_rule(candidate, reference, truth, "bfloat16").passed
    assert not precision_rule((truth * 1.1).astype(ml_dtypes.bfloat16), reference, truth, "bfloat16").passed


def test_the_rule_refuses_the_wrong_precision():
    truth, reference = errors(0)
    with pytest.raises(ValueError, match="expected a float32 candidate; received float64"):
        float32_rule(truth, reference, truth)
    with pytest.raises(ValueError, match="expected a float64 truth; received float32"):
        float32_rule(reference, reference, reference)


def test_only_key_biases_have_no_gradient():
    assert tolerances.has_zero_gradient("encoder/layers/self_attention/key/bias")
    assert not tolerances.has_zero_gradient("encoder/layers/self_attention/key/kernel")
    assert not tolerances.has_zero_gradient("encoder/layers/self_attention/query/bias")
