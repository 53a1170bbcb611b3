"""Sets the C library's allocator to keep large blocks for the next step, or to give them back."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

# <malloc.h>
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -3, -4, -8


def keep_freed_memory() -> bool:
    """Makes glibc reuse freed large blocks instead of returning them to the kernel; False if that is impossible.

    On a CPU, XLA allocates the temporary arrays of every step anew. By default glibc asks the kernel for each large one
    and returns it afterwards, and the kernel clears it page by page: for a vocabulary of 10,000 that is a third of a
    training step. Call before threads are started. The process then keeps the most memory it ever used. Environment
    variables of glibc's (MALLOC_…) take precedence.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    most = 2**31 - 1
    return all(
        [
            mallopt(M_MMAP_MAX, 0),
            mallopt(M_ARENA_MAX, 1),
            mallopt(M_TRIM_THRESHOLD, most),
            mallopt(M_TOP_PAD, 64 * 2**20),
        ]
    )


def give_back_freed_memory() -> bool:
    """Makes glibc return blocks of 256 KiB or more to the kernel when they are freed; True if it accepts that.

    By default that size grows to 32 MiB with the blocks that are freed, and smaller ones stay with the process, in
    pieces: where many large models follow one another, of a weight here and a weight there, a gigabyte. Costs time;
    environment variables take precedence.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        return bool(ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 256 * 2**10))
    except (OSError, AttributeError):  # another C library
        return False


def trim() -> None:
    """Gives back free memory between blocks in use, too, if the C library can."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
