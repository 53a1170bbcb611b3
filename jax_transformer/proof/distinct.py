"""Finds the distinct numbers of an array."""

from __future__ import annotations

import numpy as np


def distinct(array: np.ndarray) -> np.ndarray:
    """Returns the distinct numbers of an array, in order. `np.unique` of NumPy 2.3 and 2.4 puts them into a hash table,
    which takes a hundred times as long as sorting for millions of integers.

    Example:
      >>> distinct(np.array([[3, 1], [3, 2]])).tolist()
      [1, 2, 3]
    """
    found = np.sort(array, axis=None)
    return found[np.append(True, found[1:] != found[:-1])] if found.size else found
