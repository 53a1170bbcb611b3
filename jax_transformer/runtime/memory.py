"""Reads the memory that this process may have, and checks that something fits into it before it is made."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

from jax_transformer.runtime.limits import PREFIX

VARIABLE = PREFIX + "MEMORY_BYTES"
"""The environment variable that replaces the machine's limit."""


def host_memory() -> tuple[int, str]:
    """Returns the most bytes that this process can have in main memory, and the source of that limit: the machine's
    memory, its control groups (containers), or the process (ulimit -v), whichever is least.

    Example:
      >>> from jax_transformer.runtime.memory import host_memory
      >>> host_memory()[0] > 2**20
      True
    """
    given = os.environ.get(VARIABLE, "")
    if given.isascii() and given.isdecimal() and len(given) < 30:
        return int(given), VARIABLE
    found = [(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), "this machine's memory")]
    found += [(most, "the memory of this container") for most in _limits_of_control_groups()]
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    found += [(most, "this process's address space, ulimit -v")] if most != resource.RLIM_INFINITY else []
    return min(found)


def check_fits(needed: int, where: str, error: type[ValueError] = ValueError) -> None:
    """Raises `error` if so many bytes don't fit into main memory.

    Args:
      needed: the bytes, at least.
      where: what needs them.
      error: the class to raise.

    Example:
      >>> from jax_transformer.runtime.memory import check_fits
      >>> check_fits(1, "a byte")
    """
    most, what = host_memory()
    if needed > most:
        raise error(too_much(needed, most, where, what))


def too_much(needed: int, most: int, where: str, what: str) -> str:
    """Describes something that doesn't fit into some memory."""
    return (
        f"{where}: expected to fit into {gibibytes(most)} ({what}); received at least {gibibytes(needed)}. Take "
        f"smaller sizes or more memory; if the memory is larger, set {VARIABLE}."
    )


def gibibytes(count: int) -> str:
    """Returns a number of bytes as a message shows it."""
    return f"{count / 2**30:,.1f} GiB" if count >= 2**30 // 10 else f"{count / 2**20:,.1f} MiB"


def peak_memory() -> int:
    """Returns the most bytes that this process has had in main memory so far.

    Example:
      >>> from jax_transformer.runtime.memory import peak_memory
      >>> peak_memory() > 2**20
      True
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _limits_of_control_groups() -> list[int]:
    """Returns the limits of this process's control groups and the groups around them, of version 1 and 2."""
    root, found = Path("/sys/fs/cgroup"), []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds not in ("", "memory"):
                continue
            base, name = (root, "memory.max") if not kinds else (root / "memory", "memory.limit_in_bytes")
            group = base / path.lstrip("/")
            for directory in (group, *group.parents):
                if not directory.is_relative_to(base):
                    break
                with suppress(OSError, ValueError):  # "max": no limit
                    found.append(int((directory / name).read_text(encoding="utf-8")))
    return found
