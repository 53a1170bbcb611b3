"""Attention in blocks: the kernels, interpreted, against the reference path, with the same weights dropped."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.data.batching import pack_batch
from jax_transformer.data.planning import Shape
from jax_transformer.model import attention, flash, flash_kernels, functional, sharding
from jax_transformer.model.attention import Heads, flash_path, reference_attention
from jax_transformer.model.flash_kernels import kernel_flops
from jax_transformer.model.scope import Scope
from jax_transformer.model.terms import AttentionTerms
from jax_transformer.model.trace import Tap

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

B, Q, K, N, H = 2, 21, 37, 2, 4
"""Three blocks of queries and five of keys, of 8 each, none of which the lengths fill."""
RNG = np.random.default_rng(0)
MASKS = {
    "nothing": None,
    "keys": RNG.random((B, 1, 1, K)) < 0.6,
    "queries": RNG.random((B, 1, Q, 1)) < 0.6,  # fully masked rows
    "causal": np.tril(np.ones((1, 1, Q, K), bool)),
    "causal, with padding": np.tril(np.ones((1, 1, Q, K), bool))
    & (np.arange(K) < np.array([[5], [30]]))[:, None, None],
    "segments": (np.arange(Q)[:, None] // 9 == np.arange(K) // 9)[None, None],
    "random": RNG.random((B, 1, Q, K)) < 0.5,
    "everything": np.zeros((B, 1, 1, K), bool),
}
Path = Callable[[TransformerConfig, Heads, AttentionTerms, Scope], jax.Array]


def how(config: TransformerConfig) -> attention.Computation:
    return attention.Computation.of(config, config.encoder, config.encoder.self_attention)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "INTERPRETED_BLOCKS", (8,))


def context_and_gradients(
    path: Path, config: TransformerConfig, mask: Any, bias: Any, heads: Heads, key: Any = None
) -> list[np.ndarray]:
    """A path's context, and the gradients of a random functional of it."""
    weights = np.random.default_rng(5).standard_normal(heads.query.shape)

    def loss(heads: Heads, bias: Any) -> Any:
        context = path(config, heads, AttentionTerms(mask, bias), Scope(dropout_key=key))
        return (context * weights).sum(), context

    of_inputs = jax.value_and_grad(loss, argnums=(0, 1) if bias is not None else 0, has_aux=True)
    (_, context), gradients = of_inputs(Heads(*map(jnp.asarray, heads)), bias)
    return [np.asarray(context), *map(np.asarray, jax.tree.leaves(gradients))]


def heads_of(queries: int, keys: int, features: int = H) -> Heads:
    rng = np.random.default_rng(1)
    lengths = queries, keys, keys
    return Heads(*(jnp.asarray(rng.standard_normal((B, length, N, features))) for length in lengths))


