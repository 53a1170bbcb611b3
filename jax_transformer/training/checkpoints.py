"""Saves checkpoints of the training state with Orbax in the background, and keeps the latest and the best ones."""

from __future__ import annotations

import asyncio
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import orbax.checkpoint as ocp
from absl import logging as absl_logging
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from jax_transformer.config.run import TrainConfig
from jax_transformer.data.text_files import shorten
from jax_transformer.runtime.digests import changes, write_digests
from jax_transformer.runtime.files import naming_errors, read_text
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.runtime.limits import JSON_BYTES
from jax_transformer.training.batch_schedule import Position
from jax_transformer.training.state import TrainState
from jax_transformer.training.throughput import SavedWindow

UNEVALUATED: Mapping[str, Any] = MappingProxyType({"score": -math.inf, "evaluated_step": -1})
"""Metrics of a checkpoint saved without an evaluation, because the run stopped there."""


DELETED = ".deleted"
"""Folder that checkpoints are moved to before they are deleted, so that a killed process leaves no half-deleted one
under its name."""


class CheckpointError(ValueError):
    """Raised when a checkpoint is missing or can't be read."""


UNFINISHED = "*.orbax-checkpoint-tmp"
"""Pattern of the names of checkpoints that Orbax is writing."""
ONCE_UNSEALED = ("_CHECKPOINT_METADATA", "commit_success.txt")
"""Files that Orbax writes while it commits a checkpoint. Older checkpoints have no digests of them."""


class SealedPath(ocp.path.atomicity.AtomicRenameTemporaryPath):
    """Writes the digests of a checkpoint's files before it gets its name, which makes it complete."""

    async def finalize(self) -> None:
        """Lets Orbax commit under the name of an unfinished checkpoint, writes digests of all files, and gives the
        checkpoint its name. Orbax calls this in one process, after all have written their parts: first for each item of
        the checkpoint, then for the checkpoint."""
        final = self.get_final()
        if not final.name.isdecimal():
            await super().finalize()
            return
        self._final_path = final.with_name(f"sealed_{final.name}{UNFINISHED.removeprefix('*')}")
        await super().finalize()
        sealed, self._final_path = self._final_path, final
        await asyncio.to_thread(write_digests, sealed)
        await asyncio.to_thread(os.rename, sealed, final)


