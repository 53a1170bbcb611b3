"""What the collectives of a mesh give each device, in terms of a `Builder`'s operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jax_transformer.proof.building import Builder
from jax_transformer.proof.jax_meshes import Devices, Shares, names_of
from jax_transformer.proof.programs import Value

Collective = Callable[..., Shares]

COLLECTIVES: dict[str, Collective] = {}
"""Primitives that name axes of a mesh → (devices, shares, **params) → shares."""


def collective(*names: str) -> Callable[[Collective], Collective]:
    def register(function: Collective) -> Collective:
        for name in names:
            COLLECTIVES[name] = function
        return function

    return register


# --- of one device


@collective("pvary")
def pvary(devices: Devices, x: Shares, **params: Any) -> Shares:
    """A cast: only its transpose communicates."""
    return x


@collective("axis_index")
def axis_index(devices: Devices, *, axis_name: Any) -> Shares:
    places = [devices.grid.place(device, names_of(axis_name)) for device in range(devices.grid.count)]
    return tuple(devices.builder.constant(np.int32(place)) for place in places)


# --- reductions


@collective("psum", "psum_invariant")
def psum(devices: Devices, x: Shares, *, axes: Any, axis_index_groups: Any = None) -> Shares:
    return devices.communicate(x, axes, axis_index_groups, lambda parts: [_sum(devices.builder, parts)] * len(parts))


@collective("pmax")
def pmax(devices: Devices, x: Shares, *, axes: Any, axis_index_groups: Any = None) -> Shares:
    return devices.communicate(
        x, axes, axis_index_groups, lambda parts: [_largest(devices.builder, parts)] * len(parts)
    )


@collective("pmin")
def pmin(devices: Devices, x: Shares, *, axes: Any, axis_index_groups: Any = None) -> Shares:
    b = devices.builder

    def of_group(parts: list[Value]) -> list[Value]:
        if all(part.kind == "int" for part in parts):
            return [b.constant(np.min([part.known for part in parts], axis=0))] * len(parts)
        return [b.negate(_largest(b, [b.negate(part) for part in parts]))] * len(parts)

    return devices.communicate(x, axes, axis_index_groups, of_group)


@collective("reduce_scatter")
def reduce_scatter(
    devices: Devices, x: Shares, *, axis_name: Any, scatter_dimension: int, axis_index_groups: Any, tiled: bool,
    axis_size: int,
) -> Shares:  # fmt: skip
    b = devices.builder

    def of_group(parts: list[Value]) -> list[Value]:
        found = _split(b, _sum(b, parts), len(parts), scatter_dimension)
        return found if tiled else [b.reshape(each, _without(each.shape, scatter_dimension)) for each in found]

    return devices.communicate(x, axis_name, axis_index_groups, of_group)


# --- moves


@collective("all_gather", "all_gather_invariant")
def all_gather(
    devices: Devices, x: Shares, *, axis_name: Any, all_gather_dimension: int, tiled: bool, axis_size: int,
    axis_index_groups: Any = None,
) -> Shares:  # fmt: skip
    b = devices.builder

    def of_group(parts: list[Value]) -> list[Value]:
        whole = b.concatenate(parts, all_gather_dimension) if tiled else _stack(b, parts, all_gather_dimension)
        return [whole] * len(parts)

    return devices.communicate(x, axis_name, axis_index_groups, of_group)


@collective("ppermute")
def ppermute(devices: Devices, x: Shares, *, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Shares:
    """A device that receives nothing has zeros."""
    senders = {receiver: sender for sender, receiver in perm}

    def of_group(parts: list[Value]) -> list[Value]:
        nothing = _zeros(devices.builder, parts[0])
        return [parts[senders[place]] if place in senders else nothing for place in range(len(parts))]

    return devices.communicate(x, axis_name, None, of_group)


@collective("pbroadcast")
def pbroadcast(devices: Devices, x: Shares, *, axis_name: Any, source: int) -> Shares:
    return devices.communicate(x, axis_name, None, lambda parts: [parts[source]] * len(parts))


@collective("all_to_all")
def all_to_all(
    devices: Devices, x: Shares, *, axis_name: Any, split_axis: int, concat_axis: int, axis_index_groups: Any,
    tiled: bool,
) -> Shares:  # fmt: skip
    """Device i receives part i of every device. Without `tiled`, JAX adds and drops axes around it."""
    b = devices.builder

    def of_group(parts: list[Value]) -> list[Value]:
        split = [_split(b, part, len(parts), split_axis) for part in parts]
        return [b.concatenate(received, concat_axis) for received in zip(*split, strict=True)]

    return devices.communicate(x, axis_name, axis_index_groups, of_group)


# --- values of a group


def _sum(b: Builder, parts: list[Value]) -> Value:
    if all(part.kind == "int" for part in parts):
        return b.constant(np.sum([part.known for part in parts], axis=0, dtype=np.asarray(parts[0].known).dtype))
    found, *others = parts
    for part in others:
        found = b.add(found, part)
    return found


def _largest(b: Builder, parts: list[Value]) -> Value:
    return b.largest(_stack(b, parts, 0), (0,))


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
