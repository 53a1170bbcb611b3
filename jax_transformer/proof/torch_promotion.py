"""Convert numbers and tensors to the types in which ATen's operations compute with them.

PyTorch rounds a Python number, and a tensor without axes, to the type of the tensors that it is combined with. A tensor
of a narrower type is widened. Earlier rounding persists.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from ml_dtypes import bfloat16
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from jax_transformer.proof.building import Builder
from jax_transformer.proof.programs import Value
from jax_transformer.proof.torch_access import EACH, flat, is_tensor
from jax_transformer.proof.torch_registry import WIDE_SCALARS, Scalar

NUMPY = {
    torch.float64: np.float64, torch.float32: np.float32, torch.bfloat16: bfloat16, torch.float16: np.float16,
}  # fmt: skip

OF_FIRST = ("copy", "fill", "masked_fill", "full_like", "new_full", "index_put", "scatter", "constant_pad_nd")
"""Operations whose results have the type of their first argument."""
CASTS = ("_to_copy", "copy")
BOUNDS = ("maximum", "minimum", "lt", "le", "gt", "ge", "eq", "ne")
"""Operations for which the lowest and highest numbers of the type in which they compute are no others."""


def type_of(name: str, args: Any, kwargs: Any) -> torch.dtype | None:
    """Returns the type of floats in which an operation computes; None if it has no floats, lists of several
    types, or bytes."""
    leaves = flat(args, kwargs)
    tensors = [each for each in leaves if is_tensor(each)]
    has_bytes = any(each.is_floating_point() and each.dtype not in NUMPY for each in tensors)
    has_lists = name.startswith(EACH) and len({each.dtype for each in tensors}) > 1
    if kwargs.get("dtype") is not None:
        found = kwargs["dtype"]
    elif not tensors or has_lists or has_bytes:
        return None
    elif name in OF_FIRST:
        found = tensors[0].dtype
    else:
        numbers = [each for each in leaves if isinstance(each, float)]
        kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
        found = elementwise_dtypes(*tensors, *numbers, type_promotion_kind=kind)[1]
    found = found.to_real() if found.is_complex else found
    return found if found in NUMPY else None


def as_computed(b: Builder, name: str, argument: Any, value: Any, dtype: torch.dtype) -> Any:
    """Returns an argument's value in the type of the operation.

    Args:
      argument: the argument: a tensor, a number, or something else.
      value: the tensor's value, or the argument itself.
      dtype: the type in which the operation computes.
    """
    is_wide = name.removeprefix(EACH) in WIDE_SCALARS and digits(dtype) < digits(torch.float32)
    scalar_type = NUMPY[torch.float32 if is_wide else dtype]
    if isinstance(argument, float):
        return argument if dtype is torch.float64 else Scalar(argument, scalar_type)
    if (
        not is_tensor(argument)
        or not argument.is_floating_point()
        or not isinstance(value, Value)
        or value.node is None
    ):
        return value
    if digits(argument.dtype) < (digits(dtype) if name in BOUNDS else min(digits(dtype), digits(torch.float32))):
        return b.widened(value, NUMPY[dtype])
    is_rounded = digits(argument.dtype) > digits(dtype) and argument.ndim == 0 and name not in CASTS
    return value if value.known is None or not is_rounded else b.constant(value.known.astype(scalar_type))


def as_scalar_argument(argument: Any, dtype: torch.dtype | None) -> Any:
    """Returns an argument of an operation with a decomposition; a number is rounded as PyTorch does, to at least
    float32."""
    if not isinstance(argument, float) or dtype in (None, torch.float64):
        return argument
    return float(Scalar(argument, NUMPY[torch.float32]))


def digits(dtype: torch.dtype) -> float:
    return -math.log2(torch.finfo(dtype).eps)
