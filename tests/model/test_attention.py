"""Attention: the reference path against NumPy, the fused path against the reference, and rows in which nothing may be
attended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import attention, functional
from jax_transformer.model.attention import Computation, Heads, fused_attention, reference_attention
from jax_transformer.model.scope import Scope
from jax_transformer.model.terms import AttentionTerms
from jax_transformer.model.trace import Tap

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

B, Q, K, N, H = 2, 3, 5, 2, 4
PLAIN = TransformerConfig(d_model=8, num_heads=N, dropout_rate=0.0)
FUSED = dataclasses.replace(PLAIN, attention_path="xla")
FLOAT32_ROUNDING = 1e-5
"""Relative to numbers of order 1: a few additions' worth."""


def how(config: TransformerConfig) -> Computation:
    return Computation.of(config, config.encoder, config.encoder.self_attention)


def make_inputs(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((B, Q, N, H)), rng.standard_normal((B, K, N, H)), rng.standard_normal((B, K, N, H))


def expected_attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray, scale: float, bias: Any = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Weights and context, one query after the other; a fully masked one attends to all keys alike."""
    weights, context = np.zeros((B, N, Q, K)), np.zeros((B, Q, N, H))
    for b, n, q in np.ndindex(B, N, Q):
        allowed = np.broadcast_to(mask, (B, N, Q, K))[b, n, q]
        added = np.broadcast_to(bias, (B, N, Q, K))[b, n, q]
        if allowed.any():
            powers = np.where(allowed, np.exp(key[b, :, n] @ query[b, q, n] * scale + added), 0.0)
            weights[b, n, q] = powers / powers.sum()
        else:
            weights[b, n, q] = 1 / K
        context[b, q, n] = weights[b, n, q] @ value[b, :, n]
    return weights, context


def reference(
    config: TransformerConfig, mask: Any, *inputs: Any, bias: Any = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, weights, context."""
    tap = Tap(record=True)
    context = reference_attention(how(config), Heads(*inputs), AttentionTerms(mask, bias), Scope(tap))
    return tuple(np.asarray(x) for x in (tap.trace["logits"], tap.trace["weights"], context))  # type: ignore[return-value]


MASKS = {
    "nothing": None,
    "keys": np.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], bool)[:, None, None, :],
    "queries": np.array([[1, 0, 1], [1, 1, 0]], bool)[:, None, :, None],  # fully masked rows
    "causal": np.tril(np.ones((1, 1, Q, K), bool)),
    "full": np.random.default_rng(3).random((B, 1, Q, K)) < 0.5,
    "everything": np.zeros((B, 1, 1, K), bool),
}


@pytest.mark.parametrize("masked_value", [None, -1e4, -1e9, -1e12])
@pytest.mark.parametrize("mask", MASKS)
def test_the_reference_path_is_the_formula(mask: str, masked_value: float | None) -> None:
    config = dataclasses.replace(PLAIN, masked_value=masked_value)
    inputs, given = make_inputs(), MASKS[mask]
    logits, weights, context = reference(config, given, *inputs)
    expected = expected_attention(*inputs, np.ones((1, 1, 1, 1), bool) if given is None else given, H**-0.5)
    np.testing.assert_allclose(weights, expected[0], rtol=1e-12)
    np.testing.assert_allclose(context, expected[1], rtol=1e-12, atol=1e-15)
    if given is not None:
        fill = np.finfo(np.float64).min if masked_value is None else masked_value
        masked = ~np.broadcast_to(given, logits.shape)
        assert (logits[masked] == fill).all()
        assert (logits[~masked] > -100).all()


