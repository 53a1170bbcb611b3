"""Describe a config as the parts of a drawing: the operations of each stack, from its ids to its end."""

from __future__ import annotations

import math
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.plan import Sublayer, plan
from jax_transformer.config.positions import (
    Alibi,
    Learned,
    Positions,
    RelativeBias,
    RelativeVectors,
    Rotary,
    Sinusoidal,
    Table,
)
from jax_transformer.config.specs import Attention, FeedForward, Head, Norm, Stack

Part = dict[str, Any]
"""A part: its title, and facts about it, each a few words."""


def architecture(config: TransformerConfig) -> list[Part]:
    """Returns both stacks, each with its name, its start, one of its layers, and what follows the layers.

    A layer is a list of sublayers, each as three parts: before, inside and after its residual connection.
    """
    encoder = _stack(config, "encoder", config.encoder, config.source.vocab_size)
    decoder = _stack(config, "decoder", config.decoder, config.target.vocab_size)
    facts = _head(config.head, config.decoder.d_model, config.target.vocab_size)
    decoder["after"].append({"title": "output projection", "facts": facts})
    return [encoder, decoder]


def _stack(config: TransformerConfig, name: str, stack: Stack, vocab_size: int) -> Part:
    layer = [_sublayer(stack, sublayer) for sublayer in plan(stack)]
    embedding = {"title": "embedding", "facts": _embedding(config, stack, vocab_size)}
    return {
        "name": name,
        "start": [embedding, *_start(stack)],
        "count": stack.num_layers,
        "layer": [_side_by_side(stack, layer)] if stack.residual.parallel else layer,
        "notes": _layer_notes(stack),
        "after": _norm_part(stack.norm) if stack.final_norm else [],
    }


def _sublayer(stack: Stack, sublayer: Sublayer) -> Part:
    """Returns a sublayer with its norms, placed as in the residual connection."""
    norm, residual = _norm_part(stack.norm), stack.residual
    scaled = {"channel": ["scaled by a trained scale of each feature"], "scalar": ["scaled by a trained number"]}
    output = scaled.get(residual.output_scale, [])
    if residual.output_factor != 1:
        output = [*output, f"× {residual.output_factor:.6g}"]
    stream = [f"× {residual.stream_factor:.6g}"] if residual.stream_factor != 1 else []
    if sublayer.stream_scale:
        stream.append("× a trained scale of each feature")
    part = sublayer.part
    facts = _feed_forward(stack, part) if isinstance(part, FeedForward) else _attention(stack, sublayer.name, part)
    before = norm if sublayer.placement == "pre" else []
    title = sublayer.name.replace("_", "-")
    return {
        "inside": [*before, {"title": title, "facts": [*facts, *output]}, *(norm if sublayer.output_norm else [])],
        "residual": stream,
        "after": norm if sublayer.placement == "post" else [],
    }


def _side_by_side(stack: Stack, sublayers: list[Part]) -> Part:
    """Returns parallel sublayers as one: all read the same stream, and their results are added to it."""
    branches = [one["inside"] for one in sublayers]
    is_once = stack.share_norms and stack.norm_placement == "pre"
    before = branches[0][:1] if is_once else []
    beside = [branch[len(before) :] for branch in branches]
    return {**sublayers[0], "inside": [*before, {"beside": beside}]}


def _layer_notes(stack: Stack) -> list[str]:
    notes = ["all layers share one set of weights"] if stack.share_layers else []
    return [*notes, *(["one norm for all sublayers of a layer"] if stack.share_norms else [])]


def _embedding(config: TransformerConfig, stack: Stack, vocab_size: int) -> list[str]:
    facts = [f"{vocab_size} × {stack.d_model}"]
    if stack.embedding_factor != 1:
        is_root = math.isclose(stack.embedding_factor, math.sqrt(stack.d_model), rel_tol=1e-12)
        facts.append("× √d_model" if is_root else f"× {stack.embedding_factor:.6g}")
    return [*facts, "one table for both stacks"] if config.share_embeddings else facts


def _start(stack: Stack) -> list[Part]:
    """Returns the terms added to the embedding, and the norm before or after the sum."""
    parts: list[Part] = []
    if isinstance(stack.positions, Table):
        parts.append({"title": "+ positions", "facts": _table(stack.positions)})
    norm, placement = _norm_part(stack.norm), stack.embedding_norm
    return [*(norm * (placement == "before_positions")), *parts, *(norm * (placement == "after_positions"))]


