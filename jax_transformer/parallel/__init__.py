"""Many devices: the mesh, and how parameters, optimizer state and batches lie on it.

`make_mesh` makes the mesh that `init_state` and `make_train_step` take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from jax_transformer.config.parallel import MeshConfig
    from jax_transformer.parallel.mesh import make_mesh
    from jax_transformer.parallel.placement import pad_rows, place_params, place_rows
    from jax_transformer.parallel.rules import tree_shardings

_HOMES = {
    "jax_transformer.config.parallel": ("MeshConfig",),
    "jax_transformer.parallel.mesh": ("make_mesh",),
    "jax_transformer.parallel.placement": ("pad_rows", "place_rows", "place_params"),
    "jax_transformer.parallel.rules": ("tree_shardings",),
}
__all__ = ["MeshConfig", "make_mesh", "pad_rows", "place_params", "place_rows", "tree_shardings"]
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
