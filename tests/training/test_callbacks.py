"""Callbacks see every record of a run once and in order, change nothing, and stop the run when they raise."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tiny_runs import TIMINGS, rows, tiny_run

from jax_transformer.cli import main
from jax_transformer.config.files import dump_config
from jax_transformer.config.run import RunConfig
from jax_transformer.storage.model_directory import load_model, save_model
from jax_transformer.storage.training_state import TrainingState
from jax_transformer.training import Callback, Interrupted, RunEnd, RunStart, Sample, TrainingResult, train
from jax_transformer.training.journal import Journal
from jax_transformer.training.report_data import read_run
from jax_transformer.training.run_directory import RunDirectory, RunError
from jax_transformer.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("quick_compilation")

OPTIONS: dict[str, Any] = {"log_every": 1, "evaluate_sentences": 2}
FEW: dict[str, Any] = {"log_every": 1, "max_steps": 3}


class Recorder(Callback):
    """Keeps all calls: (what, step, what was passed)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, Any]] = []

    def on_start(self, run: RunStart) -> None:
        self.calls.append(("start", run.step, run))

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.calls.append(("step", step, dict(metrics)))

    def on_evaluation(self, step: int, metrics: Mapping[str, Any], samples: Sequence[Sample]) -> None:
        self.calls.append(("evaluation", step, (dict(metrics), samples)))

    def on_checkpoint(self, step: int, path: Path) -> None:
        assert (path / "digests.json").is_file(), "it is complete"
        self.calls.append(("checkpoint", step, path))

    def on_nonfinite(self, step: int, details: Mapping[str, Any]) -> None:
        self.calls.append(("nonfinite", step, details))

    def on_end(self, end: RunEnd) -> None:
        self.calls.append(("end", end.step, end))

    def steps(self, what: str) -> list[int]:
        return [step for kind, step, _ in self.calls if kind == what]

    def passed(self, what: str) -> list[Any]:
        return [value for kind, _, value in self.calls if kind == what]


class Vandal(Callback):
    """Changes all that it is given."""

    def on_start(self, run: RunStart) -> None:
        run.config["train"]["max_steps"] = 1

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        metrics.clear()  # type: ignore[attr-defined]

    def on_evaluation(self, step: int, metrics: Mapping[str, Any], samples: Sequence[Sample]) -> None:
        metrics.clear()  # type: ignore[attr-defined]
        samples.clear()  # type: ignore[attr-defined]


class Copier(Callback):
    """Copies the run directory when a checkpoint is complete: so would a process leave it that is killed then."""

    def __init__(self, step: int, to: Path) -> None:
        self.step, self.to = step, to

    def on_checkpoint(self, step: int, path: Path) -> None:
        if step == self.step:
            shutil.copytree(path.parent.parent, self.to)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def whole(folder: Path) -> tuple[TrainingResult, Recorder]:
    """A run of 6 steps with a callback that changes its arguments, and one that copies the run to killed/."""
    recorder = Recorder()
    callbacks = [Vandal(), Copier(4, folder / "killed"), recorder]
    return train(tiny_run(folder, **OPTIONS), callbacks=callbacks), recorder


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    """The same run, with a live page in place of callbacks."""
    return train(tiny_run(tmp_path_factory.mktemp("without"), **OPTIONS), live=True)


def test_a_callback_sees_every_record_in_order(whole: tuple[TrainingResult, Recorder]) -> None:
    result, recorder = whole
    lines = [json.loads(line) for line in (result.run / "metrics.jsonl").read_text().splitlines()]
    samples = [json.loads(line)["samples"] for line in (result.run / "samples.jsonl").read_text().splitlines()]
    assert [call[:2] for call in recorder.calls if call[0] != "checkpoint"] == [
        *(("start", 0), ("step", 1), ("step", 2), ("evaluation", 2), ("step", 3), ("step", 4), ("evaluation", 4)),
        *(("step", 5), ("step", 6), ("evaluation", 6), ("end", 6)),
    ]
    assert recorder.passed("step") == [line for line in lines if "loss" in line]
    assert [metrics for metrics, _ in recorder.passed("evaluation")] == [line for line in lines if "valid_loss" in line]
    assert [[vars(sample) for sample in some] for _, some in recorder.passed("evaluation")] == samples
    assert len(samples[0]) == 2
    assert recorder.passed("checkpoint") == [result.run / "checkpoints" / str(step) for step in (2, 4, 6)]
    for step in (2, 4, 6):
        assert recorder.calls.index(("checkpoint", step, result.run / "checkpoints" / str(step))) > next(
            at for at, call in enumerate(recorder.calls) if call[:2] == ("evaluation", step)
        )
    [start], [end] = recorder.passed("start"), recorder.passed("end")
    assert (start.path, start.is_resumed, start.config["train"]["max_steps"]) == (result.run, False, 6)
    assert start.environment["platform"] == "cpu"
    assert start.parameters > 1000
    assert end == RunEnd("finished", "", 6, lines[-1], result.model)
    assert end.metrics["test"]["bleu"] == result.scores["test"].bleu


