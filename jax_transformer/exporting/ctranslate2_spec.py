"""Fills CTranslate2's specification of a Transformer from a config and its parameters.

Options without a field in CTranslate2 are folded into its weights, if the function stays the same: scales of heads and
sublayers into output projections, offsets of norm scales into the scales, factors of positions into their tables.
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
from jax_transformer.config.plan import Sublayer, plan
from jax_transformer.config.positions import RelativeBias, RelativeVectors, Rotary, Table
from jax_transformer.config.specs import Attention, FeedForward, RmsNorm, Stack
from jax_transformer.exporting.ctranslate2_limits import ACTIVATIONS, biased, effective_eps
from jax_transformer.exporting.positions import position_rows, starts_with_pad
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import Model

FORBIDDEN = np.float32(np.finfo(np.float16).min)
"""Bias of the logit of a token that is never decoded. It is finite in every dtype that CTranslate2 computes in."""


def transformer_spec(model: Model) -> TransformerSpec:
    """Returns the specification of a model that has no `problems_of`, without vocabularies."""
    config, leaves = model.config, Leaves(flatten(model.params))
    options = [_options(stack) for stack in (config.encoder, config.decoder)]
    spec = TransformerSpec(TransformerEncoderSpec(**options[0]), TransformerDecoderSpec(**options[1]))
    source, target = leaves.embeddings(is_shared=config.share_embeddings)
    spec.encoder.embeddings[0].weight = source
    spec.decoder.embeddings.weight = target
    _fill_stack(spec.encoder, leaves, config, "encoder", counts_first=True)
    _fill_stack(spec.decoder, leaves, config, "decoder", counts_first=not starts_with_pad(model))
    _fill_head(spec, leaves, config, target)
    assert config.encoder.norm is not None  # see `problems_of`
    spec.config.layer_norm_epsilon = float(effective_eps(config.encoder.norm, config.encoder.d_model))
    return spec


def forbid(spec: TransformerSpec, ids: list[int]) -> None:
    """Keeps tokens from being decoded by a very low output bias; the rest share their probability."""
    projection = spec.decoder.projection
    bias = projection.bias if projection.has_bias() else np.zeros(len(projection.weight), np.float32)
    projection.bias = bias.copy()
    projection.bias[ids] = FORBIDDEN


@dataclass(frozen=True)
class Leaves:
    """Holds the parameters by path."""

    leaves: Mapping[str, Any]

    def get(self, path: str) -> np.ndarray | None:
        """Returns a leaf in float64, so that factors are multiplied exactly before one rounding; None if absent."""
        return np.asarray(self.leaves[path], np.float64) if path in self.leaves else None

    def __getitem__(self, path: str) -> np.ndarray:
        return np.asarray(self.leaves[path], np.float64)

    def embeddings(self, *, is_shared: bool) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tables [V, D] of source and target, one array if they are one."""
        if is_shared:
            shared = _float32(self["shared_embedding/embedding"])
            return shared, shared
        return _float32(self["source_embedding/embedding"]), _float32(self["target_embedding/embedding"])

    def layer(self, stack: str, index: int) -> Leaves:
        """Returns the leaves of one layer, by their paths in it."""
        prefix = f"{stack}/layers/"
        inside = {path: leaf[index] for path, leaf in self.leaves.items() if path.startswith(prefix)}
        return Leaves({path.removeprefix(prefix): leaf for path, leaf in inside.items()})


def _options(stack: Stack) -> dict[str, Any]:
    """Returns the arguments of a stack's specification."""
    kind, heads = stack.positions, stack.heads
    assert stack.feed_forward is not None  # see `problems_of`
    options = {
        "num_layers": stack.num_layers,
        "num_heads": heads.num_heads,
        "num_heads_kv": None if heads.num_kv_heads == heads.num_heads else heads.num_kv_heads,
        "head_dim": heads.head_dim,
        "pre_norm": True,  # the constructor allows final norms only here; `_fill_stack` sets the real placement
        "no_final_norm": not stack.final_norm,
        "activation": getattr(Activation, ACTIVATIONS[stack.feed_forward.activation]),
        "layernorm_embedding": stack.embedding_norm != "none",
        "relative_position": isinstance(kind, RelativeVectors),
        "relative_attention_bias": isinstance(kind, RelativeBias),
        "ffn_glu": stack.feed_forward.gated,
        "rms_norm": isinstance(stack.norm, RmsNorm),
    }
    if isinstance(kind, Rotary):
        options |= {
            "rotary_dim": kind.dim or 0,
            "rotary_interleave": kind.layout == "interleaved",
            "rotary_base": kind.base,
        }
    return options


