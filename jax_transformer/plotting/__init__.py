"""Pictures as matplotlib Figures: positions, masks, learning rates, smoothed targets, attention weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from jax_transformer.plotting.attention import heat_maps
    from jax_transformer.plotting.figures import masks, positions, schedule, smoothing
    from jax_transformer.plotting.style import figure_style, save

_HOMES = {
    "jax_transformer.plotting.attention": ("heat_maps",),
    "jax_transformer.plotting.figures": ("masks", "positions", "schedule", "smoothing"),
    "jax_transformer.plotting.style": ("figure_style", "save"),
}

__all__ = ["figure_style", "heat_maps", "masks", "positions", "save", "schedule", "smoothing"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
