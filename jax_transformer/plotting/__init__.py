"""Pictures as matplotlib Figures: positions, masks, learning rates, smoothed targets, attention weights, forecasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from jax_transformer.plotting.attention import heat_maps
    from jax_transformer.plotting.model_figures import masks, positions
    from jax_transformer.plotting.series_figures import forecasts
    from jax_transformer.plotting.style import figure_style, save
    from jax_transformer.plotting.training_figures import schedule, smoothing

_HOMES = {
    "jax_transformer.plotting.attention": ("heat_maps",),
    "jax_transformer.plotting.model_figures": ("masks", "positions"),
    "jax_transformer.plotting.series_figures": ("forecasts",),
    "jax_transformer.plotting.style": ("figure_style", "save"),
    "jax_transformer.plotting.training_figures": ("schedule", "smoothing"),
}

__all__ = ["figure_style", "forecasts", "heat_maps", "masks", "positions", "save", "schedule", "smoothing"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
