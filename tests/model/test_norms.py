"""Norms against their formulas, written out in NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model.norms import Norm

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

WIDTH = 10
LAYER_NORM = {"norm_kind": "layer_norm"}
VARIANTS: dict[str, dict[str, Any]] = {
    "layer_norm": LAYER_NORM,
    "unbiased": {**LAYER_NORM, "norm_unbiased": True},
    "eps_outside": {**LAYER_NORM, "norm_eps_outside": True},
    "unbiased_eps_outside": {**LAYER_NORM, "norm_unbiased": True, "norm_eps_outside": True},
    "no_bias": {**LAYER_NORM, "norm_bias": False},
    "no_scale": {**LAYER_NORM, "norm_scale": False, "norm_bias": False},
    "rms_norm": {"norm_kind": "rms_norm", "norm_bias": False},
}


def expected_norm(name: str, x: np.ndarray, scale: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """Row by row, each variant as its own formula."""
    y = np.empty_like(x)
    for index in np.ndindex(x.shape[:-1]):
        row = x[index]
        y[index] = {
            "layer_norm": lambda r: (r - r.mean()) / np.sqrt(r.var() + eps) * scale + bias,
            "unbiased": lambda r: (r - r.mean()) / np.sqrt(r.var(ddof=1) + eps) * scale + bias,
            "eps_outside": lambda r: (r - r.mean()) / (r.std() + eps) * scale + bias,
            "unbiased_eps_outside": lambda r: (r - r.mean()) / (r.std(ddof=1) + eps) * scale + bias,
            "no_bias": lambda r: (r - r.mean()) / np.sqrt(r.var() + eps) * scale,
            "no_scale": lambda r: (r - r.mean()) / np.sqrt(r.var() + eps),
            "rms_norm": lambda r: r / np.sqrt((r**2).mean() + eps) * scale,
        }[name](row)
    return y


def make_norm(name: str, eps: float = 1e-5) -> Norm:
    """The variant with a random scale and bias, float64."""
    norm = Norm(TransformerConfig(d_model=WIDTH, num_heads=2, norm_eps=eps, **VARIANTS[name]).encoder)
    rng = np.random.default_rng(1)
    if norm.norm.scale:
        norm.scale = nnx.Param(jnp.asarray(1.0 + 0.5 * rng.standard_normal(WIDTH)))
    if norm.norm.bias:
        norm.bias = nnx.Param(jnp.asarray(rng.standard_normal(WIDTH)))
    return norm


def parameters(norm: Norm) -> tuple[np.ndarray, np.ndarray]:
    scale = np.asarray(norm.scale[...]) if norm.norm.scale else np.ones(WIDTH)
    return scale, np.asarray(norm.bias[...]) if norm.norm.bias else np.zeros(WIDTH)


@pytest.mark.parametrize("eps", [0.5, 1e-5, 1e-12])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_norm_is_its_formula(name: str, eps: float) -> None:
    """On rows of ordinary, small and large spread, and far from zero; at ε = 0.5 every misplaced ε shows."""
    x = np.random.default_rng(0).standard_normal((4, 3, WIDTH)) * np.array([1.0, 1e-3, 1e3, 1.0])[:, None, None]
    x[3] += 100.0
    norm = make_norm(name, eps)
    np.testing.assert_allclose(norm(x), expected_norm(name, x, *parameters(norm), eps), rtol=1e-10)


def test_the_variants_differ() -> None:
    """So that the test above can tell them apart."""
    x = np.random.default_rng(0).standard_normal((2, 2, WIDTH))
    results = [expected_norm(name, x, np.full(WIDTH, 1.5), np.ones(WIDTH), 0.5) for name in VARIANTS]
    assert all(np.abs(a - b).max() > 1e-3 for i, a in enumerate(results) for b in results[:i])


def test_an_rms_norm_has_no_bias_and_a_layer_norm_need_not() -> None:
    assert not hasattr(make_norm("rms_norm"), "bias")
    assert not hasattr(make_norm("no_bias"), "bias")


def test_a_large_mean_cancels_nothing() -> None:
    """In float32, mean(x²) − mean(x)² of such rows has no correct digit."""
    x = (1000.0 + 0.1 * np.random.default_rng(0).standard_normal((20, WIDTH))).astype(np.float32)
    norm = make_norm("layer_norm")
    received = np.asarray(norm(jnp.asarray(x)), np.float64)
    expected = expected_norm("layer_norm", x.astype(np.float64), *parameters(norm), 1e-5)
    np.testing.assert_allclose(received, expected, rtol=0, atol=2e-3)
    naive = (x**2).mean(axis=-1) - x.mean(axis=-1) ** 2
    assert np.abs(naive - x.astype(np.float64).var(axis=-1)).max() > 0.005


@pytest.mark.parametrize("name", VARIANTS)
def test_constant_rows_have_finite_values_and_gradients(name: str) -> None:
    norm = make_norm(name, 1e-6)
    x = np.full((2, WIDTH), 3.0)
    x[1] = 0.0
    weights = np.random.default_rng(0).standard_normal((2, WIDTH))
    value, gradient = jax.value_and_grad(lambda x: (norm(x) * weights).sum())(x)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_equal_the_formula(name: str) -> None:
    """Against central differences of the formula."""
    rng = np.random.default_rng(2)
    x, direction, weights = rng.standard_normal((3, 2, WIDTH))
    norm = make_norm(name)
    gradient = jax.grad(lambda x: (norm(x) * weights).sum())(x)
    step = 1e-6
    ends = [
        (expected_norm(name, x + sign * step * direction, *parameters(norm), 1e-5) * weights).sum() for sign in (1, -1)
    ]
    assert (gradient * direction).sum() == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6)


def test_low_precision_is_only_the_outside() -> None:
    """bfloat16 in, bfloat16 out, float32 in between: the result is the float32 one, rounded once."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((5, WIDTH)), jnp.bfloat16)
    norm = make_norm("layer_norm")
    received = norm(x)
    assert received.dtype == jnp.bfloat16
    expected = expected_norm("layer_norm", np.asarray(x, np.float64), *parameters(norm), 1e-5)
    np.testing.assert_array_equal(
        np.asarray(received, np.float32), np.asarray(jnp.asarray(expected, jnp.bfloat16), np.float32)
    )
    assert norm(x.astype(jnp.float32)).dtype == jnp.float32
    assert norm(x.astype(jnp.float64)).dtype == jnp.float64


def test_scales_may_be_stored_minus_one() -> None:
    """They begin at 0, and are added to 1."""
    x = jnp.asarray(np.random.default_rng(1).standard_normal((3, WIDTH)))
    plain, offset = (
        Norm(TransformerConfig(d_model=WIDTH, num_heads=2, norm_scale_offset=offset).encoder) for offset in (0.0, 1.0)
    )
    assert (plain.scale[...] == 1.0).all()
    assert (offset.scale[...] == 0.0).all()
    np.testing.assert_array_equal(plain(x), offset(x))
    stored = np.random.default_rng(2).standard_normal(WIDTH)
    plain.scale, offset.scale = nnx.Param(jnp.asarray(1.0 + stored)), nnx.Param(jnp.asarray(stored))
    np.testing.assert_allclose(offset(x), plain(x), rtol=1e-15)
