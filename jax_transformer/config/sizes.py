"""How large a config's model is at least, by arithmetic: known before anything is made, or compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.config.stack import StackConfig, decoder_stack, encoder_stack
from jax_transformer.runtime.limits import MODEL_SIZE, PARAMETERS, POSITIONS
from jax_transformer.runtime.memory import check_fits

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig

SIZES = (
    "source_vocab_size", "target_vocab_size", "d_model", "num_heads", "num_kv_heads", "head_dim", "value_dim", "d_ff",
    "num_encoder_layers", "num_decoder_layers", "max_length", "decoder_num_heads", "decoder_num_kv_heads",
    "decoder_head_dim", "decoder_value_dim", "decoder_d_ff", "decoder_max_length", "position_offset",
    "relative_buckets", "relative_max_distance",
)  # fmt: skip


def least_parameters(config: TransformerConfig) -> int:
    """Returns a number of values that the model has at least, position tables included; embeddings of a vocabulary of
    size 0, which isn't known yet, count nothing. Biases and norms aren't counted, so it is a little less than all.

    Example:
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.config.sizes import least_parameters
      >>> least_parameters(TransformerConfig())
      44564480
    """
    target = config.target_vocab_size
    rows = target if config.share_embeddings else config.source_vocab_size + target
    total = config.d_model * (rows + (0 if config.tie_head else target))
    for stack, layers, attentions in ((encoder_stack(config), config.num_encoder_layers, 1),
                                      (decoder_stack(config), config.num_decoder_layers, 2)):  # fmt: skip
        total += (1 if config.share_layers else layers) * _of_layer(config, stack, attentions)
        total += config.d_model * stack.max_length if stack.has_table else 0
        total += stack.num_heads * config.relative_buckets if stack.position_kind == "relative_bias" else 0
        total += stack.head_dim * config.relative_max_distance if stack.position_kind == "relative_vectors" else 0
    return total


def _of_layer(config: TransformerConfig, stack: StackConfig, attentions: int) -> int:
    heads = stack.num_heads * (stack.head_dim + stack.value_dim * config.attention_output)
    heads += stack.num_kv_heads * (stack.head_dim + stack.value_dim)
    matrices = (3 if config.feed_forward_gated else 2) if config.feed_forward else 0
    return config.d_model * (attentions * heads + matrices * stack.d_ff)


def check_table(rows: int, d_model: int) -> None:
    """Raises ValueError if a table of positions can't be computed in main memory: sines and cosines apart, then
    together, in float64."""
    check_fits(2 * 8 * rows * d_model, f"table of positions, {rows:,} rows with d_model={d_model:,}")


def size_problems(config: TransformerConfig) -> list[str]:
    """Returns a message for each size beyond the limits MODEL_SIZE, POSITIONS and PARAMETERS."""

    def above(limit: int, names: tuple[str, ...]) -> list[str]:
        return [name for name in names if (getattr(config, name) or 0) > limit]

    problems = [
        f"{name} must be at most {MODEL_SIZE.value:,} ({MODEL_SIZE.variable}); received {getattr(config, name):,}"
        for name in above(MODEL_SIZE.value, SIZES)
    ]
    if problems:
        return problems
    if "sinusoidal" in (kinds := {config.position_kind, config.decoder_position_kind}) or "learned" in kinds:
        problems += [
            f"{name} must be at most {POSITIONS.value:,} with a table of positions ({POSITIONS.variable}); received "
            f"{getattr(config, name):,}"
            for name in above(POSITIONS.value, ("max_length", "decoder_max_length", "position_offset"))
        ]
    count = least_parameters(config)
    if count > PARAMETERS.value:
        problems.append(
            f"d_model, d_ff, layers, heads and vocabularies must give at most {PARAMETERS.value:,} parameters "
            f"({PARAMETERS.variable}); received at least {count:,}"
        )
    return problems
