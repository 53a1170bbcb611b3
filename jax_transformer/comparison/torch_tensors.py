"""Compares tensors: outputs of one module, called in two ways, and tensors of one state_dict."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.comparison.gates import tolerances

if TYPE_CHECKING:
    import torch

SELF_TRACED_WITHIN = {"float64": tolerances.FLOAT64_RELATIVE_RMS, **tolerances.COMPUTED_IN}
"""The largest distance, relative to the RMS, between a module's logits with a trace that it fills itself and without
one: it may sum in another order then. Under hooks nothing may differ."""


def distance(values: torch.Tensor, others: torch.Tensor, allowed: float) -> float:
    """Measures the distance between tensors, relative to the RMS of the second; 0 if they are equal bit for bit, have
    NaN at the same places, or are no farther apart than allowed."""
    import torch

    if values.shape != others.shape:
        return math.inf
    values, others = values.detach().double(), others.detach().double()
    if torch.equal(values.isnan(), others.isnan()) and torch.equal(values.nan_to_num(), others.nan_to_num()):
        return 0.0
    counted = values.isfinite() | others.isfinite()
    size = others[counted].square().mean().sqrt()
    apart = float((values - others)[counted].square().mean().sqrt() / size)
    return 0.0 if apart <= allowed else apart if math.isfinite(apart) else math.inf


def may_differ(logits: torch.Tensor) -> float:
    """Returns the allowed distance between these logits and the logits with a trace that the module fills itself."""
    return SELF_TRACED_WITHIN.get(str(logits.dtype).removeprefix("torch."), SELF_TRACED_WITHIN["float32"])


def equal_tensor(held: Mapping[str, torch.Tensor], name: str, others: Collection[str]) -> str | None:
    """Returns the first of the other tensors that equals the named one; None if there is none."""
    import torch

    return next((other for other in others if other != name and torch.equal(held[other], held[name])), None)


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """Converts an array to a tensor; dtypes that NumPy lacks, such as bfloat16, become float32."""
    import torch

    wide = array if array.dtype.isbuiltin == 1 else array.astype(np.float32)  # ml_dtypes register theirs
    return torch.from_numpy(np.ascontiguousarray(wide))


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """Converts a tensor to a NumPy array of its dtype; float32 for bfloat16."""
    import torch

    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()
