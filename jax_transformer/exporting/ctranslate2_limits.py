"""Limits of CTranslate2's Transformer: the options that it can't compute, and what it has instead.

The statements are about CTranslate2 4.8: `ctranslate2.specs.TransformerSpec`, and the layers that run it. Encoder and
decoder have separate fields there, so stacks may differ in every option that it computes, except the eps of norms. An
option that this file doesn't mention must have its default.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.plan import plan
from jax_transformer.config.positions import RelativeBias, Table
from jax_transformer.config.short_names import short_names
from jax_transformer.config.specs import Attention, Norm, Stack
from jax_transformer.exporting.options import NO_WEIGHT_BELOW
from jax_transformer.model.masks import decoder_padding_id
from jax_transformer.porting.one_level import Obstacle, has_one_value, obstacles, values_of
from jax_transformer.storage.model_directory import Model

ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "quick_gelu": "GELUSigmoid",
    "silu": "SWISH",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
}
"""Our names of activations → their names in `ctranslate2.specs.Activation`."""

ONLY: dict[str, tuple[Any, ...]] = {
    "position_index": ("column", "non_pad_count"),
    "norm_kind": ("layer_norm", "rms_norm"),
    "feed_forward": (True,),
    "encoder_padding": ("keys", "both"),
}
"""Field → the values that CTranslate2 can compute, besides the default if it is one of them."""
COMPUTED = (
    "source_vocab_size", "target_vocab_size", "d_model", "num_encoder_layers", "num_decoder_layers", "max_length",
    "decoder_max_length", "d_ff", "decoder_d_ff", "share_layers", "share_embeddings", "tie_head", "head_bias",
    "scale_head", "logits_factor", "scale_embedding", "embedding_factor", "decoder_embedding_factor",
    "encoder_embedding_norm", "decoder_embedding_norm",
    "num_heads", "num_kv_heads", "head_dim", "value_dim", "decoder_num_heads", "decoder_num_kv_heads",
    "decoder_head_dim", "decoder_value_dim", "attention_scale", "attention_bias", "attention_output",
    "attention_output_bias", "head_scale", "masked_value",
    "position_kind", "decoder_position_kind", "position_layout", "position_frequency", "position_offset",
    "position_factor", "learned_position_scale", "rotary_base", "rotary_dim", "relative_buckets",
    "relative_max_distance", "relative_bias_factor", "decoder_relative_bias_factor", "relative_bias_per_layer",
    "relative_value_vectors",
    "norm_placement", "decoder_norm_placement", "norm_eps", "norm_unbiased", "norm_scale", "norm_scale_offset",
    "norm_bias", "final_norm", "decoder_final_norm", "share_norms",
    "residual_factor", "decoder_residual_factor", "sublayer_factor", "decoder_sublayer_factor",
    "learned_sublayer_scale", "feed_forward_gated", "feed_forward_bias", "feed_forward_output_bias", "activation",
    "decoder_activation",
    "source_pad_id", "target_pad_id", "decoder_padding_id", "decoder_padding", "decoding_decoder_padding",
    "decoding_cross_padding", "trains_pad_embedding",
)  # fmt: skip
"""Fields that CTranslate2 has, or that fold into weights; `_stacks` and `_ids` restrict their values."""
ONE_PER_STACK = ("d_model", "decoder_num_heads", "decoder_num_kv_heads", "decoder_head_dim")
"""Fields that all attentions of a stack share in CTranslate2; the whole model shares the first."""
WHY = {
    "position_index": "counts a sentence's tokens",
    "rotary_cross_attention": "rotates queries and keys of self-attention alone",
    "norm_kind": "norms with layer_norm or rms_norm",
    "norm_eps_outside": "adds eps to the variance",
    "output_norm": "has no norm of a sublayer's output alone",
    "parallel_residual": "has no such decoder with cross-attention",
    "learned_residual_scale": "adds residuals unscaled",
    "query_key_norm": "norms the query of cross-attention over all heads together",
    "context_norm": "norms no contexts",
    "feed_forward": "has a feed-forward in every layer",
    "feed_forward_hidden_norm": "norms no hidden layer",
    "encoder_padding": "hides the source's padding",
    "cross_padding": "hides the source's padding, and no queries",
    "decoder_causal": "hides later positions",
}
"""Field → what CTranslate2 does instead, if a list of values isn't explanation enough."""
POSITIONS = ("sinusoidal", "learned", "rotary", "relative_bias", "relative_vectors")


def problems_of(model: Model) -> list[str]:
    """Returns the reasons why CTranslate2 can't compute a model; none if it can."""
    config = model.config.while_decoding()
    found = obstacles(config, ONLY, COMPUTED, may_differ=lambda name: name not in ONE_PER_STACK)
    return [*map(_described, found), *_stacks(config), *_norm_eps(config), *_ids(config, model)]


def _described(obstacle: Obstacle) -> str:
    return _problem(obstacle.option, obstacle.received, WHY.get(obstacle.name, f"has {obstacle.expected}"))


