"""Distribute training over devices and processes: the mesh, the placement of arrays on it, and agreement of processes.

`make_mesh` makes the mesh that `init_state` and `make_train_step` take; `join_processes` connects the processes whose
devices form it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from jax_transformer.config.parallel import MeshConfig, ProcessConfig
    from jax_transformer.parallel.mesh import make_abstract_mesh, make_mesh
    from jax_transformer.parallel.placement import pad_rows, place_params, place_rows
    from jax_transformer.parallel.processes import Processes, join_processes
    from jax_transformer.parallel.rules import tree_shardings

_HOMES = {
    "jax_transformer.config.parallel": ("MeshConfig", "ProcessConfig"),
    "jax_transformer.parallel.mesh": ("make_abstract_mesh", "make_mesh"),
    "jax_transformer.parallel.placement": ("pad_rows", "place_rows", "place_params"),
    "jax_transformer.parallel.processes": ("Processes", "join_processes"),
    "jax_transformer.parallel.rules": ("tree_shardings",),
}
__all__ = [
    "MeshConfig",
    "ProcessConfig",
    "Processes",
    "join_processes",
    "make_abstract_mesh",
    "make_mesh",
    "pad_rows",
    "place_params",
    "place_rows",
    "tree_shardings",
]
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
