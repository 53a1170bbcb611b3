"""Describe a config as the parts of a drawing: what each stack does, from its ids to its end."""

from __future__ import annotations

import math
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.specs import Stack as StackConfig

Part = dict[str, Any]
"""A part: its title, and facts about it, each a few words."""


def architecture(config: TransformerConfig) -> list[Part]:
    """Returns both stacks, each with its name, its start, one of its layers, and what follows the layers.

    A layer is a list of sublayers: what stands before the sublayer, inside the residual connection and after it.
    """
    decoder = _stack(config, "decoder")
    decoder["after"].append({"title": "output projection", "facts": _head(config)})
    return [_stack(config, "encoder"), decoder]


def _stack(config: TransformerConfig, name: str) -> Part:
    stack: StackConfig = getattr(config, name)
    layer = [_sublayer(config, stack, "self-attention", _attention(config, stack, name))]
    if name == "decoder":
        layer.append(_sublayer(config, stack, "cross-attention", _attention(config, stack, "cross")))
    if config.feed_forward:
        layer.append(_sublayer(config, stack, "feed-forward", _feed_forward(config, stack)))
    return {
        "name": name,
        "start": [{"title": "embedding", "facts": _embedding(config, stack, name)}, *_positions(config, name)],
        "count": stack.num_layers,
        "layer": [_side_by_side(config, layer)] if config.parallel_residual else layer,
        "notes": _layer_notes(config),
        "after": [{"title": "norm", "facts": _norm(config)}] if stack.final_norm else [],
    }


def _sublayer(config: TransformerConfig, stack: StackConfig, title: str, facts: list[str]) -> Part:
    """Returns a sublayer with its norms, as they stand in the residual connection."""
    norm = [{"title": "norm", "facts": _norm(config)}] if config.norm_kind != "none" else []
    is_normed = title.replace("-", "_") in config.normed_outputs
    scaled = {"channel": ["scaled by a trained scale of each feature"], "scalar": ["scaled by a trained number"]}
    output = scaled.get(config.learned_sublayer_scale, [])
    if stack.sublayer_factor != 1:
        output = [*output, f"× {stack.sublayer_factor:.6g}"]
    residual = [f"× {stack.residual_factor:.6g}"] if stack.residual_factor != 1 else []
    if config.learned_residual_scale == "all" or config.learned_residual_scale == title.replace("-", "_"):
        residual.append("× a trained scale of each feature")
    before = norm if stack.norm_placement == "pre" else []
    return {
        "inside": [*before, {"title": title, "facts": [*facts, *output]}, *(norm if is_normed else [])],
        "residual": residual,
        "after": norm if stack.norm_placement == "post" else [],
    }


def _side_by_side(config: TransformerConfig, sublayers: list[Part]) -> Part:
    """Returns the sublayers of a layer as one, in which each reads the same and adds to the same."""
    branches = [one["inside"] for one in sublayers]
    is_once = config.share_norms and config.norm_placement == "pre"
    before = branches[0][:1] if is_once else []
    beside = [branch[len(before) :] for branch in branches]
    return {**sublayers[0], "inside": [*before, {"beside": beside}]}


def _layer_notes(config: TransformerConfig) -> list[str]:
    notes = ["all layers share one set of weights"] if config.share_layers else []
    return [*notes, *(["one norm for all sublayers of a layer"] if config.share_norms else [])]


def _embedding(config: TransformerConfig, stack: StackConfig, name: str) -> list[str]:
    size = config.source_vocab_size if name == "encoder" else config.target_vocab_size
    facts = [f"{size} × {config.d_model}"]
    if stack.embedding_factor != 1:
        is_root = math.isclose(stack.embedding_factor, math.sqrt(config.d_model), rel_tol=1e-12)
        facts.append("× √d_model" if is_root else f"× {stack.embedding_factor:.6g}")
    return [*facts, "one table for both stacks"] if config.share_embeddings else facts


def _positions(config: TransformerConfig, name: str) -> list[Part]:
    """Returns what is added to the embedding, and the norm before or after it."""
    parts: list[Part] = []
    stack: StackConfig = getattr(config, name)
    if stack.has_table:
        facts: list[str] = [stack.position_kind]
        if stack.position_kind == "sinusoidal":
            facts += [
                config.position_layout,
                *([config.position_frequency] * (config.position_frequency != "standard")),
            ]
        facts += [f"from {config.position_offset}"] if config.position_offset else []
        facts += [f"× {config.position_factor:.6g}"] if config.position_factor != 1 else []
        facts += ["× a trained number"] if config.learned_position_scale else []
        parts.append({"title": "+ positions", "facts": facts})
    norm = [{"title": "norm", "facts": _norm(config)}]
    placement = stack.embedding_norm
    return [*(norm * (placement == "before_positions")), *parts, *(norm * (placement == "after_positions"))]


