"""Defines the names, results and errors of a comparison's sides, and reads selections of names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from jax_transformer.comparison.gates.arrays import ParityError

Arrays = Mapping[str, np.ndarray]
Dtype = Literal["float64", "float32", "bfloat16"]
DTYPES: tuple[Dtype, ...] = ("float64", "float32", "bfloat16")
Path = str | os.PathLike[str]


class CannotRun(Exception):
    """Raised when a side can't do what a stage needs. The run goes on, and is inconclusive."""


def name_of(side: Any) -> str:
    """Returns the name that a report gives to a side: its path, its function's or its class's name."""
    if isinstance(side, str | os.PathLike):
        return os.fspath(side)
    return str(getattr(side, "__qualname__", type(side).__name__))


def selected(chosen: Sequence[str] | None, usual: Sequence[str], option: str, optional: Sequence[str] = ()) -> Any:
    """Returns the names that were chosen, or the usual ones. Raises ParityError for unknown ones, or none."""
    if chosen is None:
        return usual
    known = (*usual, *optional)
    chosen = [chosen] if isinstance(chosen, str) else list(chosen)
    if not chosen or not {*chosen} <= {*known}:
        raise ParityError(f"{option}: expected some of {', '.join(known)}; received {', '.join(chosen) or 'none'}")
    return chosen
