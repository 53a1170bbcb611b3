"""Checkpoints of the training state, written by Orbax in the background: the latest few, and those that a model may be
made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging as absl_logging
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from jax_transformer.config.run import TrainConfig
from jax_transformer.training.scheduled_batch import Position
from jax_transformer.training.step import TrainState

UNEVALUATED: dict[str, Any] = {"score": -math.inf, "evaluated_step": -1}
"""The metrics of a checkpoint that was saved because the run was stopped there."""


class CheckpointError(ValueError):
    """A checkpoint that is missing or can't be read."""


class Checkpoints:
    """The checkpoints of one run; the state's step names each. A checkpoint is complete or isn't there.

    Besides the latest `keep_checkpoints`, those are kept of which the model may be made: the best, or the
    `average_checkpoints` best or last that were evaluated.
    """

    def __init__(self, directory: Path, config: TrainConfig, *, read_only: bool = False) -> None:
        """Opens the run's checkpoints; `read_only` while another process may be writing them."""
        absl_logging.set_verbosity(absl_logging.ERROR)  # Orbax reports every stage of every save
        averaged = {config.average_which: config.average_checkpoints}
        self._manager = ocp.CheckpointManager(
            directory.resolve(),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=AnyPreservationPolicy(
                    [
                        LatestN(config.keep_checkpoints),
                        BestN(get_metric_fn=_score, n=max(averaged.get("best", 0), 1)),
                        BestN(get_metric_fn=_evaluated_step, n=averaged.get("last", 0)),
                    ]
                ),
                best_fn=_score,
                best_mode="max",
                enable_async_checkpointing=not read_only,
                cleanup_tmp_directories=not read_only,
                read_only=read_only,
            ),
        )

    def save(self, state: TrainState, score: float | None, position: Position) -> None:
        """Starts writing; `score`, the higher the better, picks the best checkpoint, None when it wasn't evaluated."""
        step = int(state.step)
        metrics = UNEVALUATED if score is None else {"score": score, "evaluated_step": step}
        self._manager.save(step, args=ocp.args.StandardSave(state._asdict()), metrics=metrics | {"position": position})

    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def steps_to_keep(self, which: str, count: int) -> list[int]:
        """The `count` "last" or "best" of the evaluated checkpoints (fewer if there are fewer), in order of their
        steps. Of equals the later is better. Where none was evaluated: the latest.
        """
        self._manager.wait_until_finished()
        metrics: dict[int, Mapping[str, Any]] = {
            step: self._manager.metrics(step) or UNEVALUATED for step in self._manager.all_steps()
        }
        evaluated = [step for step in metrics if metrics[step]["evaluated_step"] >= 0]
        if not evaluated:
            return [step for step in [self.latest_step()] if step is not None]
        ordered = sorted(evaluated, key=lambda step: (metrics[step]["score"], step) if which == "best" else (0.0, step))
        return sorted(ordered[-count:])

    def restore(self, step: int, like: TrainState) -> TrainState:
        """The state saved at `step`; `like` gives structure, shapes and dtypes.

        Raises:
          CheckpointError: it can't be read, or holds another model's state.
        """
        abstract = jax.eval_shape(lambda: like._asdict())
        try:
            restored = self._manager.restore(step, args=ocp.args.StandardRestore(abstract))
        except Exception as error:  # Orbax raises many kinds
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            where = Path(self._manager.directory) / str(step)
            raise CheckpointError(f"{where}: expected a checkpoint of this run's model; {reason}") from error
        return TrainState(**restored)

    def position(self, step: int) -> Position:
        """Where the data stood at the checkpoint of `step`."""
        return (self._manager.metrics(step) or {}).get("position", {})

    def wait(self) -> None:
        """Returns when everything saved is on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()


def _score(metrics: dict[str, float]) -> float:
    return metrics["score"]


def _evaluated_step(metrics: dict[str, float]) -> float:
    return metrics["evaluated_step"]
