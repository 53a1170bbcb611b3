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

    The tensor's axes are left of the arrow, with parentheses around merged ones; the leaf's axes are right of it. The
    number 1 is an axis of the tensor that the leaf doesn't have; a larger number is an axis along which that many
    leaves are fused in one tensor. {n}, first on the left, is an axis of the leaf alone: it counts the tensors that
    are numbered {n} in their names and make the leaf together, as in "{n} H D -> D {n} H" for a matrix [H, D] per
    head.
    """

    torch: tuple[tuple[str, ...], ...]
    jax: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Axes:
        """Parses an equation. Raises ValueError for a malformed one."""
        left, arrow, right = text.partition("->")
        groups = [tuple(group.strip("()").split()) for group in re.findall(r"\([^()]*\)|[^\s()]+", left)]
        axes = cls(tuple(groups), tuple(right.split()))
        named = [axis for axis in axes.flat if not axis.isdigit()]
        fused = [axis for axis in axes.flat if axis.isdigit()]
        if not arrow or sorted(named) != sorted(axes.jax) or len(set(named)) != len(named) or len(fused) > 1:
            raise ValueError(
                "axes: expected an equation such as '(N H) D -> D N H', each axis once on either side; received "
                f"{text!r}"
            )
        if axes.counts and axes.torch[0] != (EACH,):
            raise ValueError(f"axes: expected {EACH} first, as in '{EACH} H D -> D {EACH} H'; received {text!r}")
        return axes

    def __str__(self) -> str:
        left = (" ".join(group) if len(group) == 1 else f"({' '.join(group)})" for group in self.torch)
        return f"{' '.join(left)} -> {' '.join(self.jax)}"

    @property
    def flat(self) -> tuple[str, ...]:
        """Returns the tensor's axes, split, without axes of size 1."""
        return tuple(axis for group in self.torch for axis in group if axis != "1")

    @property
    def fused(self) -> str | None:
        """Returns the axis along which several leaves are fused."""
        return next((axis for axis in self.flat if axis.isdigit()), None)

    @property
    def counts(self) -> bool:
        """Returns whether several tensors, numbered {n}, make one leaf."""
        return EACH in self.jax

    def count(self, leaf_shape: tuple[int, ...]) -> int:
        """Returns the number of tensors that make one leaf."""
        return self.sizes(leaf_shape)[EACH] if self.counts else 1

    def sizes(self, leaf_shape: tuple[int, ...]) -> dict[str, int]:
        numbers = {axis: int(axis) for group in self.torch for axis in group if axis.isdigit()}
        return dict(zip(self.jax, leaf_shape, strict=True)) | numbers

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
        return leaves if self.fused else leaves[None]

    def merge(self, leaves: np.ndarray, number: int = 0) -> np.ndarray:
        """Merges leaves [P, *leaf_shape] into the tensor of this number: the inverse of split."""
        if self.counts:
            leaves = leaves.take([number], axis=1 + self.jax.index(EACH))
        order = [self._leaf_order.index(axis) for axis in self.flat]
        tensor = contiguous((leaves if self.fused else leaves[0]).transpose(order))
        return tensor.reshape(self.torch_shape(leaves.shape[1:]))

    @property
    def _leaf_order(self) -> list[str]:
        return [*([self.fused] if self.fused else []), *self.jax]
