"""Runs an operation with one failing call, and returns the outcome."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from operations import Operation, contents, is_unfinished, leftovers

HERE = Path(__file__).parent
SECONDS = 180
"""The longest that a command may take; without faults, the slowest takes a tenth of it."""

SHORT, FULL = -1, -2
FAULTS: dict[str, dict[str, int]] = {
    "open": {"EIO": errno.EIO, "EMFILE": errno.EMFILE, "EINTR": errno.EINTR},
    "read": {"EIO": errno.EIO, "EINTR": errno.EINTR, "short": SHORT},
    "write": {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EINTR": errno.EINTR, "short": SHORT, "full disk": FULL},
    "fsync": {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EINTR": errno.EINTR},
    "rename": {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO},
    "mmap": {"ENOMEM": errno.ENOMEM, "EIO": errno.EIO},
    "mkdir": {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO},
    "close": {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO},
}
"""Faults of each kind of call. "full disk": half of the bytes, and no room from there on."""


class Outcome(StrEnum):
    RIGHT = "right"
    """The command ended well, and its results are those of an undisturbed run."""
    REPORTED = "reported"
    """It said in one line why it failed, and left all as it was; given again, it ended well."""
    SILENT = "silent"
    """It ended well with other results."""
    UNCLEAR = "unclear"
    """It failed, but not with one line."""
    HARMED = "harmed"
    """It changed what was there before, or left something that stays."""
    STUCK = "stuck"
    """It didn't end, or couldn't go on afterwards."""


ACCEPTED = (Outcome.RIGHT, Outcome.REPORTED)


@dataclass(frozen=True)
class Call:
    """A call of an undisturbed run that may fail: its kind, and its number among those of the kind."""

    kind: str
    number: int
    path: str


@dataclass(frozen=True)
class Ended:
    """A command that ended: its exit code (None: it didn't), what it printed, its calls on files."""

    code: int | None
    output: str
    errors: str
    calls: list[Call]


@dataclass(frozen=True)
class Finding:
    outcome: Outcome
    detail: str
    fell_on: str
    """The file whose call failed; "" if the run made fewer calls."""


class Server:
    """Runs command lines in forks of one process: see fork_server.py."""

    def __init__(self, shim: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, HERE / "fork_server.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | environment | {"LD_PRELOAD": str(shim), "PYTHONUNBUFFERED": ""},
        )
        self._answer()

    def run(
        self, folder: Path, operation: Operation, arguments: tuple[str, ...], *fault: Any, warm: bool = False
    ) -> Ended:
        """Runs a command in a folder.

        Args:
          fault: a kind of call, a number and an error; none of them: nothing fails.
          warm: in a process that has run others; else in a process of its own.
        """
        beside = {name: f"{folder}.{name}" for name in ("stderr", "log")}
        call, number, error = fault or ("none", 0, 0)
        request = {
            "folder": str(folder),
            "arguments": arguments,
            "stdin": operation.stdin or os.devnull,
            "stdout": "stdout",
            "seconds": SECONDS,
            "warm": warm,
            "call": call,
            "number": number,
            "error": error,
            **beside,
        }
        Path(beside["log"]).unlink(missing_ok=True)
        assert self._process.stdin is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        code = json.loads(self._answer())
        output, errors = (Path(name).read_text(errors="replace") for name in (folder / "stdout", beside["stderr"]))
        return Ended(code, output, errors, [*_calls(Path(beside["log"]), folder)])

    def close(self) -> None:
        with self._process:  # closes its pipes, which ends it
            pass

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that runs commands is gone"
        return line


def _calls(log: Path, folder: Path) -> Iterator[Call]:
    for line in log.read_text().splitlines() if log.exists() else ():
        kind, number, _, path = line.split(" ", 3)
        yield Call(kind, int(number), os.path.relpath(path, folder))


def first_and_last(calls: list[Call]) -> list[Call]:
    """Returns the first and the last call of each kind on each file; names that differ from run to run are one."""
    grouped: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        grouped.setdefault((call.kind, _without_digests(call.path)), []).append(call)
    chosen = {call for group in grouped.values() for call in (group[0], group[-1])}
    return [call for call in calls if call in chosen]


def _without_digests(path: str) -> str:
    return re.sub(r"[0-9a-f]{8,}", "*", path)


def build_shim(folder: Path) -> Path:
    """Compiles shim.c."""
    shim = folder / "shim.so"
    subprocess.run(
        ["cc", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-o", shim, HERE / "shim.c", "-ldl"], check=True
    )
    return shim


class Laboratory:
    """Runs one operation again and again, each time on a fresh copy of what it needs."""

    def __init__(self, server: Server, operation: Operation, needs: Path, folder: Path, *, warm: bool = False) -> None:
        """Runs it undisturbed first.

        Args:
          warm: run it in processes that have run it before, which takes less time, where it does what is accepted.
        """
        self._server, self._operation, self._needs, self._folder = server, operation, needs, folder
        self._warm = warm
        with self._fresh() as place:
            self._before = contents(place)
            ended = server.run(place, operation, operation.arguments)
            assert ended.code == 0, (operation.name, ended)
            self.calls = ended.calls
            self._after = contents(place)
            self._output = ended.output

    def warmed(self) -> Laboratory:
        """Returns a laboratory that runs the operation in processes that have run it before, which takes less time.

        Raises AssertionError unless they make the same calls on the same files. How often threads look at a file isn't
        the same in any two runs.
        """
        expected = {(call.kind, _without_digests(call.path)) for call in self.calls}
        for _ in range(2):  # the second time, it is warm
            with self._fresh() as place:
                ended = self._server.run(place, self._operation, self._operation.arguments, warm=True)
        received = {(call.kind, _without_digests(call.path)) for call in ended.calls}
        assert received == expected, (self._operation.name, received ^ expected)
        warmed = copy(self)
        warmed._warm = True
        return warmed

    def inject(self, call: Call, error: int) -> Finding:
        """Runs the operation with one failing call, and what a user would run next. What isn't accepted of a warm
        process is tried again in one of its own."""
        found = self._injected(call, error, warm=self._warm)
        return found if not self._warm or found.outcome in ACCEPTED else self._injected(call, error, warm=False)

    def _injected(self, call: Call, error: int, *, warm: bool) -> Finding:
        operation = self._operation
        with self._fresh() as place:
            ended = self._server.run(place, operation, operation.arguments, call.kind, call.number, error, warm=warm)
            hit = [made.path for made in ended.calls if (made.kind, made.number) == (call.kind, call.number)]
            outcome, detail = self._judged(ended, place, hit[0] if hit else "", warm=warm)
            return Finding(outcome, detail, hit[0] if hit else "")

    def _judged(self, ended: Ended, place: Path, hit: str, *, warm: bool) -> tuple[Outcome, str]:
        if ended.code is None:
            return Outcome.STUCK, f"it ran for {SECONDS} s"
        is_done = not (differing := _differing(self._after, contents(place)))
        if ended.code == 0:
            if self._operation.stdin and ended.output != self._output:
                differing.append("stdout")
            return (Outcome.SILENT, ", ".join(differing)) if differing else (Outcome.RIGHT, "")
        lines = ended.errors.splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        if ended.code != 2 or len(errors) != 1 or "Traceback" in ended.errors:
            return Outcome.UNCLEAR, f"exit code {ended.code}: {ended.errors[-2000:]}"
        if not any(part in errors[0] for part in self._names_of(hit)):
            return Outcome.UNCLEAR, f"{hit} isn't named: {errors[0]}"
        if is_done:
            return Outcome.REPORTED, errors[0]
        changed = [name for name in _differing(self._before, contents(place)) if name in self._before]
        if self._operation.grows:
            changed = [name for name in changed if Path(name).parent != Path(self._operation.grows)]
        if left := [name for name in leftovers(place) if not is_unfinished(name)] + changed:
            return Outcome.HARMED, f"{', '.join(left)} after {errors[0]}"
        again = self._server.run(place, self._operation, self._operation.again(place), warm=warm)
        if again.code != 0:
            return Outcome.STUCK, f"then {again.errors[-2000:]} after {errors[0]}"
        if differing := _differing(self._after, contents(place)):
            return Outcome.STUCK, f"then other results: {', '.join(differing)} after {errors[0]}"
        if left := leftovers(place):
            return Outcome.HARMED, f"{', '.join(left)} in the end, after {errors[0]}"
        return Outcome.REPORTED, errors[0]

    def _names_of(self, path: str) -> list[str]:
        """Returns the words by which a message may name a file: the parts of its path, the name that a temporary one
        stands for, or the stream that it is."""
        if path in ("stdout", self._operation.stdin):
            return ["standard output" if path == "stdout" else "standard input"]
        parts = [part for part in Path(path).parts if part != "."]
        return [*parts, *(part.split(".")[1] for part in parts if part.startswith(".") and part.endswith(".tmp"))]

    @contextmanager
    def _fresh(self) -> Iterator[Path]:
        place = self._folder / "place"
        place.mkdir()
        for name in self._operation.needs:
            source = self._needs / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, place / name)
        try:
            yield place
        finally:
            _remove(place)


def _remove(folder: Path) -> None:
    """Removes a folder, to which threads of a warm process may still write for a moment."""
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
    shutil.rmtree(folder)


def _differing(expected: dict[str, Any], received: dict[str, Any]) -> list[str]:
    names = sorted(expected.keys() | received.keys())
    return [name for name in names if name != "stdout" and expected.get(name) != received.get(name)]
