"""Properties of the system `pytorch` (torch.nn.Transformer) alone: its two routes, fully masked rows, decoding steps,
and parameters of several names. (test_systems.py compares its JAX model with it.)
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from systems import START_ID, SYSTEMS, TIED, Case, bits, make_case

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.model import functional
from jax_transformer.parity.backends.jax_sides import cast
from jax_transformer.parity.stages.forward import attended
from jax_transformer.porting import export_checkpoint, import_checkpoint
from jax_transformer.runtime.trees import flatten
from torch_reference.pytorch import greedy
from torch_reference.trace import Trace

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(params=[name for name in SYSTEMS | TIED if name.startswith("pytorch")])
def case(request: pytest.FixtureRequest) -> Case:
    return make_case(request.param)


def test_masks_hide_some_and_not_all(case: Case) -> None:
    """What they hide is the lowest number of float64, in both traces."""
    for side in (case.candidate, case.reference):
        trace = side.forward(case.problem, "float64")
        masks = {name: mask for name, mask in trace.items() if name.startswith("mask.")}
        assert list(masks) == ["mask.encoder_self", "mask.decoder_self", "mask.cross"]
        assert all(mask.any() and not mask.all() for mask in masks.values())
        for name, where in attended(case.config, trace, trace).items():
            hidden = np.broadcast_to(~where, trace[name].shape)
            np.testing.assert_array_equal(trace[name] == np.finfo(np.float64).min, hidden)


def test_fully_masked_rows_attend_to_all_keys_alike(case: Case) -> None:
    for side in (case.candidate, case.reference):
        trace, length = side.forward(case.problem, "float64"), case.problem.source_ids.shape[1]
        np.testing.assert_allclose(trace["encoder.layers.0.self_attention.weights"][5], 1 / length, rtol=1e-15)
        np.testing.assert_allclose(trace["decoder.layers.0.cross_attention.weights"][5], 1 / length, rtol=1e-15)


def test_traced_route_is_nn_transformers_own_forward(case: Case) -> None:
    """The outputs and the gradients of all parameters agree, torch against torch."""
    results = []
    for trace in (None, Trace()):
        case.program.zero_grad()
        logits = case.program(*case.ids(), trace=trace)
        torch.logsumexp(logits, dim=-1).mean().backward()
        gradients = {name: parameter.grad.numpy() for name, parameter in case.program.named_parameters()}
        results.append({"logits": logits.detach().numpy()} | gradients)
    for name in results[0]:
        assert compare(results[1][name], results[0][name]).within(FLOAT64_RELATIVE_RMS), name
    with torch.no_grad():  # where torch would take its fused inference layer
        assert compare(case.program(*case.ids()).numpy(), results[0]["logits"]).within(FLOAT64_RELATIVE_RMS)


def test_fully_masked_rows_have_other_gradients() -> None:
    """torch adds the fill value to the logits, JAX replaces them by it: the numbers are the same, but torch still sends
    gradients to the query and key of a row that may attend to nothing. No such row counts in training."""
    case = make_case("pytorch_post_relu")
    labels = np.random.default_rng(0).integers(case.config.target_vocab_size, size=case.problem.labels.shape)
    everywhere = dataclasses.replace(case.problem, labels=labels)
    received, expected = (side.gradients(everywhere).parameters for side in (case.candidate, case.reference))
    differing = {name for name in expected if not compare(received[name], expected[name]).within(1e-6)}
    assert "decoder/layers/cross_attention/query/kernel[1]" in differing
    assert not any(
        name.startswith(("head", "decoder/layers/feed_forward")) and name.endswith("[1]") for name in differing
    )


# --- decoding


def greedy_with_whole_prefix(case: Case, eos_id: int, length: int) -> np.ndarray:
    """Decodes all `length` columns at each step; the later ones are pads, which nothing attends to."""
    config, params, source_ids = case.config, cast(case.model.params, "float64"), case.problem.source_ids
    batch = len(source_ids)
    encoder_output = functional.encode(config, params, source_ids)
    prefix = np.full((batch, length + 1), config.target_pad_id)
    prefix[:, 0] = START_ID
    finished = np.zeros(batch, bool)
    for step in range(length):
        logits = functional.decode(config, params, encoder_output, source_ids, prefix[:, :-1])
        chosen = np.asarray(logits)[:, step].argmax(axis=-1)
        prefix[:, step + 1] = np.where(finished, config.target_pad_id, chosen)
        finished |= chosen == eos_id
    return prefix[:, 1:]


def greedy_with_cache(case: Case, eos_id: int, length: int) -> np.ndarray:
    config, params, source_ids = case.config, cast(case.model.params, "float64"), case.problem.source_ids
    batch = len(source_ids)
    encoder_output = functional.encode(config, params, source_ids)
    state = functional.start_decoding(config, params, encoder_output, source_ids, length=length)
    tokens, finished, columns = np.full(batch, START_ID), np.zeros(batch, bool), []
    for _ in range(length):
        logits, state = functional.decode_step(config, params, state, tokens)
        chosen = np.asarray(logits).argmax(axis=-1)
        tokens = np.where(finished, config.target_pad_id, chosen)
        columns.append(tokens)
        finished |= chosen == eos_id
    return np.stack(columns, axis=1)


def test_greedy_tokens_are_torchs_with_and_without_a_cache(case: Case) -> None:
    length = 12
    endless = greedy(case.program, case.ids()[0], START_ID, eos_id=-1, max_decode_length=length).numpy()
    real = endless[endless != case.config.target_pad_id]
    eos_id = int(np.bincount(real).argmax())  # so that some sentences end early
    expected = greedy(case.program, case.ids()[0], START_ID, eos_id, length).numpy()
    assert (expected == eos_id).any()
    for decode in (greedy_with_whole_prefix, greedy_with_cache):
        np.testing.assert_array_equal(decode(case, eos_id, length)[:, : expected.shape[1]], expected)


# --- porting


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("name", TIED)
def test_tied_parameters_go_through_files_and_back(name: str, dtype: torch.dtype, suffix: str, tmp_path: Path) -> None:
    """torch → JAX → torch → JAX, bit by bit, dtypes and order included. (test_round_trips.py has the untied ones.)"""
    case = make_case(name)
    original = {name: tensor.to(dtype) for name, tensor in case.program.state_dict().items()}
    model = import_checkpoint(original, **case.hints)
    export_checkpoint(model, tmp_path / f"model{suffix}")
    if suffix == ".pt":
        assert bits(torch.load(tmp_path / "model.pt", weights_only=True)) == bits(original)
    else:  # that format has an order of its own
        assert sorted(bits(load_file(tmp_path / "model.safetensors"))) == sorted(bits(original))
    again = import_checkpoint(tmp_path / f"model{suffix}", **case.hints)
    assert again.config == model.config
    assert bits(flatten(again.params)) == bits(flatten(model.params))
