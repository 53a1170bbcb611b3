"""All rules of ATen's operations: importing this registers them."""

from __future__ import annotations

from jax_transformer.proof.torch_arithmetic import RULES
from jax_transformer.proof.torch_moves import MOVES

__all__ = ["MOVES", "RULES"]
