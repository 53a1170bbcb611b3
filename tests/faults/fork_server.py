"""Runs command lines of jax-transformer, each in a fork of one process that has imported everything, one call on a file
failing in each.

Reads a request in JSON from each line of standard input, and answers with the exit code, or null where the command
didn't end in time. Start it with the shim of shim.c in LD_PRELOAD. Commands that ask for it run one after another in
one fork, which has traced and compiled their programs before: a training run then takes a quarter of the time."""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from typing import Any, NoReturn, TextIO

MODULES = (
    "flax.nnx",
    "jax.numpy",
    "optax",
    "orbax.checkpoint",
    "sacrebleu",
    "safetensors.numpy",
    "tokenizers",
    "torch",
    "jax_transformer.cli",
    "jax_transformer.decoding",
    "jax_transformer.porting.exporting",
    "jax_transformer.porting.importing",
    "jax_transformer.porting.hugging_face",
    "jax_transformer.training.export",
    "jax_transformer.training.loop",
)
POLL_SECONDS = 0.01
MOST_COMMANDS = 300
"""Commands that one warm process runs."""


def serve() -> None:
    """Answers requests until standard input ends; a fork leaves by the exit code of its command."""
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()  # forks share what isn't looked at
    warm = Warm()
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        if request["warm"]:
            code = warm.run(line, request["seconds"])
        else:
            process = os.fork()
            if not process:
                leave(run(request))
            code = ended(process, request["seconds"])
        print(json.dumps(code), flush=True)
    warm.end()


class Warm:
    """A fork that runs one command after another. It is replaced when it has run many, and when a command didn't return
    the exit code of success or of a mistake."""

    def __init__(self) -> None:
        self._process = self._left = 0

    def run(self, line: str, seconds: float) -> int | None:
        if not self._left:
            self.end()
            self._begin()
        self._left -= 1
        os.write(self._requests, line.encode())
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if select.select([self._answers], [], [], POLL_SECONDS)[0]:
                code = int(os.read(self._answers, 64) or b"-1")
                self._left = self._left if code in (0, 2) else 0
                return code
        self._left = 0
        return None

    def end(self) -> None:
        """Ends the fork, whatever it does."""
        if self._process:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
            os.close(self._requests)
            os.close(self._answers)
        self._process = 0

    def _begin(self) -> None:
        (requests, self._requests), (self._answers, answers) = os.pipe(), os.pipe()
        self._left, self._process = MOST_COMMANDS, os.fork()
        if self._process:
            os.close(requests)
            os.close(answers)
            return
        with open(requests, encoding="utf-8") as lines:
            for line in lines:
                os.write(answers, str(run(json.loads(line))).encode())
                ctypes.CDLL(None).disarm()
        os._exit(0)


def run(request: dict[str, Any]) -> int:
    """Runs one command in this process with files of the request as its streams and the fault armed; returns the exit
    code."""
    from jax_transformer.cli import main

    os.chdir(request["folder"])
    for number, name, flags in (
        (0, request["stdin"], os.O_RDONLY),
        (1, request["stdout"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        file = os.open(name, flags)
        os.dup2(file, number)
        os.close(file)
    if request["warm"]:  # without what an earlier command couldn't write
        sys.stdin, sys.stdout, sys.stderr = (stream(number, by_line=number == 2) for number in range(3))
    shim = ctypes.CDLL(None)
    below = os.path.join(os.getcwd(), "")
    shim.arm(below.encode(), request["call"].encode(), ctypes.c_long(request["number"]), request["error"],
             request["log"].encode())  # fmt: skip
    code = main(request["arguments"])
    try:
        sys.stdout.flush()
    except OSError:
        traceback.print_exc()
        code = 120
        sys.stdout.buffer.raw.close()  # type: ignore[attr-defined, union-attr]  # what is left is written nowhere
    return code


def stream(number: int, *, by_line: bool) -> TextIO:
    """Returns a new standard stream on its number, which it leaves open."""
    return open(number, "w" if number else "r", 1 if by_line else -1, encoding="utf-8", closefd=False)


def leave(code: int) -> NoReturn:
    """Exits as the interpreter does, but for the second that it takes to tear down every module."""
    threading._shutdown()
    atexit._run_exitfuncs()
    os._exit(code)


def ended(process: int, seconds: float) -> int | None:
    """Returns the exit code of a process (below 0: the signal that ended it); kills it after some time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(POLL_SECONDS)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


if __name__ == "__main__":
    serve()
