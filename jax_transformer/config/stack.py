"""The sizes and choices of one stack: those of a TransformerConfig, with the decoder's overrides resolved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig

Value = TypeVar("Value")
PaddingCover = Literal["keys", "queries", "both", "none"]
EmbeddingNorm = Literal["none", "before_positions", "after_positions"]
NormPlacement = Literal["pre", "post", "none"]
Activation = Literal[
    "relu", "gelu", "gelu_tanh", "silu", "none", "leaky_relu", "prelu", "elu", "selu", "mish", "quick_gelu",
    "relu_squared", "tanh", "sigmoid", "softplus",
]  # fmt: skip
PositionKind = Literal[
    "sinusoidal", "learned", "rotary", "alibi", "relative_bias", "relative_vectors", "none"
]  # fmt: skip


@dataclass(frozen=True)
class StackConfig:
    """Holds the sizes of one stack, with the decoder's overrides resolved."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    """Width of one head's values."""
    d_ff: int
    max_length: int
    embedding_norm: EmbeddingNorm
    embedding_factor: float
    """Factor of the token embeddings."""
    norm_placement: NormPlacement
    final_norm: bool
    """Whether a norm follows the last layer."""
    residual_factor: float
    """Factor of the residual stream where a sublayer's output is added to it."""
    sublayer_factor: float
    """Factor of the sublayer's output."""
    is_causal: bool
    """Whether a position attends only to itself and earlier positions."""
    position_kind: PositionKind
    relative_bias_factor: float
    """Factor of learned biases by distance."""
    activation: Activation
    activation_slope: float
    """Slope of leaky_relu where its input is negative."""
    feed_forward_output_bias: bool
    """Whether the feed-forward's output projection has a bias."""

    @property
    def has_table(self) -> bool:
        """Whether a table of positions is added to the embeddings."""
        return self.position_kind in ("sinusoidal", "learned")


def encoder_stack(config: TransformerConfig) -> StackConfig:
    """Returns what the config says of the encoder."""
    head_dim = config.head_dim or config.d_model // config.num_heads
    return StackConfig(
        num_layers=config.num_encoder_layers,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads or config.num_heads,
        head_dim=head_dim,
        value_dim=config.value_dim or head_dim,
        d_ff=config.d_ff,
        max_length=config.max_length,
        embedding_norm=config.encoder_embedding_norm,
        embedding_factor=_or(config.embedding_factor, math.sqrt(config.d_model) if config.scale_embedding else 1.0),
        norm_placement=config.norm_placement,
        final_norm=config.final_norm,
        residual_factor=config.residual_factor,
        sublayer_factor=config.sublayer_factor,
        is_causal=False,
        position_kind=config.position_kind,
        relative_bias_factor=config.relative_bias_factor,
        activation=config.activation,
        activation_slope=config.activation_slope,
        feed_forward_output_bias=_or(config.feed_forward_output_bias, config.feed_forward_bias),
    )


def decoder_stack(config: TransformerConfig) -> StackConfig:
    """Returns what the config says of the decoder, which is the encoder's where it has no value of its own."""
    num_heads = config.decoder_num_heads or config.num_heads
    head_dim = config.decoder_head_dim or config.head_dim or config.d_model // num_heads
    return StackConfig(
        num_layers=config.num_decoder_layers,
        num_heads=num_heads,
        num_kv_heads=config.decoder_num_kv_heads or config.num_kv_heads or num_heads,
        head_dim=head_dim,
        value_dim=config.decoder_value_dim or config.value_dim or head_dim,
        d_ff=config.decoder_d_ff or config.d_ff,
        max_length=config.decoder_max_length or config.max_length,
        embedding_norm=config.decoder_embedding_norm,
        embedding_factor=_or(config.decoder_embedding_factor, encoder_stack(config).embedding_factor),
        norm_placement=config.decoder_norm_placement or config.norm_placement,
        final_norm=_or(config.decoder_final_norm, config.final_norm),
        residual_factor=_or(config.decoder_residual_factor, config.residual_factor),
        sublayer_factor=_or(config.decoder_sublayer_factor, config.sublayer_factor),
        is_causal=config.decoder_causal,
        position_kind=config.decoder_position_kind or config.position_kind,
        relative_bias_factor=_or(config.decoder_relative_bias_factor, config.relative_bias_factor),
        activation=config.decoder_activation or config.activation,
        activation_slope=config.activation_slope,
        feed_forward_output_bias=_or(config.feed_forward_output_bias, config.feed_forward_bias),
    )


def _or(own: Value | None, default: Value) -> Value:
    """Returns the value that is set or, if none is, the default."""
    return default if own is None else own
