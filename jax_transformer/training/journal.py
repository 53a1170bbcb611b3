"""Writes the records of a run (metrics, samples, data.json, parameters.json, report.html) and calls its callbacks.

Only process 0 of a run does so.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jax_transformer.config.run import RunConfig
from jax_transformer.data.preparation import Report
from jax_transformer.model.functional import Params
from jax_transformer.runtime.extras import require
from jax_transformer.training.callbacks import Callback, RunEnd, RunStart
from jax_transformer.training.checkpoints import saved_steps
from jax_transformer.training.environment import memory_in_use, parameter_table, training_environment
from jax_transformer.training.evaluation import Sample
from jax_transformer.training.interruption import Interrupted, how_to_resume
from jax_transformer.training.progress import Status
from jax_transformer.training.report import write_report
from jax_transformer.training.run_directory import (
    DATA,
    PARAMETERS,
    PROGRESS,
    SAMPLES,
    TRANSLATIONS,
    RunDirectory,
    RunError,
    plain_config,
)
from jax_transformer.training.tensorboard import TensorBoard
from jax_transformer.training.weights_and_biases import WeightsAndBiases

CALLBACK_RECORD = ".callbacks.json"
"""File of the run directory that records the last checkpoint passed to callbacks."""
SAMPLES_KEPT = 8
"""Number of translations saved per evaluation, always of the same sentences."""


class Journal:
    """Writes the records of one run to its directory as they arise, and passes them to its callbacks."""

    def __init__(
        self,
        run: RunDirectory,
        config: RunConfig,
        callbacks: Sequence[Callback] = (),
        *,
        is_resumed: bool = False,
        live: bool = False,
    ) -> None:
        """Begins to write a run's records; with `live`, report.html follows every change and reloads itself."""
        self._run, self._config, self._is_resumed, self.is_live = run, config, is_resumed, live
        self.calls = CallbackCalls([*configured_callbacks(config), *callbacks] if run.writes else ())
        self._evaluations = 0
        self._last: dict[str, Any] = {}
        self._has_begun = False
        self._status: Status = {}

    def begin(self, step: int, corpus: str, report: Report, params: Params) -> None:
        """Writes the corpus, the parameters and the environment, before training continues after `step`.

        Args:
          corpus: name of the prepared corpus, a hash of its text and options.

        Raises:
          RunError: a callback raised an exception.
        """
        environment, table = training_environment(), parameter_table(params)
        self._run.write(DATA, {"corpus": corpus, **dataclasses.asdict(report)})
        facts = {"environment": environment, "parameters": table}
        self._run.write(PARAMETERS, facts | {"config": plain_config(self._config)})
        if self.calls:
            config = json.loads(json.dumps(dataclasses.asdict(self._config)))
            count = sum(row["count"] for row in table)
            start = RunStart(self._run.path, step, self._is_resumed, config, environment, count)
            self._has_begun = True
            self.calls.call("on_start", start)
            self.calls.check(f"no step was made; {how_to_resume(self._run.place)}")
            self._report_restored_checkpoint(step)

    def step(self, record: dict[str, Any]) -> None:
        """Appends the metrics of the steps since the last line to metrics.jsonl."""
        self.calls.call("on_step", record["step"], self._run.log(record))

    def nonfinite(self, record: dict[str, Any]) -> None:
        """Appends a step that wasn't finite to metrics.jsonl, with the action of the run."""
        self.calls.call("on_nonfinite", record["step"], self._run.log(record)["nonfinite"])

    def evaluation(self, record: dict[str, Any], samples: Sequence[Sample]) -> None:
        """Appends some translations, spread over the sentences, to samples.jsonl, and the metrics to metrics.jsonl."""
        kept = samples[:: max(1, len(samples) // SAMPLES_KEPT)][:SAMPLES_KEPT]
        if kept:
            lines = [dataclasses.asdict(sample) for sample in kept]
            self._run.log({"step": record["step"], "samples": lines}, SAMPLES)
        self.calls.call("on_evaluation", record["step"], self._run.log(record), kept)

    def progress(self, status: Status) -> None:
        """Writes what the run does now to progress.json, and a live report.html. A failure to write them harms
        nothing."""
        self._status = {**status, **memory_in_use(), "host": socket.gethostname(), "time": round(time.time(), 2)}
        with suppress(OSError):
            self._run.write(PROGRESS, self._status)
            if self.is_live and self._run.writes:
                write_report(self._run.path, is_live=True)

    def checkpoint(self, step: int) -> None:
        """Reports a complete checkpoint to the callbacks."""
        if self.calls:
            self.calls.call("on_checkpoint", step, self._run.checkpoints / str(step))
            self._run.write(CALLBACK_RECORD, {"checkpoint": step})

    def model(self, record: dict[str, Any], translations: Mapping[str, Any]) -> None:
        """Writes the model's translations to translations.json, and appends its scores to metrics.jsonl."""
        self._run.write(TRANSLATIONS, translations)
        self._last = self._run.log(record)

    def evaluated(self) -> None:
        """Counts an evaluation, and updates report.html after every `report_every` evaluations."""
        self._evaluations += 1
        if (
            self._run.writes
            and self._config.train.report_every
            and self._evaluations % self._config.train.report_every == 0
        ):
            write_report(self._run.path, is_live=self.is_live)

    def close(self, error: BaseException | None = None) -> None:
        """Ends the callbacks, unlocks the run, and writes its final report.

        Args:
          error: the exception that stopped the run. None: it is finished.
        """
        earlier, end = self.calls.failure, self._end(error)
        try:
            if self._has_begun:
                self.calls.call("on_end", end)
            with suppress(OSError):
                self._run.write(PROGRESS, {**self._status, "activity": "", "ended": end.state, "message": end.message})
        finally:
            self._run.close()
        if error is not None and self.calls.failure != earlier:
            print(f"warning: {self.calls.failure}", file=sys.stderr)
        if self._run.writes:
            write_report(self._run.path, is_live=self.is_live)

    def _end(self, error: BaseException | None) -> RunEnd:
        if error is None:
            return RunEnd("finished", "", self._last.get("step", 0), self._last, self._run.model)
        was_stopped = isinstance(error, (Interrupted, KeyboardInterrupt))
        return RunEnd("interrupted" if was_stopped else "failed", str(error) or type(error).__name__)

    def _report_restored_checkpoint(self, step: int) -> None:
        """Reports the checkpoint from which the run resumes, unless an earlier process did. (A run that continues the
        training of another model has no checkpoint at its first step.)"""
        last = self._run.read(CALLBACK_RECORD).get("checkpoint")
        if step in saved_steps(self._run.checkpoints) and not (isinstance(last, int) and last >= step):
            self.checkpoint(step)
        self._run.write(CALLBACK_RECORD, {"checkpoint": step})


# --- callbacks


def configured_callbacks(config: RunConfig) -> list[Callback]:
    """Returns the callbacks that a config enables."""
    train, found = config.train, list[Callback]()
    if train.tensorboard:
        found.append(TensorBoard())
    if train.wandb_project:
        found.append(WeightsAndBiases(train.wandb_project, entity=train.wandb_entity, mode=train.wandb_mode))
    return found


def check_packages(config: RunConfig) -> None:
    """Raises MissingPackage if a package for an enabled callback isn't installed; imports none."""
    if config.train.tensorboard:
        require("tensorboard", "train.tensorboard")
    if config.train.wandb_project:
        require("wandb", "train.wandb_project")


def check_kinds(callbacks: Sequence[Callback]) -> None:
    """Raises ValueError for an object that isn't a Callback."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            kind = f"the class {callback.__name__}" if isinstance(callback, type) else type(callback).__name__
            raise ValueError(
                f"callbacks: expected objects of subclasses of jax_transformer.training.Callback; received {kind}"
            )


class CallbackCalls:
    """Calls each callback of a run in turn. Drops a callback that raises an exception, and describes it in
    `failure`."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = list(callbacks)
        self.failure = ""
        """Describes which callbacks raised an exception, which, and where; "" if none has."""
        self.cause: BaseException | None = None

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def call(self, method: str, *arguments: Any) -> None:
        """Calls a method of each callback with copies of the arguments."""
        for callback in tuple(self._callbacks):
            try:
                getattr(callback, method)(*copy.deepcopy(arguments))
            except (Exception, SystemExit) as error:  # the user's own code may raise anything
                self._callbacks.remove(callback)
                message = _failure_message(callback, method, error)
                self.failure = f"{self.failure}; {message}" if self.failure else message
                self.cause = self.cause or error

    def check(self, what_now: str) -> None:
        """Raises RunError, with the state of the run in `what_now`, if a callback has raised an exception."""
        if self.failure:
            raise RunError(f"{self.failure}; {what_now}") from self.cause


def _from_here(file: str) -> str:
    """Returns a path inside the current directory relative to it, and any other as it is."""
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _failure_message(callback: Callback, method: str, error: BaseException) -> str:
    """Describes an exception of a callback, with the last line in the callback's own file that it passed."""
    own = getattr(sys.modules.get(type(callback).__module__), "__file__", None)
    frames = traceback.extract_tb(error.__traceback__)[1:]
    place = next((frame for frame in reversed(frames) if frame.filename == own), frames[-1] if frames else None)
    where = f"{_from_here(place.filename)}:{place.lineno}: " if place else ""
    reason = " ".join(str(error).split())
    return f"{where}{type(callback).__name__}.{method} raised {type(error).__name__}{f': {reason}' if reason else ''}"
