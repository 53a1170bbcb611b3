"""Writes report.html: a run as one page that needs no network, no server and no other file.

The page can be rebuilt from the run directory at any time, also while another process trains the run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jax_transformer.buckets import address_of, named
from jax_transformer.pages.page import write_page
from jax_transformer.pages.training import render, render_comparison
from jax_transformer.training.report_data import read_config, read_run, read_translations, value_at
from jax_transformer.training.run_comparison import read_runs
from jax_transformer.training.run_directory import (
    CONFIG,
    METRICS,
    MODEL,
    PROGRESS,
    REPORT,
    SAMPLES,
    TRANSLATIONS,
    RunError,
    is_training,
    local_run,
)

COMPARISON = "comparison.html"
"""Name of the page that compares runs, in the working directory."""
SECONDS_BETWEEN_RELOADS = 3.0
SECONDS_BETWEEN_LOOKS = 2.0
LOOKING_SHARE = 20
"""Watching takes at most one in so many seconds: it looks less often at a run whose files take long to read."""


def write_report(
    run: str | Path, output: str | Path | None = None, *, is_live: bool = False, shows_attention: bool = False
) -> Path:
    """Writes RUN/report.html atomically from the other files of the run, and returns its path.

    Args:
      run: the run directory; of one in a bucket, the page is written to the working directory, as NAME.html.
      output: another file to write.
      is_live: whether the page reloads itself until the run is finished.
      shows_attention: whether to load the model, and draw where it looks while it translates some test sentences.

    Raises:
      RunError: `run` is no run directory; attention is wanted of a run without a model or translations.
    """
    page = page_of(run) if output is None else Path(output)
    run = local_run(run, *[MODEL] * shows_attention)
    data = read_run(run)
    if shows_attention:
        data["attention"] = _attention(run, data)
    return _write(data, page, is_live)


def page_of(run: str | Path) -> Path:
    """Returns the path of a run's own page; of a run in a bucket, that of a page in the working directory."""
    address = address_of(run)
    return Path(run) / REPORT if address is None else Path(f"{address.name}.html")


def _attention(run: Path, data: dict[str, Any]) -> dict[str, Any]:
    splits = read_translations(run, data["last_step"] if data["state"] == "finished" else None).get("splits")
    if not splits:
        state = data["state"] if data["state"] != "finished" else f"one without {TRANSLATIONS}, of an earlier version"
        raise RunError(f"{run}: expected a finished run, to draw attention; received {state}")
    from jax_transformer.training.sample_attention import sample_attention

    name, samples = next(iter(splits.items()))
    tag = value_at(read_config(run / CONFIG)[0], "data", "source_tag")
    return {"split": name, **sample_attention(run / MODEL, samples, tag if isinstance(tag, str) else "")}


def write_comparison(runs: Sequence[str | Path], output: str | Path = COMPARISON) -> Path:
    """Writes one page that compares runs, and returns its path.

    Raises:
      RunError: a path is no run directory, or named twice; too many runs.
    """
    write_page(Path(output), render_comparison(read_runs([local_run(run) for run in runs])))
    return Path(output)


def watch(run: str | Path, output: str | Path | None = None, say: Callable[[str], None] = print) -> Path:
    """Rewrites a live report whenever the run's files change, until the run is finished; returns its path.

    Args:
      run: the run directory, which another process may be writing.
      output: another file to write.
      say: receives the path at the beginning, and a line whenever the run's state changes.

    Raises:
      RunError: `run` is no run directory.
    """
    if address_of(run) is not None:
        raise RunError(
            f"--watch: expected a run directory on this machine, or one that it shares; received {named(run)}"
        )
    run = Path(run)
    path = page_of(run) if output is None else Path(output)
    seen, state = None, ""
    while True:
        start, found = time.monotonic(), _signature(run)
        if found != seen:
            data = read_run(run)
            _write(data, path, is_live=True)
            if not state:
                say(f"live page: {path}")
            if data["state"] != state:
                say(f"{run}: {data['state']} at step {data['step']}")
            seen, state = found, data["state"]
            if state == "finished":
                return path
        time.sleep(max(SECONDS_BETWEEN_LOOKS, LOOKING_SHARE * (time.monotonic() - start)))


def _write(data: dict[str, Any], path: Path, is_live: bool) -> Path:
    seconds = SECONDS_BETWEEN_RELOADS if is_live and data["state"] != "finished" else None
    write_page(path, render({"attention": None, **data, "live": seconds}))
    return path


def _signature(run: Path) -> tuple[object, ...]:
    """Returns values that change when the run's files or its state may have changed."""
    return is_training(run), *(_change(run / name) for name in (METRICS, SAMPLES, PROGRESS))


def _change(file: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
