"""jax-transformer doctor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from jax_transformer.commands.parsing import parsed


@dataclass(frozen=True)
class DoctorOptions:
    """Compute programs that XLA is known to get wrong, and a training step, compiled and in another way. Exit code 0:
    all are right; 1: with these versions and flags, some aren't."""


def doctor(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer doctor ARGUMENTS`; returns the exit code."""
    parsed(DoctorOptions, arguments, "doctor")
    from jax_transformer.integrity import examine, versions

    for name, version in versions().items():
        print(f"{name}: {version}")
    print(f"XLA_FLAGS: {os.environ.get('XLA_FLAGS', '')}", flush=True)
    right = True
    for diagnosis in examine():
        right &= diagnosis.is_right
        print(diagnosis, flush=True)
    print("these versions are safe here" if right else "these versions aren't safe here: install different ones")
    return 0 if right else 1
