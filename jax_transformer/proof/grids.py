"""The devices of a mesh, and how they communicate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jax_transformer.proof.programs import Value

Shares = tuple[Value, ...]
"""The value of a variable on each device."""
Exchange = Callable[[list[Value]], Sequence[Value]]
"""The values of a group's devices → the values that they receive, in the same order."""


@dataclass(frozen=True)
class Grid:
    """Numbers the devices along some axes of a mesh."""

    sizes: Mapping[str, int]
    """Axes → number of devices along them."""
    order: tuple[str, ...] = ()
    """All axes of the mesh, in its own order."""

    @property
    def count(self) -> int:
        return math.prod(self.sizes.values())

    def place(self, device: int, axes: Iterable[str]) -> int:
        """Returns a device's number along some axes, the last axis varying fastest."""
        numbers = np.unravel_index(device, tuple(self.sizes.values())) if self.sizes else ()
        along = {axis: int(number) for axis, number in zip(self.sizes, numbers, strict=True)}
        found = 0
        for axis in axes:
            found = found * self.sizes[axis] + along[axis]
        return found

    def groups(self, axes: Sequence[str], numbers: Sequence[Sequence[int]] | None = None) -> Iterator[list[int]]:
        """Yields the devices that communicate along some axes.

        Args:
          numbers: the places along the axes of each group, in order. None: one group of all.
        """
        others = [axis for axis in self.sizes if axis not in axes]
        lines: dict[int, dict[int, int]] = {}
        for device in range(self.count):
            lines.setdefault(self.place(device, others), {})[self.place(device, axes)] = device
        for line in lines.values():
            for group in [sorted(line)] if numbers is None else numbers:
                yield [line[number] for number in group]

    def communicate(self, shares: Shares, axes: Any, numbers: Any, of_group: Exchange) -> Shares:
        """Returns the devices' values after communication within each group; see `groups` for `axes` and `numbers`."""
        found: dict[int, Value] = {}
        for devices in self.groups(names_of(axes), numbers):
            found.update(zip(devices, of_group([shares[device] for device in devices]), strict=True))
        return tuple(found[device] for device in range(self.count))


def names_of(axes: Any) -> tuple[Any, ...]:
    """Returns the axes that one axis, several or none are."""
    return () if axes is None else tuple(axes) if isinstance(axes, list | tuple) else (axes,)