def _fill_stack(
    spec: TransformerEncoderSpec | TransformerDecoderSpec,
    leaves: Leaves,
    config: TransformerConfig,
    name: str,
    *,
    counts_first: bool,
) -> None:
    stack: Stack = getattr(config, name)
    spec.pre_norm = stack.norm_placement == "pre"
    spec.scale_embeddings = float(stack.embedding_factor)
    if isinstance(stack.positions, Table):
        rows = position_rows(config, leaves.leaves, name, counts_first=counts_first)
        spec.position_encodings.encodings = _float32(rows)
    if stack.embedding_norm != "none":
        _fill_norm(spec.layernorm_embedding, leaves, f"{name}/embedding_norm", stack)
    if stack.final_norm:
        _fill_norm(spec.layer_norm, leaves, f"{name}/final_norm", stack)
    for number, layer in enumerate(spec.layer):
        own = leaves.layer(name, 0 if stack.share_layers else number)
        _fill_layer(layer, own, stack)
        _fill_distances(layer.self_attention, leaves, own, name, stack)


def _fill_distances(spec: MultiHeadAttentionSpec, leaves: Leaves, layer: Leaves, name: str, stack: Stack) -> None:
    """Sets the relative positions of a self-attention."""
    kind = stack.positions
    if isinstance(kind, RelativeBias):
        spec.relative_attention_bias = _float32(leaves[f"{name}/relative_bias/embedding"] * kind.factor)
        spec.relative_attention_max_distance = np.int32(kind.max_distance)
    if isinstance(kind, RelativeVectors):
        own, path = (
            (layer, "self_attention/relative_vectors") if kind.per_layer else (leaves, f"{name}/relative_vectors")
        )
        keys = own[f"{path}/keys"]
        values = own.get(f"{path}/values")
        spec.relative_position_keys = _float32(keys)
        spec.relative_position_values = _float32(np.zeros_like(keys) if values is None else values)


def _fill_layer(spec: Any, layer: Leaves, stack: Stack) -> None:
    specs = {"self_attention": "self_attention", "cross_attention": "attention", "feed_forward": "ffn"}
    for sublayer in plan(stack):
        own = getattr(spec, specs[sublayer.name])
        _fill_norm(own.layer_norm, layer, sublayer.norm, stack)
        if isinstance(sublayer.part, Attention):
            _fill_attention(own, layer, sublayer, sublayer.part, stack)
        else:
            _fill_feed_forward(own, layer, sublayer, sublayer.part, stack)


def _fill_attention(
    spec: MultiHeadAttentionSpec, layer: Leaves, sublayer: Sublayer, attention: Attention, stack: Stack
) -> None:
    scale, name = attention.scale, sublayer.name
    spec.queries_scale = float(1.0 / math.sqrt(attention.shape(stack.d_model).head_dim) if scale is None else scale)
    query, key, value = (_projected(layer, f"{name}/{part}") for part in ("query", "key", "value"))
    if name == "self_attention":
        _fill_linear(spec.linear[0], *_fused([query, key, value]))
    else:
        _fill_linear(spec.linear[0], *query)
        _fill_linear(spec.linear[1], *_fused([key, value]))
    _fill_linear(spec.linear[-1], *_contexts_projected(layer, sublayer, attention, stack))


