"""Says how long something takes."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Formats a time as a reader says it.

    Example:
      >>> from jax_transformer.runtime.durations import duration
      >>> duration(45.2), duration(400), duration(8000)
      ('45 s', '7 min', '2 h 13 min')
    """
    minutes = round(seconds / 60)
    if seconds < 180:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