@settings(deadline=None, max_examples=20)
@given(
    mask=st.lists(st.booleans(), min_size=B * Q * K, max_size=B * Q * K),
    seed=st.integers(0, 100),
    scale=st.floats(0.01, 3.0),
)
def test_any_mask_and_scale(mask: list[bool], seed: int, scale: float) -> None:
    given, inputs = np.array(mask).reshape(B, 1, Q, K), make_inputs(seed)
    config = dataclasses.replace(PLAIN, attention_scale=scale)
    _, weights, context = reference(config, given, *inputs)
    expected = expected_attention(*inputs, given, scale)
    np.testing.assert_allclose(weights, expected[0], rtol=1e-10)
    np.testing.assert_allclose(context, expected[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("path", [reference_attention, fused_attention])
@pytest.mark.parametrize("mask", ["queries", "everything"])
def test_fully_masked_rows_are_uniform_and_have_finite_gradients(mask: str, path: Callable[..., Any]) -> None:
    """In the context: the mean of all values. In the gradients: to the values evenly, to query and key nothing."""
    is_reference = path is reference_attention
    config, scope = (PLAIN, (Scope(),)) if is_reference else (FUSED, ())
    dtype, rounding = (np.float64, 1e-12) if is_reference else (np.float32, FLOAT32_ROUNDING)
    inputs, given = tuple(x.astype(dtype) for x in make_inputs()), MASKS[mask]
    is_masked = ~np.broadcast_to(given, (B, 1, Q, K)).any(axis=(1, 3))  # [B, Q]
    context = np.asarray(path(how(config), Heads(*inputs), AttentionTerms(given), *scope))
    mean = np.broadcast_to(inputs[2].mean(axis=1)[:, None], context.shape)
    np.testing.assert_allclose(context[is_masked], mean[is_masked], rtol=rounding)

    def total(*inputs: Any) -> Any:
        context = path(how(config), Heads(*inputs), AttentionTerms(given), *scope)
        return jnp.where(is_masked[:, :, None, None], context, 0.0).sum()

    to_query, to_key, to_value = jax.grad(total, argnums=(0, 1, 2))(*map(jnp.asarray, inputs))
    np.testing.assert_allclose(to_query, 0.0, atol=1e-15)
    np.testing.assert_allclose(to_key, 0.0, atol=1e-15)
    np.testing.assert_allclose(
        to_value, np.broadcast_to(is_masked.sum(axis=1)[:, None, None, None] / K, to_value.shape), rtol=rounding
    )


def value_and_gradients(
    config: TransformerConfig, mask: Any, inputs: Any, dtype: str, bias: Any = None
) -> list[np.ndarray]:
    """A random functional of the context, and its gradients to query, key and value."""
    weights = np.random.default_rng(5).standard_normal((B, Q, N, H)).astype(dtype)

    def loss(*inputs: Any) -> Any:
        if config.attention_path == "reference":
            return (
                reference_attention(how(config), Heads(*inputs), AttentionTerms(mask, bias), Scope()) * weights
            ).sum()
        return (fused_attention(how(config), Heads(*inputs), AttentionTerms(mask, bias)) * weights).sum()

    value, gradients = jax.value_and_grad(loss, argnums=(0, 1, 2))(*(jnp.asarray(x, dtype) for x in inputs))
    return [np.asarray(x) for x in (value, *gradients)]


@pytest.mark.parametrize("mask", MASKS)
def test_the_fused_path_equals_the_reference(mask: str) -> None:
    for scale in (None, 1.0):
        configs = [dataclasses.replace(config, attention_scale=scale) for config in (PLAIN, FUSED)]
        expected, received = (value_and_gradients(config, MASKS[mask], make_inputs(), "float32") for config in configs)
        for a, b in zip(received, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=FLOAT32_ROUNDING)


@pytest.mark.parametrize("mask", MASKS)
def test_a_bias_is_added_and_then_masked(mask: str) -> None:
    """Whatever the path; the formula's, and for a fully masked row nothing."""
    bias = np.random.default_rng(9).standard_normal((1, N, Q, K))
    inputs, given = make_inputs(), MASKS[mask]
    _, weights, context = reference(PLAIN, given, *inputs, bias=jnp.asarray(bias))
    expected = expected_attention(*inputs, np.ones((1, 1, 1, 1), bool) if given is None else given, H**-0.5, bias)
    np.testing.assert_allclose(weights, expected[0], rtol=1e-12)
    np.testing.assert_allclose(context, expected[1], rtol=1e-12, atol=1e-15)
    narrow = jnp.asarray(bias, jnp.float32)
    both = (value_and_gradients(config, given, inputs, "float32", narrow) for config in (PLAIN, FUSED))
    for a, b in zip(*both, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=FLOAT32_ROUNDING)


def test_the_fused_path_is_refused_in_float64() -> None:
    """Its softmax is float32 whatever it is given."""
    with pytest.raises(
        ValueError, match="attention_path='xla' computes in float32; float64 needs attention_path='reference'"
    ):
        value_and_gradients(FUSED, MASKS["full"], make_inputs(), "float64")


@pytest.mark.parametrize(("platform", "dtype"), [("cpu", "bfloat16"), ("gpu", "float32")])
def test_cudnn_is_refused_without_a_gpu(platform: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "platform", lambda: platform)
    config = dataclasses.replace(PLAIN, attention_path="cudnn")
    heads = Heads(*(jnp.asarray(x, dtype) for x in make_inputs()))
    with pytest.raises(ValueError, match=f"expected an NVIDIA GPU and .*'bfloat16'; received {dtype} on a {platform}"):
        fused_attention(how(config), heads, AttentionTerms())


def test_the_whole_model_is_the_same_on_the_fused_path(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    params = random_params(config, "float32")
    fused = dataclasses.replace(config, attention_path="xla")
    expected = functional.apply(config, params, ids.source, ids.target)
    np.testing.assert_allclose(
        functional.apply(fused, params, ids.source, ids.target), expected, rtol=0, atol=5 * FLOAT32_ROUNDING
    )


def test_a_fused_path_has_no_weights_to_return(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    fused = dataclasses.replace(config, attention_path="xla")
    with pytest.raises(ValueError, match="return_trace needs attention_path='auto' or 'reference'; received 'xla'"):
        functional.apply(fused, random_params(fused), ids.source, ids.target, return_trace=True)


def test_scores_and_softmax_are_wide() -> None:
    """In bfloat16, the products are bfloat16's but logits and weights are float32; without masks no dtype's lowest
    number comes in."""
    inputs = tuple(jnp.asarray(x, jnp.bfloat16) for x in make_inputs())
    tap = Tap(record=True)
    context = reference_attention(how(PLAIN), Heads(*inputs), AttentionTerms(MASKS["queries"]), Scope(tap))
    assert (tap.trace["logits"].dtype, tap.trace["weights"].dtype, context.dtype) == (
        jnp.float32,
        jnp.float32,
        jnp.bfloat16,
    )
    exact = expected_attention(*(np.asarray(x, np.float64) for x in inputs), MASKS["queries"], H**-0.5)
    np.testing.assert_allclose(tap.trace["weights"], exact[0], rtol=1e-5)


def test_dropout_takes_whole_weights() -> None:
    """What is left of a row is its weights over (1 − rate), and zeros."""
    config = dataclasses.replace(PLAIN, attention_dropout_rate=0.5)
    query, key, _ = make_inputs()
    value = np.broadcast_to(np.eye(K)[:, None, :], (B, K, N, K))  # the context is then the weights
    heads = Heads(query, key, value)
    dropping = Scope(dropout_key=jax.random.key(0))
    kept = np.asarray(reference_attention(how(config), heads, AttentionTerms(), dropping))
    weights = np.asarray(reference_attention(how(config), heads, AttentionTerms(), Scope()))
    dropped = kept == 0
    assert 0.3 < dropped.mean() < 0.7
    np.testing.assert_allclose(kept[~dropped], 2 * weights[~dropped], rtol=1e-12)
