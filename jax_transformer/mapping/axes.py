"""Maps a tensor's axes to a leaf's by an equation such as "(N H) D -> D N H"."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from jax_transformer.storage.deferred import contiguous

EACH = "{n}"
"""The placeholder, in the names of tensors, for the number of one of several that make one leaf; in an equation, the
leaf's axis that counts them."""


@dataclass(frozen=True)
class Axes:
    """Maps a tensor's axes to a leaf's, such as "(N H) D -> D N H".

    The tensor's axes are left of the arrow, the leaf's right of it, with parentheses around merged ones. Where the leaf
    merges axes, all of them but one have sizes: rotary pairs of a tensor whose rows are halves for each head are
    "(N P=2 H=8) D -> D (N H P)". The number 1 is an axis that the other side doesn't have; a larger number is
    an axis of the tensor along which that many leaves are fused. {n}, first on the left, is an axis of the leaf alone:
    it counts the tensors that make the leaf together, which are numbered {n} in their names, or named in braces, as in
    "{n} H D -> D {n} H" for a matrix [H, D] per head.
    """

    torch: tuple[tuple[str, ...], ...]
    jax: tuple[tuple[str, ...], ...]
    given: tuple[tuple[str, int], ...] = ()
    """Axes with a size."""

    @classmethod
    def parse(cls, text: str) -> Axes:
        """Parses an equation. Raises ValueError for a malformed one."""
        left, arrow, right = text.partition("->")
        given: dict[str, int] = {}
        axes = cls(_groups(left, given), _groups(right, given), tuple(given.items()))
        named = [axis for axis in axes.flat if not axis.isdigit()]
        fused = [axis for axis in axes.flat if axis.isdigit()]
        if not arrow or sorted(named) != sorted(axes.leaf_flat) or len(set(named)) != len(named) or len(fused) > 1:
            raise ValueError(
                "axes: expected an equation such as '(N H) D -> D N H', each axis once on either side; received "
                f"{text!r}"
            )
        if axes.counts and axes.torch[0] != (EACH,):
            raise ValueError(f"axes: expected {EACH} first, as in '{EACH} H D -> D {EACH} H'; received {text!r}")
        for group in axes.jax:
            unknown = [axis for axis in group if axis not in given]
            if len(unknown) > 1:
                raise ValueError(
                    f"axes: expected sizes of all axes but one that the leaf merges, as in '{unknown[0]}=2'; "
                    f"received {text!r}"
                )
        return axes

    def __str__(self) -> str:
        left = _written(self.torch, dict(self.given))
        seen = dict(self.given)
        for axis in self.flat:
            seen.pop(axis, None)
        return f"{left} -> {_written(self.jax, seen)}"

    @property
    def leaf_text(self) -> str:
        """Returns the leaf's side of the equation."""
        return _written(self.jax, {})

    @property
    def flat(self) -> tuple[str, ...]:
        """Returns the tensor's axes, split, without axes of size 1."""
        return tuple(axis for group in self.torch for axis in group if axis != "1")

    @property
    def leaf_flat(self) -> tuple[str, ...]:
        """Returns the leaf's axes, split, without axes of size 1."""
        return tuple(axis for group in self.jax for axis in group if axis != "1")

    @property
    def fused(self) -> str | None:
        """Returns the axis along which several leaves are fused."""
        return next((axis for axis in self.flat if axis.isdigit()), None)

    @property
    def counts(self) -> bool:
        """Returns whether several tensors, numbered {n}, make one leaf."""
        return EACH in self.leaf_flat

    def count(self, leaf_shape: tuple[int, ...]) -> int:
        """Returns the number of tensors that make one leaf."""
        return self.sizes(leaf_shape)[EACH] if self.counts else 1

    def sizes(self, leaf_shape: tuple[int, ...]) -> dict[str, int]:
        """Returns the size of each axis. A leaf's axis that its merged axes don't divide has sizes that don't fit."""
        found = {axis: int(axis) for group in self.torch for axis in group if axis.isdigit()} | dict(self.given)
        for group, size in zip(self.jax, leaf_shape, strict=True):
            for axis in group:
                if axis not in found:
                    found[axis] = size // int(np.prod([found[each] for each in group if each != axis], dtype=np.int64))
        return found

    def torch_shape(self, leaf_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of a tensor whose leaves have this shape."""
        sizes = self.sizes(leaf_shape)
        return tuple(int(np.prod([sizes[axis] for axis in group])) for group in self.torch if group != (EACH,))

    def split(self, tensors: list[np.ndarray], leaf_shape: tuple[int, ...]) -> np.ndarray:
        """Splits a tensor, or all tensors that make a leaf, into leaves [P, *leaf_shape], as a view if possible; P is 1
        unless the tensor is fused."""
        sizes = self.sizes(leaf_shape)
        order = [self.flat.index(axis) for axis in self._leaf_order]
        whole = np.stack(tensors) if self.counts else tensors[0]
        leaves = whole.reshape([sizes[axis] for axis in self.flat]).transpose(order)
        leaves = leaves if self.fused else leaves[None]
        return leaves if leaves.shape[1:] == leaf_shape else leaves.reshape(len(leaves), *leaf_shape)

    def merge(self, leaves: np.ndarray, number: int = 0) -> np.ndarray:
        """Merges leaves [P, *leaf_shape] into the tensor of this number: the inverse of split."""
        leaf_shape = leaves.shape[1:]
        sizes = self.sizes(leaf_shape)
        split = leaves.reshape(len(leaves), *(sizes[axis] for axis in self.leaf_flat))
        if self.counts:
            split = split.take([number], axis=1 + self.leaf_flat.index(EACH))
        order = [self._leaf_order.index(axis) for axis in self.flat]
        tensor = contiguous((split if self.fused else split[0]).transpose(order))
        return tensor.reshape(self.torch_shape(leaf_shape))

    @property
    def _leaf_order(self) -> list[str]:
        return [*([self.fused] if self.fused else []), *self.leaf_flat]


def _groups(text: str, given: dict[str, int]) -> tuple[tuple[str, ...], ...]:
    """Parses one side of an equation, and adds the sizes of axes that it gives."""
    found = []
    for group in re.findall(r"\([^()]*\)|[^\s()]+", text):
        names = []
        for word in group.strip("()").split():
            name, _, size = word.partition("=")
            if size:
                given[name] = int(size)
            names.append(name)
        found.append(tuple(names))
    return tuple(found)


def _written(groups: tuple[tuple[str, ...], ...], given: dict[str, int]) -> str:
    words = [[f"{axis}={given[axis]}" if axis in given else axis for axis in group] for group in groups]
    return " ".join(group[0] if len(group) == 1 else f"({' '.join(group)})" for group in words)
