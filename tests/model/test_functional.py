"""The functional door: how the parts make the whole, by formulas of embedding, head and feed-forward, and in which
dtypes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import functional
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.masks import Masks
from jax_transformer.runtime.trees import flatten

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

# --- parts and whole


def run(config: TransformerConfig, params: Any, ids: Any, **options: Any) -> Any:
    return functional.apply(config, params, ids.source, ids.target, **options)


def unembedded(config: TransformerConfig, params: Any, hidden: Any) -> np.ndarray:
    """The logits of hidden [B, T, D] by the head's arrays."""
    kernel, bias = functional.head(config, params)
    return np.asarray(hidden) @ np.asarray(kernel) + (0.0 if bias is None else np.asarray(bias))


def test_the_parts_make_the_whole(config: TransformerConfig, ids: Any, random_params: Callable[..., Any]) -> None:
    params = random_params(config)
    logits = np.asarray(run(config, params, ids))
    assert logits.shape == (5, 8, 11)
    encoder_output = functional.encode(config, params, ids.source)
    in_two = functional.decode(config, params, encoder_output, ids.source, ids.target)
    through_head = unembedded(config, params, functional.hidden_states(config, params, ids.source, ids.target))
    for received in (in_two, through_head):
        assert compare(np.asarray(received), logits).within(FLOAT64_RELATIVE_RMS)


