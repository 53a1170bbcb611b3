"""A plugin of pytest that collects every test once, and runs some of them against mutants, each in a fork.

A fork exchanges the code of the changed function, which takes no time beside importing the package anew. What a module
computed when it was imported stays as it was. Processes that a test starts import the change (`mutant_hook.py`).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import sys
import time
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import mutant_hook as hook
import pytest
from mutations import Mutant, mutated

STARTUP = 20.0
"""Seconds of a core that a fork may take in addition to its tests."""
SLOWER = 5.0
"""How many times as long as without a change the tests may take."""
WAITING = 15.0
"""How many times as long a fork may wait for a core, or for what never comes."""


class Kill(NamedTuple):
    """The first test that a mutant failed, and how: `failed`, `crashed` or `too long`."""

    test: str
    how: str


class Runner:
    """Calls `work` with itself when the tests are collected."""

    def __init__(self, folder: Path, work: Callable[[Runner], None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log, self.work = folder / "outcomes.jsonl", work
        self.items: dict[str, pytest.Item] = {}
        self.functions: dict[tuple[str, str, int], list[types.FunctionType]] = defaultdict(list)
        self.only_first = True
        self.computing = ""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        from jax._src import xla_bridge

        if xla_bridge._backends and not self.computing:
            self.computing = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if self.computing:
            raise pytest.UsageError(
                f"expected modules of tests to compute nothing with JAX when they are imported, since a fork lacks its "
                f"threads; {self.computing} does. Leave it out by --ignore={self.computing}"
            )
        self.items = {item.nodeid: item for item in session.items}
        gc.unfreeze()  # what is frozen isn't listed
        for value in gc.get_objects():
            if type(value) is types.FunctionType and "jax_transformer" in value.__code__.co_filename:
                self.functions[_key(value.__code__)].append(value)
        gc.collect()
        gc.freeze()
        self.work(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._write(report.nodeid, "failed")
            if self.only_first:
                os._exit(0)

    def _write(self, test: str, how: str) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps([test, how]) + "\n")

    def kills(self, mutant: Mutant | None, tests: list[str], seconds: float, *, only_first: bool = True) -> list[Kill]:
        """Returns the tests that fail with a change, or without any."""
        self.log.write_bytes(b"")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX warns of threads, which it doesn't have yet
            child = os.fork()
        limit = STARTUP + SLOWER * seconds
        if child == 0:
            self.only_first = only_first
            self._run(mutant, tests, int(limit))
        ended = _wait(child, WAITING * limit)
        lines = [json.loads(line) for line in self.log.read_text("utf-8").splitlines()]
        found = [Kill(test, how) for test, how in lines if how == "failed"]
        if (found and only_first) or (lines and lines[-1][1] == "ended"):
            return found
        if lines and lines[-1][1] == "broken":
            return [Kill(lines[-1][0], "broken")]
        return [*found, Kill(lines[-1][0] if lines else tests[0], "crashed" if ended else "too long")]

    def _run(self, mutant: Mutant | None, tests: list[str], limit: int) -> None:
        try:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
            signal.signal(signal.SIGXCPU, signal.SIG_DFL)
            if mutant:
                os.environ[hook.MUTANT] = f"{mutant.module}#{mutant.number}"
                self._exchange(mutant)
            items = [self.items[test] for test in tests if test in self.items]
            for item, following in zip(items, [*items[1:], None], strict=True):
                self._write(item.nodeid, "began")
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self._write("", "ended")
        except BaseException as error:
            self._write(f"{type(error).__name__}: {error}", "broken")
        finally:
            os._exit(0)

    def _exchange(self, mutant: Mutant) -> None:
        if mutant.module not in sys.modules:  # a test imports it with its change
            hook.install()
            return
        path = sys.modules[mutant.module].__file__
        assert path is not None
        source = Path(path).read_text("utf-8")
        before = compile(source, path, "exec", dont_inherit=True)
        after = compile(mutated(source, mutant.number), path, "exec", dont_inherit=True)
        exchanged = 0
        for old, new in _changed(before, after):
            for function in self.functions[_key(old)]:
                function.__code__ = new
                exchanged += 1
        if not exchanged:
            raise LookupError(f"no function of {mutant.place}")


def _key(code: types.CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _changed(before: types.CodeType, after: types.CodeType) -> Iterator[tuple[types.CodeType, types.CodeType]]:
    """Yields the pairs of code that differ, from the outermost to the innermost."""
    for old, new in zip(_codes(before), _codes(after), strict=True):
        if old != new:
            yield old, new
            yield from _changed(old, new)


def _codes(code: types.CodeType) -> list[types.CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]


def _wait(child: int, seconds: float) -> bool:
    """Returns whether a process ended within its time, and ends what it started."""
    until = time.monotonic() + seconds
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < until:
        time.sleep(0.01)
        ended, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)
        return False
    return not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU)
