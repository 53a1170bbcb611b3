"""Limits a model's size by its config, before anything is built or compiled."""

from __future__ import annotations

from jax_transformer.config.positions import Table
from jax_transformer.config.shapes import count_parameters
from jax_transformer.config.short_names import ShortNames, holders, named_value, option_at
from jax_transformer.runtime.limits import MODEL_SIZE, PARAMETERS, POSITIONS, Limit
from jax_transformer.runtime.memory import check_fits

SIZES = (
    "source_vocab_size", "target_vocab_size", "d_model", "num_heads", "num_kv_heads", "head_dim", "value_dim", "d_ff",
    "num_encoder_layers", "num_decoder_layers", "max_length", "position_offset", "relative_buckets",
    "relative_max_distance",
)  # fmt: skip


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
    count = count_parameters(config)
    if count > PARAMETERS.value:
        problems.append(
            f"d_model, d_ff, layers, heads and vocabularies must give at most {PARAMETERS.value:,} parameters "
            f"({PARAMETERS.variable}); received {count:,}"
        )
    return problems
