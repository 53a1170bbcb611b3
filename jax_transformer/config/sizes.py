"""Computes lower bounds of a model's size from its config, before anything is built or compiled."""

from __future__ import annotations

from jax_transformer.config.positions import RelativeBias, RelativeVectors, Table
from jax_transformer.config.short_names import ShortNames, holders, named_value, option_at
from jax_transformer.config.specs import Attention, Stack
from jax_transformer.runtime.limits import MODEL_SIZE, PARAMETERS, POSITIONS, Limit
from jax_transformer.runtime.memory import check_fits

SIZES = (
    "source_vocab_size", "target_vocab_size", "d_model", "num_heads", "num_kv_heads", "head_dim", "value_dim", "d_ff",
    "num_encoder_layers", "num_decoder_layers", "max_length", "position_offset", "relative_buckets",
    "relative_max_distance",
)  # fmt: skip


def least_parameters(config: ShortNames) -> int:
    """Returns a number of values that the model has at least, position tables included; embeddings of a vocabulary of
    size 0, which isn't known yet, count nothing. Biases and norms aren't counted, so it is a little less than all.

    Example:
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.config.sizes import least_parameters
      >>> least_parameters(TransformerConfig())
      44564480
    """
    target = config.target.vocab_size
    rows = target if config.share_embeddings else config.source.vocab_size + target
    total = config.encoder.d_model * (rows + (0 if config.head.tied else target))
    return total + _of_stack(config.encoder) + _of_stack(config.decoder)


def _of_stack(stack: Stack) -> int:
    layer = sum(_of_attention(stack, one) for one in stack.attentions)
    if stack.feed_forward is not None:
        layer += stack.d_model * stack.feed_forward.width * (3 if stack.feed_forward.gated else 2)
    total = layer * (1 if stack.share_layers else stack.num_layers)
    if isinstance(stack.positions, Table):
        return total + stack.d_model * stack.max_length
    if isinstance(stack.positions, RelativeBias):
        return total + stack.self_attention.num_heads * stack.positions.buckets
    if isinstance(stack.positions, RelativeVectors):
        return total + stack.self_attention.shape(stack.d_model).head_dim * stack.positions.max_distance
    return total


def _of_attention(stack: Stack, attention: Attention) -> int:
    shape = attention.shape(stack.d_model)
    queries = shape.num_heads * (shape.head_dim + shape.value_dim * attention.output)
    return stack.d_model * (queries + shape.num_kv_heads * (shape.head_dim + shape.value_dim))


def _has_table(config: ShortNames, place: str) -> bool:
    """Returns whether the stack of a part has a table of positions."""
    return isinstance(getattr(config, place.partition(".")[0]).positions, Table)


def check_table(rows: int, d_model: int) -> None:
    """Raises ValueError if a table of positions can't be computed in main memory: sines and cosines apart, then
    together, in float64."""
    check_fits(2 * 8 * rows * d_model, f"table of positions, {rows:,} rows with d_model={d_model:,}")


def size_problems(config: ShortNames) -> list[str]:
    """Returns a message for each size beyond the limits MODEL_SIZE, POSITIONS and PARAMETERS."""

    def above(limit: Limit, names: tuple[str, ...], where: str = "") -> list[str]:
        found = dict.fromkeys(
            named_value(config, place, at.field)
            for name in names
            if (at := option_at(name)) is not None
            for place, part in holders(config, at)
            if (getattr(part, at.field) or 0) > limit.value and (not where or _has_table(config, place))
        )
        return [
            f"{name} must be at most {limit.value:,}{where} ({limit.variable}); received {value:,}"
            for name, value in found
        ]

    problems = above(MODEL_SIZE, SIZES)
    if problems:
        return problems
    problems = above(POSITIONS, ("max_length", "position_offset"), " with a table of positions")
    count = least_parameters(config)
    if count > PARAMETERS.value:
        problems.append(
            f"d_model, d_ff, layers, heads and vocabularies must give at most {PARAMETERS.value:,} parameters "
            f"({PARAMETERS.variable}); received at least {count:,}"
        )
    return problems
