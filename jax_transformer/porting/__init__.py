"""Checkpoints between frameworks: `convert` is the door, `rules` the machine, `dialects` the tables, `checkpoint` what
comes around a state_dict, and `files` what touches the disk.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax_transformer.porting.convert import export_checkpoint, import_checkpoint

__all__ = ["export_checkpoint", "import_checkpoint"]


def __getattr__(name: str) -> Any:
    """Loads `convert`, which needs JAX, when one of its functions is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.convert"), name)
