"""Finds this process's place in its run: the address of process 0, the number of processes, and its own rank."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jax_transformer.config.parallel import ProcessConfig
from jax_transformer.config.validation import ConfigError

FIND_SECONDS = 300
GIVE = (
    "give --parallel.coordinator, --parallel.processes and --parallel.process-id, or --parallel.processes 1 for one "
    "process alone"
)


@dataclass(frozen=True)
class Place:
    """Holds the rank of a process in its run, and how to reach the coordinator."""

    address: str = ""
    """HOST:PORT of process 0."""
    count: int = 1
    number: int = 0
    devices: str | None = None
    """GPUs of this process, such as "0,1". None: all visible ones."""


def find_place(config: ProcessConfig, environment: Mapping[str, str] = os.environ) -> Place:
    """Returns the place from the config, or else from JAX's cluster detection.

    Raises:
      ConfigError: the run has other processes, and they can't be found.
    """
    if config.processes is not None:
        return Place(config.coordinator, config.processes, config.process_id or 0)
    if _is_alone(environment):
        return Place()
    from jax._src.clusters import ClusterEnv  # private: what jax.distributed.initialize looks for

    try:
        found: Any = ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None, None, FIND_SECONDS)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(
            f"processes: expected the address of process 0 of this run; received {reason}; {GIVE}"
        ) from error
    address, count, number, devices = found
    if address is None:
        count = int(environment.get("OMPI_COMM_WORLD_SIZE", "1"))
        if count > 1:
            raise ConfigError(f"processes: expected the address of {count} Open MPI processes; received none; {GIVE}")
        return Place()
    return Place(address, count or 1, number or 0, _devices(devices, environment))


def _is_alone(environment: Mapping[str, str]) -> bool:
    """Returns whether this process is alone although JAX would search for others: in a pod outside an indexed Job of
    Kubernetes, or in an interactive step of SLURM."""
    is_plain_pod = "KUBERNETES_SERVICE_HOST" in environment and "JOB_COMPLETION_INDEX" not in environment
    launchers = ("SLURM_STEP_NODELIST", "OMPI_COMM_WORLD_SIZE", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES")
    if is_plain_pod and not any(name in environment for name in launchers):
        return True
    return environment.get("SLURM_STEP_NUM_TASKS") == "1"


def _devices(found: list[int] | None, environment: Mapping[str, str]) -> str | None:
    """Returns the GPUs of this process. On a shared host, a process takes the GPU of its local rank, as JAX does,
    unless it sees only one."""
    if "JAX_LOCAL_DEVICE_IDS" in environment:
        return environment["JAX_LOCAL_DEVICE_IDS"]
    on_host = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") or ""
    has_own_host = re.fullmatch(r"1(\(x\d+\))?", on_host) is not None
    sees_one = len(environment.get("CUDA_VISIBLE_DEVICES", "several,").split(",")) == 1
    if not found or has_own_host or sees_one or "JAX_CUDA_VISIBLE_DEVICES" in environment:
        return None
    return ",".join(map(str, found))
