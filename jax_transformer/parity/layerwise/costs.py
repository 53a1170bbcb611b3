"""Estimates memory and time before anything runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.parity.layerwise.calls import RunnableSide
from jax_transformer.runtime.memory import gibibytes, host_memory

PASSES = 6
"""How often the weights of both sides are used, about: alone, in layers, again with moved weights; half of them in
float64, too."""
BYTES_PER_SECOND = 4e8
"""At which weights are read, converted and used, about."""
WIDE = 8


@dataclass(frozen=True)
class Cost:
    """An estimate of what a comparison takes beyond the programs themselves."""

    bytes: int
    seconds: float

    def __str__(self) -> str:
        return f"about {gibibytes(self.bytes)} of memory in addition to held weights, and {_duration(self.seconds)}"


def estimated(sides: tuple[RunnableSide, RunnableSide], inputs: Mapping[str, np.ndarray]) -> Cost:
    """Estimates a comparison: the largest weight is there in its own dtype, twice, and in float64; products take two
    operations for each weight and token."""
    positions = max(
        (array.size if array.dtype.kind in "iub" else array.shape[0] for array in inputs.values()), default=1
    )
    memory, seconds = 0, 0.0
    speed = _products_per_second()
    for side in sides:
        weights = side.weights.known.values()
        largest = max(weights, key=lambda weight: weight.size, default=None)
        if largest is not None:
            memory = max(memory, 2 * largest.bytes + 2 * WIDE * largest.size)
        count = sum(weight.size for weight in weights)
        seconds += PASSES * (count * positions / speed + count * WIDE / BYTES_PER_SECOND)
    return Cost(memory, seconds)


def check(cost: Cost, most_gib: float | None, most_seconds: float | None) -> None:
    """Raises ParityError for an estimate beyond the limits; that of memory is the machine's, if none is given."""
    most, what = host_memory() if most_gib is None else (int(most_gib * 2**30), "memory_limit")
    if cost.bytes > most:
        raise ParityError(
            f"the comparison would take {cost}: more than {gibibytes(most)} ({what}); split the largest weight, or "
            "raise memory_limit"
        )
    if most_seconds is not None and cost.seconds > most_seconds:
        raise ParityError(
            f"the comparison would take {cost}: more than {most_seconds:g} s (time_limit); take shorter inputs, or "
            "raise time_limit"
        )


def _products_per_second() -> float:
    rows, kernel = np.ones((16, 1024)), np.ones((1024, 1024))
    start = time.perf_counter()
    for _ in range(4):
        rows @ kernel
    return float(4 * rows.shape[0] * kernel.size / max(time.perf_counter() - start, 1e-6))


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
