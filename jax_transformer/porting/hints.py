"""Make a config from what a checkpoint holds and from the hints of a caller."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.model_validation import NOT_COMPUTED
from jax_transformer.config.short_names import option_names
from jax_transformer.config.validation import ConfigError
from jax_transformer.porting.dialects import Dialect
from jax_transformer.porting.state_dicts import deferred_params
from jax_transformer.runtime.trees import nearest
from jax_transformer.storage.tensor_files import as_arrays, read_array
from jax_transformer.storage.tensors import DTYPES, PortingError, Tensors

UNTOLD = ("norm_eps", "position_index", "relative_max_distance")
"""Config fields that decide what is computed, where a checkpoint only has them from its program."""


def take_position_table(table: Dialect, hints: dict[str, Any]) -> np.ndarray | None:
    """Removes the hint of this name from the hints and returns it, read from its file if need be. Raises PortingError
    for an array that is no position table."""
    given = hints.pop("position_table", None)
    if given is None:
        return None
    if not table.computes_positions:
        raise PortingError(f"position_table: checkpoints of dialect {table.name} hold their own; leave it out")
    return read_position_table(given)


def read_position_table(given: Any) -> np.ndarray:
    """Returns an array, or that of a file. Raises PortingError for one that is no position table."""
    array = (
        read_array(given)
        if isinstance(given, str | os.PathLike)
        else as_arrays({"position_table": given})["position_table"]
    )
    if array.ndim != 2 or array.dtype.name not in DTYPES:
        raise PortingError(
            f"position_table: expected floating-point numbers [rows, d_model]; received {array.dtype} "
            f"{list(array.shape)}"
        )
    if not np.isfinite(array).all():
        raise PortingError(
            f"position_table {list(array.shape)}: {int((~np.isfinite(array)).sum())} values are not finite"
        )
    return array


def in_our_words(table: Dialect, hints: dict[str, Any]) -> dict[str, Any]:
    """Returns the hints with the dialect's own words replaced. Raises PortingError for unknown ones and
    contradictions."""
    ours: dict[str, Any] = {}
    problems = []
    aliases = table.aliases or {}
    known = {*option_names(), *field_names(GenerationConfig), *aliases}
    for name, value in hints.items():
        field = name
        if name in aliases:
            field, words = aliases[name]
            meant = [ours for word, ours in words.items() if word == value]
            if not meant:
                problems.append(f"{name} must be {' or '.join(map(repr, words))}; received {value!r}")
                continue
            (value,) = meant
        if name in NOT_COMPUTED:
            problems.append(f"{name} isn't supported: {NOT_COMPUTED[name]}")
        elif name not in known:
            problems.append(f"{name}: no such hint{nearest(name, known)}")
        elif ours.get(field, value) != value:
            problems.append(f"{name}={hints[name]!r} contradicts {field}={ours[field]!r}")
        else:
            ours[field] = value
    if problems:
        raise PortingError(f"hints for dialect {table.name}", problems)
    return ours


def make_config(table: Dialect, told: dict[str, Any], hints: dict[str, Any]) -> TransformerConfig:
    """Makes the config from the dialect's fixed fields, the checkpoint's and the hints. Rules check it against the
    tensors later."""
    known = {**table.fixed, **{name: value for name, value in told.items() if name not in table.asks}}
    problems = [
        f"{name}: the {'dialect' if name in table.fixed else 'checkpoint'} says {known[name]!r}; received {value!r}"
        for name, value in hints.items()
        if name in known and known[name] != value
    ]
    if problems:
        raise PortingError(f"hints that contradict the {table.name} checkpoint", problems)
    fields = {**table.defaults, **table.fixed, **told, **hints}
    return TransformerConfig.from_flat({**table.follows(fields), **fields})


def problems_with_one_head(
    table: Dialect, told: dict[str, Any], hints: dict[str, Any], tensors: Tensors, positions: np.ndarray | None
) -> list[str]:
    """Returns the other problems of a checkpoint whose config is impossible, found with a number of heads that divides
    any width."""
    if "num_heads" in told:
        return []
    try:
        deferred_params(make_config(table, told, hints | {"num_heads": 1}), tensors, table, positions)
    except PortingError as error:
        return error.problems or [str(error)]
    except ConfigError:
        pass  # it wasn't the heads, and there is nothing to compare the tensors with
    return []


def field_names(config_class: type) -> set[str]:
    return {field.name for field in dataclasses.fields(config_class)}
