"""Tests every kind of block in JAX against its PyTorch module: all activations, and the gradients of all parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import blocks_in_torch as blocks
import jax
import numpy as np
import pytest
import torch
from block_pairs import PAIRS, BlocksReference, make_case, state_dict
from selftest.injections import Injection, known_faults
from selftest.matrix import Prepared, false_alarms, try_injection
from selftest.run import BLOCKS
from torch import nn
from torch.nn import functional as torch_functional

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.model import functional
from jax_transformer.model.activations import ACTIVATIONS
from jax_transformer.parity.backends.jax_sides import QUICKLY, understood
from jax_transformer.runtime.trees import flatten
from torch_reference.trace import Trace

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("name", PAIRS)
def test_a_block_is_its_torch_module(name: str) -> None:
    """Every activation, in the same order, and the gradients of all parameters."""
    case = make_case(name)
    labels, trace = case.problem.labels, Trace()
    case.module.zero_grad()
    logits = case.module(*(torch.tensor(ids) for ids in case.problem.ids), trace=trace)
    expected_loss = torch_functional.cross_entropy(
        logits.flatten(0, 1), torch.tensor(labels).flatten(), ignore_index=blocks.TARGET_PAD
    )
    expected_loss.backward()

    def loss(params: Any) -> Any:
        logits, received = functional.apply(case.config, params, *case.problem.ids, return_trace=True)
        terms = -jax.nn.log_softmax(logits)[(*np.indices(labels.shape), labels)]
        return terms[labels != blocks.TARGET_PAD].mean(), received

    computed = jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=understood(QUICKLY))(case.params)
    (received_loss, received), gradients = computed
    assert float(received_loss) == pytest.approx(expected_loss.item(), rel=FLOAT64_RELATIVE_RMS)
    check_activations(received, trace)
    check_gradients(state_dict(gradients), case.module)


def check_activations(received: Any, trace: Trace) -> None:
    """Masks exactly, everything else to 1e-12."""
    assert list(received) == list(trace)
    for activation, tensor in trace.items():
        expected = tensor.detach().numpy()
        if expected.dtype == bool:
            np.testing.assert_array_equal(received[activation], expected, err_msg=activation)
        else:
            where = expected != np.finfo(np.float64).min
            assert compare(np.asarray(received[activation]), expected, where).within(FLOAT64_RELATIVE_RMS), activation


def check_gradients(received: dict[str, np.ndarray], module: nn.Module) -> None:
    received = {key: gradient for key, gradient in received.items() if not key.startswith("constants.")}
    expected = dict(module.named_parameters())
    assert received.keys() == expected.keys()
    for key, parameter in expected.items():
        assert parameter.grad is not None
        if not key.endswith("key.bias"):  # zero but for rounding
            assert compare(received[key], parameter.grad.numpy()).within(FLOAT64_RELATIVE_RMS), key


# --- activations

TORCH_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch_functional.relu,
    "gelu": torch_functional.gelu,
    "gelu_tanh": lambda x: torch_functional.gelu(x, approximate="tanh"),
    "silu": torch_functional.silu,
    "none": lambda x: x,
    "leaky_relu": lambda x: torch_functional.leaky_relu(x, 0.3),
    "prelu": lambda x: torch_functional.prelu(x, torch.tensor([0.3], dtype=torch.float64)),
    "elu": torch_functional.elu,
    "selu": torch_functional.selu,
    "mish": torch_functional.mish,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu_squared": lambda x: torch.square(torch.relu(x)),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": torch_functional.softplus,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_pytorchs(name: str) -> None:
    """Values and slopes, far from zero and on both sides of softplus's threshold."""
    x = np.concatenate([np.linspace(-30.0, 30.0, 61) + 0.013, [-1e-9, 1e-9]])
    tensor = torch.tensor(x, requires_grad=True)
    expected = TORCH_ACTIVATIONS[name](tensor)
    expected.sum().backward()
    received, slopes = (jax.vmap(f(ACTIVATIONS[name]), (0, None))(x, 0.3) for f in (lambda f: f, jax.grad))
    np.testing.assert_allclose(received, expected.detach().numpy(), rtol=1e-12, atol=1e-13)
    assert tensor.grad is not None
    np.testing.assert_allclose(slopes, tensor.grad.numpy(), rtol=1e-12, atol=1e-13)


# --- the self-test

FAULTS: dict[str, list[str]] = {
    "DeepNorm": [
        "residual stream not scaled",
        "factors of the residual sum swapped",
        "residual factors of the other stack",
    ],
    "LayerScale": [
        "trained scale of the sublayer's output missing",
        "trained scale on the stream, not on the sublayer's output",
    ],
    "ResScale": ["trained scale of the residual stream missing"],
    "NormFormer": [
        "norm before the output projection, not after it",
        "norm before the activation, not after it",
        "parameters of self_attention_norm",
    ],
    "GPT-J": ["sublayers in sequence", "output of the cross-attention dropped"],
    "GPT-NeoX": ["sublayers in sequence", "parameters of self_attention_norm"],
    "scaled positions": ["positions not scaled", "tokens scaled instead of positions"],
}


@pytest.mark.parametrize("name", FAULTS)
def test_its_faults_are_found_located_and_named(name: str) -> None:
    """In the running module, each at one place."""
    system = Prepared.of(name)
    for fault in FAULTS[name]:
        kill = next(
            kill for kill in (try_injection(system, one) for one in injections(system, fault)) if kill.fate == "found"
        )
        assert kill.shortcomings == [], fault


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        ("NormFormer", "encoder.layers.0.self_attention_output_norm"),
        ("NormFormer", "encoder.layers.0.feed_forward.hidden_norm"),
        ("ResScale", "encoder.layers.1.feed_forward_norm"),
        ("ResScale", "decoder.layers.1.self_attention_norm"),
    ],
)
def test_a_fast_variance_shows_in_inner_norms_and_behind_scaled_streams(name: str, norm: str) -> None:
    """Their inputs have large means on one of the problems."""
    system = Prepared.of(name)
    (injection,) = (
        injection for injection in injections(system, "norm: variance as E[x²] − E[x]²") if injection.node.name == norm
    )
    kill = try_injection(system, injection)
    assert (kill.fate, kill.shortcomings) == ("found", [])


def injections(system: Prepared, fault: str) -> Iterator[Injection]:
    faults = known_faults(system.model.config, np.random.default_rng(0))
    return (injection for injection in faults if injection.name == fault)


def test_the_self_test_knows_all_that_have_faults() -> None:
    assert set(BLOCKS) == set(FAULTS)
    assert false_alarms("GPT-J", [1]) == 0


def test_leaves_come_back_from_the_module() -> None:
    params = make_case("NormFormer").params
    found = BlocksReference("NormFormer").leaves(state_dict(params))
    for path, leaf in flatten(params).items():
        np.testing.assert_array_equal(found[path], leaf, err_msg=path)
