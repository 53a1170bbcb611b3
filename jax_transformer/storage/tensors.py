"""Names tensors as files hold them, their dtypes, and the error for unusable ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

Tensors = Mapping[str, np.ndarray]
"""Tensors by name. Values may be read from a file on access, and are then read twice: checked, then moved."""

DTYPES = ("float16", "bfloat16", "float32", "float64")


class PortingError(ValueError):
    """Raised when a checkpoint can't be ported. `problems` lists one message for each problem.

    Example:
      >>> PortingError("model.pt does not fit", ["missing tensor head.weight"]).problems
      ['missing tensor head.weight']
    """

    def __init__(self, what: str, problems: Iterable[str] = ()) -> None:
        self.problems = list(problems)
        super().__init__("\n  - ".join([what + ":" if self.problems else what, *self.problems]))


class Placed(Mapping[str, np.ndarray]):
    """Presents tensors whose places are known by name; a subclass reads them. Names are looked up without reading."""

    _places: Mapping[str, Any]
    """The place of each tensor, which a subclass sets."""

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