class Checkpoints:
    """Saves and restores the checkpoints of one run, named by step. A checkpoint is either complete or absent; an
    altered one is never restored.

    Keeps the latest `keep_checkpoints` and the candidates for the final model: the best one, or the
    `average_checkpoints` best or last ones that were evaluated. With rollbacks, also keeps the last evaluated one.
    """

    def __init__(
        self,
        directory: Path,
        config: TrainConfig,
        *,
        read_only: bool = False,
        on_saved: Callable[[int], None] = lambda step: None,
    ) -> None:
        """Opens the checkpoints.

        Args:
          directory: the folder of all checkpoints.
          config: the settings that select which to keep.
          read_only: whether another process may be writing them.
          on_saved: called with the step of each checkpoint once it is written, before the next one is saved.
        """
        self._on_saved, self._pending = on_saved, list[int]()
        absl_logging.set_verbosity(absl_logging.FATAL)  # Orbax reports every stage, and errors that it raises as well
        for step in saved_steps(directory):
            _check_metrics(directory / str(step))
        averaged = {config.average_which: config.average_checkpoints}
        last_evaluated = max(averaged.get("last", 0), int(config.on_nonfinite == "rollback"))
        self._directory, self._writes = directory, not read_only and jax.process_index() == 0
        self._remove_deleted()
        with naming_errors(directory):  # it reads the metrics of all
            self._manager = ocp.CheckpointManager(
                directory.resolve(),
                options=ocp.CheckpointManagerOptions(
                    preservation_policy=AnyPreservationPolicy(
                        [
                            LatestN(config.keep_checkpoints),
                            BestN(get_metric_fn=_score, n=max(averaged.get("best", 0), 1)),
                            BestN(get_metric_fn=_evaluated_step, n=last_evaluated),
                        ]
                    ),
                    best_fn=_score,
                    best_mode="max",
                    enable_async_checkpointing=not read_only,
                    cleanup_tmp_directories=not read_only,
                    todelete_subdir=None if read_only else DELETED,
                    read_only=read_only,
                    temporary_path_class=SealedPath,
                    # otherwise, if the directory can't be created, the process hangs for 20 minutes at its end
                    async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
                ),
            )

    def save(
        self, state: TrainState, score: float | None, position: Position, window: SavedWindow | None = None
    ) -> None:
        """Starts to save the state. The best checkpoint has the highest `score`; None: not evaluated.

        Raises:
          CheckpointError: this checkpoint or the previous one can't be written.
        """
        self.wait()
        step = int(state.step)
        metrics = UNEVALUATED if score is None else {"score": score, "evaluated_step": step}
        data = {"position": position, "window": window or {}}
        with self._writing():
            self._manager.save(step, args=ocp.args.StandardSave(state._asdict()), metrics={**metrics, **data})
        self._pending.append(step)

    def latest_step(self) -> int | None:
        return self._manager.latest_step()

    def last_evaluated_step(self) -> int | None:
        """Returns the step of the last checkpoint that was saved with an evaluation."""
        steps = self._manager.all_steps()
        evaluated = [self._metrics(step)["evaluated_step"] for step in steps]
        return max((step for step in evaluated if step >= 0), default=None)

    def forget_after(self, step: int) -> None:
        """Deletes the checkpoints after a step."""
        self.wait()
        for other in self._manager.all_steps():
            if other > step:
                self._manager.delete(other)
        self._remove_deleted()

    def steps_to_keep(self, which: str, count: int) -> list[int]:
        """Returns the steps of the `count` "last" or "best" evaluated checkpoints (all if fewer), sorted.

        The later of two equal scores is better. If no checkpoint was evaluated, returns the latest.
        """
        self.wait()
        metrics = {step: self._metrics(step) for step in self._manager.all_steps()}
        evaluated = [step for step in metrics if metrics[step]["evaluated_step"] >= 0]
        if not evaluated:
            return [step for step in [self.latest_step()] if step is not None]
        ordered = sorted(evaluated, key=lambda step: (metrics[step]["score"], step) if which == "best" else (0.0, step))
        return sorted(ordered[-count:])

    def restore(self, step: int, like: TrainState) -> TrainState:
        """Restores the state saved at `step`, on any devices; `like` gives structure, shapes, dtypes and optionally the
        devices.

        Raises:
          CheckpointError: the checkpoint was altered, can't be read, or holds another model's state.
        """
        self.wait()  # this step may still be being written
        if jax.process_index() == 0:  # an error ends the other processes, too
            check(Path(self._manager.directory), step)
        abstract = jax.tree.map(_described, like._asdict())
        try:
            restored = self._manager.restore(step, args=ocp.args.StandardRestore(abstract))
        except Exception as error:  # Orbax raises many kinds
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            where = Path(self._manager.directory) / str(step)
            raise CheckpointError(f"{where}: expected a checkpoint of this run's model; {reason}") from error
        return TrainState(**restored)

    def position(self, step: int) -> Position:
        """Returns the position in the data at the checkpoint of `step`."""
        return self._metrics(step).get("position", {})

    def window(self, step: int) -> SavedWindow:
        """Returns the unfinished window of metrics at the checkpoint of `step`."""
        return self._metrics(step).get("window", {})

    def _metrics(self, step: int) -> Mapping[str, Any]:
        """Reads the score, position and window that `save` wrote with the state of `step`."""
        with naming_errors(self._directory / str(step)):
            return self._manager.metrics(step) or UNEVALUATED

    def wait(self) -> None:
        """Waits until everything is on disk. Raises CheckpointError if writing failed."""
        with self._writing():
            self._manager.wait_until_finished()
        self._remove_deleted()
        self.report_saved()

    def report_saved(self) -> None:
        """Calls `on_saved` for each checkpoint that has been completed since the last call."""
        for step in [step for step in self._pending if (self._directory / str(step)).is_dir()]:
            self._pending.remove(step)
            self._on_saved(step)

    def close(self) -> None:
        """Waits as `wait` does, closes the manager, and removes the remains of a checkpoint whose writing failed."""
        try:
            with self._writing():
                self._manager.close()
            self.report_saved()
        finally:
            self._remove_deleted()
            for unfinished in self._directory.glob(UNFINISHED) if self._writes else ():
                shutil.rmtree(unfinished, ignore_errors=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turns every error of saving into a CheckpointError with advice on how to resume."""
        try:
            yield
        except Exception as error:
            directory = Path(self._manager.directory)
            raise CheckpointError(
                f"{directory}: expected to write a checkpoint; received {_why_not_written(error)}; no other "
                f"checkpoint was touched: fix this, then jax-transformer train --resume {directory.parent}"
            ) from error

    def _remove_deleted(self) -> None:
        if self._writes:
            shutil.rmtree(self._directory / DELETED, ignore_errors=True)


def saved_steps(directory: Path) -> list[int]:
    """Returns the steps whose checkpoints are complete, sorted."""
    names = (path.name for path in directory.iterdir() if path.is_dir()) if directory.is_dir() else ()
    return sorted(int(name) for name in names if name.isdecimal())


def damaged_files(checkpoint: Path) -> list[str]:
    """Compares a checkpoint with its digests; returns a line for each file that was altered, added or lost."""
    return changes(checkpoint, ONCE_UNSEALED)


def check(directory: Path, step: int) -> None:
    """Raises CheckpointError, with advice on how to resume, if any file of a checkpoint was altered."""
    damage = damaged_files(directory / str(step))
    if not damage:
        return
    others = f" and {len(damage) - 1} more" if len(damage) > 1 else ""
    raise CheckpointError(
        f"{directory / str(step)}: expected the files as they were saved; received {damage[0]}{others}; "
        f"{_how_to_go_on(directory, step)}"
    )


def _how_to_go_on(directory: Path, step: int) -> str:
    """Returns the advice for a run whose checkpoint of this step is unusable."""
    earlier = (other for other in reversed(saved_steps(directory)) if other < step)
    before = next((other for other in earlier if not damaged_files(directory / str(other))), None)
    if before is None:
        return "there is none before it that is whole: start a new run"
    return f"to go on from the one before: jax-transformer train --resume {directory.parent} --from-step {before}"


def go_back(directory: Path, step: int) -> None:
    """Deletes the checkpoints after a step, so that the run resumes from that step.

    Raises:
      CheckpointError: the step has no checkpoint, or an altered one; nothing is deleted.
    """
    steps = saved_steps(directory)
    if step not in steps:
        have = ", ".join(map(str, steps)) or "none"
        raise CheckpointError(f"--from-step: expected a step with a checkpoint ({have}); received {step}")
    check(directory, step)
    deleted = directory / DELETED
    shutil.rmtree(deleted, ignore_errors=True)
    deleted.mkdir()
    for other in steps:
        if other > step:
            (directory / str(other)).rename(deleted / str(other))
    shutil.rmtree(deleted)


def _check_metrics(checkpoint: Path) -> None:
    """Raises CheckpointError unless a checkpoint's metrics have the fields that `save` writes. (Orbax reads the metrics
    of all checkpoints before it restores any.)"""
    try:
        metrics = parse_json(read_text(checkpoint / "metrics" / "metrics", JSON_BYTES))
        is_right = all(isinstance(metrics[name], (int, float)) for name in UNEVALUATED) and isinstance(
            metrics["position"], dict
        )
    except (OSError, ValueError, LookupError, TypeError):
        is_right = False
    if not is_right:
        check(checkpoint.parent, int(checkpoint.name))
        raise CheckpointError(
            f"{checkpoint}: expected the metrics of a checkpoint; received other content; "
            f"{_how_to_go_on(checkpoint.parent, int(checkpoint.name))}"
        )


def _why_not_written(error: Exception) -> str:
    """Returns the operating system's reason why a file couldn't be written or, without one, the shortened message."""
    number = re.search(r"os_error_code='(\d+)'", str(error))  # TensorStore's form
    if number:
        return os.strerror(int(number[1]))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return shorten(" ".join(str(error).split()) or type(error).__name__)


def _described(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))


def _score(metrics: dict[str, float]) -> float:
    return metrics["score"]


def _evaluated_step(metrics: dict[str, float]) -> float:
    return metrics["evaluated_step"]
