"""Connect the processes of a run: they find each other, agree, and end together.

Each runs the same program. Only process 0 prints and writes; `Processes.agree` broadcasts its decisions."""

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
from jax_transformer.parallel.coordinator import HEARTBEAT_SECONDS, dismiss, finish, start_coordinator
from jax_transformer.parallel.places import Place, find_place
from jax_transformer.parallel.watch import LOST, OWN_WORD_SECONDS, Failure, Watch

Value = TypeVar("Value")
JOIN_SECONDS = 300
"""Seconds that the first process waits for the last, at the start."""
WAIT_SECONDS = 3600
"""Seconds that processes wait for each other while all are alive, for example during an evaluation."""
PREPARE_SECONDS = 24 * 3600
"""Seconds that processes wait for process 0 to prepare the data."""
GRACE_SECONDS = 8
"""Maximum seconds that a failed process 0 waits for its peers to notice."""
MISTAKE = 2
STATUS = re.compile(r"[A-Z]+(_[A-Z]+)*: ")
"""Prefix of messages of JAX's runtime, for every class of exception."""


class StoppedElsewhere(ValueError):
    """Raised in a process because process 0 failed, which reports the reason."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.code = failure.code


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
        self.advice = "start all again"
        """Advice for messages about a lost process."""
        self._calls = 0
        self._coordinator: subprocess.Popen[bytes] | None = None
        self._watch: Watch | None = None

    @property
    def is_first(self) -> bool:
        """Returns whether this is the process that prints and writes."""
        return self.number == 0

    def agree(self, what: str, make: Callable[[], Value], seconds: float = WAIT_SECONDS) -> Value:
        """Broadcasts the result of `make`, which only process 0 calls.

        Args:
          what: a name for messages.
          make: returns a value that JSON can hold.
          seconds: timeout of the waiting processes.

        Raises:
          StoppedElsewhere: in the waiting processes, if `make` raised an exception.
          TimeoutError: process 0 didn't arrive here in time.
        """
        if self.count == 1:
            return make()
        key = self._next(what)
        if not self.is_first:
            received: dict[str, Any] = json.loads(self._wait(f"{key}/0", 0, what, seconds))
            if "failed" in received:
                raise StoppedElsewhere(Failure(*received["failed"]))
            agreed: Value = received["value"]
            return agreed
        try:
            value = make()
        except Exception as error:
            self._client.key_value_set(f"{key}/0", json.dumps({"failed": _failure(error)}))
            raise
        self._client.key_value_set(f"{key}/0", json.dumps({"value": value}))
        return value

    def gather(self, what: str, value: Value, seconds: float = WAIT_SECONDS) -> list[Value]:
        """Returns the values, which JSON can hold, that the processes passed, in their order.

        Raises:
          TimeoutError: a process didn't arrive here in time.
        """
        if self.count == 1:
            return [value]
        key = self._next(what)
        self._client.key_value_set(f"{key}/{self.number}", json.dumps(value))
        return [json.loads(self._wait(f"{key}/{other}", other, what, seconds)) for other in range(self.count)]

    def check_equal(self, facts: Mapping[str, str]) -> None:
        """Raises ConfigError in every process unless all pass the same facts, by name."""
        gathered = self.gather("start", {"who": _who(), **facts})
        first = gathered[0]
        for number, other in enumerate(gathered):
            differing = [name for name in facts if other.get(name) != first.get(name)]
            if differing:
                shown = "; ".join(
                    f"{name}: {first.get(name)} in process 0, {other.get(name)} in this" for name in differing
                )
                raise ConfigError(
                    f"process {number} ({other['who']}): expected the options of process 0 ({first['who']}); received "
                    f"different ones: {shown}; start all with the same options and installations"
                )

    def watch(self) -> None:
        """Starts to watch the other processes: if one dies or fails, this process ends with a message."""
        if self.count == 1:
            return
        names = self.gather("names", _who(), JOIN_SECONDS)
        self._watch = Watch(self._client, self.number, names, lambda: self.advice, self._end)
        self._watch.start()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Returns a context at whose end the processes leave together. If it fails in one, all exit.

        The exit code is 2 for a mistake of the user's (ValueError, OSError, ImportError), else 1.
        """
        if self.count == 1:
            yield
            return
        try:
            yield
            self.gather("the end", None)  # still watching: another process may have more to write
        except StoppedElsewhere as error:
            self._end(error.code)
        except KeyboardInterrupt:
            self._fail(Failure("stopped by Ctrl-C", 130))
        except Exception as error:
            if _may_be_a_loss(error):
                time.sleep(HEARTBEAT_SECONDS + 2 * GRACE_SECONDS)  # if it is one, the watch ends this process
            failure = _failure(error)
            if failure.code == LOST:
                traceback.print_exc()
            self._fail(failure)
        self._leave()

    def _leave(self) -> None:
        """Ends the connection, once all have come to the end."""
        if self._watch:
            self._watch.stop()
        with contextlib.suppress(Exception):  # the work is done, so another process may end in any way
            self._client.wait_at_barrier("end", HEARTBEAT_SECONDS * 1000)
        if self._coordinator:
            left = threading.Thread(target=self._wait_until_alone, daemon=True)
            left.start()
            left.join(HEARTBEAT_SECONDS)
        jax.distributed.shutdown()
        if self._watch:
            self._watch.join()
        if self._coordinator:
            finish(self._coordinator)

    def _wait_until_alone(self) -> None:
        with contextlib.suppress(Exception):
            while len(self._client.get_live_nodes(list(range(self.count)))) > 1:
                time.sleep(0.1)

    def _fail(self, failure: Failure) -> NoReturn:
        """Reports this process's failure to its peers, prints the reason unless process 0 does, and exits."""
        if self._watch:
            self._watch.stop()
        with contextlib.suppress(Exception):
            self._client.key_value_set(f"failed/{self.number}", json.dumps(failure))
        if self.is_first or not self._first_failed_with(failure.message):
            with contextlib.suppress(OSError):
                print(f"error: {failure.message}", file=sys.stderr)
        self._end(failure.code)

    def _first_failed_with(self, message: str) -> bool:
        """Returns whether process 0 fails soon, for the same reason."""
        try:
            value = self._client.blocking_key_value_get("failed/0", int(OWN_WORD_SECONDS + GRACE_SECONDS) * 1000)
        except Exception:
            return False
        return bool(Failure(*json.loads(value)).message == message)

    def _end(self, code: int) -> NoReturn:
        """Exits from any thread, even if the main one waits for a device."""
        try:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):  # nobody reads it afterwards
                    stream.flush()
            with contextlib.suppress(Exception):
                self._client.key_value_set(f"left/{self.number}", "")
            if self._coordinator:
                self._wait_for_peers()
                dismiss(self._coordinator)  # if it ended before this process, JAX would abort this one
        finally:
            os._exit(code)

    def _wait_for_peers(self) -> None:
        """Waits until every live process has noticed that this one ends."""
        deadline = time.monotonic() + GRACE_SECONDS
        with contextlib.suppress(Exception):
            while len(self._client.key_value_dir_get("left/")) < self.count and time.monotonic() < deadline:
                time.sleep(0.1)

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
                raise TimeoutError(f"{what}: expected process {other} within {seconds:.0f} s; it didn't arrive")


