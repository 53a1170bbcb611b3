"""What is particular to the system `pytorch` (torch.nn.Transformer): its two routes, its fully masked rows, its steps
of decoding, and parameters of several names. (That the JAX model is the same function: test_systems.py.)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from systems import (
    SYSTEMS,
    TIED,
    Case,
    attended,
    bits,
    jax_gradients,
    jax_trace,
    make_case,
    make_labels,
    per_layer,
    torch_gradients,
    torch_trace,
)

from jax_transformer.model import functional
from jax_transformer.parity.gates.compare import compare
from jax_transformer.parity.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.porting.convert import export_checkpoint, import_checkpoint
from jax_transformer.runtime.trees import flatten
from torch_reference.pytorch import greedy
from torch_reference.trace import Trace

START_ID = 5


@pytest.fixture(params=[name for name in SYSTEMS | TIED if name.startswith("pytorch")])
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param)


def test_masks_hide_some_and_not_all(case: Case) -> None:
    """And what they hide is the lowest number there is, in both traces."""
    for trace in (torch_trace(case.torch64, case), jax_trace(case.config, case.params64, case)):
        masks = {name: mask for name, mask in trace.items() if name.startswith("mask.")}
        assert list(masks) == ["mask.encoder_self", "mask.decoder_self", "mask.cross"]
        assert all(mask.any() and not mask.all() for mask in masks.values())
        for name, logits in trace.items():
            where = attended(name, trace)
            if where is not None:
                np.testing.assert_array_equal(logits == np.finfo(np.float64).min, np.broadcast_to(~where, logits.shape))


def test_fully_masked_rows_attend_to_all_keys_alike(case: Case) -> None:
    for trace in (torch_trace(case.torch64, case), jax_trace(case.config, case.params64, case)):
        length = case.source_ids.shape[1]
        np.testing.assert_allclose(trace["encoder.layers.0.self_attention.weights"][5], 1 / length, rtol=1e-15)
        np.testing.assert_allclose(trace["decoder.layers.0.cross_attention.weights"][5], 1 / length, rtol=1e-15)


def test_traced_route_is_nn_transformers_own_forward(case: Case) -> None:
    """torch against torch: the outputs, and the gradients of all parameters."""
    results = []
    for trace in (None, Trace()):
        case.torch64.zero_grad()
        logits = case.torch64(*case.ids(), trace=trace)
        torch.logsumexp(logits, dim=-1).mean().backward()
        gradients = {name: parameter.grad.numpy() for name, parameter in case.torch64.named_parameters()}
        results.append({"logits": logits.detach().numpy()} | gradients)
    for name in results[0]:
        assert compare(results[1][name], results[0][name]).within(FLOAT64_RELATIVE_RMS), name
    with torch.no_grad():  # where torch would take its fused inference layer
        assert compare(case.torch64(*case.ids()).numpy(), results[0]["logits"]).within(FLOAT64_RELATIVE_RMS)


def test_fully_masked_rows_have_other_gradients() -> None:
    """torch adds the fill value to the logits, JAX puts it in their place: the same numbers, but torch still sends
    gradients to the query and key of a row in which nothing may be attended. Nothing that counts in training is such a
    row."""
    case = make_case("pytorch_post_relu")
    labels = make_labels(case, counts_fully_masked=True)
    expected, received = per_layer(torch_gradients(case, labels)), per_layer(jax_gradients(case, labels)[0])
    differing = {name for name in expected if not compare(received[name], expected[name]).within(1e-6)}
    assert "decoder/layers/cross_attention/query/kernel[1]" in differing
    assert not any(
        name.startswith(("head", "decoder/layers/feed_forward")) and name.endswith("[1]") for name in differing
    )


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
    state = functional.start_decoding(config, case.params64, encoder_output, case.source_ids, length=length)
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
@pytest.mark.parametrize("name", TIED)
def test_tied_parameters_go_through_files_and_back(name: str, dtype: torch.dtype, suffix: str, tmp_path: Path) -> None:
    """torch → JAX → torch, and on to JAX again: bit by bit, dtypes and order included. (Of untied ones:
    test_round_trips.py.)"""
    case = make_case(name)
    original = {name: tensor.to(dtype) for name, tensor in case.torch64.state_dict().items()}
    model = import_checkpoint(original, **case.hints)
    export_checkpoint(model, tmp_path / f"model{suffix}")
    if suffix == ".pt":
        assert bits(torch.load(tmp_path / "model.pt", weights_only=True)) == bits(original)
    else:  # that format has an order of its own
        assert sorted(bits(load_file(tmp_path / "model.safetensors"))) == sorted(bits(original))
    again = import_checkpoint(tmp_path / f"model{suffix}", **case.hints)
    assert again.config == model.config
    assert bits(flatten(again.params)) == bits(flatten(model.params))