def test_functions_can_be_transformed(config: TransformerConfig, ids: Any, random_params: Callable[..., Any]) -> None:
    """vmap over two sets of parameters is each of them alone."""
    each = [random_params(config, seed=seed) for seed in (0, 1)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
    together = jax.vmap(lambda params: functional.encode(config, params, ids.source))(stacked)
    for params, received in zip(each, together, strict=True):
        assert compare(np.asarray(received), np.asarray(functional.encode(config, params, ids.source))).within(
            FLOAT64_RELATIVE_RMS
        )


def test_masks_may_be_passed(config: TransformerConfig, ids: Any, random_params: Callable[..., Any]) -> None:
    """None is everything: then padding is text like any other, as in a config that masks nothing."""
    params = random_params(config)
    open_config = dataclasses.replace(
        config, encoder_padding="none", decoder_padding="none", cross_padding="none", decoder_causal=False
    )
    given = run(config, params, ids, masks=Masks(None, None, None))
    assert compare(np.asarray(given), np.asarray(run(open_config, params, ids))).within(FLOAT64_RELATIVE_RMS)
    assert not compare(np.asarray(given), np.asarray(run(config, params, ids))).within(1e-3)


# --- embedding and head


def traced(config: TransformerConfig, params: Any, ids: Any, *names: str) -> list[np.ndarray]:
    """The activations of these names; what they don't need is not compiled."""

    def of(params: Any) -> list[Any]:
        trace = functional.apply(config, params, ids.source, ids.target, return_trace=True)[1]
        return [trace[name] for name in names]

    return [np.asarray(value) for value in jax.jit(of)(params)]


def test_embeddings_are_rows_of_the_table_scaled_or_not(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    for scale_embedding, factor in ((True, np.sqrt(12)), (False, 1.0)):
        params = random_params(config)
        options = dataclasses.replace(config, scale_embedding=scale_embedding)
        received = traced(options, params, ids, "encoder.token_embedding", "decoder.token_embedding")
        for side, tokens, vectors in zip(("source", "target"), ids, received, strict=True):
            np.testing.assert_allclose(vectors, params[f"{side}_embedding"]["embedding"][tokens] * factor, rtol=1e-14)


@pytest.mark.parametrize("tie_head", [True, False])
@pytest.mark.parametrize("head_bias", ["parameter", "buffer", "none"])
def test_the_head(config: TransformerConfig, random_params: Callable[..., Any], head_bias: str, tie_head: bool) -> None:
    """Logits are the decoder's output times the kernel (scaled before, where asked), plus the bias, wherever that is
    kept, and all times their factor."""
    for scale_head, factor in ((False, 1.0), (True, 12**-0.5)):
        options = dataclasses.replace(config, head_bias=head_bias, tie_head=tie_head, scale_head=scale_head)  # type: ignore[arg-type]
        options = dataclasses.replace(options, logits_factor=0.7)
        params = random_params(options)
        hidden = np.random.default_rng(0).standard_normal((2, 3, 12))
        kernel = params["target_embedding"]["embedding"].T if tie_head else params["head"]["kernel"]
        bias = {
            "parameter": lambda params=params: params["head_bias"] if tie_head else params["head"]["bias"],
            "buffer": lambda params=params: params["constants"]["head_bias"],
            "none": lambda: np.zeros(11),
        }[head_bias]()
        received = unembedded(options, params, hidden)
        np.testing.assert_allclose(received, 0.7 * (hidden @ kernel * factor + bias), rtol=1e-12)


def test_a_shared_embedding_serves_both_sides(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    config = dataclasses.replace(config, source_vocab_size=11, source_pad_id=2, share_embeddings=True, tie_head=True)
    params = random_params(config)
    ids = ids._replace(source=np.where(ids.source < 11, ids.source, 4))
    table = params["shared_embedding"]["embedding"]
    for tokens, vectors in zip(
        ids, traced(config, params, ids, "encoder.token_embedding", "decoder.token_embedding"), strict=True
    ):
        np.testing.assert_allclose(vectors, table[tokens] * np.sqrt(12), rtol=1e-14)
    hidden = np.random.default_rng(0).standard_normal((2, 3, 12))
    np.testing.assert_allclose(unembedded(config, params, hidden), hidden @ table.T + params["head_bias"], rtol=1e-12)


@pytest.mark.parametrize("placement", ["before_positions", "after_positions"])
def test_embeddings_may_be_normed(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any], placement: str
) -> None:
    config = dataclasses.replace(config, encoder_embedding_norm=placement)  # type: ignore[arg-type]
    params = random_params(config)
    names = [
        f"{stack}.{name}" for stack in ("encoder", "decoder") for name in ("token_embedding", "positions", "embedding")
    ]
    tokens, positions, received, *decoder = traced(config, params, ids, *names)

    def norm(x: np.ndarray) -> np.ndarray:
        parameters = params["encoder"]["embedding_norm"]
        centred = x - x.mean(axis=-1, keepdims=True)
        return (
            centred / np.sqrt(x.var(axis=-1, keepdims=True) + config.norm_eps) * parameters["scale"]
            + parameters["bias"]
        )

    expected = norm(tokens) + positions if placement == "before_positions" else norm(tokens + positions)
    np.testing.assert_allclose(received, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(decoder[2], decoder[0] + decoder[1], rtol=1e-12)  # the decoder has its own option


# --- feed-forward


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "none"])
def test_activations(config: TransformerConfig, ids: Any, random_params: Callable[..., Any], activation: str) -> None:
    """Gated and not, on the encoder's only layer, by the formula."""
    from math import erf

    formulas: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "relu": lambda x: np.maximum(x, 0),
        "gelu": lambda x: x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2))),
        "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        "silu": lambda x: x / (1 + np.exp(-x)),
        "none": lambda x: x,
    }
    gated = activation in ("silu", "gelu")
    config = dataclasses.replace(config, activation=activation, feed_forward_gated=gated)  # type: ignore[arg-type]
    params = random_params(config)
    layer = jax.tree.map(lambda leaf: leaf[0], params["encoder"]["layers"]["feed_forward"])
    x = np.random.default_rng(0).standard_normal((2, 3, 12))
    received = feed_forward(config, layer, x)
    inner = x @ layer["hidden"]["kernel"] + layer["hidden"]["bias"]
    if gated:
        expected = formulas[activation](x @ layer["gate"]["kernel"] + layer["gate"]["bias"]) * inner
    else:
        expected = formulas[activation](inner)
    np.testing.assert_allclose(
        received, expected @ layer["output"]["kernel"] + layer["output"]["bias"], rtol=1e-10, atol=1e-12
    )


