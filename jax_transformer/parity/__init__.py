"""Whether two sides compute the same: on named arrays, whoever made them."""

from __future__ import annotations

from jax_transformer.parity.adapters import capture
from jax_transformer.parity.assertion import assert_parity

__all__ = ["assert_parity", "capture"]