ALONE = Processes()
"""The only process of a run."""


def join_processes(config: ProcessConfig | None = None) -> Processes:
    """Connects this process with the rest of its run. Call it before any other use of JAX's devices.

    Without addresses in `config`, JAX's cluster detection finds them, as in `jax.distributed.initialize`: on TPU pods,
    and under SLURM, Open MPI and Kubernetes. Elsewhere, this process is alone.

    Raises:
      ConfigError: a port in use; processes that didn't join, or can't be found.

    Example:
      >>> from jax_transformer.parallel import join_processes
      >>> join_processes().count
      1
    """
    place = find_place(config or ProcessConfig())
    if place.count == 1:
        return ALONE
    from jax._src import distributed  # private: jax.distributed.initialize always serves from within process 0
    from jaxlib import _jax

    if place.devices is not None:
        jax.config.update("jax_cuda_visible_devices", place.devices)
        jax.config.update("jax_rocm_visible_devices", place.devices)
    make: Any = _jax.get_distributed_runtime_client
    client = make(
        place.address,
        place.number,
        init_timeout=2 * JOIN_SECONDS,  # at its end, the process would end without a line
        use_compression=True,
        heartbeat_timeout=HEARTBEAT_SECONDS,
    )
    processes = Processes(place.number, place.count, client)
    if processes.is_first:
        processes._coordinator = start_coordinator(int(place.address.rpartition(":")[2]), place.count)
    try:
        _connect(client, place, processes._coordinator)
    except BaseException:
        processes._stop_coordinator()
        raise
    processes.watch()  # from here on, the coordinator outlives this process: without it, JAX would abort
    state = distributed.global_state
    state.client, state.process_id, state.num_processes = client, place.number, place.count
    state.coordinator_address = place.address
    state.initialize_preemption_sync_manager()
    return processes


def _connect(client: Any, place: Place, coordinator: subprocess.Popen[bytes] | None) -> None:
    """Connects in a thread, so that Ctrl-C works.

    Raises:
      ConfigError: not all processes joined in time; the coordinator ended.
    """
    errors: list[Exception] = []

    def connect() -> None:
        try:
            client.connect()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=connect, name="connect", daemon=True)
    thread.start()
    deadline = time.monotonic() + JOIN_SECONDS
    while thread.is_alive() and time.monotonic() < deadline and (coordinator is None or coordinator.poll() is None):
        thread.join(0.2)
    if thread.is_alive() or errors:
        reason = f" ({str(errors[0]).splitlines()[0]})" if errors else ""
        raise ConfigError(
            f"processes: expected {place.count} to join at {place.address} within {JOIN_SECONDS} s; received "
            f"fewer{reason}; start them all with the same --parallel.coordinator, each with its own "
            "--parallel.process-id"
        )


def _may_be_a_loss(error: BaseException | None) -> bool:
    """Returns whether the error or one of its causes comes from JAX's runtime, as it does when a process is lost."""
    while error is not None:
        if isinstance(error, jax.errors.JaxRuntimeError) or STATUS.match(str(error)):
            return True
        error = error.__cause__
    return False


def _failure(error: Exception) -> Failure:
    is_mistake = isinstance(error, ValueError | OSError | ImportError)
    return Failure(str(error) or type(error).__name__, MISTAKE if is_mistake else LOST)


def _who() -> str:
    return f"pid {os.getpid()} on {socket.gethostname()}"