def _stacks(config: TransformerConfig) -> list[str]:
    """Returns the values of each stack that CTranslate2 lacks."""
    stacks = (("encoder", config.encoder), ("decoder", config.decoder))
    return list(
        dict.fromkeys(
            _problem(_field(config, field, f"{name}.{path}"), value, has)
            for name, stack in stacks
            for field, path, value, has in (*_stack_limits(stack, name), *_attention_limits(stack))
        )
    )


def _stack_limits(stack: Stack, name: str) -> Iterator[tuple[str, str, Any, str]]:
    """Yields each option that CTranslate2 can't compute: field, path in the stack, value, and CTranslate2's
    alternative."""
    if stack.position_kind not in POSITIONS:
        yield "position_kind", "positions", stack.position_kind, f"has {', '.join(POSITIONS)}"
    if stack.feed_forward is not None and stack.feed_forward.activation not in ACTIVATIONS:
        has = f"has {', '.join(ACTIVATIONS)}"
        yield "activation", "feed_forward.activation", stack.feed_forward.activation, has
    if stack.norm_placement == "none":
        yield "norm_placement", "norm_placement", stack.norm_placement, "norms before or after every sublayer"
    if stack.residual.stream_factor != 1.0:
        yield "residual_factor", "residual.stream_factor", stack.residual.stream_factor, "adds residuals unscaled"
    if isinstance(stack.positions, RelativeBias) and stack.positions.per_layer:
        yield "relative_bias_per_layer", "positions.per_layer", True, "adds the first layer's biases in all layers"
    if isinstance(stack.positions, Table) and stack.embedding_norm == "before_positions":
        has = "norms embeddings after positions are added"
        yield f"{name}_embedding_norm", "embedding_norm", stack.embedding_norm, has


def _attention_limits(stack: Stack) -> Iterator[tuple[str, str, Any, str]]:
    """Yields the same for the stack's attentions."""
    for sublayer in plan(stack):
        if not isinstance(attention := sublayer.part, Attention):
            continue
        shape = attention.shape(stack.d_model)
        if shape.value_dim != shape.head_dim:
            yield "value_dim", f"{sublayer.name}.value_dim", shape.value_dim, f"has head_dim={shape.head_dim}"
        if attention.masked_value is not None and attention.masked_value > NO_WEIGHT_BELOW:
            path, has = f"{sublayer.name}.masked_value", "gives masked keys a weight of zero"
            yield "masked_value", path, attention.masked_value, has


def _field(config: TransformerConfig, name: str, path: str) -> str:
    """Names an option for messages: the decoder's short name, if it has its own value; the general short name, if all
    places have one value; otherwise its path."""
    own = f"decoder_{name}"
    if path.startswith("decoder") and own in short_names() and values_of(config, own) is not None:
        return own if has_one_value(config, own) else path
    return name if has_one_value(config, name) else path


def effective_eps(norm: Norm, d_model: int) -> float:
    """Returns the number that is added to a variance divided by D: `eps`, in a norm that divides by D.

    1 / sqrt(v D / (D - 1) + eps) is sqrt(f) / sqrt(v + f eps), with f = (D - 1) / D.
    """
    return norm.eps * biased(norm, d_model)


def biased(norm: Norm, d_model: int) -> float:
    """Returns the factor that turns the norm's variance into one divided by D."""
    return (d_model - 1) / d_model if norm.unbiased else 1.0


def _norm_eps(config: TransformerConfig) -> list[str]:
    """Returns a problem unless the norms of both stacks have the same eps."""
    encoder, decoder = config.encoder.norm, config.decoder.norm
    if encoder is None or decoder is None:
        return []
    if effective_eps(encoder, config.encoder.d_model) == effective_eps(decoder, config.decoder.d_model):
        return []
    differs = "eps" if encoder.eps != decoder.eps else "unbiased"
    has = f"adds one eps to the variances of all norms: give the decoder encoder.norm.{differs}"
    return [_problem(f"decoder.norm.{differs}", getattr(decoder, differs), f"{has}={getattr(encoder, differs)!r}")]


def _ids(config: TransformerConfig, model: Model) -> list[str]:
    """Returns the special ids that our masks treat otherwise: CTranslate2 masks by length, never by an id."""
    problems = []
    start, source = model.generation.decoder_start_id, model.source_tokenizer
    padding = config.decoder.self_attention.padding
    if padding != "none" and start is not None and start == decoder_padding_id(config):
        has = f"attends to the first token, which is padding here (decoder_start_id={start})"
        problems.append(_problem("decoder_padding", padding, has))
    if source is not None and source.unk_id == config.source.pad_id:
        problems.append(
            _problem("source_pad_id", config.source.pad_id, "attends to unknown tokens, which have this id")
        )
    if model.generation.source_length is not None:
        has = "encodes sentences of any length without padding"
        problems.append(_problem("source_length", model.generation.source_length, has))
    if model.generation.eos_id is None:
        problems.append(_problem("eos_id", None, "needs the id that ends a sentence (port the model with --eos-id)"))
    return problems


def _problem(field: str, value: Any, has: str) -> str:
    return f"{field}={value!r} (it {has})"
