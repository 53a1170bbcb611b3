"""Sums and largest entries of windows that slide over an array: its elements are moved into rows, which are reduced."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jax_transformer.proof.building import Builder
from jax_transformer.proof.programs import UnknownOperation, Value


def summed(b: Builder, x: Value, places: np.ndarray) -> Value:
    """Returns the sum of each row of elements at places in x, [..., K]; −1 for padding, which adds 0."""
    return b.sum(b.take(b.as_float(x), places), (places.ndim - 1,))


def largest(b: Builder, x: Value, places: np.ndarray) -> Value:
    """Returns the largest entry of each row of elements at places in x, [..., K]; −1 for padding, which never is that.

    Raises:
      UnknownOperation: a row is of padding alone, so that its largest entry is −∞.
    """
    is_padding = places < 0
    if is_padding.all(axis=-1).any():
        raise UnknownOperation("pooling", b.line, "a window of padding alone has no largest entry")
    # Any entry of its own row can stand for padding: it changes no maximum.
    first = np.take_along_axis(places, np.argmin(is_padding, axis=-1)[..., None], -1)
    return b.largest(b.take(b.as_float(x), np.where(is_padding, first, places)), (places.ndim - 1,))


def spread(b: Builder, y: Value, places: np.ndarray, shape: Sequence[int]) -> Value:
    """Returns the adjoint of `summed`: adds each element of y to the elements of an array of a shape at its places."""
    parts = b.broadcast(b.reshape(y, (*places.shape[:-1], 1)), places.shape)
    return b.put(b.constant(np.zeros(tuple(shape))), places, parts, adds=True)
