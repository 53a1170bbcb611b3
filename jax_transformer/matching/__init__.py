"""Finds which weights of two programs correspond, by what both compute, and proves the map right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from jax_transformer.matching.finding import FoundMap, find_map

_HOMES = {"jax_transformer.matching.finding": ("FoundMap", "find_map")}

__all__ = ["FoundMap", "find_map"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
