"""The figures of devices that bound a program's speed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Chip:
    """Holds the figures of a device that bound a program's speed.

    TPU figures are from Google Cloud's documentation of each version, NVIDIA's from the data sheets of the SXM modules.
    A TPU's memory is the amount that its compiler lets a program use.
    """

    kind: str
    memory: float
    """Bytes of the device's main memory that a program can use."""
    flops: float
    """Floating-point operations per second in bfloat16, without sparsity."""
    flops_float32: float
    """The same for float32 under JAX's default precision: bfloat16 on a TPU, TensorFloat-32 on NVIDIA."""
    bandwidth: float
    """Bytes per second between the device and its main memory."""
    network: float
    """Bytes per second that a device sends to its neighbours: over all links of a TPU, over NVLink."""
    device_kinds: tuple[str, ...] = ()
    """How JAX names such devices (`Device.device_kind`)."""


GIB = 2.0**30
TPUS = {
    "v5e": Chip("TPU v5e", 15.75 * GIB, 197e12, 197e12, 819e9, 200e9, ("TPU v5 lite", "TPU v5e")),
    "v5p": Chip("TPU v5p", 95.74 * GIB, 459e12, 459e12, 2765e9, 600e9, ("TPU v5", "TPU v5p")),
    "v6e": Chip("TPU v6e", 31.25 * GIB, 918e12, 918e12, 1640e9, 448e9, ("TPU v6 lite", "TPU v6e")),
}
GPUS = {
    "h100": Chip("NVIDIA H100", 84929347584, 989e12, 494e12, 3352e9, 450e9, ("NVIDIA H100 80GB HBM3",)),
    "h200": Chip("NVIDIA H200", 150754820096, 989e12, 494e12, 4800e9, 450e9, ("NVIDIA H200",)),
}


def chip_of(device_kind: str) -> Chip | None:
    """Returns the figures of a device by JAX's name of its kind; None for an unknown one."""
    return next((chip for chip in (*TPUS.values(), *GPUS.values()) if device_kind in chip.device_kinds), None)
