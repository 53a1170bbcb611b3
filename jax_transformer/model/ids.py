"""The type of token ids."""

from __future__ import annotations

import jax
import numpy as np

Ids = jax.Array | np.ndarray
"""Integers [B, length]."""
