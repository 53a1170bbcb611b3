"""The rows of position tables that a program without our options reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Table
from jax_transformer.config.specs import Stack
from jax_transformer.storage.model_directory import Model


def starts_with_pad(model: Model) -> bool:
    """Returns whether the decoder's first input is the target's padding, which some positions don't count."""
    return model.generation.decoder_start_id == model.config.target.pad_id


def position_rows(
    config: TransformerConfig, leaves: Mapping[str, Any], name: str, *, counts_first: bool = True
) -> np.ndarray:
    """Returns the rows [max_length, D] that are added to a sentence's tokens, from the first token on, in float64.

    Args:
      leaves: the parameters by path.
      name: encoder or decoder.
      counts_first: whether positions that count real tokens count the first one.
    """
    learned = leaves.get(f"{name}/positions/embedding")
    table = np.asarray(leaves[f"constants/{name}_positions"] if learned is None else learned, np.float64)
    stack: Stack = getattr(config, name)
    kind = stack.positions
    assert isinstance(kind, Table)  # or there is no table
    first = kind.offset + (kind.index == "non_pad_count" and counts_first)
    factor = np.asarray(leaves.get(f"{name}/position_scale/factor", 1.0), np.float64)
    return table[first : first + stack.max_length] * kind.factor * factor
