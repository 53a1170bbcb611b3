"""Callbacks pass the records of a run to other programs, such as TensorBoard, Weights & Biases, or your own.

Only process 0 calls them, between two steps. They receive copies of plain records, so they can't change the results of
the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jax_transformer.training.evaluation import Sample

NOT_FIGURES = ("step", "model_step", "time")
"""Numbers of a line of metrics.jsonl that aren't measured."""


@dataclass(frozen=True)
class RunStart:
    """Describes a run that begins or resumes.

    Example:
      >>> from pathlib import Path
      >>> from jax_transformer.training import RunStart
      >>> RunStart(path=Path("runs/demo"), step=300, is_resumed=True, config={}).path.name
      'demo'
    """

    path: Path
    """The run directory."""
    step: int
    """The step after which training continues: 0 for a new run or, with init_optimizer, the last step of the training
    that it continues. A callback that has records of later steps receives these steps again."""
    is_resumed: bool
    config: Mapping[str, Any]
    """The resolved config, nested as in config.yaml."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Device and versions."""
    parameters: int = 0
    """Number of parameters."""


@dataclass(frozen=True)
class RunEnd:
    """Describes how a run ended.

    Example:
      >>> from jax_transformer.training import RunEnd
      >>> RunEnd(state="interrupted", message="stopped and saved at step 200").model is None
      True
    """

    state: Literal["finished", "interrupted", "failed"]
    """"interrupted" by Ctrl-C or SIGTERM, and saved; "failed" with an error."""
    message: str = ""
    """The reason, unless the run is finished."""
    step: int = 0
    """The last step of a finished run."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The last line of metrics.jsonl of a finished run: the model's validation loss, and its scores by split."""
    model: Path | None = None
    """The model directory of a finished run."""


class Callback:
    """Receives the records of a run. Each method does nothing until a subclass overrides it.

    A run calls the methods once for each line of metrics.jsonl and each checkpoint, in order. A run that was killed
    repeats the steps after its last checkpoint, and their calls: `on_start` gives the step.

    After a method raises an exception, the run calls this callback no more, saves its state, stops, and reports where
    the exception was raised.

    Example:
      >>> from jax_transformer.training import Callback
      >>> class Losses(Callback):
      ...     def __init__(self):
      ...         self.by_step = {}
      ...     def on_step(self, step, metrics):
      ...         self.by_step[step] = metrics["loss"]
      >>> losses = Losses()
      >>> losses.on_step(50, {"step": 50, "loss": 6.5})
      >>> losses.by_step
      {50: 6.5}
    """

    def on_start(self, run: RunStart) -> None:
        """Called once, before the first step."""

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Called every train.log_every steps, with the line of metrics.jsonl: loss, learning rate, speed, …"""

    def on_evaluation(self, step: int, metrics: Mapping[str, Any], samples: Sequence[Sample]) -> None:
        """Called after each evaluation, with its line of metrics.jsonl and the translations of samples.jsonl."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """Called when a checkpoint is complete on disk, which may be some steps after `step`. A later checkpoint may
        replace it: copy the files that you want to keep."""

    def on_nonfinite(self, step: int, details: Mapping[str, Any]) -> None:
        """Called when a loss or a gradient isn't finite. details["action"] is "skip", "stop" or "rollback". After a
        rollback, training continues after `step`, and records of later steps come again, with new numbers."""

    def on_end(self, end: RunEnd) -> None:
        """Called once, after the last record, unless the process is killed."""


def figures(record: Mapping[str, Any]) -> dict[str, float]:
    """Returns the numbers of a line of metrics.jsonl, grouped by split: valid_loss as valid/loss, loss as train/loss,
    {"test": {"bleu": …}} as test/bleu.

    Example:
      >>> from jax_transformer.training import figures
      >>> figures({"step": 50, "loss": 6.5, "test": {"bleu": 39.7, "bleu_signature": "nrefs:1|…"}})
      {'train/loss': 6.5, 'test/bleu': 39.7}
    """
    found: dict[str, float] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            found |= {f"{key}/{name}": number for name, number in value.items() if _is_number(number)}
        elif _is_number(value) and key not in NOT_FIGURES:
            found[f"valid/{key.removeprefix('valid_')}" if key.startswith("valid_") else f"train/{key}"] = value
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
