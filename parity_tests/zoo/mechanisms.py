"""Models with one mechanism of attention each, in JAX and in the PyTorch program of `torch_reference.mechanisms`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
import torch
from config_parts import with_paths
from torch import nn

from jax_transformer.comparison.sides import Arrays, CannotRun
from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Alibi, RelativeBias, RelativeVectors, Rotary
from jax_transformer.config.specs import Attention, Stack
from jax_transformer.mapping.rules import Rule, leaves_from_tensors, tensors_from_leaves
from jax_transformer.model.functional import abstract_params
from jax_transformer.parity.backends.torch_module import Pass
from jax_transformer.parity.backends.traces import traced
from jax_transformer.parity.problems import randomised
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.storage.model_directory import Model
from torch_reference.mechanisms.transformer import AttentionOptions, Mechanisms, MechanismTransformer

SIZES: dict[str, Any] = {
    "source_vocab_size": 17, "target_vocab_size": 14, "d_model": 15, "num_heads": 6, "head_dim": 4, "d_ff": 13,
    "num_encoder_layers": 2, "num_decoder_layers": 2, "source_pad_id": 3, "target_pad_id": 2,
}  # fmt: skip
"""Six heads: no power of two, and shared by two or three."""
PLAIN: dict[str, Any] = {
    "position_kind": "none",
    "norm_placement": "pre",
    "final_norm": True,
    "dropout_rate": 0.0,
    "max_length": 40,
}
BIASES = {"position_kind": "relative_bias", "relative_buckets": 6, "relative_max_distance": 5}
VECTORS = {"position_kind": "relative_vectors", "relative_max_distance": 3}
MECHANISMS: Mapping[str, Mapping[str, Any]] = {
    "rotary": {"position_kind": "rotary", "rotary_base": 100.0},
    "rotary halves, part of a head": {"position_kind": "rotary", "position_layout": "halves", "rotary_dim": 2},
    "rotary in cross-attention": {"position_kind": "rotary", "rotary_cross_attention": True},
    "ALiBi": {"position_kind": "alibi"},
    "ALiBi, 4 heads": {"position_kind": "alibi", "num_heads": 4},
    "relative biases, scaled in each stack": {
        **BIASES,
        "relative_bias_factor": 0.5,
        "decoder_relative_bias_factor": 1.5,
    },
    "relative vectors": VECTORS,
    "relative vectors of keys, per layer": {
        **VECTORS,
        "relative_bias_per_layer": True,
        "relative_value_vectors": False,
    },
    "grouped queries": {"num_kv_heads": 2},
    "one head of keys": {"num_kv_heads": 1},
    "wide values": {"value_dim": 7},
    "narrow values, relative vectors": {**VECTORS, "value_dim": 3, "num_kv_heads": 2},
    "head scale": {"head_scale": True},
    "query and key norm": {"query_key_norm": True},
    "norm of contexts in self-attention": {"context_norm": "self_attention", "value_dim": 5},
    "norm of contexts": {"context_norm": "attention", "head_scale": True, "num_kv_heads": 2},
    "capped logits": {"attention_logits_cap": 0.7, "logits_cap": 1.5, "position_kind": "alibi"},
    "windows, every other layer full": {"position_kind": "rotary", "window": 3, "full_every": 2},
    "windows of each stack": {
        **BIASES,
        "encoder.self_attention.window": 4,
        "encoder.self_attention.full_every": 2,
        "decoder.self_attention.window": 2,
    },
    "all at once": {
        "position_kind": "rotary",
        "position_layout": "halves",
        "num_kv_heads": 3,
        "head_scale": True,
        "query_key_norm": True,
    },
    "stacks that differ": {
        "encoder.positions": Rotary(base=100.0),
        "decoder.positions": Alibi(),
        "encoder.norm.eps": 1e-3,
        "decoder.norm.eps": 1e-6,
        "encoder.self_attention.num_kv_heads": 2,
        "encoder.self_attention.scale": 0.3,
        "decoder.self_attention.query_key_norm": True,
        "decoder.self_attention.masked_value": -1e9,
        "decoder.cross_attention.value_dim": 5,
        "decoder.cross_attention.head_scale": True,
    },
}
"""Options by short names, and by paths where they are of one part alone."""


@dataclass(frozen=True)
class MechanismReference:
    """Builds and runs `torch_reference.mechanisms` for a config."""

    config: TransformerConfig
    corrupt: Callable[[str, Mapping[str, Any], Any], Any] | None = None
    """As of `SystemReference`: self-tests put faults in."""

    def own(self) -> None:
        return None

    def build(self, dtype: torch.dtype) -> nn.Module:
        """The program of the config, with any weights."""
        config = self.config
        sizes = {name: getattr(config, name) for name in SIZES}
        encoder, decoder = _mechanisms(config.encoder), _mechanisms(config.decoder)
        return MechanismTransformer(
            **sizes, encoder=encoder, decoder=decoder, logits_cap=config.head.cap, dtype=dtype
        ).eval()

    def state_dict(self, params: Mapping[str, Any], names: Collection[str]) -> Mapping[str, np.ndarray]:
        tensors = tensors_from_leaves(rules(self.config), flatten(params), self._shapes, names)
        return {name: np.asarray(tensors[name]) for name in names}

    def leaves(self, state_dict: Mapping[str, np.ndarray]) -> Arrays:
        leaves = leaves_from_tensors(rules(self.config), state_dict, self._shapes)
        return {path: np.asarray(leaf) for path, leaf in leaves.items()}

    @property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {path: leaf.shape for path, leaf in flatten(abstract_params(self.config)).items()}

    def run(
        self,
        module: nn.Module,
        source_ids: torch.Tensor,
        decoder_input_ids: torch.Tensor,
        *,
        watched: bool,
        gradients: bool,
    ) -> Pass:
        return traced(module, source_ids, decoder_input_ids, watched=watched, gradients=gradients, corrupt=self.corrupt)

    def outputs(
        self, module: nn.Module, source_ids: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """As proofs call it."""
        done = self.run(module, source_ids, decoder_input_ids, watched=True, gradients=False)
        return done.logits, done.activations()

    def renamed(self, arrays: Arrays, ids: Sequence[tuple[int, ...]]) -> Arrays:
        return arrays

    def greedy(
        self, module: nn.Module, source_ids: torch.Tensor, start_id: int, eos_id: int, most: int
    ) -> torch.Tensor:
        """Decodes greedily from the whole prefix at each step; pads follow the end."""
        prefix = torch.full((len(source_ids), 1), start_id)
        finished = torch.zeros(len(source_ids), dtype=torch.bool)
        for _ in range(most):
            chosen = module(source_ids, prefix)[:, -1].argmax(dim=-1)
            chosen = chosen.masked_fill(finished, self.config.target_pad_id)
            prefix = torch.cat([prefix, chosen[:, None]], dim=1)
            finished |= chosen == eos_id
        return prefix[:, 1:]

    def beams(
        self, module: nn.Module, source_ids: torch.Tensor, start_id: int, eos_id: int, most: int, beam_size: int
    ) -> torch.Tensor:
        raise CannotRun("the small programs of mechanisms have no beam search")


def _mechanisms(stack: Stack) -> Mechanisms:
    """The program's options for a stack."""
    assert stack.norm is not None
    kind: Any = "none" if stack.positions is None else stack.positions.kind
    own: dict[str, Any] = {
        "rotary_halves": getattr(stack.positions, "layout", "") == "halves",
        "rotary_base": getattr(stack.positions, "base", 10000.0),
        "rotary_dim": getattr(stack.positions, "dim", None),
        "rotary_cross_attention": getattr(stack.positions, "cross_attention", False),
        "limit": getattr(stack.positions, "max_distance", 16),
        "value_vectors": getattr(stack.positions, "values", True),
        "vectors_per_layer": getattr(stack.positions, "per_layer", False),
        "buckets": getattr(stack.positions, "buckets", 32),
        "bias_factor": getattr(stack.positions, "factor", 1.0),
    }
    of_self, of_cross = _options(stack.self_attention), _options(stack.cross_attention)
    return Mechanisms(positions=kind, norm_eps=stack.norm.eps, **own, self_attention=of_self, cross_attention=of_cross)


