"""Checks that the installed compilers compute correctly."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from jax_transformer.runtime.environment import environment

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "torch", "transformers", "numpy")
RIGHT = 1e-12
"""The largest relative difference that counts as right in float64."""
SECONDS = 300
"""Time limit of a sentinel: some wrong programs never end."""


@dataclass(frozen=True)
class Diagnosis:
    """Holds the outcome of one program.

    Example:
      >>> from jax_transformer.integrity import Diagnosis
      >>> print(Diagnosis("a training step in float64", "differs by 3.4e-01", False))
      ✗ a training step in float64: differs by 3.4e-01
    """

    what: str
    outcome: str
    is_right: bool

    def __str__(self) -> str:
        return f"{'✓' if self.is_right else '✗'} {self.what}: {self.outcome}"


def versions() -> dict[str, str]:
    """Returns the machine and the versions of the installed libraries."""
    return environment(LIBRARIES)


def examine() -> Iterator[Diagnosis]:
    """Yields the diagnosis of each sentinel, each run in a process of its own, as the environment is."""
    from jax_transformer.integrity.sentinels import SENTINELS

    for name in SENTINELS:
        yield _examined(name)


def _examined(name: str) -> Diagnosis:
    command = [sys.executable, "-m", "jax_transformer.integrity.sentinels", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Diagnosis(name, f"didn't end within {SECONDS} seconds", False)
    if done.returncode < 0:
        return Diagnosis(name, f"ended by {signal.Signals(-done.returncode).name}", False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Diagnosis(name, f"failed ({last})", False)
    apart = float(done.stdout.split()[-1])
    return Diagnosis(name, "right" if apart <= RIGHT else f"differs by {apart:.1e}", apart <= RIGHT)
