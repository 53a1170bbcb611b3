"""Rotary positions, biases and vectors by distance, and shared keys: numbers by hand, properties, and the paths of
attention. parity_tests/test_mechanisms.py compares them with PyTorch, test_properties.py decodes with them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import attention, distances, flash, functional, rotary
from jax_transformer.model.attention import Heads
from jax_transformer.model.scope import Scope
from jax_transformer.model.terms import AttentionTerms

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

HEAD = TransformerConfig(d_model=4, num_heads=1, position_kind="rotary")


def rotated(config: TransformerConfig, x: Any, numbers: Any) -> np.ndarray:
    """Of one head's features x [T, H] at these positions."""
    by = rotary.angles(
        config.encoder.positions, config.encoder.heads.head_dim, jnp.asarray(numbers)[None], jnp.dtype("float64")
    )
    return np.asarray(rotary.rotate(config.encoder.positions, jnp.asarray(x, jnp.float64)[None, :, None], by))[0, :, 0]


# --- numbers by hand


def test_pairs_turn_by_their_angles() -> None:
    """At position 1 the first pair turns by 1, the second by 10000^(-1/2) = 0.01."""
    x = [[1.0, 0.0, 1.0, 0.0]]
    cos, sin = math.cos, math.sin
    np.testing.assert_allclose(rotated(HEAD, x, [1]), [[cos(1), sin(1), cos(0.01), sin(0.01)]], rtol=1e-15)
    halves = dataclasses.replace(HEAD, position_layout="halves")  # pairs (1, 1) and (0, 0)
    np.testing.assert_allclose(rotated(halves, x, [1]), [[cos(1) - sin(1), 0, cos(1) + sin(1), 0]], rtol=1e-15)
    part = dataclasses.replace(HEAD, rotary_dim=2)
    np.testing.assert_allclose(rotated(part, x, [2]), [[cos(2), sin(2), 1, 0]], rtol=1e-15)
    np.testing.assert_array_equal(rotated(HEAD, x, [0]), x)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_products_depend_on_the_distance(layout: Any) -> None:
    config = dataclasses.replace(HEAD, d_model=8, position_layout=layout, rotary_base=50.0)
    query, key = np.random.default_rng(0).standard_normal((2, 1, 8))
    near, far = ((rotated(config, query, [i + 3]) * rotated(config, key, [i])).sum() for i in (0, 400))
    assert abs(near - far) < 1e-12
    assert abs(near - (rotated(config, query, [4]) * rotated(config, key, [0])).sum()) > 0.01


def test_slopes() -> None:
    """As the paper has them for 8 heads; for 6, those of 4 and every other one of 8."""
    np.testing.assert_array_equal(distances.alibi_slopes(8), [2.0**-i for i in range(1, 9)])
    np.testing.assert_array_equal(distances.alibi_slopes(6), [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])
    np.testing.assert_array_equal(distances.alibi_slopes(1), [2**-8])
    assert len(set(distances.alibi_slopes(12))) == 12


def test_biases_fall_with_the_distance_in_both_directions() -> None:
    bias = np.asarray(distances.alibi_bias(8, 3, None, jnp.dtype("float64")))
    np.testing.assert_array_equal(bias[0, 0], [[0, -0.5, -1], [-0.5, 0, -0.5], [-1, -0.5, 0]])
    row = distances.alibi_bias(8, 3, jnp.asarray(1), jnp.dtype("float64"))
    np.testing.assert_array_equal(row, bias[:, :, 1:2])


# --- properties


def test_far_keys_share_vectors(config: TransformerConfig, random_params: Callable[..., Any]) -> None:
    """With one direction each: the rows of distances beyond the limit are the limit's."""
    config = dataclasses.replace(config, position_kind="relative_vectors", relative_max_distance=2)
    tables = random_params(config)["encoder"]["relative_vectors"]
    model = functional._model(config, random_params(config))
    keys, values = model.encoder.relative_vectors(5, None, jnp.dtype("float64"))
    np.testing.assert_array_equal(keys[0], tables["keys"][[2, 3, 4, 4, 4]])
    np.testing.assert_array_equal(values[4], tables["values"][[0, 0, 0, 1, 2]])
    row = model.encoder.relative_vectors(5, jnp.asarray(4), jnp.dtype("float64"))
    np.testing.assert_array_equal(row.values, values[4:])


def test_shared_keys_are_keys_repeated(config: TransformerConfig, ids: Any, random_params: Callable[..., Any]) -> None:
    """A model whose heads of keys and values are equal in pairs is one with half of them."""
    few = dataclasses.replace(config, num_heads=4, decoder_num_heads=4, num_kv_heads=2)
    params = random_params(few)

    def repeated(path: tuple[Any, ...], leaf: np.ndarray) -> np.ndarray:
        names = [key.key for key in path]
        axis = -2 if names[-2] in ("key", "value") else None
        return leaf if axis is None else np.repeat(leaf, 2, axis=axis)

    many = jax.tree_util.tree_map_with_path(repeated, params)
    expected = functional.apply(dataclasses.replace(few, num_kv_heads=4), many, *ids)
    received = functional.apply(few, params, *ids)
    assert compare(np.asarray(received), np.asarray(expected)).within(FLOAT64_RELATIVE_RMS)


