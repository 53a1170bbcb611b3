"""Fills CTranslate2's specification of a Transformer from a config and its parameters.

What CTranslate2 has no field for is folded into its weights wherever the function stays the same: scales of heads and
of sublayers into output projections, an offset of norm scales into the scales, factors of positions into their tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from ctranslate2.specs import Activation, TransformerSpec
from ctranslate2.specs.attention_spec import MultiHeadAttentionSpec
from ctranslate2.specs.common_spec import LayerNormSpec, LinearSpec
from ctranslate2.specs.transformer_spec import FeedForwardSpec, TransformerDecoderSpec, TransformerEncoderSpec

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.specs import Stack as StackConfig
from jax_transformer.exporting.ctranslate2_limits import ACTIVATIONS
from jax_transformer.exporting.positions import position_rows, starts_with_pad
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import Model

FORBIDDEN = np.float32(np.finfo(np.float16).min)
"""Bias of the logit of a token that is never decoded. It is finite in every dtype that CTranslate2 computes in."""


def transformer_spec(model: Model) -> TransformerSpec:
    """Returns the specification of a model that has no `problems_of`, without vocabularies."""
    config, leaves = model.config, Leaves(model.config, flatten(model.params))
    options = [_options(config, stack) for stack in (config.encoder, config.decoder)]
    spec = TransformerSpec(TransformerEncoderSpec(**options[0]), TransformerDecoderSpec(**options[1]))
    source, target = leaves.embeddings()
    spec.encoder.embeddings[0].weight = source
    spec.decoder.embeddings.weight = target
    _fill_stack(spec.encoder, leaves, "encoder", config.encoder, counts_first=True)
    _fill_stack(spec.decoder, leaves, "decoder", config.decoder, counts_first=not starts_with_pad(model))
    _fill_head(spec, leaves, target)
    spec.config.layer_norm_epsilon = float(config.norm_eps * _biased(config))
    return spec


def forbid(spec: TransformerSpec, ids: list[int]) -> None:
    """Keeps tokens from ever being decoded: the others share their probability."""
    projection = spec.decoder.projection
    bias = projection.bias if projection.has_bias() else np.zeros(len(projection.weight), np.float32)
    projection.bias = bias.copy()
    projection.bias[ids] = FORBIDDEN


@dataclass(frozen=True)
class Leaves:
    """Holds the parameters by path."""

    config: TransformerConfig
    leaves: Mapping[str, Any]

    def get(self, path: str) -> np.ndarray | None:
        """Returns a leaf in float64, so that factors are multiplied exactly before one rounding; None if absent."""
        return np.asarray(self.leaves[path], np.float64) if path in self.leaves else None

    def __getitem__(self, path: str) -> np.ndarray:
        return np.asarray(self.leaves[path], np.float64)

    def embeddings(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tables [V, D] of source and target, one array if they are one."""
        if self.config.share_embeddings:
            shared = _float32(self["shared_embedding/embedding"])
            return shared, shared
        return _float32(self["source_embedding/embedding"]), _float32(self["target_embedding/embedding"])

    def of_layer(self, stack: str, number: int) -> Leaves:
        """Returns the leaves of one layer, by their paths in it."""
        index, prefix = (0 if self.config.share_layers else number), f"{stack}/layers/"
        inside = {path: leaf[index] for path, leaf in self.leaves.items() if path.startswith(prefix)}
        return Leaves(self.config, {path.removeprefix(prefix): leaf for path, leaf in inside.items()})


def _options(config: TransformerConfig, stack: StackConfig) -> dict[str, Any]:
    """Returns the arguments of a stack's specification."""
    kind = stack.position_kind
    options = {
        "num_layers": stack.num_layers,
        "num_heads": stack.num_heads,
        "num_heads_kv": None if stack.num_kv_heads == stack.num_heads else stack.num_kv_heads,
        "head_dim": stack.head_dim,
        "pre_norm": True,  # what is before or after is set below; so, a stack of any kind may have a final norm
        "no_final_norm": not stack.final_norm,
        "activation": getattr(Activation, ACTIVATIONS[stack.activation]),
        "layernorm_embedding": stack.embedding_norm != "none",
        "relative_position": kind == "relative_vectors",
        "relative_attention_bias": kind == "relative_bias",
        "ffn_glu": config.feed_forward_gated,
        "rms_norm": config.norm_kind == "rms_norm",
    }
    if kind == "rotary":
        options |= {
            "rotary_dim": config.rotary_dim or 0,
            "rotary_interleave": config.position_layout == "interleaved",
            "rotary_base": config.rotary_base,
        }
    return options


