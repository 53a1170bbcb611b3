"""The devices that programs are compiled for, and XLA's compilers for them, which run without the devices."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from jax_transformer.parallel.chips import GPUS, TPUS, Chip
from jax_transformer.runtime.trees import nearest

if TYPE_CHECKING:
    import jax

Platform = Literal["tpu", "nvidia", "cpu"]


class CompileError(ValueError):
    """Raised for an unknown target, or one whose compiler isn't installed."""


class DoesNotFit(Exception):
    """Raised when a program needs more memory than a device has, or its compiler refuses it."""


EXAMPLES = "tpu:v5e:4x4, tpu:v5e:4x4:2 (slices), tpu:v5p:2x2x1, tpu:v6e:2x4, nvidia:h100:8, nvidia:h200:8, cpu"


@dataclass(frozen=True)
class Target:
    """Names devices, such as `tpu:v5e:4x4`."""

    platform: Platform
    kind: str
    """The key of TPUS or GPUS; "" for a CPU."""
    layout: str
    """Topology of a TPU slice, such as 4x4, or the number of other devices."""
    slices: int = 1
    """The number of TPU slices, which a slower network joins."""

    @classmethod
    def parse(cls, text: str) -> Target:
        """Reads a target.

        Raises:
          CompileError: unknown target.
        """
        platform, _, rest = text.partition(":")
        kind, _, layout = rest.partition(":")
        layout, _, slices = layout.partition(":")
        if platform == "cpu":
            kind, layout = "", rest or "1"
        known = {"tpu": [*TPUS], "nvidia": [*GPUS], "cpu": [""]}
        if platform not in known:
            raise CompileError(f"target: expected one such as {EXAMPLES}; received {text!r}{nearest(platform, known)}")
        if kind not in known[platform]:
            raise CompileError(
                f"target: expected {platform}: and one of {', '.join(known[platform])}; received {text!r}"
                f"{nearest(kind, known[platform])}"
            )
        sizes = layout.split("x")
        if not all(size.isdigit() and int(size) for size in sizes) or (platform != "tpu" and len(sizes) > 1):
            expected = "a topology, such as 4x4," if platform == "tpu" else "a number of devices"
            raise CompileError(f"target: expected {expected} after {platform}:{kind}; received {text!r}")
        if platform == "nvidia" and int(layout) > 8:
            raise CompileError(f"target: expected at most 8 GPUs (one host); received {text!r}")
        if slices and (platform != "tpu" or not slices.isdigit() or int(slices) < 1):
            raise CompileError(f"target: expected a number of slices after a TPU's topology; received {text!r}")
        return cls(platform, kind, layout, int(slices or 1))  # type: ignore[arg-type]

    @property
    def chip(self) -> Chip | None:
        """Returns the figures of one device; None for a CPU."""
        return {**TPUS, **GPUS}.get(self.kind)

    def __str__(self) -> str:
        slices = str(self.slices) if self.slices > 1 else ""
        return ":".join(part for part in (self.platform, self.kind, self.layout, slices) if part)


def prepare_environment(target: Target) -> None:
    """Sets the environment variables for compiling without the devices; call it before importing jax.

    Raises:
      CompileError: jax has already started on other devices.
    """
    jax = sys.modules.get("jax")
    if jax is not None and os.environ.get("JAX_PLATFORMS") != "cpu":
        raise CompileError("compile: expected a fresh process, or JAX_PLATFORMS=cpu; jax was imported before")
    os.environ["JAX_PLATFORMS"] = "cpu"
    if target.platform == "tpu":
        os.environ |= {
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": "",
            "TPU_WORKER_HOSTNAMES": "localhost",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no device is used
            "TPU_STDERR_LOG_LEVEL": "3",
            "TPU_MIN_LOG_LEVEL": "3",
        }
    if target.platform == "nvidia":
        _add_flag("--xla_gpu_autotune_level=0")  # autotuning needs a device to measure kernels on
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if target.platform == "cpu":
        os.environ["JAX_NUM_CPU_DEVICES"] = target.layout


def _add_flag(flag: str) -> None:
    flags = os.environ.get("XLA_FLAGS", "").split()
    os.environ["XLA_FLAGS"] = " ".join([*flags, *([flag] if flag not in flags else [])])


def devices_of(target: Target) -> list[jax.Device]:
    """Returns the devices of a target; call `prepare_environment` first.

    Raises:
      CompileError: the topology doesn't exist; the compiler isn't installed.
    """
    import jax
    from jax.experimental import topologies

    if target.platform == "cpu":
        return jax.devices("cpu")[: int(target.layout)]
    extra = f"compile-{target.platform}"
    try:
        if target.platform == "tpu":
            sizes = [int(size) for size in target.layout.split("x")]
            host = {"chips_per_host_bounds": (*sizes, 1, 1)[:3]} if math.prod(sizes) < 4 else {}
            found = topologies.get_topology_desc(
                platform="tpu", topology_name=f"{target.kind}:{target.layout}", num_slices=target.slices, **host
            )
        else:
            found = topologies.get_topology_desc(
                platform="cuda", target_config=_gpu_config(target.kind), topology=f"1x{target.layout}x1"
            )
    except Exception as error:  # plugins raise exceptions of any kind
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CompileError(
            f"target {target}: its compiler doesn't know this topology, or isn't installed (pip install "
            f"'jax-transformer[{extra}]'): {reason}"
        ) from error
    return list(found.devices)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences plugins that print to standard error while they search for absent devices."""
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    sys.stderr.flush()
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def _gpu_config(kind: str) -> str:
    """Returns the description of a GPU that XLA's compiler takes, as a text protocol buffer."""
    chip = GPUS[kind]
    fields = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 49152,
        "shared_memory_per_core": 233472,
        "threads_per_core_limit": 2048,
        "core_count": 132,
        "fpus_per_core": 128,
        "block_dim_limit_x": 2147483647,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "memory_bandwidth": int(chip.bandwidth),
        "l2_cache_size": 52428800,
        "clock_rate_ghz": 1.98,
        "device_memory_size": int(chip.memory),
        "shared_memory_per_block_optin": 232448,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
    }
    described = " ".join(f"{name}: {value}" for name, value in fields.items())
    return (
        f"gpu_device_info {{ {described} cuda_compute_capability {{ major: 9 minor: 0 }} }} "
        'platform_name: "CUDA" dnn_version_info { major: 9 minor: 7 } '
        f'runtime_version {{ major: 12 minor: 9 patch: 0 }} device_description_str: "{chip.kind}"'
    )