def _attention(config: TransformerConfig, stack: StackConfig, kind: str) -> list[str]:
    width = stack.head_dim
    facts = [f"{stack.num_heads} heads of {width}"]
    if stack.num_kv_heads != stack.num_heads:
        facts.append(f"{stack.num_kv_heads} of keys and values")
    if stack.value_dim != width:
        facts.append(f"values of {stack.value_dim}")
    scale = config.attention_scale
    is_root = scale is None or math.isclose(scale, 1 / math.sqrt(width), rel_tol=1e-12)
    facts.append(f"× 1/√{width}" if is_root else f"× {scale:.6g}")
    if kind != "cross" or config.rotary_cross_attention:
        between = {
            "rotary": f"rotated by position, base {config.rotary_base:.6g}",
            "alibi": "ALiBi",
            "relative_bias": f"bias by distance, {config.relative_buckets} buckets{_times(stack.relative_bias_factor)}",
            "relative_vectors": f"vectors by distance up to {config.relative_max_distance}",
        }
        facts += [between[stack.position_kind]] if stack.position_kind in between else []
    if kind == "decoder" and stack.is_causal:
        facts.append("causal")
    pads = {"encoder": config.encoder_padding, "decoder": config.decoder_padding, "cross": config.cross_padding}[kind]
    facts.append(
        {"none": "padding visible", "both": "padding hidden as keys and queries"}.get(pads, f"padding hidden as {pads}")
    )
    facts += ["queries and keys normed"] if config.query_key_norm else []
    facts += ["a trained scale of each head"] if config.head_scale else []
    of = "cross_attention" if kind == "cross" else "self_attention"
    facts += ["contexts normed"] if of in config.normed_contexts else []
    if not config.attention_output:
        return [*facts, "no output projection", _biases(q=config.attention_bias)]
    return [*facts, _biases(q=config.attention_bias, output=config.attention_output_bias)]


def _times(factor: float) -> str:
    """Returns a factor as it follows what it multiplies; nothing for 1."""
    return "" if factor == 1 else f" × {factor:.6g}"


def _biases(**has: bool) -> str:
    """Returns which projections have biases."""
    names = {"q": "query, key, value"}
    if all(has.values()):
        return "biases"
    named = [names.get(name, name) for name, value in has.items() if value]
    return f"biases of {', '.join(named)} alone" if named else "no biases"


def _feed_forward(config: TransformerConfig, stack: StackConfig) -> list[str]:
    activation = stack.activation.replace("_", " ")
    if stack.activation == "leaky_relu":
        activation += f" {stack.activation_slope:.6g}"
    facts = [
        f"{config.d_model} → {stack.d_ff} → {config.d_model}",
        f"gated, {activation}" if config.feed_forward_gated else activation,
    ]
    facts += ["hidden layer normed"] if config.feed_forward_hidden_norm else []
    return [*facts, _biases(hidden=config.feed_forward_bias, output=stack.feed_forward_output_bias)]


def _norm(config: TransformerConfig) -> list[str]:
    kind = {"layer_norm": "LayerNorm", "rms_norm": "RMSNorm"}.get(config.norm_kind, config.norm_kind)
    facts = [kind, f"ε {config.norm_eps:.6g}{' beside the deviation' if config.norm_eps_outside else ''}"]
    facts += ["divided by D − 1"] if config.norm_unbiased else []
    if not config.norm_scale:
        return [*facts, "nothing trained"]
    facts += [f"scale {config.norm_scale_offset:+.6g} as stored"] if config.norm_scale_offset else []
    return facts if config.norm_bias or config.norm_kind == "rms_norm" else [*facts, "no bias"]


def _head(config: TransformerConfig) -> list[str]:
    facts = [f"{config.d_model} → {config.target_vocab_size}"]
    facts += ["the decoder's embedding"] if config.tie_head else []
    facts += ["× 1/√d_model"] if config.scale_head else []
    facts.append({"parameter": "bias", "buffer": "fixed bias", "none": "no bias"}[config.head_bias])
    return [*facts, f"all × {config.logits_factor:.6g}"] if config.logits_factor != 1 else facts
