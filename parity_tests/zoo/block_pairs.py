"""Kinds of blocks as pairs: the config here, and the PyTorch module of `blocks_in_torch` that computes the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import blocks_in_torch as blocks
import numpy as np
import torch
from torch import Tensor, nn

from jax_transformer.comparison.sides import CannotRun
from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import functional
from jax_transformer.parity.backends.torch_module import Pass
from jax_transformer.parity.backends.traces import traced
from jax_transformer.parity.problems import Problem, own_problem, randomised
from jax_transformer.runtime.trees import flatten, unflatten

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
    "sinusoids and GELU in the encoder alone": Pair(
        {
            "position_kind": "sinusoidal",
            "decoder_position_kind": "learned",
            "activation": "gelu",
            "decoder_activation": "relu",
        },
        lambda: blocks.Transformer(blocks.Gelu, blocks.PostNorm, has_sinusoids=True),
    ),
    "one bias": Pair({"feed_forward_output_bias": False}, lambda: blocks.Transformer(blocks.OneBias)),
    "scales stored minus 1": Pair(
        {**PRE, "norm_kind": "rms_norm", "norm_bias": False, "norm_scale_offset": 1.0},
        lambda: blocks.Transformer(blocks.Gemma),
    ),
    "scaled logits": Pair({"logits_factor": 0.3}, lambda: blocks.Transformer(blocks.PostNorm, logits_factor=0.3)),
    "scaled embeddings": Pair(
        {"embedding_factor": 3.0, "decoder_embedding_factor": 0.4},
        lambda: blocks.Transformer(blocks.PostNorm, embedding_factors=(3.0, 0.4)),
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
    problem: Problem


def config_of(name: str) -> TransformerConfig:
    return TransformerConfig(**SIZES | PAIRS[name].options)


@cache
def make_case(name: str) -> Case:
    """Both models with the same random weights, and a batch with every kind of padding."""
    config = config_of(name)
    params = random_params(config, np.random.default_rng([*name.encode()]))
    module = PAIRS[name].make().double().eval()
    module.load_state_dict({key: torch.tensor(value) for key, value in state_dict(params).items()})
    return Case(config, params, module, own_problem(config, params))


def random_params(config: TransformerConfig, rng: np.random.Generator) -> dict[str, Any]:
    """Parameters in float64, all random."""
    empty = {path: np.zeros(leaf.shape) for path, leaf in flatten(functional.abstract_params(config)).items()}
    return unflatten(randomised(unflatten(empty), rng))


def state_dict(params: Any) -> dict[str, np.ndarray]:
    """Leaves under the names of `blocks_in_torch`, in PyTorch's shapes."""
    tensors = {}
    for path, leaf in flatten(params).items():
        layers = [*leaf] if "/layers/" in path else [leaf]
        for i, layer in enumerate(layers):
            tensors[tensor_name(path, i)] = to_torch(path, np.asarray(layer))
    return tensors


def tensor_name(path: str, layer: int) -> str:
    """What a leaf is called in PyTorch; in a layer, with its number."""
    module, _, last = path.replace("/layers/", f"/layers/{layer}/").rpartition("/")
    last = {"kernel": "weight", "embedding": "weight"}.get(last, last)
    last = "weight" if last == "scale" and module.endswith("norm") else last
    return f"{module}/{last}".replace("/", ".")


def to_torch(path: str, leaf: np.ndarray) -> np.ndarray:
    """A leaf of one layer as PyTorch has it: heads in one axis with their features, outputs before inputs."""
    if path.endswith("kernel"):
        inputs = leaf.shape[:-1] if path.endswith("output/kernel") else leaf.shape[:1]
        return np.ascontiguousarray(leaf.reshape(math.prod(inputs), -1).T)
    return leaf.reshape(-1) if path.endswith("bias") else leaf


def from_torch(path: str, tensor: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The reverse."""
    return (tensor.T if path.endswith("kernel") else tensor).reshape(shape)


@dataclass(frozen=True)
class BlocksReference:
    """Builds and runs the PyTorch module of a pair; a self-test injects faults with `corrupt`."""

    name: str
    corrupt: Any = None

    def own(self) -> None:
        return None

    def build(self, dtype: torch.dtype) -> nn.Module:
        return PAIRS[self.name].make().to(dtype).eval()

    def state_dict(self, params: Mapping[str, Any], names: Collection[str]) -> Mapping[str, np.ndarray]:
        return state_dict(params)

    def leaves(self, state_dict: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = {}
        for path, leaf in flatten(functional.abstract_params(config_of(self.name))).items():
            if "/layers/" in path:
                layers = [state_dict[tensor_name(path, i)] for i in range(leaf.shape[0])]
                found[path] = np.stack([from_torch(path, layer, leaf.shape[1:]) for layer in layers])
            else:
                found[path] = from_torch(path, state_dict[tensor_name(path, 0)], leaf.shape)
        return found

    def run(
        self, module: nn.Module, source_ids: Tensor, decoder_input_ids: Tensor, *, watched: bool, gradients: bool
    ) -> Pass:
        return traced(module, source_ids, decoder_input_ids, watched=watched, gradients=gradients, corrupt=self.corrupt)

    def greedy(self, module: nn.Module, source_ids: Tensor, start_id: int, eos_id: int, most: int) -> Tensor:
        raise CannotRun("blocks_in_torch has no decoder")

    def beams(
        self, module: nn.Module, source_ids: Tensor, start_id: int, eos_id: int, most: int, beam_size: int
    ) -> Tensor:
        raise CannotRun("blocks_in_torch has no decoder")