def _fill_stack(
    spec: TransformerEncoderSpec | TransformerDecoderSpec,
    leaves: Leaves,
    name: str,
    stack: StackConfig,
    *,
    counts_first: bool,
) -> None:
    spec.pre_norm = stack.norm_placement == "pre"
    spec.scale_embeddings = float(stack.embedding_factor)
    if stack.has_table:
        rows = position_rows(leaves.config, leaves.leaves, name, counts_first=counts_first)
        spec.position_encodings.encodings = _float32(rows)
    if stack.embedding_norm != "none":
        _fill_norm(spec.layernorm_embedding, leaves, f"{name}/embedding_norm")
    if stack.final_norm:
        _fill_norm(spec.layer_norm, leaves, f"{name}/final_norm")
    for number, layer in enumerate(spec.layer):
        own = leaves.of_layer(name, number)
        _fill_layer(layer, own, stack)
        _fill_distances(layer.self_attention, leaves, own, name, stack)


def _fill_distances(spec: MultiHeadAttentionSpec, leaves: Leaves, layer: Leaves, name: str, stack: StackConfig) -> None:
    """Sets what a self-attention adds for the distance between a query and a key."""
    config = leaves.config
    if stack.position_kind == "relative_bias":
        table = leaves[f"{name}/relative_bias/embedding"] * stack.relative_bias_factor
        spec.relative_attention_bias = _float32(table)
        spec.relative_attention_max_distance = np.int32(config.relative_max_distance)
    if stack.position_kind == "relative_vectors":
        own, path = (
            (layer, "self_attention/relative_vectors")
            if config.relative_bias_per_layer
            else (leaves, f"{name}/relative_vectors")
        )
        keys = own[f"{path}/keys"]
        values = own.get(f"{path}/values")
        spec.relative_position_keys = _float32(keys)
        spec.relative_position_values = _float32(np.zeros_like(keys) if values is None else values)


def _fill_layer(spec: Any, layer: Leaves, stack: StackConfig) -> None:
    _fill_attention(spec.self_attention, layer, "self_attention", stack)
    if hasattr(spec, "attention"):
        _fill_attention(spec.attention, layer, "cross_attention", stack)
    _fill_feed_forward(spec.ffn, layer, stack)


def _fill_attention(spec: MultiHeadAttentionSpec, layer: Leaves, name: str, stack: StackConfig) -> None:
    config = layer.config
    scale = config.attention_scale
    spec.queries_scale = float(1.0 / math.sqrt(stack.head_dim) if scale is None else scale)
    _fill_norm(spec.layer_norm, layer, _norm_path(config, name))
    query, key, value = (_projected(layer, f"{name}/{part}") for part in ("query", "key", "value"))
    if name == "self_attention":
        _fill_linear(spec.linear[0], *_fused([query, key, value]))
    else:
        _fill_linear(spec.linear[0], *query)
        _fill_linear(spec.linear[1], *_fused([key, value]))
    _fill_linear(spec.linear[-1], *_contexts_projected(layer, name, stack))


