"""The operations that take longest on the device, from a profile of a few steps."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STEPS, SHOWN = 3, 15
MOST_BYTES = 16 * 2**20
"""The largest profile that is kept."""


def longest_operations(run: Callable[[int], Any], folder: Path) -> Iterator[dict[str, Any]]:
    """Profiles STEPS calls, keeps the profile if it is small, and yields the longest operations and their shares."""
    import jax

    run(1)
    shutil.rmtree(folder, ignore_errors=True)
    with jax.profiler.trace(str(folder)):
        run(STEPS)
    file = next(folder.rglob("*.xplane.pb"))
    times, counts = _times_by_name(jax.profiler.ProfileData.from_file(str(file)))
    total = sum(times.values())
    yield {"operation": "all", "share": 1.0, "milliseconds": total / 1e6 / STEPS, "count": sum(counts.values()) / STEPS}
    for name, time in times.most_common(SHOWN):
        yield {
            "operation": name, "share": time / total, "milliseconds": time / 1e6 / STEPS,
            "count": counts[name] / STEPS,
        }  # fmt: skip
    for other in folder.rglob("*"):
        if other.is_file() and (other != file or file.stat().st_size > MOST_BYTES):
            other.unlink()


def _times_by_name(profile: Any) -> tuple[Counter[str], Counter[str]]:
    """Returns the nanoseconds and the number of events of each kernel, on the device if there is one, else of the
    host's threads."""
    devices = [plane for plane in profile.planes if plane.name.startswith("/device:GPU")]
    times: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for plane in devices or [plane for plane in profile.planes if plane.name.startswith("/host:CPU")]:
        for line in plane.lines:
            if devices and "Stream" not in line.name:  # other lines repeat the same time by module, step or scope
                continue
            for event in line.events:
                times[event.name] += event.duration_ns
                counts[event.name] += 1
    return times, counts
