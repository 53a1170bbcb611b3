"""Every kind of block in JAX beside its PyTorch module: all activations, and the gradients of all parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import blocks_in_torch as blocks
import jax
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as torch_functional

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import functional
from jax_transformer.model.activations import ACTIVATIONS
from jax_transformer.parity.gates.compare import compare
from jax_transformer.parity.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.parity.problems import own_problem, randomised
from jax_transformer.runtime.trees import flatten, unflatten
from torch_reference.trace import Trace

pytestmark = pytest.mark.usefixtures("quick_compilation")

SIZES: dict[str, Any] = {
    "source_vocab_size": blocks.SOURCE_VOCAB, "target_vocab_size": blocks.TARGET_VOCAB, "d_model": blocks.D,
    "num_heads": blocks.N, "d_ff": blocks.F, "num_encoder_layers": blocks.LAYERS, "num_decoder_layers": blocks.LAYERS,
    "max_length": blocks.LENGTH, "source_pad_id": blocks.SOURCE_PAD, "target_pad_id": blocks.TARGET_PAD,
    "position_kind": "learned", "scale_embedding": False, "dropout_rate": 0.0,
}  # fmt: skip
PRE = {"norm_placement": "pre"}


class Pair(NamedTuple):
    options: dict[str, Any]
    """What the config has besides SIZES."""
    make: Callable[[], nn.Module]


PAIRS: dict[str, Pair] = {
    "post-norm": Pair({}, lambda: blocks.Transformer(blocks.PostNorm)),
    "pre-norm encoder, post-norm decoder": Pair(
        {**PRE, "final_norm": True, "decoder_norm_placement": "post", "decoder_final_norm": False},
        lambda: blocks.Transformer(blocks.PreNorm, blocks.PostNorm, (True, False)),
    ),
    "DeepNorm": Pair(
        {"residual_factor": 1.7, "decoder_residual_factor": 1.3}, lambda: blocks.Transformer(blocks.DeepNorm)
    ),
    "scaled branches": Pair({**PRE, "sublayer_factor": 0.25}, lambda: blocks.Transformer(blocks.ScaledBranch)),
    "LayerScale": Pair({**PRE, "learned_sublayer_scale": "channel"}, lambda: blocks.Transformer(blocks.LayerScale)),
    "ReZero": Pair(
        {"norm_kind": "none", "learned_sublayer_scale": "scalar"}, lambda: blocks.Transformer(blocks.ReZero)
    ),
    "ResScale": Pair({**PRE, "learned_residual_scale": "feed_forward"}, lambda: blocks.Transformer(blocks.ResScale)),
    "sandwich": Pair({**PRE, "output_norm": "all"}, lambda: blocks.Transformer(blocks.Sandwich)),
    "norms of outputs alone": Pair(
        {"norm_placement": "none", "output_norm": "all"}, lambda: blocks.Transformer(blocks.OutputNorm)
    ),
    "NormFormer": Pair(
        {**PRE, "output_norm": "attention", "feed_forward_hidden_norm": True, "activation": "gelu"},
        lambda: blocks.Transformer(blocks.NormFormer),
    ),
    "one norm for all sublayers": Pair({"share_norms": True}, lambda: blocks.Transformer(blocks.OneNorm)),
    "GPT-J": Pair(
        {**PRE, "parallel_residual": True, "share_norms": True}, lambda: blocks.Transformer(blocks.ParallelOneNorm)
    ),
    "GPT-NeoX": Pair({**PRE, "parallel_residual": True}, lambda: blocks.Transformer(blocks.ParallelOwnNorms)),
    "shared layers": Pair({"share_layers": True}, lambda: blocks.Transformer(blocks.PostNorm, shares_layers=True)),
    "scaled positions": Pair(
        {"position_factor": 0.5, "learned_position_scale": True},
        lambda: blocks.Transformer(blocks.PostNorm, scales_positions=True),
    ),
    "parallel, scaled": Pair(
        {
            **PRE,
            "parallel_residual": True,
            "sublayer_factor": 1 / math.sqrt(2),
            "decoder_sublayer_factor": 1 / math.sqrt(3),
        },
        lambda: blocks.Transformer(blocks.ParallelScaled),
    ),
}


class Case(NamedTuple):
    config: TransformerConfig
    params: dict[str, Any]
    module: nn.Module
    problem: Any


@cache
def make_case(name: str) -> Case:
    """Both models with the same random weights, and a batch with every kind of padding."""
    config = TransformerConfig(**SIZES | PAIRS[name].options)
    empty = {path: np.zeros(leaf.shape) for path, leaf in flatten(functional.abstract_params(config)).items()}
    params = unflatten(randomised(unflatten(empty), np.random.default_rng([*name.encode()])))
    module = PAIRS[name].make().double().eval()
    module.load_state_dict({key: torch.tensor(value) for key, value in state_dict(params).items()})
    return Case(config, params, module, own_problem(config, params))


def state_dict(params: Any) -> dict[str, np.ndarray]:
    """Leaves under the names of `blocks_in_torch`, in PyTorch's shapes."""
    tensors = {}
    for path, leaf in flatten(params).items():
        if "/layers/" in path:
            for i, layer in enumerate(leaf):
                name, tensor = named(path.replace("/layers/", f"/layers/{i}/"), np.asarray(layer))
                tensors[name] = tensor
        else:
            name, tensor = named(path, np.asarray(leaf))
            tensors[name] = tensor
    return tensors


def named(path: str, leaf: np.ndarray) -> tuple[str, np.ndarray]:
    module, _, last = path.rpartition("/")
    is_of_norm = module.endswith("norm")
    name = {"kernel": "weight", "embedding": "weight", "scale": "weight" if is_of_norm else "scale"}.get(last, last)
    if last == "kernel":
        leaf = leaf.reshape(-1, leaf.shape[-1]) if module.endswith("output") else leaf.reshape(len(leaf), -1)
        leaf = leaf.T
    elif leaf.ndim == 2 and last == "bias":
        leaf = leaf.reshape(-1)
    return ".".join(filter(None, (module.replace("/", "."), name))), np.ascontiguousarray(leaf)


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

    (received_loss, received), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(case.params)
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
