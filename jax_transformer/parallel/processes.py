"""The processes of a run: how they find each other, agree, and end together.

Each runs the same program. Process 0 alone prints and writes; `Processes.agree` tells the others what it decided.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

import jax

from jax_transformer.config.parallel import ProcessConfig
from jax_transformer.config.validation import ConfigError
from jax_transformer.parallel.coordinator import HEARTBEAT_SECONDS, start_coordinator
from jax_transformer.parallel.watch import Failure, Watch

Value = TypeVar("Value")
JOIN_SECONDS = 300
"""How long the first process waits for the last."""
WAIT_SECONDS = 3600
"""How long processes wait for each other where no dead one is the reason: for an evaluation, say."""
PREPARE_SECONDS = 24 * 3600
"""How long they wait for process 0 to prepare the data."""
GRACE_SECONDS = 5
"""How long a process that failed gives the others to notice."""
MISTAKE = 2
LOST = 1


STATUS = re.compile(r"[A-Z]+(_[A-Z]+)*: ")
"""How messages of JAX's runtime begin, whatever the exception's class."""


class StoppedElsewhere(ValueError):
    """Raised in a process because process 0 failed, which tells why itself."""


class Processes:
    """Connects one process of a run with the others. Every process calls the same methods in the same order.

    Example:
      >>> from jax_transformer.parallel import join_processes
      >>> processes = join_processes()
      >>> processes.agree("the seed", lambda: 7), processes.gather("the numbers", processes.number)
      (7, [0])
    """

    def __init__(self, number: int = 0, count: int = 1, client: Any = None) -> None:
        """Describes process `number` of `count`, connected by JAX's coordination client."""
        self.number, self.count, self._client = number, count, client
        self.advice = ""
        """What to do when a process is gone, for messages."""
        self._calls = 0
        self._coordinator: subprocess.Popen[bytes] | None = None
        self._watch: Watch | None = None

    @property
    def is_first(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.number == 0

    def agree(self, what: str, make: Callable[[], Value], seconds: float = WAIT_SECONDS) -> Value:
        """Returns what `make` returns in process 0, in every process; it isn't called in the others.

        Args:
          what: a name for messages.
          make: returns a value that JSON can hold.
          seconds: how long the others wait.

        Raises:
          StoppedElsewhere: in the others, if `make` raised an exception.
          TimeoutError: process 0 didn't come here in time.
        """
        if self.count == 1:
            return make()
        key = self._next(what)
        if not self.is_first:
            received: dict[str, Any] = json.loads(self._wait(f"{key}/0", 0, what, seconds))
            if "failed" in received:
                raise StoppedElsewhere(received["failed"])
            agreed: Value = received["value"]
            return agreed
        try:
            value = make()
        except Exception as error:
            self._client.key_value_set(f"{key}/0", json.dumps({"failed": str(error)}))
            raise
        self._client.key_value_set(f"{key}/0", json.dumps({"value": value}))
        return value

    def gather(self, what: str, value: Value, seconds: float = WAIT_SECONDS) -> list[Value]:
        """Returns the values, which JSON can hold, that the processes passed, in their order.

        Raises:
          TimeoutError: a process didn't come here in time.
        """
        if self.count == 1:
            return [value]
        key = self._next(what)
        self._client.key_value_set(f"{key}/{self.number}", json.dumps(value))
        return [json.loads(self._wait(f"{key}/{other}", other, what, seconds)) for other in range(self.count)]

    def check_equal(self, facts: Mapping[str, str]) -> None:
        """Raises ConfigError, in every process, unless all passed the same facts, by name."""
        gathered = self.gather("start", {"who": _who(), **facts})
        first = gathered[0]
        for number, other in enumerate(gathered):
            differing = [name for name in facts if other.get(name) != first[name]]
            if differing:
                shown = "; ".join(
                    f"{name}: {first[name]} in process 0, {other.get(name)} in this" for name in differing
                )
                raise ConfigError(
                    f"process {number} ({other['who']}): expected what process 0 ({first['who']}) was given; received "
                    f"something else: {shown}; start all with the same options and installations"
                )

    def watch(self) -> None:
        """Begins to watch the other processes: when one is gone or has failed, this process ends with a line."""
        if self.count == 1:
            return
        self._watch = Watch(self._client, self.number, self.gather("names", _who()), lambda: self.advice, self._end)
        self._watch.start()

    def finish(self) -> None:
        """Waits for the others, at the end of a run, and leaves."""
        if self.count == 1:
            return
        if self._watch:
            self._watch.stop()
        with contextlib.suppress(Exception):  # the work is done: nobody's end matters any more
            self._client.wait_at_barrier("end", HEARTBEAT_SECONDS * 1000)
        if self._coordinator:
            left = threading.Thread(target=self._wait_until_alone, daemon=True)
            left.start()
            left.join(HEARTBEAT_SECONDS)
        jax.distributed.shutdown()
        if self._watch:
            self._watch.join()
        self._stop_coordinator()

    def _wait_until_alone(self) -> None:
        with contextlib.suppress(Exception):
            while len(self._client.get_live_nodes(list(range(self.count)))) > 1:
                time.sleep(0.1)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Returns a context at whose end the processes leave together. When it fails in one, all exit.

        The exit code is 2 for a mistake of the user's (ValueError, OSError, ImportError), else 1.
        """
        if self.count == 1:
            yield
            return
        try:
            yield
        except StoppedElsewhere:
            self._end(MISTAKE)
        except KeyboardInterrupt:
            self._fail("stopped by Ctrl-C", 130)
        except Exception as error:
            if isinstance(error, jax.errors.JaxRuntimeError) or STATUS.match(str(error)):
                time.sleep(
                    HEARTBEAT_SECONDS + 2 * GRACE_SECONDS
                )  # another one's loss? Then the watch ends this process
            is_mistake = isinstance(error, ValueError | OSError | ImportError)
            if not is_mistake:
                traceback.print_exc()
            self._fail(str(error) or type(error).__name__, MISTAKE if is_mistake else LOST)
        self.finish()

    def _fail(self, message: str, code: int) -> NoReturn:
        """Tells the others that this process failed, prints why unless process 0 does, and exits."""
        if self._watch:
            self._watch.stop()
        with contextlib.suppress(Exception):
            self._client.key_value_set(f"failed/{self.number}", json.dumps(Failure(message, code)))
        if self.is_first or not self._first_failed_with(message):
            print(f"error: {message}", file=sys.stderr)
        self._end(code)

    def _first_failed_with(self, message: str) -> bool:
        """Returns whether process 0 fails, within GRACE_SECONDS, for the same reason."""
        try:
            value = self._client.blocking_key_value_get("failed/0", GRACE_SECONDS * 1000)
        except Exception:
            return False
        return bool(Failure(*json.loads(value)).message == message)

    def _end(self, code: int) -> NoReturn:
        """Exits from any thread, even if the main one waits for a device."""
        sys.stdout.flush()
        sys.stderr.flush()
        if self._coordinator:
            time.sleep(GRACE_SECONDS)  # the others still learn of it
            self._stop_coordinator()
        os._exit(code)

    def _stop_coordinator(self) -> None:
        if self._coordinator:
            self._coordinator.kill()
            self._coordinator.wait()

    def _next(self, what: str) -> str:
        self._calls += 1
        return f"agreed/{self._calls}/{what}"

    def _wait(self, key: str, other: int, what: str, seconds: float) -> str:
        deadline = time.monotonic() + seconds
        while True:
            try:
                value: str = self._client.blocking_key_value_get(key, 1000)
                return value
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: expected process {other} within {seconds:.0f} s; it didn't come")


ALONE = Processes()
"""The only process of a run."""


def join_processes(config: ProcessConfig | None = None) -> Processes:
    """Connects this process with the others of its run. Call it before anything else that uses JAX's devices.

    Without addresses in `config`, they are found as `jax.distributed.initialize` finds them: on TPU pods, and under
    SLURM, Open MPI and Kubernetes. Where there is nothing to find, this process is alone.

    Raises:
      ConfigError: a port in use; an address at which no process 0 answers; processes that didn't come.

    Example:
      >>> from jax_transformer.parallel import join_processes
      >>> join_processes().count
      1
    """
    config = config or ProcessConfig()
    address, count, number, devices = _found(config)
    if address is None or count in (None, 1):
        return ALONE
    from jax._src import distributed  # private: jax.distributed.initialize always serves from within process 0
    from jaxlib import _jax

    if devices is not None:
        visible = ",".join(map(str, devices))
        jax.config.update("jax_cuda_visible_devices", visible)
        jax.config.update("jax_rocm_visible_devices", visible)
    coordinator = start_coordinator(int(address.rpartition(":")[2]), count) if number == 0 else None
    make: Any = _jax.get_distributed_runtime_client
    client = make(address, number, init_timeout=JOIN_SECONDS, use_compression=True, heartbeat_timeout=HEARTBEAT_SECONDS)
    try:
        client.connect()
    except jax.errors.JaxRuntimeError as error:
        if coordinator:
            coordinator.kill()
        raise ConfigError(
            f"processes: expected {count} to join at {address} within {JOIN_SECONDS} s; received fewer "
            f"({str(error).splitlines()[0]}); start them all with the same --parallel.coordinator, each with its own "
            "--parallel.process-id"
        ) from None
    state = distributed.global_state
    state.client, state.process_id, state.num_processes, state.coordinator_address = client, number, count, address
    state.initialize_preemption_sync_manager()
    processes = Processes(number, count, client)
    processes._coordinator = coordinator
    processes.watch()
    return processes


def _found(config: ProcessConfig) -> tuple[str | None, int | None, int, list[int] | None]:
    """Returns address, count, number and devices (None: all) of this process."""
    if config.processes is not None:
        return config.coordinator, config.processes, config.process_id or 0, None
    from jax._src.clusters import ClusterEnv  # private: what jax.distributed.initialize looks for

    try:
        found: Any = ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None, None, JOIN_SECONDS)
    except Exception as error:
        raise ConfigError(
            f"processes: expected to find the others of this run; {str(error).splitlines()[0]}; give "
            "--parallel.coordinator, --parallel.processes and --parallel.process-id, or --parallel.processes 1 for one "
            "process alone"
        ) from error
    address, count, number, devices = found
    return address, count, number or 0, devices


def _who() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"
