"""Traces and interventions: the names of DESIGN.md, in execution order, and what becomes of the activations that are
touched."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
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

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

MASK_NAMES = ["mask.encoder_self", "mask.decoder_self", "mask.cross"]
EMBEDDING_NAMES = ["token_embedding", "positions", "embedding"]
ATTENTION_NAMES = ["query", "key", "value", "logits", "weights", "context", "output"]
RUNS = {
    "post": {},
    "pre": {"norm_placement": "pre", "final_norm": True},
    "bare": {
        "norm_kind": "none",
        "feed_forward": False,
        "position_kind": "none",
        "encoder_padding": "none",
        "cross_padding": "none",
    },
    "embedding_norm": {
        "encoder_embedding_norm": "before_positions",
        "decoder_embedding_norm": "after_positions",
        "tie_head": True,
    },
}


def sublayer_names(name: str, inner: list[str], run: str) -> list[str]:
    inside = [f"{name}.{part}" for part in inner]
    norm = [] if run == "bare" else [f"{name}_norm"]
    return [*norm, *inside] if run == "pre" else [*inside, *norm]


def expected_names(run: str, num_encoder_layers: int = 1, num_decoder_layers: int = 2) -> list[str]:
    """DESIGN.md, "Traces", written out."""
    names = ["mask.decoder_self"] if run == "bare" else [*MASK_NAMES]
    for stack, count in (("encoder", num_encoder_layers), ("decoder", num_decoder_layers)):
        embedding = [name for name in EMBEDDING_NAMES if run != "bare" or name != "positions"]
        names += [f"{stack}.{name}" for name in embedding]
        attentions = ["self_attention"] if stack == "encoder" else ["self_attention", "cross_attention"]
        for i in range(count):
            layer = []
            for attention in attentions:
                layer += [*sublayer_names(attention, ATTENTION_NAMES, run), f"{attention}_residual"]
            if run != "bare":
                layer += sublayer_names("feed_forward", ["hidden", "output"], run)
            names += [f"{stack}.layers.{i}.{name}" for name in [*layer, "output"]]
        names.append(f"{stack}.output")
    return [*names, "logits"]


Run = Callable[..., Any]


@pytest.fixture(scope="module")
def params(x64: None, config: TransformerConfig, random_params: Callable[..., Any]) -> Any:
    return random_params(config)


@pytest.fixture(scope="module")
def trace(x64: None, config: TransformerConfig, params: Any, ids: Any) -> OrderedDict[str, np.ndarray]:
    """Of the post-norm configuration, scanned."""
    _, trace = functional.apply(config, params, ids.source, ids.target, return_trace=True)
    return OrderedDict((name, np.asarray(value)) for name, value in trace.items())


# --- names


@pytest.mark.parametrize("loop", ["scan", "unrolled"])
@pytest.mark.parametrize("run", RUNS)
def test_names_are_in_execution_order(
    config: TransformerConfig, ids: Any, random_params: Any, run: str, loop: str
) -> None:
    config = dataclasses.replace(config, num_encoder_layers=3, layer_loop=loop, **RUNS[run])  # type: ignore[arg-type]
    params = random_params(config)
    _, trace = jax.eval_shape(lambda: functional.apply(config, params, ids.source, ids.target, return_trace=True))
    assert list(trace) == expected_names(run, num_encoder_layers=3)


def test_shapes(trace: OrderedDict[str, np.ndarray]) -> None:
    b, s, t, d = 5, 6, 8, 12
    shapes = {name: value.shape for name, value in trace.items()}
    layer = "encoder.layers.0"
    assert {name: shapes[f"{layer}.self_attention.{name}"] for name in ATTENTION_NAMES} == {
        "query": (b, s, 3, 5),
        "key": (b, s, 3, 5),
        "value": (b, s, 3, 5),
        "logits": (b, 3, s, s),
        "weights": (b, 3, s, s),
        "context": (b, s, 3, 5),
        "output": (b, s, d),
    }
    layer = "decoder.layers.1"
    assert {name: shapes[f"{layer}.cross_attention.{name}"] for name in ATTENTION_NAMES} == {
        "query": (b, t, 2, 4),
        "key": (b, s, 2, 4),
        "value": (b, s, 2, 4),
        "logits": (b, 2, t, s),
        "weights": (b, 2, t, s),
        "context": (b, t, 2, 4),
        "output": (b, t, d),
    }
    assert shapes["decoder.layers.0.feed_forward.hidden"] == (b, t, 14)
    assert shapes["logits"] == (b, t, 11)
    assert all(trace[name].dtype == bool for name in MASK_NAMES)


# --- values


def test_a_trace_is_consistent_with_itself(
    config: TransformerConfig, params: Any, trace: OrderedDict[str, np.ndarray]
) -> None:
    """Post-norm: what each name stands for, recomputed from the names before it."""
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)  # noqa: E731

    def norm(x: np.ndarray, parameters: Any, i: int) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        return (
            centred / np.sqrt(x.var(axis=-1, keepdims=True) + config.norm_eps) * parameters["scale"][i]
            + parameters["bias"][i]
        )

    for stack, i, inputs in (("encoder", 0, "encoder.embedding"), ("decoder", 1, "decoder.layers.0.output")):
        layer, names = params[stack]["layers"], lambda name, stack=stack, i=i: trace[f"{stack}.layers.{i}.{name}"]
        x = trace[inputs]
        for attention in ("self_attention", "cross_attention")[: 1 if stack == "encoder" else 2]:
            keys_from = trace["encoder.output"] if attention == "cross_attention" else x
            mask = trace["mask.cross" if attention == "cross_attention" else f"mask.{stack}_self"]
            for name, source in (("query", x), ("key", keys_from), ("value", keys_from)):
                projection = layer[attention][name]
                close(
                    names(f"{attention}.{name}"),
                    np.einsum("btd,dnh->btnh", source, projection["kernel"][i]) + projection["bias"][i],
                )
            query, key, value = (names(f"{attention}.{name}") for name in ("query", "key", "value"))
            logits = np.einsum("bqnh,bknh->bnqk", query, key) / np.sqrt(query.shape[-1])
            close(names(f"{attention}.logits"), np.where(mask, logits, np.finfo(np.float64).min))
            weights = names(f"{attention}.weights")
            close(weights.sum(axis=-1), 1.0)
            close(names(f"{attention}.context"), np.einsum("bnqk,bknh->bqnh", weights, value))
            projection = layer[attention]["output"]
            output = (
                np.einsum("btnh,nhd->btd", names(f"{attention}.context"), projection["kernel"][i])
                + projection["bias"][i]
            )
            close(names(f"{attention}.output"), output)
            x = norm(x + output, layer[f"{attention}_norm"], i)
            close(names(f"{attention}_norm"), x)
            close(names(f"{attention}_residual"), x)
        feed_forward = layer["feed_forward"]
        hidden = np.maximum(x @ feed_forward["hidden"]["kernel"][i] + feed_forward["hidden"]["bias"][i], 0.0)
        close(names("feed_forward.hidden"), hidden)
        output = hidden @ feed_forward["output"]["kernel"][i] + feed_forward["output"]["bias"][i]
        close(names("feed_forward.output"), output)
        close(names("output"), norm(x + output, layer["feed_forward_norm"], i))
    close(trace["encoder.output"], trace["encoder.layers.0.output"])
    close(trace["logits"], trace["decoder.output"] @ params["head"]["kernel"] + params["head"]["bias"])


def test_pre_norm_is_consistent_with_itself(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    """Sublayers read the norm, residuals go round it, and the stack ends with a norm of its own."""
    config = dataclasses.replace(config, **RUNS["pre"])  # type: ignore[arg-type]
    params = random_params(config)
    _, trace = functional.apply(config, params, ids.source, ids.target, return_trace=True)
    layer, prefix = params["decoder"]["layers"], "decoder.layers.1"
    before = trace["decoder.layers.0.output"]
    normed = trace[f"{prefix}.self_attention_norm"]
    np.testing.assert_allclose(
        trace[f"{prefix}.self_attention_residual"], before + trace[f"{prefix}.self_attention.output"], rtol=1e-12
    )
    projection = layer["self_attention"]["query"]
    query = np.einsum("btd,dnh->btnh", normed, projection["kernel"][1]) + projection["bias"][1]
    np.testing.assert_allclose(trace[f"{prefix}.self_attention.query"], query, rtol=1e-10, atol=1e-12)
    after_cross = trace[f"{prefix}.self_attention_residual"] + trace[f"{prefix}.cross_attention.output"]
    np.testing.assert_allclose(trace[f"{prefix}.cross_attention_residual"], after_cross, rtol=1e-12)
    np.testing.assert_allclose(
        trace[f"{prefix}.output"], after_cross + trace[f"{prefix}.feed_forward.output"], rtol=1e-12
    )
    last, final = np.asarray(trace[f"{prefix}.output"]), params["decoder"]["final_norm"]
    centred = last - last.mean(axis=-1, keepdims=True)
    expected = centred / np.sqrt(last.var(axis=-1, keepdims=True) + config.norm_eps) * final["scale"] + final["bias"]
    np.testing.assert_allclose(trace["decoder.output"], expected, rtol=1e-10, atol=1e-12)
    assert not np.allclose(trace["encoder.output"], trace["encoder.layers.0.output"])


def test_the_unrolled_loop_has_the_same_trace(
    config: TransformerConfig, ids: Any, params: Any, trace: OrderedDict[str, np.ndarray]
) -> None:
    unrolled = dataclasses.replace(config, layer_loop="unrolled")
    _, received = functional.apply(unrolled, params, ids.source, ids.target, return_trace=True)
    assert list(received) == list(trace)
    for name, value in trace.items():
        assert compare(
            np.asarray(received[name]), value, np.abs(value) < 1e100 if name.endswith("logits") else None
        ).within(FLOAT64_RELATIVE_RMS), name


def test_recording_changes_no_number(
    config: TransformerConfig, ids: Any, params: Any, trace: OrderedDict[str, np.ndarray]
) -> None:
    logits = np.asarray(functional.apply(config, params, ids.source, ids.target))
    assert compare(trace["logits"], logits).within(FLOAT64_RELATIVE_RMS)


# --- interventions


def test_adding_zeros_gives_the_gradients_of_activations(
    config: TransformerConfig, ids: Any, params: Any, trace: OrderedDict[str, np.ndarray]
) -> None:
    """With zeros everywhere the function is the same; each gradient agrees with a difference quotient along a random
    direction."""
    names = [name for name in trace if not name.startswith("mask.")]
    zeros = {name: jnp.zeros(trace[name].shape) for name in names}
    weights = np.random.default_rng(0).standard_normal(trace["logits"].shape)

    @jax.jit
    def loss(add: Any) -> Any:
        return (functional.apply(config, params, ids.source, ids.target, add=add) * weights).sum()

    value, gradients = jax.jit(jax.value_and_grad(loss))(zeros)
    assert value == pytest.approx((trace["logits"] * weights).sum(), rel=1e-12)
    np.testing.assert_allclose(gradients["logits"], weights)
    rng, step = np.random.default_rng(1), 1e-6
    for name in (
        "encoder.embedding",
        "encoder.layers.0.self_attention.key",
        "decoder.layers.1.cross_attention.weights",
        "decoder.output",
    ):
        direction = rng.standard_normal(trace[name].shape)
        ends = [loss({**zeros, name: sign * step * direction}) for sign in (1, -1)]
        slope = float(ends[0] - ends[1]) / (2 * step)
        assert float((gradients[name] * direction).sum()) == pytest.approx(slope, rel=1e-5), name
    masked = ~np.broadcast_to(trace["mask.encoder_self"], trace["encoder.layers.0.self_attention.logits"].shape)
    assert masked.any()
    by_weights = np.asarray(gradients["encoder.layers.0.self_attention.weights"])
    assert np.abs(by_weights).max() > 0


def test_replacing_puts_an_activation_in_place(
    config: TransformerConfig, ids: Any, params: Any, trace: OrderedDict[str, np.ndarray]
) -> None:
    """With its own value nothing changes. With another, everything after it follows from that, and nothing before it
    moves."""
    name, after = "decoder.layers.0.output", "decoder.layers.1.self_attention.query"

    def run(value: np.ndarray) -> Any:
        return functional.apply(config, params, ids.source, ids.target, replace={name: value}, return_trace=True)

    logits, _ = run(trace[name])
    assert compare(np.asarray(logits), trace["logits"]).within(FLOAT64_RELATIVE_RMS)
    other = np.random.default_rng(0).standard_normal(trace[name].shape)
    logits, changed = run(other)
    assert not compare(np.asarray(logits), trace["logits"]).within(1e-2)
    np.testing.assert_array_equal(changed[name], other)
    projection = params["decoder"]["layers"]["self_attention"]["query"]
    expected = np.einsum("btd,dnh->btnh", other, projection["kernel"][1]) + projection["bias"][1]
    np.testing.assert_allclose(changed[after], expected, rtol=1e-10, atol=1e-12)
    for before in list(trace)[: list(trace).index(name)]:
        assert compare(np.asarray(changed[before]), trace[before], np.abs(trace[before]) < 1e100).within(
            FLOAT64_RELATIVE_RMS
        ), before


@pytest.mark.parametrize("how", ["add", "replace"])
def test_an_unknown_name_is_refused(config: TransformerConfig, ids: Any, params: Any, how: str) -> None:
    """With every unknown name; a mask is none of the activations."""
    values = {
        name: np.zeros((5, 8, 12))
        for name in ("decoder.layers.1.output", "decoder.layers.2.output", "mask.cross", "Logits")
    }
    message = (
        "interventions name activations that this model doesn't have: Logits, decoder.layers.2.output, mask.cross\n"
    )
    with pytest.raises(ValueError, match=message):
        functional.apply(config, params, ids.source, ids.target, **{how: values})


@pytest.mark.parametrize("how", ["add", "replace"])
@pytest.mark.parametrize("shape", [(12,), (1, 8, 12), (5, 8, 13), ()])
def test_a_wrong_shape_is_refused(
    config: TransformerConfig, ids: Any, params: Any, how: str, shape: tuple[int, ...]
) -> None:
    """Even where it would broadcast."""
    with pytest.raises(
        ValueError, match=r"intervention in decoder.layers.1.output: expected shape \(5, 8, 12\), received \("
    ) as error:
        functional.apply(config, params, ids.source, ids.target, **{how: {"decoder.layers.1.output": np.zeros(shape)}})
    assert str(error.value).splitlines()[0].endswith(f"received {shape}")


@pytest.mark.parametrize("how", ["add", "replace"])
def test_an_intervention_keeps_the_activations_dtype(
    config: TransformerConfig, ids: Any, random_params: Any, how: str
) -> None:
    """A bfloat16 model goes on in bfloat16 though zeros (or a saved trace) are float32."""
    config = dataclasses.replace(config, compute_dtype="bfloat16")
    params, name = random_params(config, "float32"), "decoder.embedding"
    run = lambda **options: functional.apply(config, params, ids.source, ids.target, return_trace=True, **options)[1]  # noqa: E731
    expected = {key: value.dtype for key, value in jax.eval_shape(run).items()}
    assert expected[name] == jnp.bfloat16
    received = jax.eval_shape(lambda: run(**{how: {name: np.zeros((5, 8, 12), np.float32)}}))
    assert {key: value.dtype for key, value in received.items() if value.dtype != expected[key]} == {}
