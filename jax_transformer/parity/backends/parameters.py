"""A model's parameters in another precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from jax_transformer.comparison.precision import on_device
from jax_transformer.comparison.sides import Dtype
from jax_transformer.model.functional import Params
from jax_transformer.runtime.trees import flatten, unflatten


def cast(params: Mapping[str, Any], dtype: Dtype) -> Params:
    """Returns the parameters in that dtype, on the device. With bfloat16, position tables stay in float32, as a ported
    model's do."""

    def leaf_of(path: str, leaf: Any) -> jax.Array:
        keeps = dtype == "bfloat16" and path.startswith("constants/")
        return on_device(leaf, "float32" if keeps else dtype)

    return unflatten({path: leaf_of(path, leaf) for path, leaf in flatten(params).items()})