def _options(attention: Attention | None) -> AttentionOptions:
    """The program's options of the same names."""
    if attention is None:
        return AttentionOptions()
    return AttentionOptions(**{field.name: getattr(attention, field.name) for field in fields(AttentionOptions)})


def rules(config: TransformerConfig) -> list[Rule]:
    """The names of the program's tensors and of the leaves here."""
    found = [
        *(Rule(f"{side}_embedding.weight", f"{side}_embedding/embedding") for side in ("source", "target")),
        Rule("head.weight", "head/kernel", "O I -> I O"),
        Rule("head.bias", "head/bias"),
    ]
    for stack in ("encoder", "decoder"):
        found += _norm(f"{stack}.final_norm", f"{stack}/final_norm")
        positions = getattr(config, stack).positions
        if isinstance(positions, RelativeBias):
            found.append(Rule(f"{stack}.relative_bias.embedding.weight", f"{stack}/relative_bias/embedding"))
        if isinstance(positions, RelativeVectors) and not positions.per_layer:
            found += _vectors(positions, f"{stack}.shared_vectors", f"{stack}/relative_vectors")
        torch_layer, jax_layer = f"{stack}.layers.{{i}}", f"{stack}/layers"
        found += _norm(f"{torch_layer}.feed_forward_norm", f"{jax_layer}/feed_forward_norm")
        for name in ("hidden", "output"):
            found += _linear(f"{torch_layer}.{name}", f"{jax_layer}/feed_forward/{name}", "O I -> I O")
        for name in ("self_attention", "cross_attention")[: 1 if stack == "encoder" else 2]:
            found += _norm(f"{torch_layer}.{name}_norm", f"{jax_layer}/{name}_norm")
            found += _attention(getattr(getattr(config, stack), name), f"{torch_layer}.{name}", f"{jax_layer}/{name}")
        if isinstance(positions, RelativeVectors) and positions.per_layer:
            own = f"{torch_layer}.self_attention.own_vectors", f"{jax_layer}/self_attention/relative_vectors"
            found += _vectors(positions, *own)
    return found


