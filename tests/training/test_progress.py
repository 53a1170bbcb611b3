"""What training shows while it runs: the time left, compilation, and the answer to Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_transformer.runtime.durations import duration
from jax_transformer.training import progress as module
from jax_transformer.training.interruption import stop_requests
from jax_transformer.training.progress import Pace, TrainingProgress
from jax_transformer.training.throughput import Compiled, Window


class Clock:
    """A clock that only moves by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module.time, "perf_counter", clock)
    return clock


def test_the_first_step_and_compilation_are_left_out_of_the_time_left() -> None:
    clock = Clock()
    pace = Pace(600, 300, clock)
    clock.now += 80.0  # the first program, and the first step
    pace.finished(1)
    assert pace.left(1) == "time left unknown"
    for step in range(2, 11):
        clock.now += 0.1
        pace.finished(step)
    clock.now += 60.0
    pace.pause(60.0)  # the second program
    clock.now += 0.1
    pace.finished(11)
    assert pace.seconds_left(11) == pytest.approx(58.9)
    assert pace.left(11) == "59 s and 2 evaluations left"
    clock.now += 28.9
    pace.finished(300)
    assert pace.left(300) == "30 s and 2 evaluations left"  # one comes now
    clock.now += 70.0
    pace.evaluated(70.0)  # and compiles
    assert pace.left(300) == "30 s and 1 evaluation left"
    clock.now += 30.0
    pace.finished(600)
    clock.now += 7.0
    pace.evaluated(7.0)
    assert pace.left(600) == "0 s left"


def test_evaluations_to_come_count_by_the_latest() -> None:
    clock = Clock()
    pace = Pace(90, 20, clock, done=25)  # resumed; evaluations come at 40, 60, 80 and 90
    pace.finished(26)
    clock.now += 1.0
    pace.finished(40)
    assert pace.left(40) == "4 s and 4 evaluations left"
    for step in (40, 60):
        clock.now += 1.0
        pace.finished(step)
        pace.evaluated(0.0 if step == 40 else 5.0)
    assert pace.seconds_left(60) == pytest.approx(30 * pace.seconds_per_step + 2 * 5.0)  # type: ignore[operator]


def test_a_run_that_goes_back_estimates_anew() -> None:
    clock = Clock()
    pace = Pace(100, 1000, clock)
    for step in (50, 51):
        clock.now += 10.0
        pace.finished(step)
    pace.finished(20)
    assert pace.seconds_per_step is None
    clock.now += 1.0
    pace.finished(21)
    assert pace.seconds_left(21) == pytest.approx(79.0)


def test_a_run_without_a_known_end_has_no_time_left() -> None:
    clock = Clock()
    pace = Pace(None, 10, clock)
    for step in (1, 2):
        clock.now += 1.0
        pace.finished(step)
    assert (pace.seconds_per_step, pace.seconds_left(2), pace.left(2)) == (1.0, None, "time left unknown")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0 s"), (179.4, "179 s"), (180.0, "3 min"), (7140.0, "119 min"), (7200.0, "2 h 0 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


class Unfinished:
    """Stands for a number that a device hasn't computed yet."""

    def is_ready(self) -> bool:
        return False

    def __float__(self) -> float:
        raise AssertionError("nobody waits for it")


def metrics(loss: float) -> dict[str, Any]:
    return {"loss": jnp.float32(loss), "tokens": jnp.int32(10), "learning_rate": jnp.float32(0.5)}


