"""Runs Python programs in forks of one process that has imported the libraries of the package. Each begins a second
sooner, and is a process like any other: it may be stopped and killed."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection

from fork_server import leave, stream

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["flax.nnx", "jax.numpy", "optax", "orbax.checkpoint", "tokenizers", "tyro"])


class Forked:
    """Runs a program as `python ARGUMENTS` does, and has the methods of `subprocess.Popen` that tests use. Standard
    output and standard error are one stream."""

    def __init__(
        self,
        arguments: Sequence[object],
        cwd: str | os.PathLike[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.args = [*map(str, arguments)]
        self._written = b""
        self._output, written = _CONTEXT.Pipe(duplex=False)
        whole = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
        self._process = _CONTEXT.Process(target=_run, args=(self.args, written, str(cwd or os.getcwd()), whole))
        self._process.start()
        written.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, below 0 the signal that ended it, or None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code, at its end."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Returns the output, once the process and its children have ended."""
        deadline = time.monotonic() + (timeout if timeout is not None else float("inf"))
        while not self._output.closed:
            left = None if timeout is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._output], [], [], left)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0, output=self._written)
            if part := os.read(self._output.fileno(), 1 << 16):
                self._written += part
            else:
                self._output.close()
        self.wait()
        return self._written.decode(errors="replace"), None


def _run(arguments: list[str], output: Connection, cwd: str, environment: dict[str, str]) -> None:
    """Runs a program, and ends this process with its exit code."""
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    output.close()
    sys.stdout, sys.stderr = stream(1, by_line=True), stream(2, by_line=True)
    os.chdir(cwd)
    _tell_jax(environment)
    os.environ.clear()
    os.environ.update(environment)
    try:
        _run_program(*arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    leave(code)


def _run_program(kind: str, *arguments: str) -> None:
    if kind == "-m":
        sys.argv[:] = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv[:] = ["-c", *arguments[1:]]
        sys.path.insert(0, "")
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv[:] = [kind, *arguments]
        sys.path.insert(0, os.path.dirname(kind))
        runpy.run_path(kind, run_name="__main__")


def _tell_jax(environment: Mapping[str, str]) -> None:
    """Sets the options that JAX read from another environment when it was imported."""
    import jax

    for name, value in environment.items():
        option = name.lower()
        if name.startswith("JAX_") and os.environ.get(name) != value and option in jax.config.values:
            before = jax.config.values[option]
            jax.config.update(option, value if isinstance(before, str | None) else type(before)(float(value)))
