"""Maps the names and shapes of two programs' tensors: rules, correspondences of axes, and maps in files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from jax_transformer.mapping.maps import NameMap

_HOMES = {"jax_transformer.mapping.maps": ("NameMap",)}

__all__ = ["NameMap"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
