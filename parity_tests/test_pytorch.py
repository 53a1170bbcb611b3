"""The system `pytorch` (torch.nn.Transformer): the JAX model is the same function.

Inputs are such that mistakes show: all sizes differ pairwise; padding stands right, left and inside; there are a sentence of one token and
one of nothing but padding; every parameter is random, biases and the scales of norms included.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as torch_functional

from jax_transformer.config import TransformerConfig
from jax_transformer.model import functional
from jax_transformer.parity.compare import compare, float32_rule
from jax_transformer.parity.tolerances import FLOAT64_RELATIVE_RMS, has_zero_gradient
from jax_transformer.porting.convert import export_checkpoint, import_checkpoint, params_from_state_dict
from jax_transformer.trees import flatten
from torch_reference.pytorch import PytorchTransformer, greedy
from torch_reference.trace import Trace

CASES = {
    "post_relu": {"norm_first": False, "activation": "relu"},
    "pre_gelu_tied_head": {"norm_first": True, "activation": "gelu", "tie_head": True, "norm_eps": 1e-3},
    "post_gelu_all_tied": {"norm_first": False, "activation": "gelu", "share_embeddings": True, "tie_head": True},
}
START_ID = 5


class Case(NamedTuple):
    """One model in both frameworks, in float32-representable parameters, and one batch."""

    torch32: PytorchTransformer
    torch64: PytorchTransformer
    config: TransformerConfig
    params32: dict[str, Any]
    params64: dict[str, Any]
    source_ids: np.ndarray
    decoder_input_ids: np.ndarray

    def ids(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.source_ids), torch.from_numpy(self.decoder_input_ids)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param)


@cache
def make_case(name: str) -> Case:
    rng = np.random.default_rng([*name.encode()])
    torch32, hints = make_model(rng, **CASES[name])
    torch64 = PytorchTransformer(**hints, dtype=torch.float64).eval()
    torch64.load_state_dict(torch32.state_dict())
    model32, model64 = (import_checkpoint(model.state_dict(), **import_hints(hints)) for model in (torch32, torch64))
    source_ids, decoder_input_ids = make_batch(rng, hints)
    return Case(torch32, torch64, model32.config, model32.params, model64.params, source_ids, decoder_input_ids)


def make_model(rng: np.random.Generator, **options: Any) -> tuple[PytorchTransformer, dict[str, Any]]:
    """A model of random sizes, no two of them equal, with random parameters; and its arguments."""
    num_heads, head_dim = (int(size) for size in rng.choice([(3, 4), (4, 5), (5, 4), (3, 6), (6, 5)]))
    d_ff, source_vocab_size, target_vocab_size, max_length = (int(size) for size in rng.choice(np.arange(41, 60), 4, replace=False))
    sizes = {
        "source_vocab_size": target_vocab_size if options.get("share_embeddings") else source_vocab_size,
        "target_vocab_size": target_vocab_size,
        "d_model": num_heads * head_dim,
        "num_heads": num_heads,
        "d_ff": d_ff,
        "num_encoder_layers": 3,
        "num_decoder_layers": 2,
        "max_length": max_length,
        "source_pad_id": int(rng.integers(4)),
        "target_pad_id": int(rng.integers(4)),
    }
    hints = sizes | options
    model = PytorchTransformer(**hints).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            values = rng.standard_normal(parameter.shape)
            values *= 1.3 / np.sqrt(parameter.shape[-1]) if parameter.ndim == 2 else 0.4
            if "norm" in path and path.endswith("weight"):
                values += 1.0
            parameter.copy_(torch.from_numpy(values))
    return model, hints


def make_batch(rng: np.random.Generator, hints: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """source_ids [7, 11] and decoder_input_ids [7, 9]."""

    def sentences(length: int, vocab_size: int, pad_id: int) -> np.ndarray:
        real = np.array([token for token in range(vocab_size) if token != pad_id])
        return rng.choice(real, (7, length))

    source_pad, target_pad = hints["source_pad_id"], hints["target_pad_id"]
    source = sentences(11, hints["source_vocab_size"], source_pad)
    target = sentences(9, hints["target_vocab_size"], target_pad)
    source[1, 8:] = source_pad  # right
    source[2, :3] = source_pad  # left: with the causal mask, as a target, fully masked rows
    source[3, [2, 5, 6]] = source_pad  # inside
    source[4, 1:] = source_pad  # one token
    source[5] = source_pad  # none
    target[0, 6:] = target_pad
    target[1, :2] = target_pad
    target[2, [3, 4]] = target_pad
    target[3, 1:] = target_pad
    target[6] = target_pad
    return source, target


def import_hints(hints: dict[str, Any]) -> dict[str, Any]:
    """What a state_dict doesn't tell of a model with these arguments."""
    told = ("num_heads", "source_pad_id", "target_pad_id", "norm_first", "activation", "norm_eps", "share_embeddings", "tie_head")
    return {name: hints[name] for name in told if name in hints} | {"decoder_start_id": START_ID, "eos_id": 6}


