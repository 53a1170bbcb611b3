"""Named tensors as files hold them, their dtypes, and the error for those that can't be used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

Tensors = Mapping[str, np.ndarray]
"""Tensors by name. Values may be read from a file on access, and are then read twice: checked, then moved."""

DTYPES = ("float16", "bfloat16", "float32", "float64")


class PortingError(ValueError):
    """A checkpoint that can't be carried over; the message lists every problem, and `problems` has them one by one."""

    def __init__(self, what: str, problems: Iterable[str] = ()) -> None:
        self.problems = list(problems)
        super().__init__("\n  - ".join([what + ":" if self.problems else what, *self.problems]))
