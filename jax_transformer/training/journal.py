"""Everything that a run writes about itself: metrics, samples, data.json, parameters.json, report.html, TensorBoard's
events."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax_transformer.config.run import TrainConfig
from jax_transformer.data.preparation import Report
from jax_transformer.model.functional import Params
from jax_transformer.training.environment import parameter_table, training_environment
from jax_transformer.training.evaluation import Sample
from jax_transformer.training.report import write_report
from jax_transformer.training.run_directory import DATA, PARAMETERS, SAMPLES, RunDirectory
from jax_transformer.training.tensorboard import EventLog

SAMPLES_KEPT = 8
"""Sentences of an evaluation whose translations are kept: the same ones each time."""


class Journal:
    """What is known of one run, written into its directory as it comes."""

    def __init__(self, run: RunDirectory, config: TrainConfig) -> None:
        self._run, self._config = run, config
        self._events: EventLog | None = None
        self._evaluations = 0

    def begin(self, step: int, corpus: str, report: Report, params: Params) -> None:
        """What is known before the first step, or before the first that a resumed run makes anew, after `step`.

        Args:
          corpus: the name of the prepared corpus, a hash of all that it was made of.
        """
        self._run.write(DATA, {"corpus": corpus, **dataclasses.asdict(report)})
        self._run.write(PARAMETERS, {"environment": training_environment(), "parameters": parameter_table(params)})
        if self._config.tensorboard:
            self._events = EventLog(self._run.path, step)

    def record(self, record: dict[str, Any]) -> None:
        """Figures of a step: a line of metrics.jsonl."""
        record = self._run.log(record)
        if self._events:
            self._events.record(record)

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Some of the translations of an evaluation, spread over the sentences: a line of samples.jsonl."""
        kept = samples[:: max(1, len(samples) // SAMPLES_KEPT)][:SAMPLES_KEPT]
        self._run.log({"step": step, "samples": [dataclasses.asdict(sample) for sample in kept]}, SAMPLES)
        if self._events:
            self._events.samples(step, kept)

    def evaluated(self) -> None:
        """An evaluation is over: report.html, after every report_every of them."""
        self._evaluations += 1
        if self._config.report_every and self._evaluations % self._config.report_every == 0:
            write_report(self._run.path)

    def close(self) -> None:
        """Ends TensorBoard's file, gives the run free, and writes its last report."""
        try:
            if self._events:
                self._events.close()
        finally:
            self._run.close()
        write_report(self._run.path)