def torch_trace(model: PytorchTransformer, case: Case) -> OrderedDict[str, np.ndarray]:
    trace = Trace()
    with torch.no_grad():
        model(*case.ids(), trace=trace)
    return OrderedDict((name, value.numpy()) for name, value in trace.items())


def jax_trace(config: TransformerConfig, params: dict[str, Any], case: Case) -> OrderedDict[str, np.ndarray]:
    _, trace = functional.apply(config, params, case.source_ids, case.decoder_input_ids, return_trace=True)
    return OrderedDict((name, np.asarray(value)) for name, value in trace.items())


def attended(name: str, trace: OrderedDict[str, np.ndarray]) -> np.ndarray | None:
    """Where attention logits are no fill value: a masked one is the lowest number there is, next to which nothing else counts."""
    if not name.endswith("attention.logits"):
        return None
    mask = "cross" if "cross_attention" in name else f"{name.split('.')[0]}_self"
    return trace[f"mask.{mask}"]


def test_masks_names_shapes_and_dtypes_are_equal(case: Case) -> None:
    expected, received = torch_trace(case.torch64, case), jax_trace(case.config, case.params64, case)
    assert list(received) == list(expected)
    assert [(a.shape, a.dtype) for a in received.values()] == [(a.shape, a.dtype) for a in expected.values()]
    for name in ("mask.encoder_self", "mask.decoder_self", "mask.cross"):
        np.testing.assert_array_equal(received[name], expected[name])
        assert received[name].any()
        assert not received[name].all()


def test_every_trace_in_float64(case: Case) -> None:
    expected, received = torch_trace(case.torch64, case), jax_trace(case.config, case.params64, case)
    for name in expected:
        result = compare(received[name], expected[name], attended(name, expected))
        assert result.within(FLOAT64_RELATIVE_RMS), f"{name}: {result}"
        if attended(name, expected) is not None:
            np.testing.assert_array_equal(received[name] <= np.finfo(np.float64).min, expected[name] <= np.finfo(np.float64).min)


def test_fully_masked_rows_attend_to_all_keys_alike(case: Case) -> None:
    for trace in (torch_trace(case.torch64, case), jax_trace(case.config, case.params64, case)):
        length = case.source_ids.shape[1]
        np.testing.assert_allclose(trace["encoder.layers.0.self_attention.weights"][5], 1 / length, rtol=1e-15)
        np.testing.assert_allclose(trace["decoder.layers.0.cross_attention.weights"][5], 1 / length, rtol=1e-15)


def test_every_trace_in_float32(case: Case) -> None:
    truth, expected = torch_trace(case.torch64, case), torch_trace(case.torch32, case)
    received = jax_trace(case.config, case.params32, case)
    for name in list(truth)[3:]:
        verdict = float32_rule(received[name], expected[name], truth[name], attended(name, truth))
        assert verdict.passed, f"{name}: {verdict}"


def test_traced_route_is_nn_transformers_own_forward(case: Case) -> None:
    """torch against torch: the outputs, and the gradients of all parameters."""
    results = []
    for trace in (None, Trace()):
        case.torch64.zero_grad()
        logits = case.torch64(*case.ids(), trace=trace)
        logits.square().mean().backward()
        gradients = {name: parameter.grad.numpy() for name, parameter in case.torch64.named_parameters()}
        results.append({"logits": logits.detach().numpy()} | gradients)
    for name in results[0]:
        assert compare(results[1][name], results[0][name]).within(FLOAT64_RELATIVE_RMS), name
    with torch.no_grad():  # where torch would take its fused inference layer
        assert compare(case.torch64(*case.ids()).numpy(), results[0]["logits"]).within(FLOAT64_RELATIVE_RMS)


