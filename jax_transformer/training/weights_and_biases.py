"""Writes metrics and samples to Weights & Biases, with its package `wandb`."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from jax_transformer.runtime.files import atomic_write, read_text
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.runtime.limits import JSON_BYTES
from jax_transformer.training.callbacks import Callback, RunEnd, RunStart, figures
from jax_transformer.training.evaluation import Sample

ID_FILE = "wandb.json"
"""File of the run directory with the id of its W&B run."""


class WeightsAndBiases(Callback):
    """Writes one run to a project of Weights & Biases; a resumed run continues under the same id.

    W&B keeps the first numbers of a step, so repeated steps are left out until the run passes the last step that W&B
    has.
    """

    def __init__(self, project: str, *, entity: str = "", mode: Literal["online", "offline"] = "online") -> None:
        """Prepares to write.

        Args:
          project: name of the project.
          entity: user or team. Empty: the account's default.
          mode: "online" sends each record; "offline" keeps them in RUN/wandb for `wandb sync`.
        """
        self._project, self._entity, self._mode = project, entity, mode

    def on_start(self, run: RunStart) -> None:
        import wandb

        self._run = wandb.init(
            project=self._project,
            entity=self._entity or None,
            mode=self._mode,
            id=_run_id(run.path),
            resume="allow",
            name=run.path.name,
            dir=str(run.path),
            config={**run.config, "environment": {**run.environment}, "parameters": run.parameters},
            settings=wandb.Settings(silent=True, console="off"),  # the terminal is the run's
        )
        self._first_free = self._run.step

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        self._log(step, figures(metrics))

    def on_evaluation(self, step: int, metrics: Mapping[str, Any], samples: Sequence[Sample]) -> None:
        import wandb

        rows = [dataclasses.astuple(sample) for sample in samples]
        table = {"samples": wandb.Table(columns=["source", "reference", "translation"], data=rows)} if rows else {}
        self._log(step, figures(metrics) | table)

    def on_nonfinite(self, step: int, details: Mapping[str, Any]) -> None:
        if details["action"] == "rollback":
            print(
                f"note: W&B can't take back steps: it shows those after step {step} once the run has passed step "
                f"{self._first_free} again",
                flush=True,
            )

    def on_end(self, end: RunEnd) -> None:
        self._run.summary.update({**figures(end.metrics), "state": end.state})
        self._run.finish(exit_code=int(end.state != "finished"))

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds values to the row of a step, unless W&B has later ones."""
        if values and step >= self._first_free:
            self._run.log(dict(values), step=step)
            self._first_free = step


def _run_id(run: Path) -> str:
    """Returns the id of the W&B run, which is stored in the run directory."""
    file = run / ID_FILE
    if file.exists():
        return str(parse_json(read_text(file, JSON_BYTES))["id"])
    identity = uuid.uuid4().hex[:8]
    with atomic_write(file) as temporary:
        temporary.write_text(json.dumps({"id": identity}) + "\n", encoding="utf-8")
    return identity
