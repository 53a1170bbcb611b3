"""What both sides of a comparison return, and what they raise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

Arrays = Mapping[str, np.ndarray]
Dtype = Literal["float64", "float32", "bfloat16"]


class CannotRun(Exception):
    """Raised when a side can't do what a stage needs. The run goes on, and is inconclusive."""
