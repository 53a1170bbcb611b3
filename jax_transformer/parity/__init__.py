"""Whether two sides compute the same: on named arrays, whoever made them."""

from __future__ import annotations

from jax_transformer.parity.assertion import assert_parity
from jax_transformer.parity.backends.capture import capture

__all__ = ["assert_parity", "capture"]
