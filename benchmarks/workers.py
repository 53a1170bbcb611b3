"""Processes that benchmarks ask for work, line by line of JSON; and what they are measured by."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Worker:
    """Runs a process that says in a line of JSON that it is ready, and then answers each request with another.

    Args:
      name: its name, for messages.
      command: what to run; it reads requests from standard input.
      environment: its variables.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answer()

    def ask(self, request: Any) -> dict[str, Any]:
        """Returns the answer to a request."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # libraries print, too
                return dict(json.loads(line))
        raise SystemExit(f"{self.name} ended with {self._process.wait()}")


def most_memory() -> int:
    """Returns the largest memory that this process had, in MiB; the parent's doesn't count, as in getrusage."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) >> 10


def processor() -> str:
    """Returns the processor's name."""
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
