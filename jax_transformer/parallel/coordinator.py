"""The service through which the processes of a run find each other, as a separate process.

    python -m jax_transformer.parallel.coordinator PORT PROCESSES PARENT

JAX would start it inside process 0; if that were killed, JAX would end all other processes without a reason. As a
separate process it survives for a while, so that they can name the process that died.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from jax_transformer.config.validation import ConfigError

HEARTBEAT_SECONDS = 20
"""A process that has been silent for so long counts as gone."""
LINGER_SECONDS = 2 * HEARTBEAT_SECONDS
"""Maximum seconds that the service outlives process 0; it ends as soon as no process is connected."""
PARTING_SECONDS = 1.0
"""Seconds that the service runs after all processes have left: the reply to the last one may still be in transit, and
JAX aborts a process that doesn't receive it."""
ESTABLISHED = "01"
FREE_SECONDS = 5.0
"""Seconds to wait for the port, which the service of a killed run may still be releasing."""


def start_coordinator(port: int, processes: int) -> subprocess.Popen[bytes]:
    """Starts the service on a port of this machine; it ends after its parent.

    Raises:
      ConfigError: the port is in use.
    """
    deadline = time.monotonic() + FREE_SECONDS
    while reason := _why_taken(port):
        if time.monotonic() > deadline:
            raise ConfigError(
                f"--parallel.coordinator: expected a free port of the machine of process 0; received {port} "
                f"({reason}); choose another one"
            )
        time.sleep(0.2)
    command = [sys.executable, "-m", __name__, *map(str, (port, processes, os.getpid()))]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def dismiss(coordinator: subprocess.Popen[bytes]) -> None:
    """Lets the service end as soon as its parent has ended, without waiting for other processes."""
    coordinator.send_signal(signal.SIGUSR1)


def finish(coordinator: subprocess.Popen[bytes]) -> None:
    """Ends the service, which all processes have left, and waits for its end."""
    coordinator.send_signal(signal.SIGUSR2)
    try:
        coordinator.wait(10 * PARTING_SECONDS)
    except subprocess.TimeoutExpired:
        coordinator.kill()
        coordinator.wait()


def _why_taken(port: int) -> str:
    """Returns the reason why nothing can listen on the port; "" if it is free."""
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def serve(port: int, processes: int, parent: int) -> None:
    """Serves until it receives SIGUSR2. Otherwise serves while the process `parent`, which started it, lives, and then,
    unless it receives SIGUSR1, until the remaining processes have left."""
    dismissed, finished = threading.Event(), threading.Event()
    signal.signal(signal.SIGUSR1, lambda number, frame: dismissed.set())
    signal.signal(signal.SIGUSR2, lambda number, frame: finished.set())
    for number in (signal.SIGINT, signal.SIGTERM):  # they may come to a whole group of processes, which still needs it
        signal.signal(number, signal.SIG_IGN)
    from jaxlib import _jax

    make: Any = _jax.get_distributed_runtime_service
    # recoverable: JAX would report the loss of a process to its peers, and they would abort without our message
    service = make(f"[::]:{port}", processes, heartbeat_timeout=HEARTBEAT_SECONDS, recoverable=True)
    while os.getppid() == parent and not finished.wait(0.2):
        pass
    deadline = time.monotonic() + (PARTING_SECONDS if finished.is_set() else LINGER_SECONDS)
    while not dismissed.is_set() and time.monotonic() < deadline and _is_connected(port):
        time.sleep(0.2)
    del service


def _is_connected(port: int) -> bool:
    """Returns whether anyone is connected to a port of this machine; True if Linux doesn't report connections."""
    try:
        lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    except OSError:
        return True
    columns = (line.split() for line in lines)
    return any(int(one[1].rpartition(":")[2], 16) == port and one[3] == ESTABLISHED for one in columns)


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
