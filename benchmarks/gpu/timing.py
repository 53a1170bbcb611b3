"""Time repeated work on a device, and ask how much memory it took."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

ROUNDS = 3
SLOW = 2.0
"""The seconds of a call from which on one round must do."""
LEAST_SECONDS = 0.4
"""The least time of a round, so that the clock and the host's start count for nothing."""


def seconds_per_call(
    run: Callable[[int], Any], small: bool = False, most: int = 2000, least: float = LEAST_SECONDS
) -> dict[str, Any]:
    """Returns the median seconds of a call of work that was run before, and those of every round.

    Args:
      run: calls the work a number of times, and returns when the device has done it.
      small: whether a call or two will do.
      most: the most calls of a round.
      least: the least seconds of a round.
    """
    run(1)
    start = time.perf_counter()
    run(1)
    one = time.perf_counter() - start
    count = 1 if small else min(most, max(1, math.ceil(least / one)))
    rounds = []
    for _ in range(1 if small or one > SLOW else ROUNDS):
        start = time.perf_counter()
        run(count)
        rounds.append((time.perf_counter() - start) / count)
    return {"seconds": statistics.median(rounds), "rounds": rounds, "calls": count}


def jax_peak_bytes() -> int | None:
    """Returns the most bytes of the device's memory that this process has used; None where JAX doesn't tell."""
    import jax

    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


def torch_device() -> Any:
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def torch_wait() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def torch_peak_bytes(reset: bool = False) -> int | None:
    """Returns the most bytes that PyTorch has allocated on the device since the last reset."""
    import torch

    if not torch.cuda.is_available():
        return None
    peak = torch.cuda.max_memory_allocated()
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return int(peak)
