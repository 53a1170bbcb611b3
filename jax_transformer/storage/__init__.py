"""Models and tensors in files: `model_directory` saves and loads models, `tensor_files` reads and writes tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from jax_transformer.storage.model_directory import Model, load_model, save_model

_HOMES = {"jax_transformer.storage.model_directory": ("Model", "load_model", "save_model")}

__all__ = ["Model", "load_model", "save_model"]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