def assert_same(config: TransformerConfig, mask: Any, bias: Any, heads: Heads, key: Any = None) -> None:
    mask = None if mask is None else jnp.asarray(mask)
    expected = context_and_gradients(reference_attention, how(config), mask, bias, heads, key)
    received = context_and_gradients(flash_path, how(config), mask, bias, heads, key)
    for one, other in zip(received, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("mask", MASKS)
def test_context_and_gradients_equal_the_reference_path(mask: str) -> None:
    bias = jnp.asarray(RNG.standard_normal((1, N, Q, K)))
    config = TransformerConfig(d_model=N * H, num_heads=N, dropout_rate=0.3)
    assert_same(config, MASKS[mask], bias, heads_of(Q, K), jax.random.key(3))


@pytest.mark.parametrize("mask", ["nothing", "causal, with padding"])
def test_without_bias_and_dropout(mask: str) -> None:
    assert_same(TransformerConfig(d_model=N * H, num_heads=N), MASKS[mask], None, heads_of(Q, K))


@pytest.mark.parametrize(("queries", "keys"), [(1, 20), (20, 1)])
def test_lengths(queries: int, keys: int) -> None:
    config = TransformerConfig(d_model=N * H, num_heads=N, dropout_rate=0.0, masked_value=-1e9, attention_scale=2.0)
    mask = np.random.default_rng(2).random((B, 1, queries, keys)) < 0.7
    bias = jnp.asarray(np.random.default_rng(3).standard_normal((1, N, queries, keys)))
    assert_same(config, mask, bias, heads_of(queries, keys, features=17))


def test_blocks_that_no_query_needs_are_skipped() -> None:
    """Values that aren't numbers, in blocks that are masked for all queries, don't come in."""
    mask = jnp.asarray(np.arange(K) < 16)[None, None, None]
    heads = heads_of(Q, K)
    poisoned = heads._replace(value=heads.value.at[:, 16:].set(jnp.nan))
    config = TransformerConfig(d_model=N * H, num_heads=N, dropout_rate=0.0)
    context = flash_path(how(config), poisoned, AttentionTerms(mask), Scope())
    np.testing.assert_array_equal(context, flash_path(how(config), heads, AttentionTerms(mask), Scope()))
    assert np.isnan(flash_path(how(config), poisoned, AttentionTerms(mask.at[..., 0, 20].set(True)), Scope())).all()


def test_spans() -> None:
    """From the first to the last block with a visible key; all for a block with a query that sees nothing."""
    x = flash.Operands(jnp.zeros((1, 1, H, 24)), jnp.zeros((1, 1, H, 40)), jnp.zeros((1, 1, H, 40)))
    mask = np.zeros((1, 40, 24), np.int8)
    mask[0, 9, :8] = mask[0, 25, :8] = 1  # the first block of queries sees keys of the second and fourth block
    mask[0, 0, 8:15] = 1  # in the second block, one query sees nothing
    mask[0, 39, 16:21] = 1  # in the third, only queries that fill it up see nothing
    plan = flash.Plan(21, 37, 1, 1.0, None, 0.0, "cpu", 8, 8)
    filled = flash._with_spans(plan, x._replace(mask=jnp.asarray(mask)))
    assert np.asarray(filled.key_spans).tolist() == [[[1, 4], [0, 5], [4, 5]]]
    assert np.asarray(filled.query_spans).tolist() == [[[1, 2], [0, 2], [1, 2], [0, 2], [1, 3]]]


def test_bfloat16_is_as_exact_as_the_reference_path() -> None:
    config = TransformerConfig(d_model=N * H, num_heads=N)
    heads = heads_of(Q, K)
    mask = jnp.asarray(MASKS["causal, with padding"])
    exact = context_and_gradients(reference_attention, how(config), mask, None, heads)
    narrow = Heads(*(array.astype(jnp.bfloat16) for array in heads))
    received, reference = (
        context_and_gradients(path, how(config), mask, None, narrow) for path in (flash_path, reference_attention)
    )
    for one, other, right in zip(received, reference, exact, strict=True):
        errors = [np.sqrt(np.mean((array.astype(np.float64) - right) ** 2)) for array in (one, other)]
        assert errors[0] < 1.2 * errors[1]


def in_blocks(config: TransformerConfig) -> TransformerConfig:
    return dataclasses.replace(config, attention_path="flash")


def test_narrow_products_keep_gradients_where_a_weight_is_nearly_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, the gradient of a logit is a difference of numbers that nearly cancel, and both must be rounded alike. A
    GPU multiplies float32 in TensorFloat-32 unless it is told otherwise."""
    product = flash_kernels._product

    def rounded(left: jax.Array, right: jax.Array, *axes: int) -> jax.Array:
        narrow = (jax.lax.reduce_precision(array, exponent_bits=8, mantissa_bits=10) for array in (left, right))
        return product(*narrow, *axes)

    monkeypatch.setattr(flash_kernels, "_product", rounded)
    config = TransformerConfig(d_model=N * H, num_heads=N)
    bias = jnp.asarray(np.broadcast_to(14.0 * np.eye(Q, K), (1, N, Q, K)))
    heads = heads_of(Q, K)
    truth = context_and_gradients(reference_attention, how(config), None, bias, heads)
    narrow, narrow_bias = jax.tree.map(lambda array: array.astype(jnp.float32), (heads, bias))
    received = context_and_gradients(flash_path, how(config), None, narrow_bias, narrow)
    for one, right in zip(received, truth, strict=True):
        assert np.linalg.norm(one - right) <= 0.02 * np.linalg.norm(right)


def test_a_whole_model_with_dropout(config: TransformerConfig, ids: Any, random_params: Callable[..., Any]) -> None:
    changes: dict[str, Any] = {"position_kind": "relative_bias", "relative_buckets": 6, "num_decoder_layers": 1}
    config = dataclasses.replace(config, dropout_rate=0.2, **changes)
    params = random_params(config, "float64")

    def loss(params: Any, config: TransformerConfig) -> Any:
        logits = functional.apply(config, params, ids.source, ids.target, dropout_key=jax.random.key(1))
        return (logits**2).sum()

    expected, received = (
        jax.jit(jax.value_and_grad(loss), static_argnums=1)(params, one) for one in (config, in_blocks(config))
    )
    for one, other in zip(jax.tree.leaves(received), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)


def test_packed_rows(config: TransformerConfig, random_params: Callable[..., Any]) -> None:
    config = dataclasses.replace(config, source_pad_id=0, target_pad_id=0)
    batch = pack_batch([[4, 5, 3], [6, 3], [7, 3]], [[5, 6], [4, 4, 5], [9]], shape=Shape(2, 8, 8))
    segments = {"source_segments": batch.source_segments, "target_segments": batch.target_segments}
    arguments = random_params(config, "float64"), batch.source_ids, batch.decoder_input_ids
    expected, received = (functional.apply(one, *arguments, **segments) for one in (config, in_blocks(config)))
    np.testing.assert_allclose(received, expected, rtol=1e-11, atol=1e-11)


def test_auto_takes_blocks_for_long_sentences_on_tpus_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def path(length: int, dtype: str = "float32", recorded: bool = False) -> str:
        heads = Heads(*(jnp.zeros((1, length, 1, H), dtype) for _ in range(3)))
        config = TransformerConfig(d_model=H, num_heads=1)
        scope = Scope(Tap(recorded))
        return str(attention.attend(how(config), heads, AttentionTerms(), scope))

    for name in ("flash_path", "reference_attention"):
        monkeypatch.setattr(attention, name, lambda *_, name=name: name)
    assert path(4096) == "reference_attention"
    for platform, first in (("tpu", 256), ("gpu", 128)):
        monkeypatch.setattr(flash, "platform", lambda platform=platform: platform)
        assert path(first) == path(first, "bfloat16") == "flash_path"
        assert path(first - 1) == path(first, "float64") == path(first, recorded=True) == "reference_attention"


def test_masks_of_fewer_axes_and_of_single_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TransformerConfig(d_model=N * H, num_heads=N, dropout_rate=0.0)
    heads, mask = heads_of(Q, K), MASKS["causal"]
    assert mask is not None
    assert_same(config, mask[0, 0], None, heads)
    by_head = jnp.asarray(np.random.default_rng(4).random((B, N, Q, K)) < 0.5)
    with pytest.raises(ValueError, match=r"expected a mask \[B, 1, Q, K\] for all heads; received \(2, 2, 21, 37\)"):
        flash_path(how(config), heads, AttentionTerms(by_head), Scope())
    monkeypatch.setattr(flash, "platform", lambda: "tpu")
    monkeypatch.setattr(flash, "FROM_TOKENS", {"tpu": 1})
    narrow = jnp.zeros((B, Q, N, H), jnp.float32), jnp.zeros((B, K, N, H), jnp.float32)
    assert flash.is_better(*narrow, by_head[:, :1])
    assert not flash.is_better(*narrow, by_head)


def test_the_platform_is_that_of_the_devices() -> None:
    assert sharding.platform() == "cpu"
    mesh = jax.sharding.AbstractMesh((1,), ("data",), abstract_device=jax.sharding.AbstractDevice("TPU v5e", 1, "tpu"))
    with jax.sharding.use_abstract_mesh(mesh):
        assert sharding.platform() == "tpu"


def test_float64_is_refused_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "platform", lambda: "gpu")
    config = TransformerConfig(d_model=N * H, num_heads=N)
    with pytest.raises(ValueError, match="'flash': expected float32 or narrower on a gpu; received float64"):
        flash_path(how(config), heads_of(Q, K), AttentionTerms(), Scope())


def test_operations_of_the_kernels() -> None:
    shapes = [(2, 3, 64, 256), (2, 3, 64, 512)]
    product = 2 * 2 * 3 * 64 * 256 * 512
    name = 'metadata={op_name="jit(step)/transpose(jvp(attention%s))/pallas_call"}'
    counts = {"_forward_kernel": 2, "_query_kernel": 3, "_key_value_kernel": 4, "_bias_kernel": 2, "_other": 0}
    assert {kernel: kernel_flops(name % kernel, shapes) / product for kernel in counts} == counts