def test_every_step_counts_once_the_device_has_finished_it(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    published: list[dict[str, Any]] = []
    window = Window()
    with TrainingProgress(8, 0, publish=published.append) as shown:
        assert published[-1]["step"] == 0
        for step, loss in enumerate((3.0, 1.0), start=1):
            jax.block_until_ready(values := metrics(loss))
            window.add(values)
            shown.at_step(step, window)
            clock.now += 6.0
        unfinished: dict[str, Any] = {"loss": Unfinished(), "tokens": Unfinished()}
        window.add(unfinished)
        shown.at_step(3, window)
    assert capsys.readouterr().out.splitlines() == [
        "step 1/8  loss 3.000  time left unknown",
        "step 2/8  loss 2.000  36 s and 1 evaluation left",
    ]
    assert published[-1]["step"] == 2
    assert [row["loss"] for row in published[-1]["steps"]] == [3.0, 1.0]
    assert published[-1]["tokens_per_second"] == pytest.approx(10 / 6)


def test_compilation_is_announced_and_costs_no_time_left(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    published: list[dict[str, Any]] = []
    with TrainingProgress(10, 0, publish=published.append) as shown:
        shown.update(1, "loss 1")
        clock.now += 1.0
        shown.update(2, "loss 1")
        with shown.doing("evaluating"), shown.doing("compiling program 2 of 4", prints=True):
            assert published[-1]["activity"] == "compiling program 2 of 4"
            clock.now += 1000.0
        clock.now += 1.0
        shown.update(3, "loss 1")
        assert shown.pace.seconds_left(3) == pytest.approx(7.0)
    assert shown.status["activity"] == ""
    assert "compiling program 2 of 4…\n" in capsys.readouterr().out


def test_a_slow_reader_is_told_less_often(clock: Clock) -> None:
    times = []

    def publish(_: object) -> None:
        times.append(clock.now)
        clock.now += 0.1

    window = Window()
    with TrainingProgress(None, 0, publish=publish) as shown:
        for step in range(1, 40):
            clock.now += 1.0
            shown.at_step(step, window)
    assert np.diff(times[:-1]).min() >= 10.0  # the last comes at the end


def test_each_program_is_announced_with_its_number() -> None:
    announced = []

    @contextlib.contextmanager
    def announce(number: int, arguments: tuple[Any, ...]) -> Iterator[None]:
        announced.append((number, arguments[1].shape))
        yield

    compiled = Compiled(jax.jit(lambda state, batch: state + batch.sum()))
    compiled.announce = announce
    for length in (2, 3, 2):
        compiled(np.float32(0.0), np.zeros(length, np.float32))
    assert announced == [(1, (2,)), (2, (3,))]


# --- Ctrl-C


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert condition()


def interrupted_sleep() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)


ON_MAIN_THREAD = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="tests don't run in the main thread here"
)


@ON_MAIN_THREAD
def test_the_first_ctrl_c_is_answered_and_the_second_stops_at_once() -> None:
    said: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with stop_requests(1, said.append) as stops:
        assert not stops(1)
        os.kill(os.getpid(), signal.SIGINT)
        wait_for(lambda: said)
        assert stops(1)
        with pytest.raises(KeyboardInterrupt):
            interrupted_sleep()
    assert said == ["stopping after this step; press Ctrl-C again to stop at once"]
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.set_wakeup_fd(-1) == -1


BUSY = """
import hashlib
from jax_transformer.training import interruption

interruption.PATIENCE_SECONDS = 0.05
with interruption.stop_requests(1, lambda text: print(text, flush=True)):
    print("begun", flush=True)
    hashlib.pbkdf2_hmac("sha1", b"", b"", 10**9)  # no signal handler of Python runs meanwhile, as in a compilation
"""


def test_ctrl_c_is_answered_while_the_main_thread_is_busy() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout)
        assert next(lines) == "begun\n"
        process.send_signal(signal.SIGINT)
        assert next(lines) == "stopping after this step; press Ctrl-C again to stop at once\n"
        process.send_signal(signal.SIGINT)
        assert next(lines) == "stopped at once, without a checkpoint of this step\n"
    assert process.returncode == 130


def test_a_run_goes_on_when_the_reader_of_its_output_is_gone() -> None:
    program = (
        "import sys; from jax_transformer.runtime.standard_output import named_output\n"
        "from jax_transformer.training.progress import Output\n"
        "with named_output():\n"
        "    for number in range(3):\n"
        "        Output(file=sys.stdout).print('more')\n"
        "print('went on', file=sys.stderr)"
    )
    run = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    run.stdout.close()
    assert run.communicate()[1] == "went on\n"
    assert run.returncode == 0