def test_numbers_are_the_same_with_callbacks_and_without(
    whole: tuple[TrainingResult, Recorder], without: TrainingResult
) -> None:
    assert rows(whole[0].run) == rows(without.run)
    weights = [(result.model / "params.safetensors").read_bytes() for result in (whole[0], without)]
    assert weights[0] == weights[1]
    assert not (without.run / ".callbacks.json").exists()


def test_a_finished_run_has_its_translations_and_how_it_ended(without: TrainingResult) -> None:
    data = read_run(without.run)
    assert (data["state"], data["now"], data["curves"]["loss"]["steps"]) == ("finished", None, [1, 2, 3, 4, 5, 6])
    assert {name: found["sentences"] for name, found in data["analyses"].items()} == {"test": 4, "combinations": 4}
    assert data["analyses"]["test"]["counted"] == {"pairs": 60, "of": 60}
    status = json.loads((without.run / "progress.json").read_text())
    assert (status["activity"], status["ended"], status["step"], status["last_step"]) == ("", "finished", 6, 6)


def test_a_stopped_and_resumed_run_passes_each_record_once(
    whole: tuple[TrainingResult, Recorder],
    tmp_path: Path,
    stopped_after: Callable[[int], contextlib.AbstractContextManager[None]],
) -> None:
    first, second = Recorder(), Recorder()
    run = tiny_run(tmp_path, log_every=1)
    with stopped_after(3), pytest.raises(Interrupted):
        train(run, callbacks=[first])
    train(RunConfig(run_dir=run.run_dir), resume=True, callbacks=[second])
    assert first.passed("end")[0].state == "interrupted"
    assert first.passed("end")[0].message.startswith("stopped and saved at step 3; resume with")
    assert (second.passed("start")[0].step, second.passed("start")[0].is_resumed) == (3, True)
    assert first.steps("step") + second.steps("step") == [1, 2, 3, 4, 5, 6]
    assert first.steps("evaluation") + second.steps("evaluation") == [2, 4, 6]
    assert first.steps("checkpoint") + second.steps("checkpoint") == [2, 3, 4, 6]
    assert without_times(first.passed("step") + second.passed("step")) == without_times(whole[1].passed("step"))


def without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if key not in TIMINGS} for record in records]


def test_a_checkpoint_is_reported_after_the_process_was_killed(
    whole: tuple[TrainingResult, Recorder], folder: Path
) -> None:
    recorder = Recorder()
    train(RunConfig(run_dir=str(folder / "killed")), resume=True, callbacks=[recorder])
    assert [call[:2] for call in recorder.calls[:2]] == [("start", 4), ("checkpoint", 4)]
    assert recorder.steps("step") == [5, 6]  # again, if the killed process had made them
    assert recorder.steps("checkpoint") == [4, 6]
    assert rows(folder / "killed") == rows(whole[0].run)


