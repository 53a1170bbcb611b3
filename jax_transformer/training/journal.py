"""The records of a run: metrics, samples, data.json, parameters.json, report.html, TensorBoard events.

Only the first of a run's processes keeps them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax_transformer.config.run import RunConfig
from jax_transformer.data.preparation import Report
from jax_transformer.model.functional import Params
from jax_transformer.training.environment import parameter_table, training_environment
from jax_transformer.training.evaluation import Sample
from jax_transformer.training.report import write_report
from jax_transformer.training.run_directory import DATA, PARAMETERS, SAMPLES, RunDirectory, plain_config
from jax_transformer.training.tensorboard import EventLog

SAMPLES_KEPT = 8
"""Number of translations saved per evaluation, always of the same sentences."""


class Journal:
    """Writes the records of one run to its directory as they arise."""

    def __init__(self, run: RunDirectory, config: RunConfig) -> None:
        self._run, self._config = run, config
        self._events: EventLog | None = None
        self._evaluations = 0

    def begin(self, step: int, corpus: str, report: Report, params: Params) -> None:
        """Writes the facts known before training continues after `step`: the corpus, the parameters, the environment.

        Args:
          corpus: name of the prepared corpus, a hash of its text and options.
        """
        self._run.write(DATA, {"corpus": corpus, **dataclasses.asdict(report)})
        facts = {"environment": training_environment(), "parameters": parameter_table(params)}
        self._run.write(PARAMETERS, facts | {"config": plain_config(self._config)})
        if self._config.train.tensorboard and self._run.writes:
            self._events = EventLog(self._run.path, step)

    def record(self, record: dict[str, Any]) -> None:
        """Appends the metrics of a step to metrics.jsonl."""
        record = self._run.log(record)
        if self._events:
            self._events.record(record)

    def samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Appends some translations of an evaluation, spread over the sentences, to samples.jsonl."""
        kept = samples[:: max(1, len(samples) // SAMPLES_KEPT)][:SAMPLES_KEPT]
        self._run.log({"step": step, "samples": [dataclasses.asdict(sample) for sample in kept]}, SAMPLES)
        if self._events:
            self._events.samples(step, kept)

    def evaluated(self) -> None:
        """Counts an evaluation, and updates report.html after every report_every of them."""
        self._evaluations += 1
        if (
            self._run.writes
            and self._config.train.report_every
            and self._evaluations % self._config.train.report_every == 0
        ):
            write_report(self._run.path)

    def close(self) -> None:
        """Closes TensorBoard's file, unlocks the run, and writes its final report."""
        try:
            if self._events:
                self._events.close()
        finally:
            self._run.close()
        if self._run.writes:
            write_report(self._run.path)