def _projected(layer: Leaves, path: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns the weight [N H, D] and bias [N H] of a projection to heads."""
    kernel, bias = layer[f"{path}/kernel"], layer.get(f"{path}/bias")  # [D, N, H], [N, H]
    return kernel.reshape(len(kernel), -1).T, None if bias is None else bias.reshape(-1)


def _fused(parts: list[tuple[np.ndarray, np.ndarray | None]]) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns weights and biases after one another, as one projection."""
    biases = [bias for _, bias in parts if bias is not None]
    return np.concatenate([weight for weight, _ in parts]), np.concatenate(biases) if biases else None


def _contexts_projected(layer: Leaves, name: str, stack: StackConfig) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns the weight [D, N W] and bias [D] of an attention's output, with the scales of heads and output."""
    kernel, bias = layer.get(f"{name}/output/kernel"), layer.get(f"{name}/output/bias")  # [N, W, D], [D]
    if kernel is None:  # no projection: the merged heads themselves
        width = stack.num_heads * stack.value_dim
        kernel = np.eye(width).reshape(stack.num_heads, stack.value_dim, width)
    scales = layer.get(f"{name}/head_scale/scale")
    kernel = kernel if scales is None else kernel * scales[:, None, None]
    factor = _branch_factor(layer, name, stack)
    weight = (kernel * factor).reshape(-1, kernel.shape[-1]).T
    return weight, None if bias is None else bias * factor


def _branch_factor(layer: Leaves, name: str, stack: StackConfig) -> np.ndarray:
    """Returns the factor of a sublayer's output: of each feature [D], or a number [1]."""
    learned = [layer.get(f"{name}_output_scale/{kind}") for kind in ("scale", "factor")]
    return stack.sublayer_factor * next((scale for scale in learned if scale is not None), np.ones(1))


def _fill_feed_forward(spec: FeedForwardSpec, layer: Leaves, stack: StackConfig) -> None:
    _fill_norm(spec.layer_norm, layer, _norm_path(layer.config, "feed_forward"))

    def linear(part: str, factor: np.ndarray | float = 1.0) -> tuple[np.ndarray, np.ndarray | None]:
        kernel, bias = layer[f"feed_forward/{part}/kernel"], layer.get(f"feed_forward/{part}/bias")
        return (kernel * factor).T, None if bias is None else bias * factor

    if layer.config.feed_forward_gated:  # theirs: activation(linear_0(x)) * linear_0_noact(x)
        _fill_linear(spec.linear_0, *linear("gate"))
        _fill_linear(spec.linear_0_noact, *linear("hidden"))
    else:
        _fill_linear(spec.linear_0, *linear("hidden"))
    _fill_linear(spec.linear_1, *linear("output", _branch_factor(layer, "feed_forward", stack)))


def _fill_head(spec: TransformerSpec, leaves: Leaves, target: np.ndarray) -> None:
    config = leaves.config
    factor = config.logits_factor / (math.sqrt(config.d_model) if config.scale_head else 1.0)
    spec.decoder.projection.weight = target if config.tie_head else _float32(leaves["head/kernel"].T)
    if factor != 1.0:
        spec.decoder.scale_outputs = float(factor)
    paths = ("head/bias", "head_bias", "constants/head_bias")
    bias = next((leaves[path] for path in paths if path in leaves.leaves), None)
    if bias is not None and bias.any():
        spec.decoder.projection.bias = _float32(bias * config.logits_factor)


def _norm_path(config: TransformerConfig, sublayer: str) -> str:
    return "shared_norm" if config.share_norms else f"{sublayer}_norm"


def _fill_norm(spec: LayerNormSpec, leaves: Leaves, path: str) -> None:
    config = leaves.config
    scale, bias = leaves.get(f"{path}/scale"), leaves.get(f"{path}/bias")
    scale = np.ones(config.d_model) if scale is None else scale + config.norm_scale_offset
    spec.gamma = _float32(scale * math.sqrt(_biased(config)))
    if hasattr(spec, "beta"):
        spec.beta = _float32(np.zeros(config.d_model) if bias is None else bias)


def _biased(config: TransformerConfig) -> float:
    """Returns the factor that makes a variance divided by D - 1 one divided by D.

    1 / sqrt(v D / (D - 1) + eps) is sqrt(f) / sqrt(v + f eps), with f = (D - 1) / D.
    """
    return (config.d_model - 1) / config.d_model if config.norm_unbiased else 1.0


def _fill_linear(spec: LinearSpec, weight: np.ndarray, bias: np.ndarray | None) -> None:
    spec.weight = _float32(weight)
    if bias is not None:
        spec.bias = _float32(bias)


def _float32(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, np.float32)
