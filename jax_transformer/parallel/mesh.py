"""Arrange every device of every process in one grid, whose axes `MeshConfig` names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh

from jax_transformer.config.parallel import AXES, MeshConfig
from jax_transformer.config.validation import ConfigError

AnyMesh = Mesh | AbstractMesh
"""A mesh of devices, or an abstract one; programs can be traced for either."""
Made = TypeVar("Made", bound=AnyMesh)


def make_mesh(config: MeshConfig | None = None, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Returns the mesh of the devices.

    On several TPU slices, the axis `data` spans the slow network between slices; the other axes stay within a slice.

    Args:
      config: the sizes of its axes, such as a ParallelConfig. None: all devices share the rows.
      devices: the devices. None: all devices of all processes.

    Raises:
      ConfigError: the sizes don't multiply to the number of devices; `data` isn't a multiple of the number of slices.

    Example:
      >>> from jax_transformer.parallel import make_mesh
      >>> make_mesh().axis_names
      ('data', 'fsdp', 'tensor')
    """
    devices = jax.devices() if devices is None else list(devices)
    sizes = (config or MeshConfig()).sizes(len(devices))
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    if slices == 1:
        return jax.make_mesh(tuple(sizes.values()), AXES, (AxisType.Auto,) * len(AXES), devices=devices)
    if sizes["data"] % slices:
        raise ConfigError(
            f"parallel.data: expected a multiple of {slices}, the number of slices, between which only data "
            f"parallelism is fast; received {sizes['data']}"
        )
    within = (sizes["data"] // slices, sizes["fsdp"], sizes["tensor"])
    grid: np.ndarray = mesh_utils.create_hybrid_device_mesh(within, (slices, 1, 1), devices)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def make_abstract_mesh(config: MeshConfig) -> AbstractMesh:
    """Returns a mesh without devices, for tracing programs and proving properties of them.

    Raises:
      ConfigError: a size is -1, which needs actual devices to be resolved.

    Example:
      >>> from jax_transformer.parallel import MeshConfig, make_abstract_mesh
      >>> make_abstract_mesh(MeshConfig(data=4, tensor=2)).size
      8
    """
    sizes = {axis: getattr(config, axis) for axis in AXES}
    if -1 in sizes.values():
        raise ConfigError(f"parallel.{next(a for a in AXES if sizes[a] == -1)}: expected a size; received -1, the rest")
    return AbstractMesh(tuple(sizes.values()), AXES, (AxisType.Auto,) * len(AXES))


def with_auto_axes(mesh: Made) -> Made:
    """Returns the mesh with axes along which XLA chooses shardings, as `make_mesh` here makes it; `jax.make_mesh` makes
    explicit ones.

    Raises:
      ConfigError: its axes have other names.

    Example:
      >>> import jax
      >>> from jax_transformer.parallel.mesh import with_auto_axes
      >>> with_auto_axes(jax.make_mesh((1, 1, 1), ("data", "fsdp", "tensor"))).axis_types
      (Auto, Auto, Auto)
    """
    if tuple(mesh.axis_names) != AXES:
        raise ConfigError(
            f"mesh: expected the axes {', '.join(AXES)}, as make_mesh of jax_transformer.parallel makes them; received "
            f"{', '.join(map(str, mesh.axis_names)) or 'none'}"
        )
    types = (AxisType.Auto,) * len(AXES)
    if mesh.axis_types == types:
        return mesh
    if isinstance(mesh, AbstractMesh):
        return AbstractMesh(mesh.axis_sizes, AXES, types)  # type: ignore[return-value]
    return Mesh(mesh.devices, AXES, axis_types=types)  # type: ignore[return-value]


def platform_of(mesh: AnyMesh | None) -> str:
    """Returns the platform of the mesh's devices, such as "tpu"; of JAX's default device without a mesh, and for one of
    no devices in particular."""
    device = None if mesh is None else mesh.abstract_device if isinstance(mesh, AbstractMesh) else mesh.devices.flat[0]
    return jax.default_backend() if device is None else str(device.platform)


def described(mesh: AnyMesh) -> str:
    """Describes the devices, such as "8 × TPU v5e (data 4, fsdp 2, tensor 1)"."""
    sizes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    if isinstance(mesh, AbstractMesh):
        return f"{mesh.size} devices ({sizes})"
    kind = mesh.devices.flat[0].device_kind
    return kind if mesh.size == 1 else f"{mesh.size} × {kind} ({sizes})"
