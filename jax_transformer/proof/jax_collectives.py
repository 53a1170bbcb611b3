"""Rules of a mesh's collectives, in terms of a `Builder`'s operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jax_transformer.proof.building import Builder
from jax_transformer.proof.grids import Grid, Shares, names_of
from jax_transformer.proof.jax_rules import reduce_max, reduce_min, reduce_sum
from jax_transformer.proof.programs import UnknownOperation, Value

Collective = Callable[..., Shares]

COLLECTIVES: dict[str, Collective] = {}
"""Primitives that name axes of a mesh → (builder, grid, shares, **params) → shares."""


def collective(*names: str) -> Callable[[Collective], Collective]:
    def register(function: Collective) -> Collective:
        for name in names:
            COLLECTIVES[name] = function
        return function

    return register


# --- one device


CASTS = (
    "pvary",
    *("reduced_vary_cast", "reduced_vary_cast_p"),  # with _p up to jax 0.10
    *("vary_unreduced_cast", "vary_unreduced_cast_p"),
)
"""Primitives that change only the type's record of which devices hold equal values; their transposes communicate."""


@collective(*CASTS)
def cast(b: Builder, grid: Grid, x: Shares, **params: Any) -> Shares:
    return x


@collective("axis_index")
def axis_index(b: Builder, grid: Grid, *, axis_name: Any) -> Shares:
    places = [grid.place(device, names_of(axis_name)) for device in range(grid.count)]
    return tuple(b.constant(np.int32(place)) for place in places)


# --- reductions


@collective("psum", "psum_invariant")
def psum(b: Builder, grid: Grid, x: Shares, *, axes: Any, axis_index_groups: Any = None) -> Shares:
    return _reduced(b, grid, x, axes, axis_index_groups, reduce_sum, _sum)


@collective("pmax")
def pmax(b: Builder, grid: Grid, x: Shares, *, axes: Any, axis_index_groups: Any = None) -> Shares:
    return _reduced(b, grid, x, axes, axis_index_groups, reduce_max, Builder.largest_of)


@collective("pmin")
def pmin(b: Builder, grid: Grid, x: Shares, *, axes: Any, axis_index_groups: Any = None) -> Shares:
    return _reduced(b, grid, x, axes, axis_index_groups, reduce_min, _smallest)


def _reduced(
    b: Builder,
    grid: Grid,
    x: Shares,
    axes: Any,
    numbers: Any,
    of_axes: Callable[..., Value],
    of_values: Callable[[Builder, list[Value]], Value],
) -> Shares:
    """Reduces each value over its own axes, which are numbers, and then the values of each group."""
    own = [axis for axis in names_of(axes) if isinstance(axis, int)]
    if own:
        x = tuple(of_axes(b, each, axes=own) for each in x)
    others = [axis for axis in names_of(axes) if not isinstance(axis, int)]
    return grid.communicate(x, others, numbers, lambda parts: [of_values(b, parts)] * len(parts))


@collective("reduce_scatter", "unreduced_reduce_scatter")
def reduce_scatter(
    b: Builder, grid: Grid, x: Shares, *, axis_name: Any, scatter_dimension: int, tiled: bool, axis_size: int,
    axis_index_groups: Any = None,
) -> Shares:  # fmt: skip
    def exchange(parts: list[Value]) -> list[Value]:
        found = _split(b, _sum(b, parts), len(parts), scatter_dimension)
        return found if tiled else [b.reshape(each, _without(each.shape, scatter_dimension)) for each in found]

    return grid.communicate(x, axis_name, axis_index_groups, exchange)


# --- moves


@collective("all_gather", "all_gather_invariant", "all_gather_reduced")
def all_gather(
    b: Builder, grid: Grid, x: Shares, *, axis_name: Any, all_gather_dimension: int, tiled: bool, axis_size: int,
    axis_index_groups: Any = None,
) -> Shares:  # fmt: skip
    def exchange(parts: list[Value]) -> list[Value]:
        whole = b.concatenate(parts, all_gather_dimension) if tiled else _stack(b, parts, all_gather_dimension)
        return [whole] * len(parts)

    return grid.communicate(x, axis_name, axis_index_groups, exchange)


@collective("ppermute")
def ppermute(b: Builder, grid: Grid, x: Shares, *, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Shares:
    """Permutes values between devices; one that receives nothing has zeros. Several axes are numbered in the order of
    the mesh, however they are named; new versions of JAX refuse another order."""
    names = names_of(axis_name)
    if names != tuple(axis for axis in grid.order if axis in names):
        raise UnknownOperation("ppermute", b.line, f"its axes {names} aren't in the order of the mesh")

    def exchange(parts: list[Value]) -> list[Value]:
        senders = {receiver: sender for sender, receiver in perm}
        is_once = len(perm) == len(senders) == len({*senders.values()})
        if not is_once or not {*senders, *senders.values()} <= {*range(len(parts))}:
            raise UnknownOperation("ppermute", b.line, f"no {len(parts)} devices have the pairs {perm}")
        nothing = _zeros(b, parts[0])
        return [parts[senders[place]] if place in senders else nothing for place in range(len(parts))]

    return grid.communicate(x, axis_name, None, exchange)


@collective("all_to_all")
def all_to_all(
    b: Builder, grid: Grid, x: Shares, *, axis_name: Any, split_axis: int, concat_axis: int, axis_index_groups: Any,
    tiled: bool,
) -> Shares:  # fmt: skip
    """Device i receives part i of every device. Without `tiled`, JAX adds and drops axes around it."""

    def exchange(parts: list[Value]) -> list[Value]:
        split = [_split(b, part, len(parts), split_axis) for part in parts]
        return [b.concatenate(received, concat_axis) for received in zip(*split, strict=True)]

    return grid.communicate(x, axis_name, axis_index_groups, exchange)


# --- values of a group


def _sum(b: Builder, parts: list[Value]) -> Value:
    if all(part.kind == "int" for part in parts):
        numbers = np.asarray([part.known for part in parts])
        return b.constant(numbers.sum(axis=0, dtype=numbers.dtype))
    found, *others = parts
    for part in others:
        found = b.add(found, part)
    return found


def _smallest(b: Builder, parts: list[Value]) -> Value:
    if all(part.kind == "int" for part in parts):
        return b.constant(np.asarray([part.known for part in parts]).min(axis=0))
    return b.negate(b.largest_of([b.negate(part) for part in parts]))


def _stack(b: Builder, parts: list[Value], axis: int) -> Value:
    return b.concatenate([b.reshape(part, (*part.shape[:axis], 1, *part.shape[axis:])) for part in parts], axis)


def _split(b: Builder, x: Value, count: int, axis: int) -> list[Value]:
    return [b.take(x, places) for places in np.split(np.arange(x.size).reshape(x.shape), count, axis)]


def _zeros(b: Builder, like: Value) -> Value:
    if like.kind in ("int", "bool"):
        return b.constant(np.zeros_like(like.known))
    return b.constant(np.zeros(like.shape))


def _without(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])
