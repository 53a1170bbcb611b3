"""Runs command lines of jax-transformer, each in a fork of one process that has imported everything, one call on a file
failing in each.

Reads a request in JSON from each line of standard input, and answers with the exit code, or null where the command
didn't end in time. Start it with the shim of shim.c in LD_PRELOAD."""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any, NoReturn

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
    "jax_transformer.porting.convert",
    "jax_transformer.porting.hugging_face",
    "jax_transformer.training.export",
    "jax_transformer.training.loop",
)
POLL_SECONDS = 0.01


def serve() -> None:
    """Answers requests until standard input ends; a fork leaves by the exit code of its command."""
    for module in MODULES:
        importlib.import_module(module)
    gc.freeze()  # forks share what isn't looked at
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        process = os.fork()
        if not process:
            run(request)
        print(json.dumps(ended(process, request["seconds"])), flush=True)


def run(request: dict[str, Any]) -> NoReturn:
    """Runs one command in this process with files of the request as its streams, the fault armed, and exits as the
    command does."""
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
    shim = ctypes.CDLL(None)
    below = os.path.join(os.getcwd(), "")
    shim.arm(below.encode(), request["call"].encode(), ctypes.c_long(request["number"]), request["error"],
             request["log"].encode())  # fmt: skip
    leave(main(request["arguments"]))


def leave(code: int) -> NoReturn:
    """Exits as the interpreter does, but for the second that it takes to tear down every module."""
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        traceback.print_exc()
        code = 120
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
