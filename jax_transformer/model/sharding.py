"""Sharding constraints of activations on a mesh of devices. Without a mesh they do nothing.

The model names its axes; the table here assigns them to axes of the mesh. XLA's partitioner derives the rest, and
inserts the communication.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar

import jax
from jax.sharding import PartitionSpec

ROWS = ("data", "fsdp")
"""The axes of the mesh that share the rows of a batch."""
WIDTH = "tensor"
"""The axis that shares heads, feed-forward units and vocabulary."""

FEATURES = "fsdp"
"""Mesh axis that shards the features of parameters while no computation uses them."""

Function = TypeVar("Function", bound=Callable[..., Any])
Axis = Literal["rows", "groups", "width", "features"] | None
"""The part of the mesh that shards an axis of an array; None: replicated. "groups" are rows that only `data` shards."""

_MESH_AXES: dict[Axis, Any] = {"rows": ROWS, "groups": ROWS[0], "width": WIDTH, "features": FEATURES, None: None}


def constrain(x: jax.Array, *axes: Axis) -> jax.Array:
    """Returns x with a sharding on the mesh in whose context it is traced: one entry of `axes` for each axis of x."""
    return x if _is_alone() else jax.lax.with_sharding_constraint(x, spec(*axes))


def gather(parameter: jax.Array, *axes: Axis) -> jax.Array:
    """Returns a parameter as computations use it, with all features on each device; `axes` describe its stored
    sharding.

    Its gradient is summed over the rows and sharded like the parameter, in one reduce-scatter.
    """
    whole = tuple(None if axis == "features" else axis for axis in axes)
    return parameter if _is_alone() else _laid_out(whole, axes, parameter)


def scatter_gradient(parameter: jax.Array, *axes: Axis) -> jax.Array:
    """Returns the stored parameter unchanged; shards its gradient like that of `gather`."""
    return parameter if _is_alone() else _laid_out(axes, axes, parameter)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _laid_out(used: tuple[Axis, ...], stored: tuple[Axis, ...], parameter: jax.Array) -> jax.Array:
    return jax.lax.with_sharding_constraint(parameter, spec(*used))


def _forward(used: tuple[Axis, ...], stored: tuple[Axis, ...], parameter: jax.Array) -> tuple[jax.Array, None]:
    return _laid_out(used, stored, parameter), None


def _backward(
    used: tuple[Axis, ...], stored: tuple[Axis, ...], residual: None, gradient: jax.Array
) -> tuple[jax.Array]:
    # JAX would constrain the gradient to the gathered sharding, which makes the reduce-scatter an all-reduce
    return (jax.lax.with_sharding_constraint(gradient, spec(*stored)),)


_laid_out.defvjp(_forward, _backward)


def on_each_device(function: Function, in_specs: Any, out_specs: Any) -> Function:
    """Returns a function that every device computes for its part of the arrays, such as one that calls a kernel, which
    the partitioner couldn't divide. The specs are trees of `spec`s."""
    if _is_alone():
        return function
    return jax.shard_map(function, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def device_number(axis: Literal["rows", "width"]) -> jax.Array | int:
    """Returns the index of this device's share of an axis, in a function of `on_each_device`; 0 without a mesh."""
    return 0 if _is_alone() else jax.lax.axis_index(_MESH_AXES[axis])


def spec(*axes: Axis) -> PartitionSpec:
    """Returns the sharding of an array with these axes."""
    return PartitionSpec(*(_MESH_AXES[axis] for axis in axes))


def _is_alone() -> bool:
    return jax.sharding.get_abstract_mesh().size <= 1


def platform() -> str:
    """Returns the platform of the devices for which the model is traced: "cpu", "gpu" or "tpu"."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def row_shards() -> int:
    """Returns among how many devices the mesh divides the rows of a batch; 1 without a mesh."""
    return math.prod(_sizes()[axis] for axis in ROWS)


def width_shards() -> int:
    """Returns among how many devices the mesh divides heads, feed-forward units and vocabulary; 1 without a mesh."""
    return _sizes()[WIDTH]


def feature_shards() -> int:
    """Returns among how many devices the mesh divides the features of parameters; 1 without a mesh."""
    return _sizes()[FEATURES]


def divisor(features: int) -> Axis:
    """Returns "width" if its devices can shard the features of a table but not its vocabulary, else None."""
    return None if features % width_shards() else "width"


def _sizes() -> dict[str, int]:
    mesh = jax.sharding.get_abstract_mesh()
    return {axis: mesh.shape.get(axis, 1) for axis in (*ROWS, WIDTH)}
