"""The dialect that a map of names makes: its rules, the tensors that it ignores, and what stays to be computed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Sinusoidal
from jax_transformer.mapping.maps import NameMap
from jax_transformer.mapping.rules import Rule
from jax_transformer.model.positions import sinusoid_table
from jax_transformer.porting.dialects import Dialect, get_dialect
from jax_transformer.storage.tensors import PortingError, Tensors

NAME = "map"
"""The name of every such dialect, as a model's origin has it with the text of the map."""


def read_map(names: NameMap | str | os.PathLike[str]) -> NameMap:
    """Returns a map, or that of a file. Raises PortingError where it can't be read, or names no parameters."""
    found = names if isinstance(names, NameMap) else NameMap.read(names)
    if not found.parameters:
        what = "the map" if isinstance(names, NameMap) else os.fspath(names)
        raise PortingError(f"{what}: expected parameters, their names and ours; received none")
    return found


def dialect_of_map(
    names: NameMap,
    rules: Sequence[Rule],
    computed: Callable[[TransformerConfig], Mapping[str, np.ndarray]] | None = None,
) -> Dialect:
    """Returns a dialect made of the parameters in a map.

    Args:
      names: the map.
      rules: its rules.
      computed: a config's constants by path, for tensors that checkpoints lack. None: `computed_positions`.
    """
    return Dialect(
        name=NAME,
        title="names given by a map",
        recognises=names.knows,
        fixed={},
        read=_read_nothing,
        asks={},
        rules=lambda config: list(rules),
        has_all_options=True,
        computed=lambda config: computed_positions(rules, config) if computed is None else dict(computed(config)),
        ignores=names.ignores,
    )


def dialect_of_origin(origin: Mapping[str, Any]) -> Dialect:
    """Returns the dialect that an imported model came from, of a map too.

    Raises:
      PortingError: there is no dialect of this name.
    """
    names = map_of_origin(origin)
    return get_dialect(origin["dialect"]) if names is None else dialect_of_map(names, names.rules(), lambda config: {})


def map_of_origin(origin: Mapping[str, Any] | None) -> NameMap | None:
    """Returns the map by which a model was imported; None for a model that came from elsewhere."""
    if origin is None or origin.get("dialect") != NAME:
        return None
    return NameMap.parse(origin["names"], "the map of names that the model was imported by")


def _read_nothing(tensors: Tensors) -> dict[str, Any]:
    return {}


def computed_positions(rules: Sequence[Rule], config: TransformerConfig) -> dict[str, np.ndarray]:
    """Returns the position tables that no rule of a map leads to, by path, in float32 as programs compute them."""
    named = {path for rule in rules for path in rule.paths}
    stacks = {"constants/encoder_positions": config.encoder, "constants/decoder_positions": config.decoder}
    return {
        path: sinusoid_table(stack).astype(np.float32)
        for path, stack in stacks.items()
        if isinstance(stack.positions, Sinusoidal) and path not in named
    }