def _attention(attention: Attention, there: str, here: str) -> list[Rule]:
    found = [Rule(f"{there}.output.weight", f"{here}/output/kernel", "D (N H) -> N H D")]
    found.append(Rule(f"{there}.output.bias", f"{here}/output/bias"))
    for role in ("query", "key", "value"):
        found.append(Rule(f"{there}.{role}.weight", f"{here}/{role}/kernel", "(N H) D -> D N H"))
        found.append(Rule(f"{there}.{role}.bias", f"{here}/{role}/bias", "(N H) -> N H"))
    if attention.query_key_norm:
        for role in ("query", "key"):
            found += _norm(f"{there}.{role}_norm", f"{here}/{role}_norm")
    if attention.context_norm:
        found += _norm(f"{there}.context_norm", f"{here}/context_norm")
    if attention.head_scale:
        found.append(Rule(f"{there}.head_scale.scale", f"{here}/head_scale/scale"))
    return found


def _vectors(vectors: RelativeVectors, there: str, here: str) -> list[Rule]:
    names = ("keys", "values") if vectors.values else ("keys",)
    return [Rule(f"{there}.{name}", f"{here}/{name}") for name in names]


def _norm(there: str, here: str) -> list[Rule]:
    return [Rule(f"{there}.weight", f"{here}/scale"), Rule(f"{there}.bias", f"{here}/bias")]


def _linear(there: str, here: str, axes: str) -> list[Rule]:
    return [Rule(f"{there}.weight", f"{here}/kernel", axes), Rule(f"{there}.bias", f"{here}/bias")]


@cache
def make_model(name: str, seed: int = 0, layers: int = 2) -> Model:
    """The model of one of MECHANISMS, with random weights that are numbers of float32."""
    depth = {"num_encoder_layers": layers, "num_decoder_layers": layers}
    options = {**SIZES, **PLAIN, **depth, **MECHANISMS[name]}
    config = TransformerConfig(**{name: value for name, value in options.items() if "." not in name})
    config = with_paths(config, {path: value for path, value in options.items() if "." in path})
    zeros = {path: np.zeros(leaf.shape) for path, leaf in flatten(abstract_params(config)).items()}
    leaves = randomised(unflatten(zeros), np.random.default_rng([seed, *name.encode()]))
    params = unflatten({path: leaf.astype(np.float32) for path, leaf in leaves.items()})
    return Model(config, params, None, None, GenerationConfig(decoder_start_id=0, eos_id=1), None)
