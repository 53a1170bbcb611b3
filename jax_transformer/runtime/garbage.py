"""How often Python looks for cyclic garbage."""

from __future__ import annotations

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
