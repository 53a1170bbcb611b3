"""Sets how often Python looks for cyclic garbage, and whether it does at the exit."""

from __future__ import annotations

import atexit
import gc

NEW_OBJECTS = 10_000


def collect_rarely() -> None:
    """Makes Python look for cyclic garbage once in 10,000 new objects, unless it already does so less often or never.

    By default, it looks once in 700. Tracing a model makes millions of objects, nearly all of which are still in use:
    to look through them took a twelfth of the time in which `jax-transformer train` starts.
    """
    youngest, *older = gc.get_threshold()
    if 0 < youngest < NEW_OBJECTS:
        gc.set_threshold(NEW_OBJECTS, *older)


def collect_nothing_at_exit() -> None:
    """Makes Python end without a last look for cyclic garbage, whose memory ends with the process.

    Call it before other libraries are imported: what they do at the exit then comes first. Python otherwise looks
    through every object that is left: a quarter of a second where JAX was imported, one second where PyTorch and
    transformers were.
    """
    atexit.unregister(gc.freeze)  # once is enough, however many commands one process runs
    atexit.register(gc.freeze)
