"""jax-transformer launch --processes N -- train …"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from types import FrameType

from jax_transformer.commands.options import options_of
from jax_transformer.commands.parsing import read
from jax_transformer.commands.train import parse
from jax_transformer.config.parallel import ProcessConfig

LAUNCH_HELP = """Train in several processes on this machine.

usage: jax-transformer launch --processes N -- train …

Starts N processes, of which process k uses GPU number k, or its own CPU devices. Once training has begun, Ctrl-C and
SIGTERM make all of them save the same step and stop; before, and at the second time, they stop at once. When one dies,
the rest end. What process k > 0 has to say begins with [k]."""
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
END_SECONDS = 40.0
"""Seconds that the rest may take to end after one has ended with an error."""


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Train in several processes on this machine."""

    processes: int
    """How many."""


def launch(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer launch ARGUMENTS`; returns the exit code of the first process that failed, else 0."""
    own, command = _divided(list(arguments))
    count = read(LaunchOptions, own, "launch", options_of(LaunchOptions), description=LAUNCH_HELP).processes
    if count < 1:
        raise ValueError(f"--processes: expected at least 1; received {count}")
    if command[:1] != ["train"]:
        raise ValueError(f"launch: expected `-- train …` after its own options; received {' '.join(command) or 'none'}")
    if parse(command[1:]).processes != ProcessConfig():  # parsed here, so that a mistake is reported once
        raise ValueError(
            "launch: expected `-- train …` without --parallel.coordinator, processes and process-id, which launch gives"
        )
    return _run(count, command)


def _divided(arguments: list[str]) -> tuple[list[str], list[str]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:at], arguments[at + 1 :]


def _run(count: int, command: list[str]) -> int:
    address = f"127.0.0.1:{_free_port()}"
    children = [_start(command, address, count, number) for number in range(count)]
    readers = [
        threading.Thread(target=_relay, args=(number, child), daemon=True) for number, child in enumerate(children)
    ]
    for reader in readers[1:]:
        reader.start()

    stops: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stops.append(number)
        living = [child for child in children if child.poll() is None]
        if len(stops) == 1:
            for child in living:  # one would do while they train, but not before they have found each other
                child.send_signal(signal.SIGINT)
        else:
            for child in living:
                child.kill()

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        return _wait(children)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for child in children:
            child.kill()
        for reader in readers[1:]:
            reader.join(5)


def _start(command: list[str], address: str, count: int, number: int) -> subprocess.Popen[str]:
    options = ["--parallel.coordinator", address, "--parallel.processes", str(count)]
    options += ["--parallel.process-id", str(number)]
    environment = dict(os.environ)
    for name in ("JAX_CUDA_VISIBLE_DEVICES", "JAX_ROCM_VISIBLE_DEVICES"):
        given = environment.get(name, "").split(",")
        environment[name] = given[number] if count <= len(given) and all(given) else str(number)
    return subprocess.Popen(
        [sys.executable, "-m", "jax_transformer.cli", *command, *options],
        env=environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE if number else None,
        text=True,
        errors="replace",
        start_new_session=True,  # so that Ctrl-C comes here alone
        preexec_fn=_stop_with_parent,
    )


def _stop_with_parent() -> None:
    """Asks Linux to stop this process as SIGTERM does when the one that launched it is killed."""
    with contextlib.suppress(OSError, AttributeError):  # another system
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _relay(number: int, child: subprocess.Popen[str]) -> None:
    """Prints the standard error of a process, each line with the process's number."""
    for line in child.stderr or ():
        print(f"[{number}] {line}", end="", file=sys.stderr, flush=True)


def _wait(children: Sequence[subprocess.Popen[str]]) -> int:
    """Waits until all have ended; returns the exit code of the first that failed, else 0."""
    first, deadline = 0, float("inf")
    while True:
        codes = [child.poll() for child in children]
        failed = [code for code in codes if code]
        if failed and not first:
            first, deadline = failed[0], time.monotonic() + END_SECONDS
        if None not in codes:
            return first if first >= 0 else 128 - first
        if time.monotonic() > deadline:
            for child in children:
                child.kill()
        time.sleep(0.1)


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