def test_a_run_that_continues_other_training_has_no_checkpoint_to_tell_of(
    whole: tuple[TrainingResult, Recorder], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins at a step above 0, whose checkpoint is not its own."""

    def no_steps(trainer: Trainer, *_: Any) -> NoReturn:
        raise Interrupted(trainer.run_dir.path, 2)

    monkeypatch.setattr(Trainer, "_steps", no_steps)
    model = dataclasses.replace(load_model(whole[0].model), training_state=TrainingState("sgd", 2, {}))
    save_model(model, tmp_path / "model")
    config = tiny_run(folder, optimizer="sgd")
    begun = dataclasses.replace(
        config, init_from=str(tmp_path / "model"), init_optimizer=True, run_dir=str(tmp_path / "run")
    )
    recorder = Recorder()
    with pytest.raises(Interrupted):
        train(begun, callbacks=[recorder])
    assert [call[:2] for call in recorder.calls] == [("start", 2), ("end", 0)]
    assert not recorder.passed("start")[0].is_resumed
    assert recorder.passed("end")[0].state == "interrupted"


class Interrupting(Callback):
    """Presses Ctrl-C while an evaluation is made."""

    def on_evaluation(self, step: int, metrics: Mapping[str, Any], samples: Sequence[Sample]) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_during_an_evaluation_stops_after_its_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Interrupted) as raised:
        train(tiny_run(tmp_path, log_every=1, max_steps=4), callbacks=[Interrupting()])
    assert raised.value.step == 2
    lines = capsys.readouterr().out.splitlines()
    assert "stopping after this step; press Ctrl-C again to stop at once" in lines
    assert any(line.startswith("compiling program 1 of 1 (") for line in lines)
    data = read_run(tmp_path / "run")
    assert (data["state"], data["step"], data["message"]) == ("interrupted", 2, str(raised.value))


BROKEN = """
from jax_transformer.training import Callback

class Broken(Callback):
    def __init__(self, method, at):
        setattr(self, method, lambda *arguments: self.fail(arguments[0], at))

    def fail(self, step, at):
        if at in (None, step):
            raise ZeroDivisionError("not so\\n fast")

def build():
    return Broken("on_step", 3)

def both():
    return [Broken("on_step", 3), Callback()]

def number():
    return 7
"""


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module with callbacks that raise."""
    (tmp_path / "broken_callbacks.py").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_callbacks", raising=False)
    import broken_callbacks

    yield broken_callbacks
    del sys.modules["broken_callbacks"]


@pytest.mark.parametrize(
    ("method", "at", "what_now", "steps"),
    [
        ("on_start", None, "no step was made; resume with: ", []),
        ("on_step", 1, "The run is saved at step 1; resume with: ", [1]),
        ("on_evaluation", 2, "The run is saved at step 2; resume with: ", [1, 2]),
        ("on_end", None, "the run is finished, and its model is ", [1, 2]),
    ],
)
def test_a_callback_that_raises_stops_the_run_with_its_line(
    broken: Any, tmp_path: Path, method: str, at: int | None, what_now: str, steps: list[int]
) -> None:
    recorder = Recorder()
    where = rf"broken_callbacks\.py:10: Broken\.{method} raised ZeroDivisionError: not so fast[.;] "
    with pytest.raises(RunError, match=where + what_now) as raised:
        train(tiny_run(tmp_path, log_every=1, max_steps=2), callbacks=[broken.Broken(method, at), recorder])
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert "\n" not in str(raised.value)
    assert recorder.steps("step") == steps
    assert recorder.passed("end")[0].state == ("finished" if method == "on_end" else "failed")


def test_a_callback_that_raises_in_a_stopped_run_is_reported_and_the_stop_counts(
    broken: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    stopped_after: Callable[[int], contextlib.AbstractContextManager[None]],
) -> None:
    with stopped_after(1), pytest.raises(Interrupted):
        train(tiny_run(tmp_path, **FEW), callbacks=[broken.Broken("on_end", None)])
    assert "broken_callbacks.py:10: Broken.on_end raised ZeroDivisionError" in capsys.readouterr().err


def test_the_command_takes_callbacks(broken: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(dump_config(tiny_run(tmp_path, **FEW)))
    assert main(["train", "--config", str(file), "--callbacks", "broken_callbacks:both"]) == 2
    message = capsys.readouterr().err
    assert "broken_callbacks.py:10: Broken.on_step raised ZeroDivisionError: not so fast. The run is saved" in message
    run = str(tmp_path / "run")
    for named, problem in (
        (
            "broken_callbacks:number",
            "expected objects of subclasses of jax_transformer.training.Callback; received int",
        ),
        ("broken_callbacks:Callback", None),
        ("broken_callbacks:biuld", "expected biuld in broken_callbacks; there is no such name"),
        ("broken_callbacks", "expected package.module:name"),
    ):
        assert main(["train", "--resume", run, "--callbacks", named]) == (2 if problem else 0)
        assert (problem or "") in capsys.readouterr().err
    assert [row["step"] for row in rows(Path(run)) if "loss" in row] == [1, 2, 3]


def test_another_process_than_the_first_calls_nobody(tmp_path: Path) -> None:
    follower = Journal(RunDirectory.follow(tmp_path), RunConfig(), [Recorder()])
    assert not follower.calls


def test_a_run_that_never_began_has_no_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny_run(tmp_path, tensorboard=True)
    recorder = Recorder()
    journal = Journal(RunDirectory.create(tmp_path / "run", config), config, [recorder])
    journal.close(RuntimeError("before the first step"))
    assert recorder.calls == []
    assert capsys.readouterr().err == ""


def test_objects_that_are_no_callbacks_are_refused(tmp_path: Path) -> None:
    for given, received in ((Recorder, "the class Recorder"), (print, "builtin_function_or_method")):
        with pytest.raises(ValueError, match=f"callbacks: expected objects .* received {received}"):
            train(tiny_run(tmp_path), callbacks=[given])  # type: ignore[list-item]
    assert not (tmp_path / "run").exists()
