"""The configs of the device mesh (how many devices share the batch, the parameters, and the width of the model) and of
the processes of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jax_transformer.config.validation import ConfigError, check_field_types, require

AXES = ("data", "fsdp", "tensor")
"""Axes of the mesh, from the slowest network to the fastest."""


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Configures the device mesh. Its sizes multiply to the number of devices; one of them may be -1: what is left.

    Example:
      >>> from jax_transformer.parallel import MeshConfig
      >>> MeshConfig(tensor=2).sizes(8)
      {'data': 4, 'fsdp': 1, 'tensor': 2}
    """

    data: int = -1
    """Groups of devices that each hold all parameters, and work on a share of the rows. -1: what is left."""
    fsdp: int = 1
    """Devices that share the parameters, and work on a share of the rows each (fully sharded data parallelism)."""
    tensor: int = 1
    """Devices that share the heads, the feed-forward units and the vocabulary (tensor parallelism)."""

    def __post_init__(self) -> None:
        check_field_types(self)
        require(self, self._problems())

    def _problems(self) -> list[str]:
        sizes = {axis: getattr(self, axis) for axis in AXES}
        problems = [
            f"{axis} must be at least 1, or -1 for what is left; received {size}"
            for axis, size in sizes.items()
            if size < 1 and size != -1
        ]
        if list(sizes.values()).count(-1) > 1:
            problems.append(f"one size may be -1; received {_written(sizes)}")
        return problems

    def sizes(self, devices: int) -> dict[str, int]:
        """Returns the size of each axis of a mesh of `devices` devices.

        Raises:
          ConfigError: the sizes don't multiply to `devices`.
        """
        given = {axis: getattr(self, axis) for axis in AXES}
        known = math.prod(size for size in given.values() if size != -1)
        sizes = {axis: devices // known if size == -1 else size for axis, size in given.items()}
        if math.prod(sizes.values()) != devices:
            needed = f"a divisor of {devices}" if -1 in given.values() else f"{devices}"
            raise ConfigError(
                f"parallel: expected sizes whose product is {needed}, the number of devices; received {_written(given)}"
            )
        return sizes


@dataclass(frozen=True, kw_only=True)
class ParallelConfig(MeshConfig):
    """Configures the devices of a training run: the mesh, and whether its bits may depend on their number.

    Example:
      >>> from jax_transformer import ParallelConfig
      >>> ParallelConfig(virtual_shards=8).sizes(4)
      {'data': 4, 'fsdp': 1, 'tensor': 1}
    """

    virtual_shards: int = 0
    """Divide each batch into this many virtual shards, a power of two, so that data-parallel training gives the same
    bits on any number of devices that divides it. 0: don't; faster."""

    def _problems(self) -> list[str]:
        problems, shards = super()._problems(), self.virtual_shards
        if shards < 0 or shards & (shards - 1):
            problems.append(f"virtual_shards must be 0 or a power of two; received {shards}")
        if shards and (self.fsdp, self.tensor) != (1, 1):
            problems.append(
                f"virtual_shards needs fsdp=1 and tensor=1; received fsdp={self.fsdp}, tensor={self.tensor}"
            )
        return problems

    def sizes(self, devices: int) -> dict[str, int]:
        """Returns the size of each axis of a mesh of `devices` devices.

        Raises:
          ConfigError: the sizes don't multiply to `devices`, or `devices` doesn't divide virtual_shards.
        """
        if self.virtual_shards % devices:
            raise ConfigError(
                f"parallel.virtual_shards: expected a multiple of {devices}, the number of devices; received "
                f"{self.virtual_shards}"
            )
        return super().sizes(devices)


@dataclass(frozen=True, kw_only=True)
class ProcessConfig:
    """Configures how the processes of a run find each other. By default, they are looked for.

    Example:
      >>> from jax_transformer.parallel import ProcessConfig
      >>> ProcessConfig(coordinator="10.0.0.1:1234", processes=4, process_id=1).process_id
      1
    """

    coordinator: str = ""
    """HOST:PORT of process 0, of a port that nothing uses. Empty: found on TPU pods, SLURM, Open MPI and Kubernetes."""
    processes: int | None = None
    """Number of processes. None: found. 1: don't look for others."""
    process_id: int | None = None
    """The number of this process, counted from 0. None: found."""

    def __post_init__(self) -> None:
        check_field_types(self)
        require(self, self._problems())

    def _problems(self) -> list[str]:
        count, number = self.processes, self.process_id
        if count == 1 and number in (None, 0):
            return []
        given = {"coordinator": self.coordinator or None, "processes": count, "process_id": number}
        missing = [name for name, value in given.items() if value is None]
        if len(missing) == 3:
            return []
        if missing:
            return [f"coordinator, processes and process_id belong together; received no {' and no '.join(missing)}"]
        problems = []
        port = self.coordinator.rpartition(":")[2]
        if ":" not in self.coordinator or not port.isdigit() or not 0 < int(port) < 65536:
            problems.append(f"coordinator must be HOST:PORT, such as 10.0.0.1:1234; received {self.coordinator}")
        if count < 1:  # type: ignore[operator]
            problems.append(f"processes must be at least 1; received {count}")
        elif not 0 <= number < count:  # type: ignore[operator]
            problems.append(f"process_id must be from 0 to {count - 1}; received {number}")  # type: ignore[operator]
        return problems


def _written(sizes: dict[str, int]) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in sizes.items())