def _table(positions: Sinusoidal | Learned) -> list[str]:
    facts: list[str] = [positions.kind]
    if isinstance(positions, Sinusoidal):
        facts += [positions.layout, *([positions.frequency] * (positions.frequency != "standard"))]
    facts += [f"from {positions.offset}"] if positions.offset else []
    facts += [f"× {positions.factor:.6g}"] if positions.factor != 1 else []
    return [*facts, "× a trained number"] if positions.learned_scale else facts


def _attention(stack: Stack, name: str, part: Attention) -> list[str]:
    shape = part.shape(stack.d_model)
    facts = [f"{shape.num_heads} heads of {shape.head_dim}"]
    if shape.num_kv_heads != shape.num_heads:
        facts.append(f"{shape.num_kv_heads} of keys and values")
    if shape.value_dim != shape.head_dim:
        facts.append(f"values of {shape.value_dim}")
    is_root = part.scale is None or math.isclose(part.scale, 1 / math.sqrt(shape.head_dim), rel_tol=1e-12)
    facts.append(f"× 1/√{shape.head_dim}" if is_root else f"× {part.scale:.6g}")
    turns = isinstance(stack.positions, Rotary) and stack.positions.cross_attention
    if name == "self_attention" or turns:
        facts += _between(stack.positions)
    facts += ["causal"] if part.causal else []
    pads = part.padding
    facts.append(
        {"none": "padding visible", "both": "padding hidden as keys and queries"}.get(pads, f"padding hidden as {pads}")
    )
    facts += ["queries and keys normed"] if part.query_key_norm else []
    facts += ["a trained scale of each head"] if part.head_scale else []
    facts += ["contexts normed"] if part.context_norm else []
    if not part.output:
        return [*facts, "no output projection", _biases(q=part.bias)]
    return [*facts, _biases(q=part.bias, output=part.output_bias)]


def _between(positions: Positions | None) -> list[str]:
    """Returns the relative-position terms of an attention."""
    if isinstance(positions, Rotary):
        return [f"rotated by position, base {positions.base:.6g}"]
    if isinstance(positions, Alibi):
        return ["ALiBi"]
    if isinstance(positions, RelativeBias):
        return [f"bias by distance, {positions.buckets} buckets{_times(positions.factor)}"]
    if isinstance(positions, RelativeVectors):
        return [f"vectors by distance up to {positions.max_distance}"]
    return []


def _times(factor: float) -> str:
    """Formats a factor after its operand; "" for 1."""
    return "" if factor == 1 else f" × {factor:.6g}"


def _biases(**has: bool) -> str:
    """Lists the projections with biases."""
    names = {"q": "query, key, value"}
    if all(has.values()):
        return "biases"
    named = [names.get(name, name) for name, value in has.items() if value]
    return f"biases of {', '.join(named)} alone" if named else "no biases"


def _feed_forward(stack: Stack, part: FeedForward) -> list[str]:
    activation = part.activation.replace("_", " ")
    if part.activation == "leaky_relu":
        activation += f" {part.slope:.6g}"
    facts = [
        f"{stack.d_model} → {part.width} → {stack.d_model}",
        f"gated, {activation}" if part.gated else activation,
    ]
    facts += ["hidden layer normed"] if part.hidden_norm else []
    output = part.bias if part.output_bias is None else part.output_bias
    return [*facts, _biases(hidden=part.bias, output=output)]


def _norm_part(norm: Norm | None) -> list[Part]:
    """Returns a norm as a list of one part, or an empty list."""
    return [] if norm is None else [{"title": "norm", "facts": _norm(norm)}]


def _norm(norm: Norm) -> list[str]:
    kind = {"layer_norm": "LayerNorm", "rms_norm": "RMSNorm"}[norm.kind]
    facts = [kind, f"ε {norm.eps:.6g}{' outside the square root' if norm.eps_outside else ''}"]
    facts += ["divided by D − 1"] if norm.unbiased else []
    if not norm.scale:
        return [*facts, "nothing trained"]
    facts += [f"scale {norm.scale_offset:+.6g} as stored"] if norm.scale_offset else []
    return facts if norm.bias or norm.kind == "rms_norm" else [*facts, "no bias"]


def _head(head: Head, width: int, vocab_size: int) -> list[str]:
    facts = [f"{width} → {vocab_size}"]
    facts += ["the decoder's embedding"] if head.tied else []
    facts += ["× 1/√d_model"] if head.scales_input else []
    facts.append({"parameter": "bias", "buffer": "fixed bias", "none": "no bias"}[head.bias])
    return [*facts, f"all × {head.factor:.6g}"] if head.factor != 1 else facts