# --- gradients


def make_labels(case: Case, count_fully_masked: bool = False) -> np.ndarray:
    """Labels [B, T] with pads where nothing is counted: at pads, and at what has attended in a fully masked row."""
    rng = np.random.default_rng(0)
    pad = case.config.target_pad_id
    real = np.array([token for token in range(case.config.target_vocab_size) if token != pad])
    labels = rng.choice(real, case.decoder_input_ids.shape)
    if not count_fully_masked:
        nothing_to_read = (case.source_ids == case.config.source_pad_id).all(axis=1)
        labels[(case.decoder_input_ids == pad) | nothing_to_read[:, None]] = pad
    return labels


def torch_gradients(case: Case, labels: np.ndarray, trace: Trace | None = None) -> dict[str, np.ndarray]:
    """The gradients of cross-entropy, under the JAX model's paths."""
    model = case.torch64
    model.zero_grad()
    logits = model(*case.ids(), trace=trace)
    torch_functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(labels).flatten(), ignore_index=model.target_pad_id).backward()
    gradients = {name: p.grad for name, p in model.named_parameters(remove_duplicate=False)}
    gradients["positions"] = torch.zeros_like(model.positions)
    return flatten(params_from_state_dict(case.config, gradients, "pytorch"))


def loss(
    params: dict[str, Any], add: dict[str, Any] | None, config: TransformerConfig, source_ids: Any, decoder_input_ids: Any, labels: Any
) -> jax.Array:
    logits = functional.apply(config, params, source_ids, decoder_input_ids, add=add)
    assert isinstance(logits, jax.Array)
    losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)[..., 0]
    counted = labels != config.target_pad_id
    return jnp.where(counted, losses, 0.0).sum() / counted.sum()


QUICKLY = {"xla_backend_optimization_level": 0}  # the same operations, compiled in two thirds of the time
parameter_gradients = jax.jit(jax.grad(loss), static_argnames="config", compiler_options=QUICKLY)
activation_gradients = jax.jit(jax.grad(loss, argnums=1), static_argnames="config", compiler_options=QUICKLY)


def jax_gradients(case: Case, labels: np.ndarray) -> dict[str, np.ndarray]:
    gradients = parameter_gradients(
        case.params64, None, config=case.config, source_ids=case.source_ids, decoder_input_ids=case.decoder_input_ids, labels=labels
    )
    return {path: np.asarray(leaf) for path, leaf in flatten(gradients).items()}