def feed_forward(config: TransformerConfig, parameters: Any, x: np.ndarray) -> np.ndarray:
    from flax import nnx

    from jax_transformer.model.layers import FeedForward
    from jax_transformer.model.scope import Scope

    graph, _ = nnx.split(
        nnx.eval_shape(
            lambda: FeedForward(config, config.encoder, config.encoder.feed_forward, KeyStream(jax.random.key(0)))
        )
    )
    return np.asarray(nnx.merge(graph, nnx.State(parameters))(x, Scope()))


# --- dtypes


def trace_dtypes(config: TransformerConfig, params: Any, ids: Any) -> dict[str, set[str]]:
    """Names of each dtype, masks aside."""
    _, trace = jax.eval_shape(lambda: run(config, params, ids, return_trace=True))
    found: dict[str, set[str]] = {}
    for name, value in trace.items():
        if not name.startswith("mask."):
            found.setdefault(str(value.dtype), set()).add(name)
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_compute_dtype_follows_the_parameters(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any], dtype: str
) -> None:
    """Every activation and every gradient: no float32 constant or intermediate comes between."""
    params = random_params(config, dtype)
    assert trace_dtypes(config, params, ids).keys() == {dtype}
    gradients = jax.eval_shape(jax.grad(lambda params: run(config, params, ids).sum()), params)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(gradients)} == {dtype}
    program = str(jax.make_jaxpr(lambda params: run(config, params, ids))(params))
    assert ("f32[" in program) == (dtype == "float32")


def test_float64_is_computed_and_not_only_called_so(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    """A change of one part in 10¹² in a parameter moves the logits by about as much."""
    params = random_params(config)
    nudged = jax.tree.map(lambda leaf: leaf * (1 + 1e-12), params)
    expected, received = (np.asarray(run(config, p, ids)) for p in (params, nudged))
    assert 1e-13 < compare(received, expected).relative_rms < 1e-10


def test_bfloat16_keeps_wide_arrays(config: TransformerConfig, ids: Any, random_params: Callable[..., Any]) -> None:
    """Products and the residual stream in bfloat16, attention logits and weights in float32; parameters keep their
    dtype."""
    config = dataclasses.replace(config, compute_dtype="bfloat16")
    params = random_params(config, "float32")
    found = trace_dtypes(config, params, ids)
    assert found.keys() == {"bfloat16", "float32"}
    wide = {f"{layer}.{name}" for layer in attention_layers() for name in ("logits", "weights")}
    assert found["float32"] == wide
    assert "logits" in found["bfloat16"]
    gradients = jax.eval_shape(jax.grad(lambda params: run(config, params, ids).astype(jnp.float32).sum()), params)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(gradients)} == {"float32"}
    narrow, exact = (
        np.asarray(run(c, params, ids), np.float64) for c in (config, dataclasses.replace(config, compute_dtype=None))
    )
    assert 1e-4 < compare(narrow, exact).relative_rms < 0.05


def attention_layers() -> list[str]:
    decoder = [f"decoder.layers.{i}.{kind}_attention" for i in range(2) for kind in ("self", "cross")]
    return ["encoder.layers.0.self_attention", *decoder]


# --- constants


@pytest.mark.parametrize("head_bias", ["buffer", "parameter"])
def test_no_gradient_reaches_a_constant(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any], head_bias: Any
) -> None:
    config = dataclasses.replace(config, head_bias=head_bias)
    params = random_params(config)
    gradients = jax.grad(lambda params: (run(config, params, ids) ** 2).sum())(params)
    constants = gradients.pop("constants")
    assert constants.keys() == params["constants"].keys()
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(constants))
    assert all(np.any(leaf) for path, leaf in flatten(gradients).items() if not path.endswith("key/bias"))


def test_constants_are_split_off_and_joined_again(config: TransformerConfig, random_params: Callable[..., Any]) -> None:
    params = random_params(config)
    trained, constants = functional.split_constants(params)
    assert {*constants} == {"encoder_positions", "decoder_positions"}
    assert trained.keys() == params.keys() - {"constants"}
    joined = functional.join_constants(trained, constants)
    assert jax.tree.all(jax.tree.map(lambda one, other: one is other, joined, params))
    assert functional.join_constants(*functional.split_constants(trained)) == trained
