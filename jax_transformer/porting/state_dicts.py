"""Convert between parameters and state_dicts, by a dialect's table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.shapes import param_shapes
from jax_transformer.mapping.rules import Rule, leaves_from_tensors, tensors_from_leaves
from jax_transformer.porting.dialects import Dialect, get_dialect
from jax_transformer.runtime.trees import flatten, map_leaves, unflatten
from jax_transformer.storage.deferred import Deferred
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensor_files import as_arrays
from jax_transformer.storage.tensors import PortingError, Tensors


def params_from_state_dict(
    config: TransformerConfig,
    state_dict: Mapping[str, Any],
    dialect: str | Dialect,
    position_table: np.ndarray | None = None,
) -> dict[str, Any]:
    """Returns the parameters of a state_dict of torch tensors or arrays: a nested dict of new NumPy arrays in the
    tensors' dtypes.

    Args:
      position_table: [rows, D], in place of the table that the dialect computes; a stack of fewer positions has its
        first rows.

    Raises:
      PortingError: the dialect doesn't have such models, or tensors are missing, unexpected or do not fit; all problems
        together.
    """
    table = _checked(dialect, config)
    return map_leaves(np.asarray, deferred_params(config, as_arrays(state_dict), table, position_table))


def deferred_params(
    config: TransformerConfig, state_dict: Tensors, table: Dialect, position_table: np.ndarray | None
) -> dict[str, Any]:
    """Converts as `params_from_state_dict` does, of a config that was checked, and makes the leaves on access."""
    rules, computed = _computed(
        table, config, position_table, lambda rule, path, leaf: any(name in state_dict for name in rule.names)
    )
    shapes = param_shapes(config)
    held = {path: shape for path, shape in shapes.items() if path not in computed}
    leaves = leaves_from_tensors(rules, state_dict, held, f"{table.name} checkpoint")
    return unflatten({path: leaves[path] if path in leaves else computed[path] for path in shapes})


def state_dict_from_params(
    config: TransformerConfig, params: Mapping[str, Any], dialect: str | Dialect, names: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Returns the state_dict of parameters: new NumPy arrays in the leaves' dtypes; tied names share one array.

    Args:
      names: tensors in the order of the result, as far as it has them. Optional tensors among them are included.

    Raises:
      PortingError: the dialect can't express the config, or leaves are missing, unexpected or do not fit; all problems
        together.
    """
    tensors = make_arrays(deferred_state_dict(config, flatten(params), _checked(dialect, config), names))
    return {name: tensors[name] for name in dict.fromkeys([*names, *tensors]) if name in tensors}


def make_arrays(deferred: dict[str, Deferred]) -> dict[str, np.ndarray]:
    """Makes all arrays. It takes the leaves out one by one, so leaves that nobody else holds need their memory only
    once."""
    made: dict[Deferred, np.ndarray] = {}
    tensors = {}
    for name in list(deferred):
        tensor = deferred.pop(name)
        if tensor not in made:
            made.clear()  # equal tensors follow each other
            made[tensor] = np.asarray(tensor)
        tensors[name] = made[tensor]
    return tensors


def computes_position_table(model: Model, table: Dialect) -> bool:
    """Returns whether the dialect's programs compute, and don't keep, the very position tables that the model has."""
    leaves = flatten(model.params)
    computed = {path: leaf for path, leaf in table.computed(model.config).items() if _is_position_table(path)}
    return bool(computed) and all(
        path in leaves and np.array_equal(leaves[path], leaf) for path, leaf in computed.items()
    )


def deferred_state_dict(
    config: TransformerConfig, leaves: dict[str, np.ndarray], table: Dialect, names: Collection[str]
) -> dict[str, Deferred]:
    """Converts leaves by path as `state_dict_from_params` does, of a config that was checked, in the table's order, and
    makes the tensors on access."""
    rules, computed = _computed(
        table,
        config,
        None,
        lambda rule, path, leaf: (
            any(name in names for name in rule.names) or not np.array_equal(leaves.get(path, leaf), leaf)
        ),
    )
    for path in computed:
        leaves.pop(path, None)
    held = {path: shape for path, shape in param_shapes(config).items() if path not in computed}
    what = f"parameters for dialect {table.name}"
    return tensors_from_leaves(rules, leaves, held, names, what)


def _computed(
    table: Dialect,
    config: TransformerConfig,
    position_table: np.ndarray | None,
    is_held: Callable[[Rule, str, np.ndarray], bool],
) -> tuple[list[Rule], dict[str, np.ndarray]]:
    """Returns the rules for the tensors of a checkpoint, and the leaves by path that are computed.

    Args:
      position_table: replaces the computed ones.
      is_held: decides, for a computed leaf that also has a rule, whether the checkpoint holds it.
    """
    rules, computed = table.rules(config), table.computed(config)
    if position_table is not None:
        tables = {path: leaf for path, leaf in computed.items() if _is_position_table(path)}
        expected = [max(map(len, tables.values()), default=0), config.d_model]
        if tables and list(position_table.shape) != expected:
            received = list(position_table.shape)
            raise PortingError(f"position_table: expected [rows, d_model] = {expected}; received {received}")
        computed |= {path: position_table[: len(leaf)].copy() for path, leaf in tables.items()}
    held = {path for rule in rules for path in rule.paths if path in computed and is_held(rule, path, computed[path])}
    computed = {path: leaf for path, leaf in computed.items() if path not in held}
    return [rule for rule in rules if not any(path in computed for path in rule.paths)], computed


def _is_position_table(path: str) -> bool:
    return path.endswith("_positions")


def _checked(dialect: str | Dialect, config: TransformerConfig) -> Dialect:
    """Returns a dialect. Raises PortingError if it has no models of this config."""
    table = get_dialect(dialect) if isinstance(dialect, str) else dialect
    table.check_config(config)
    return table
