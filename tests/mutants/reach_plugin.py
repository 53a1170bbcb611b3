"""A plugin of pytest: writes for every test how long it took and which marked functions it called."""

from __future__ import annotations

import builtins
import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import mutant_hook as hook
import pytest

hook.install()
_outcomes: list[str] = []
_seconds: dict[str, float] = {}


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    reached: set[int] = builtins._reached_  # type: ignore[attr-defined]
    reached.clear()
    _outcomes.clear()
    _seconds.clear()
    began, cpu = time.perf_counter(), _cpu()
    result = yield
    record = {
        "test": item.nodeid,
        "outcome": "failed" if "failed" in _outcomes else _outcomes[-1] if "skipped" not in _outcomes else "skipped",
        "seconds": round(time.perf_counter() - began, 4),
        "cpu": round(_cpu() - cpu, 4),
        "phases": {name: round(value, 3) for name, value in _seconds.items()},
        "reach": sorted(reached),
    }
    folder = Path(os.environ[hook.MARKS])
    with (folder / f"tests-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _outcomes.append(report.outcome)
    _seconds[report.when or ""] = report.duration


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps a few of each function's parametrisations, spread over all, and what wasn't run before. Writes which
    fixtures each test shares with others of its file."""
    shared = {item.nodeid: sorted(_shared_fixtures(item)) for item in items}
    Path(os.environ[hook.MARKS], "fixtures.json").write_text(json.dumps(shared), "utf-8")
    most = int(os.environ.get("MOST_PARAMETRISATIONS", "0"))
    done = {
        json.loads(line)["test"]
        for file in Path(os.environ[hook.MARKS]).glob("tests-*.jsonl")
        for line in file.read_text("utf-8").splitlines()
    }
    by_function: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_function.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = set()
    for group in by_function.values():
        step = max(1.0, len(group) / most) if most else 1.0
        kept.update(group[int(step * number)].nodeid for number in range(int(len(group) / step + 1e-9)))
    Path(os.environ[hook.MARKS], "counts.json").write_text(
        json.dumps({name: len(group) for name, group in by_function.items()}), "utf-8"
    )
    items[:] = [item for item in items if item.nodeid in kept and item.nodeid not in done]


def _shared_fixtures(item: pytest.Item) -> Iterator[str]:
    definitions = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    for name, (*_, used) in definitions.items():
        if used.scope == "module":
            yield name
