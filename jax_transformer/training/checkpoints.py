"""Checkpoints of the training state, written by Orbax in the background: the latest few, and the best."""

from __future__ import annotations

import math
from pathlib import Path

import jax
import orbax.checkpoint as ocp
from absl import logging as absl_logging
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from jax_transformer.training.step import TrainState


class CheckpointError(ValueError):
    """A checkpoint that is missing or can't be read."""


class Checkpoints:
    """The checkpoints of one run; the state's step names each. A checkpoint is complete or isn't there."""

    def __init__(self, directory: Path, keep: int) -> None:
        absl_logging.set_verbosity(absl_logging.ERROR)  # Orbax reports every stage of every save
        self._manager = ocp.CheckpointManager(
            directory.resolve(),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=AnyPreservationPolicy([LatestN(keep), BestN(get_metric_fn=_score, n=1)]),
                best_fn=_score,
                best_mode="max",
                enable_async_checkpointing=True,
                cleanup_tmp_directories=True,
            ),
        )

    def save(self, state: TrainState, score: float | None) -> None:
        """Starts writing; `score`, the higher the better, picks the best checkpoint, None when it wasn't evaluated."""
        self._manager.save(
            int(state.step), args=ocp.args.StandardSave(state._asdict()), metrics={"score": -math.inf if score is None else score}
        )

    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def best_step(self) -> int | None:
        """The step with the highest score, the later of equals; the latest if none was scored."""
        self._manager.wait_until_finished()
        return self._manager.best_step()

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

    def wait(self) -> None:
        """Returns when everything saved is on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.close()


def _score(metrics: dict[str, float]) -> float:
    return metrics["score"]
