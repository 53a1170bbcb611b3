"""Finds the distinct numbers of an array."""

from __future__ import annotations

import numpy as np


def distinct(array: np.ndarray) -> np.ndarray:
    """Returns the distinct numbers of an array [...], sorted, as `np.unique` does. Asked for these alone, that of NumPy
    2.4 puts them into a hash table, which took 30 s for 15 million random integers; asked for counts, it sorts.

    Example:
      >>> distinct(np.array([[3, 1], [3, 2]])).tolist()
      [1, 2, 3]
    """
    return np.unique(array, return_counts=True)[0]