def test_caches_hold_only_the_shared_heads(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    config = dataclasses.replace(config, num_kv_heads=1)
    params, output = random_params(config), np.zeros((5, 6, 12))
    state = functional.start_decoding(config, params, output, ids.source, length=8, num_beams=3)
    assert state.layers[0].self_keys.shape == (5, 1, 4, 24)  # each head's keys side by side, as several beams read them
    assert state.layers[0].self_values.shape == (5, 1, 24, 4)
    assert state.layers[0].cross_keys.shape == (5, 1, 6, 4)


BEAMS: dict[str, dict[str, Any]] = {
    "rotary": {"position_kind": "rotary", "rotary_dim": 4, "position_index": "non_pad_count", "num_kv_heads": 1},
    "vectors": {"position_kind": "relative_vectors", "relative_max_distance": 2},
}


@pytest.mark.parametrize("name", BEAMS)
def test_reordered_beams_keep_their_positions(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any], name: str
) -> None:
    """Two beams of a sentence change places after three tokens."""
    config = dataclasses.replace(config, **BEAMS[name])
    params, first, second = random_params(config), ids.target.copy(), np.roll(ids.target, 1, axis=0)
    first[:, 0] = second[:, 0] = 4
    encoded = functional.encode(config, params, ids.source)
    state = functional.start_decoding(config, params, encoded, ids.source, length=8, num_beams=2)
    for column in range(6):
        if column == 3:
            state = state.reordered(np.tile([1, 0], (5, 1)))
        beams = (first, second) if column < 3 else (second, first)
        logits, state = functional.decode_step(config, params, state, np.stack([b[:, column] for b in beams], axis=1))
    for beam, tokens in enumerate((second, first)):
        expected = functional.decode(config, params, encoded, ids.source, tokens[:, :6])[:, -1]
        assert compare(np.asarray(logits[:, beam]), np.asarray(expected)).within(FLOAT64_RELATIVE_RMS)


def test_gradients_are_the_same_however_layers_run(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    """Under a scan that keeps products, and one by one, computed again from their inputs."""
    config = dataclasses.replace(
        config, position_kind="rotary", rotary_dim=4, num_kv_heads=1, head_scale=True, query_key_norm=True
    )
    params = random_params(config)

    def gradients(config: TransformerConfig) -> list[Any]:
        loss = lambda params: jnp.sum(functional.apply(config, params, *ids) ** 2)  # noqa: E731
        return jax.tree.leaves(jax.jit(jax.grad(loss))(params))

    expected = gradients(config)
    received = gradients(dataclasses.replace(config, layer_loop="unrolled", remat="all"))
    largest = max(np.abs(one).max() for one in expected)
    for one, other in zip(received, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13 * largest)


# --- attention's paths

SHARED = TransformerConfig(d_model=24, num_heads=6, num_kv_heads=2, dropout_rate=0.0)


def how(config: TransformerConfig) -> attention.Computation:
    return attention.Computation.of(config, config.encoder, config.encoder.self_attention)


def heads_of(dtype: str = "float32", value_dim: int = 4) -> Heads:
    rng = np.random.default_rng(2)
    shapes = ((2, 17, 6, 4), (2, 17, 2, 4), (2, 17, 2, value_dim))
    return Heads(*(jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes))


@pytest.mark.parametrize("path", ["flash", "xla"])
def test_other_paths_share_keys_and_take_alibis_biases(path: Any) -> None:
    mask = jnp.tril(jnp.ones((1, 1, 17, 17), bool))
    terms = AttentionTerms(mask, distances.alibi_bias(6, 17, None, jnp.dtype("float32")))
    expected = attention.attend(how(SHARED), heads_of(), terms, Scope())
    received = attention.attend(how(SHARED.replace(attention_path=path)), heads_of(), terms, Scope())
    np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("path", ["flash", "xla"])
@pytest.mark.parametrize("value_dim", [3, 20])
def test_other_paths_take_values_of_another_width(path: Any, value_dim: int) -> None:
    """Contexts and gradients, with features that the kernels fill up to 16 and 32."""
    mask, heads = AttentionTerms(jnp.tril(jnp.ones((1, 1, 17, 17), bool))), heads_of(value_dim=value_dim)

    def loss(config: TransformerConfig, heads: Heads) -> tuple[jax.Array, jax.Array]:
        context = attention.attend(how(config), heads, mask, Scope())
        return jnp.sum(jnp.sin(context)), context

    both = jax.value_and_grad(loss, argnums=1, has_aux=True)
    (_, expected), gradients = both(SHARED, heads)
    (_, received), others = both(dataclasses.replace(SHARED, attention_path=path), heads)
    assert received.shape == (2, 17, 6, value_dim)
    np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-6)
    for gradient, other in zip(gradients, others, strict=True):
        np.testing.assert_allclose(other, gradient, rtol=1e-4, atol=1e-5)


def test_auto_leaves_vectors_to_the_reference_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash, "platform", lambda: "tpu")
    monkeypatch.setattr(flash, "FROM_TOKENS", {"tpu": 1})
    taken = []
    for name in ("flash_path", "reference_attention"):
        monkeypatch.setattr(attention, name, lambda *_, name=name: taken.append(name))
    vectors = distances.Vectors(jnp.zeros((17, 17, 4)), None)
    for terms in (AttentionTerms(), AttentionTerms(vectors=vectors)):
        attention.attend(how(SHARED), heads_of(), terms, Scope())
    assert taken == ["flash_path", "reference_attention"]
