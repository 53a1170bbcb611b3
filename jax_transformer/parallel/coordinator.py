"""The service through which the processes of a run find each other, in a process of its own.

    python -m jax_transformer.parallel.coordinator PORT PROCESSES

JAX starts it inside process 0. When that one is killed there, JAX ends all others without telling why. Here it goes on
for a while, so that they can name the process that is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from jax_transformer.config.validation import ConfigError

HEARTBEAT_SECONDS = 20
"""A process that has been silent for so long counts as gone."""
LINGER_SECONDS = 2 * HEARTBEAT_SECONDS
"""How long the service outlives process 0."""


def start_coordinator(port: int, processes: int) -> subprocess.Popen[bytes]:
    """Starts the service on a port of this machine; it ends after its parent.

    Raises:
      ConfigError: the port is in use.
    """
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise ConfigError(
                f"--parallel.coordinator: expected a free port of the machine of process 0; received {port} "
                f"({error.strerror}); choose another one"
            ) from None
    command = [sys.executable, "-m", "jax_transformer.parallel.coordinator", str(port), str(processes)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def serve(port: int, processes: int) -> None:
    """Serves until the process that started this one has been gone for LINGER_SECONDS."""
    parent = os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM):  # they may come to a whole group of processes, which still needs it
        signal.signal(number, signal.SIG_IGN)
    from jaxlib import _jax

    make: Any = _jax.get_distributed_runtime_service
    # recoverable: the loss of one process isn't told to the others, which would end without a line
    service = make(f"[::]:{port}", processes, heartbeat_timeout=HEARTBEAT_SECONDS, recoverable=True)
    while os.getppid() == parent:
        time.sleep(1)
    time.sleep(LINGER_SECONDS)
    del service


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