def per_layer(gradients: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Parameters one by one: stacked leaves taken apart, constants left out."""
    parts = {}
    for path, leaf in gradients.items():
        if "/layers/" in path:
            parts |= {f"{path}[{i}]": leaf[i] for i in range(len(leaf))}
        elif not path.startswith("constants/"):
            parts[path] = leaf
    return parts


def test_parameter_gradients(case: Case) -> None:
    labels = make_labels(case)
    expected, received = per_layer(torch_gradients(case, labels)), per_layer(jax_gradients(case, labels))
    skipped = 0
    for name in expected:
        if has_zero_gradient(name.split("[")[0]):  # a key bias: analytically zero
            size = np.abs(expected[name.replace("key/bias", "value/bias")]).max()
            assert max(np.abs(expected[name]).max(), np.abs(received[name]).max()) < FLOAT64_RELATIVE_RMS * size
            skipped += 1
            continue
        result = compare(received[name], expected[name])
        assert result.within(FLOAT64_RELATIVE_RMS), f"{name}: {result}"
    assert skipped == 3 + 2 + 2  # encoder, decoder, cross: one key bias in each layer


def test_activation_gradients() -> None:
    case = make_case("pre_gelu_tied_head")
    labels = make_labels(case)
    trace = Trace(keep_gradients=True)
    torch_gradients(case, labels, trace)
    expected = trace.gradients()
    zeros = {name: np.zeros(value.shape) for name, value in expected.items()}
    received = activation_gradients(
        case.params64, zeros, config=case.config, source_ids=case.source_ids, decoder_input_ids=case.decoder_input_ids, labels=labels
    )
    for name in expected:
        result = compare(np.asarray(received[name]), expected[name].numpy())
        assert result.within(FLOAT64_RELATIVE_RMS), f"{name}: {result}"


def test_fully_masked_rows_have_other_gradients() -> None:
    """torch adds the fill value to the logits, JAX puts it in their place: the same numbers, but torch still sends gradients to the query
    and key of a row in which nothing may be attended. Nothing that counts in training is such a row."""
    case = make_case("post_relu")
    labels = make_labels(case, count_fully_masked=True)
    expected, received = per_layer(torch_gradients(case, labels)), per_layer(jax_gradients(case, labels))
    differing = {name for name in expected if not compare(received[name], expected[name]).within(1e-6)}
    assert "decoder/layers/cross_attention/query/kernel[1]" in differing
    assert not any(name.startswith(("head", "decoder/layers/feed_forward")) and name.endswith("[1]") for name in differing)


# --- decoding


def greedy_with_whole_prefix(case: Case, eos_id: int, length: int) -> np.ndarray:
    """Every step decodes all `length` columns, those to come being pads, which nothing attends to."""
    config, batch = case.config, len(case.source_ids)
    encoder_output = functional.encode(config, case.params64, case.source_ids)
    prefix = np.full((batch, length + 1), config.target_pad_id)
    prefix[:, 0] = START_ID
    finished = np.zeros(batch, bool)
    for step in range(length):
        logits = functional.decode(config, case.params64, encoder_output, case.source_ids, prefix[:, :-1])
        likeliest = np.asarray(logits)[:, step].argmax(axis=-1)
        prefix[:, step + 1] = np.where(finished, config.target_pad_id, likeliest)
        finished |= likeliest == eos_id
    return prefix[:, 1:]


def greedy_with_cache(case: Case, eos_id: int, length: int) -> np.ndarray:
    config, batch = case.config, len(case.source_ids)
    encoder_output = functional.encode(config, case.params64, case.source_ids)
    state = functional.start_decoding(config, case.params64, encoder_output, case.source_ids, length)
    tokens, finished, columns = np.full(batch, START_ID), np.zeros(batch, bool), []
    for _ in range(length):
        logits, state = functional.decode_step(config, case.params64, state, tokens)
        likeliest = np.asarray(logits).argmax(axis=-1)
        tokens = np.where(finished, config.target_pad_id, likeliest)
        columns.append(tokens)
        finished |= likeliest == eos_id
    return np.stack(columns, axis=1)


def test_greedy_tokens_are_equal(case: Case) -> None:
    length = 12
    endless = greedy(case.torch64, case.ids()[0], START_ID, eos_id=-1, max_decode_length=length).numpy()
    real = endless[endless != case.config.target_pad_id]
    eos_id = int(np.bincount(real).argmax())  # so that some sentences end early
    expected = greedy(case.torch64, case.ids()[0], START_ID, eos_id, length).numpy()
    assert (expected == eos_id).any()
    for decode in (greedy_with_whole_prefix, greedy_with_cache):
        np.testing.assert_array_equal(decode(case, eos_id, length)[:, : expected.shape[1]], expected)


# --- porting


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_round_trip_through_files_is_exact(case: Case, dtype: torch.dtype, suffix: str, tmp_path: Path) -> None:
    """torch → JAX → torch, and on to JAX again: bit by bit, dtypes and order included."""
    hints = import_hints({**dataclasses.asdict(case.config), "norm_first": case.config.norm_placement == "pre"})
    original = {name: tensor.to(dtype) for name, tensor in case.torch64.state_dict().items()}
    model = import_checkpoint(original, **hints)
    export_checkpoint(model, tmp_path / f"model{suffix}")
    exported = torch.load(tmp_path / "model.pt", weights_only=True) if suffix == ".pt" else load_file(tmp_path / "model.safetensors")
    assert set(exported) == set(original)
    assert suffix == ".safetensors" or list(exported) == list(original)  # that format has an order of its own
    for name, tensor in original.items():
        assert exported[name].dtype == dtype
        assert torch.equal(exported[name], tensor), name
    again = import_checkpoint(tmp_path / f"model{suffix}", **hints)
    assert again.config == model.config
    for path, leaf in flatten(model.params).items():
        received = flatten(again.params)[path]
        assert (received.dtype, received.tobytes()) == (leaf.dtype, leaf.tobytes()), path