def _projected(layer: Leaves, path: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns the weight [N H, D] and bias [N H] of a projection to heads."""
    kernel, bias = layer[f"{path}/kernel"], layer.get(f"{path}/bias")  # [D, N, H], [N, H]
    return kernel.reshape(len(kernel), -1).T, None if bias is None else bias.reshape(-1)


def _fused(parts: list[tuple[np.ndarray, np.ndarray | None]]) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns weights and biases after one another, as one projection."""
    biases = [bias for _, bias in parts if bias is not None]
    return np.concatenate([weight for weight, _ in parts]), np.concatenate(biases) if biases else None


def _contexts_projected(
    layer: Leaves, sublayer: Sublayer, attention: Attention, stack: Stack
) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns the weight [D, N W] and bias [D] of an attention's output, with the scales of heads and output."""
    name, shape = sublayer.name, attention.shape(stack.d_model)
    kernel, bias = layer.get(f"{name}/output/kernel"), layer.get(f"{name}/output/bias")  # [N, W, D], [D]
    if kernel is None:  # no projection: the merged heads themselves
        width = shape.num_heads * shape.value_dim
        kernel = np.eye(width).reshape(shape.num_heads, shape.value_dim, width)
    scales = layer.get(f"{name}/head_scale/scale")
    kernel = kernel if scales is None else kernel * scales[:, None, None]
    factor = _branch_factor(layer, sublayer, stack)
    weight = (kernel * factor).reshape(-1, kernel.shape[-1]).T
    return weight, None if bias is None else bias * factor


def _branch_factor(layer: Leaves, sublayer: Sublayer, stack: Stack) -> np.ndarray:
    """Returns the factor of a sublayer's output: of each feature [D], or a number [1]."""
    learned = [layer.get(f"{sublayer.output_scale}/{kind}") for kind in ("scale", "factor")]
    return stack.residual.output_factor * next((scale for scale in learned if scale is not None), np.ones(1))


def _fill_feed_forward(
    spec: FeedForwardSpec, layer: Leaves, sublayer: Sublayer, feed_forward: FeedForward, stack: Stack
) -> None:
    def linear(part: str, factor: np.ndarray | float = 1.0) -> tuple[np.ndarray, np.ndarray | None]:
        kernel, bias = layer[f"feed_forward/{part}/kernel"], layer.get(f"feed_forward/{part}/bias")
        return (kernel * factor).T, None if bias is None else bias * factor

    if feed_forward.gated:  # theirs: activation(linear_0(x)) * linear_0_noact(x)
        _fill_linear(spec.linear_0, *linear("gate"))
        _fill_linear(spec.linear_0_noact, *linear("hidden"))
    else:
        _fill_linear(spec.linear_0, *linear("hidden"))
    _fill_linear(spec.linear_1, *linear("output", _branch_factor(layer, sublayer, stack)))


def _fill_head(spec: TransformerSpec, leaves: Leaves, config: TransformerConfig, target: np.ndarray) -> None:
    head = config.head
    factor = head.factor / (math.sqrt(config.decoder.d_model) if head.scales_input else 1.0)
    spec.decoder.projection.weight = target if head.tied else _float32(leaves["head/kernel"].T)
    if factor != 1.0:
        spec.decoder.scale_outputs = float(factor)
    paths = ("head/bias", "head_bias", "constants/head_bias")
    bias = next((leaves[path] for path in paths if path in leaves.leaves), None)
    if bias is not None and bias.any():
        spec.decoder.projection.bias = _float32(bias * head.factor)


def _fill_norm(spec: LayerNormSpec, leaves: Leaves, path: str, stack: Stack) -> None:
    norm = stack.norm
    assert norm is not None  # see `problems_of`
    scale, bias = leaves.get(f"{path}/scale"), leaves.get(f"{path}/bias")
    scale = np.ones(stack.d_model) if scale is None else scale + norm.scale_offset
    spec.gamma = _float32(scale * math.sqrt(biased(norm, stack.d_model)))
    if hasattr(spec, "beta"):
        spec.beta = _float32(np.zeros(stack.d_model) if bias is None else bias)


def _fill_linear(spec: LinearSpec, weight: np.ndarray, bias: np.ndarray | None) -> None:
    spec.weight = _float32(weight)
    if bias is not None:
        spec.bias = _float32(bias)


def _float32(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, np.float32)
