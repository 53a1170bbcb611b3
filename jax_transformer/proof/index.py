"""Find arrays by their elements, in any order, among another program's arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np

from jax_transformer.proof.distinct import distinct
from jax_transformer.proof.domains import mix

MOST_ORDERS = 4
"""Orders of elements that are kept for two shapes."""


class Index:
    """Finds arrays of exact numbers by their elements.

    An array may be permuted, reshaped, stacked or fused with further arrays: another array then holds all of its
    elements.

    Example:
      >>> import numpy as np
      >>> kernel = np.arange(6).reshape(2, 3)
      >>> index = Index({"stacked": np.stack([kernel + 10, kernel]), "turned": kernel.T})
      >>> index.equal(kernel), index.holding(kernel)
      (['turned'], ['stacked', 'turned'])
      >>> index.order(kernel, "turned").tolist()  # where each element is in the other array
      [[0, 2, 4], [1, 3, 5]]
    """

    def __init__(self, arrays: Mapping[str, np.ndarray] | Mapping[int, np.ndarray]) -> None:
        self.arrays: Mapping[int | str, np.ndarray] = arrays  # type: ignore[assignment]
        self._orders: dict[tuple[tuple[int, ...], tuple[int, ...]], list[np.ndarray]] = {}

    @cached_property
    def _sorted(self) -> dict[int | str, np.ndarray]:
        return {key: np.sort(array, axis=None) for key, array in self.arrays.items()}

    @cached_property
    def _by_print(self) -> dict[int, list[int | str]]:
        found: dict[int, list[int | str]] = {}
        for key, array in self.arrays.items():
            found.setdefault(fingerprint(array), []).append(key)
        return found

    @cached_property
    def _elements(self) -> tuple[np.ndarray, np.ndarray, list[int | str]]:
        """Returns every element and the number of the array that it is of, sorted, and the arrays' keys."""
        keys = list(self._sorted)
        owners = np.repeat(np.arange(len(keys)), [self._sorted[key].size for key in keys])
        elements = np.concatenate([self._sorted[key] for key in keys]) if keys else np.zeros(0, np.int64)
        order = np.argsort(elements, kind="stable")
        return elements[order], owners[order], keys

    def equal(self, array: np.ndarray) -> list[int | str]:
        """Returns the arrays that have the same elements, each as often."""
        found = self._by_print.get(fingerprint(array), [])
        return [key for key in found if np.array_equal(self._sorted[key], np.sort(array, axis=None))] if found else []

    def holding(self, array: np.ndarray) -> list[int | str]:
        """Returns the arrays that have all elements of one, each as often."""
        return [*self._holders(np.sort(array, axis=None))]

    def holds(self, elements: np.ndarray) -> bool:
        """Returns whether an array has all these sorted elements, each as often."""
        return next(self._holders(elements), None) is not None

    def _holders(self, elements: np.ndarray) -> Iterator[int | str]:
        every, owners, keys = self._elements
        if elements.size:
            start, end = np.searchsorted(every, elements[-1]), np.searchsorted(every, elements[-1], side="right")
            for owner in distinct(owners[start:end]):
                if _contains(self._sorted[keys[int(owner)]], elements):
                    yield keys[int(owner)]

    def order(self, array: np.ndarray, key: int | str) -> np.ndarray | None:
        """Returns the places in another array, read in order, at which an array's elements are; None if these aren't
        distinct. The order is cached for these shapes."""
        other = self.arrays[key]
        flat, theirs = array.ravel(), other.ravel()
        order = np.argsort(theirs, kind="stable")
        if flat.size != theirs.size or (np.diff(theirs[order]) == 0).any():
            return None
        places = order[np.searchsorted(theirs, flat, sorter=order).clip(max=max(theirs.size - 1, 0))]
        if not np.array_equal(theirs[places], flat):
            return None
        places = places.reshape(array.shape)
        known = self._orders.setdefault((array.shape, other.shape), [])
        if len(known) < MOST_ORDERS and not any(np.array_equal(places, each) for each in known):
            known.append(places)
        return places

    def orders(self, shape: tuple[int, ...], other: tuple[int, ...]) -> list[np.ndarray]:
        """Returns the orders that `order` found for arrays of two shapes: the places of the first's elements in the
        second."""
        return self._orders.get((shape, other), [])


def fingerprint(array: np.ndarray) -> int:
    """Returns a number that depends on the elements, not on their order or shape."""
    with np.errstate(over="ignore"):
        return int(mix(np.asarray(array).astype(np.uint64).ravel()).sum(dtype=np.uint64)) ^ (array.size << 1)


def _contains(whole: np.ndarray, part: np.ndarray) -> bool:
    """Returns whether a sorted array has all elements of another one, each as often."""
    if part.size > whole.size:
        return False
    places = np.searchsorted(whole, part) + np.arange(part.size) - np.searchsorted(part, part)
    return bool((places < whole.size).all() and (whole[np.minimum(places, whole.size - 1)] == part).all())
