"""All rules of ATen's operations: importing this registers them."""

from __future__ import annotations

from jax_transformer.proof import torch_arithmetic, torch_convolutions, torch_moves, torch_pooling
from jax_transformer.proof.torch_moves import MOVES
from jax_transformer.proof.torch_registry import RULES

__all__ = ["MOVES", "REGISTERED", "RULES"]

REGISTERED = (torch_arithmetic, torch_convolutions, torch_moves, torch_pooling)
"""The modules that hold rules."""
