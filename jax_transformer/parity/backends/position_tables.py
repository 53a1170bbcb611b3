"""The position table that a user's module holds outside its state_dict, where programs compute it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.compare import relative_rms
from jax_transformer.comparison.torch_tensors import to_array
from jax_transformer.porting.dialects import get_dialect
from jax_transformer.storage.model_directory import Model

if TYPE_CHECKING:
    from torch import nn


def own_table(module: nn.Module, model: Model) -> np.ndarray | None:
    """Returns the position table [rows, D] of a module whose state_dict lacks it, if it isn't the one that was computed
    for the ported model; None if it is, or if it is off by more than rounding, which is a fault to be found.

    Programs compute the table in float32 or float64, each with its own rounding, and with as many rows as they like.
    """
    dialect = (model.origin or {}).get("dialect")
    if dialect is None or not get_dialect(dialect).leaves_out_positions(model.config):
        return None
    computed = np.asarray(model.params["constants"]["encoder_positions"])
    for table in _tables(module, computed.shape[1]):
        rows = min(len(table), len(computed))
        apart = relative_rms(table[:rows].astype(np.float64), computed[:rows].astype(np.float64))
        if rows > 1 and apart <= tolerances.COMPUTED_IN["float32"]:
            return None if apart == 0.0 and len(table) == len(computed) else table
    return None


def _tables(module: nn.Module, width: int) -> Iterator[np.ndarray]:
    """Yields all tables of this width that modules hold as buffers or plain attributes."""
    import torch

    for part in module.modules():
        for value in (*part.buffers(recurse=False), *vars(part).values()):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                table = value.detach().reshape([size for size in value.shape if size != 1] or [1])
                if table.ndim == 2 and table.shape[1] == width:
                    yield to_array(table).copy()
