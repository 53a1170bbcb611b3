"""Checkpoints between frameworks: `importing` and `exporting` carry them over by the tables of names in `dialects`,
which the package `mapping` applies, or by a map of names in a file; `adapters` carries over LoRA's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from jax_transformer.mapping.maps import NameMap
    from jax_transformer.porting.adapters import export_adapter, import_adapter
    from jax_transformer.porting.dialects import all_dialects
    from jax_transformer.porting.exporting import export_checkpoint
    from jax_transformer.porting.importing import import_checkpoint
    from jax_transformer.porting.optimizers.port import import_training_state
    from jax_transformer.storage.tensors import PortingError

_HOMES = {
    "jax_transformer.porting.adapters": ("export_adapter", "import_adapter"),
    "jax_transformer.porting.exporting": ("export_checkpoint",),
    "jax_transformer.porting.importing": ("import_checkpoint",),
    "jax_transformer.porting.dialects": ("all_dialects",),
    "jax_transformer.mapping.maps": ("NameMap",),
    "jax_transformer.porting.optimizers.port": ("import_training_state",),
    "jax_transformer.storage.tensors": ("PortingError",),
}

__all__ = [
    "NameMap",
    "PortingError",
    "all_dialects",
    "export_adapter",
    "export_checkpoint",
    "import_adapter",
    "import_checkpoint",
    "import_training_state",
]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
