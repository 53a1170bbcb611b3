"""What CTranslate2's Transformer can't compute: each field of a config, its value, and what CTranslate2 has instead.

The statements are about CTranslate2 4.8: `ctranslate2.specs.TransformerSpec`, and the layers that run it.
"""

from __future__ import annotations

from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.exporting.options import NO_WEIGHT_BELOW
from jax_transformer.model.masks import decoder_padding_id
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
"""Our names of activations → those in `ctranslate2.specs.Activation`."""

ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "position_index": (("column", "non_pad_count"), "counts a sentence's tokens"),
    "rotary_cross_attention": ((False,), "rotates queries and keys of self-attention alone"),
    "norm_kind": (("layer_norm", "rms_norm"), "norms with layer_norm or rms_norm"),
    "norm_eps_outside": ((False,), "adds eps to the variance"),
    "output_norm": (("none",), "norms no sublayer's output by itself"),
    "parallel_residual": ((False,), "has no such decoder with cross-attention"),
    "learned_residual_scale": (("none",), "adds residuals unscaled"),
    "query_key_norm": ((False,), "norms the query of cross-attention over all heads together"),
    "context_norm": (("none",), "norms no contexts"),
    "feed_forward": ((True,), "has a feed-forward in every layer"),
    "feed_forward_hidden_norm": ((False,), "norms no hidden layer"),
    "encoder_padding": (("keys", "both"), "hides the source's padding"),
    "cross_padding": (("keys",), "hides the source's padding, and no queries"),
    "decoder_causal": ((True,), "hides later positions"),
}
"""Field → the values that CTranslate2 can compute, and what it does."""
POSITIONS = {
    "encoder": ("sinusoidal", "learned", "rotary", "relative_bias", "relative_vectors"),
    "decoder": ("sinusoidal", "learned", "rotary", "relative_bias", "relative_vectors"),
}


def problems_of(model: Model) -> list[str]:
    """Returns why CTranslate2 can't compute what a model computes; nothing if it can."""
    config = model.config.while_decoding()
    return [*_values(config), *_stacks(config), *_ids(config, model)]


def _values(config: TransformerConfig) -> list[str]:
    """Returns the fields whose value alone stands in the way."""
    problems = [
        _problem(name, getattr(config, name), has)
        for name, (values, has) in ONLY.items()
        if getattr(config, name) not in values
    ]
    kinds = (config.encoder.position_kind, config.decoder.position_kind)
    if config.relative_bias_per_layer and "relative_bias" in kinds:
        problems.append(_problem("relative_bias_per_layer", True, "adds the first layer's biases in all layers"))
    if config.masked_value is not None and config.masked_value > NO_WEIGHT_BELOW:
        problems.append(_problem("masked_value", config.masked_value, "gives masked keys no weight at all"))
    return problems


def _stacks(config: TransformerConfig) -> list[str]:
    """Returns the fields that each stack may have for itself."""
    problems = []
    for name, stack in (("encoder", config.encoder), ("decoder", config.decoder)):

        def check(holds: bool, field: str, value: Any, has: str, name: str = name) -> None:
            own = f"decoder_{field}"
            is_own = name == "decoder" and getattr(config, own, None) is not None
            if not holds and _problem(field, value, has) not in problems:
                problems.append(_problem(own if is_own else field, value, has))

        check(
            stack.position_kind in POSITIONS[name],
            "position_kind",
            stack.position_kind,
            f"has {', '.join(POSITIONS[name])}",
        )
        check(
            stack.activation in ACTIVATIONS or not config.feed_forward,
            "activation",
            stack.activation,
            f"has {', '.join(ACTIVATIONS)}",
        )
        is_normed = stack.norm_placement != "none"
        check(is_normed, "norm_placement", stack.norm_placement, "norms before or after every sublayer")
        check(stack.residual_factor == 1.0, "residual_factor", stack.residual_factor, "adds residuals unscaled")
        check(stack.value_dim == stack.head_dim, "value_dim", stack.value_dim, f"has head_dim={stack.head_dim}")
        if stack.has_table and stack.embedding_norm == "before_positions":
            has = "norms embeddings after positions are added"
            problems.append(_problem(f"{name}_embedding_norm", stack.embedding_norm, has))
    return problems


def _ids(config: TransformerConfig, model: Model) -> list[str]:
    """Returns the special ids that our masks treat otherwise: CTranslate2 masks by length, never by an id."""
    problems = []
    start, source = model.generation.decoder_start_id, model.source_tokenizer
    if config.decoder_padding != "none" and start is not None and start == decoder_padding_id(config):
        has = f"attends to the first token, which is padding here (decoder_start_id={start})"
        problems.append(_problem("decoder_padding", config.decoder_padding, has))
    if source is not None and source.unk_id == config.source_pad_id:
        problems.append(
            _problem("source_pad_id", config.source_pad_id, "attends to unknown tokens, which have this id")
        )
    if model.generation.source_length is not None:
        has = "encodes sentences of any length without padding"
        problems.append(_problem("source_length", model.generation.source_length, has))
    if model.generation.eos_id is None:
        problems.append(_problem("eos_id", None, "needs the id that ends a sentence (port the model with --eos-id)"))
    return problems


def _problem(field: str, value: Any, has: str) -> str:
    return f"{field}={value!r} (it {has})"
