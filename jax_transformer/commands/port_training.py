"""The part of jax-transformer port for trainings under way: its options, input and output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from jax_transformer.storage.model_directory import Model
    from jax_transformer.storage.training_state import TrainingState


@dataclass(frozen=True)
class TrainingStateOptions:
    """Holds settings that an optimizer's state may not contain. An error message asks for missing ones by name."""

    with_optimizer: bool = False
    """Also port the training state: the optimizer's moments, the number of steps, and the file's settings of the
    schedule. From a run, the state of a checkpoint."""
    optimizer: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Torch file with the optimizer's state_dict, if the checkpoint holds none."""
    frozen: tuple[str, ...] = ()
    """Parameters that the optimizer never received: patterns of paths, such as encoder/*."""
    weight_decay_kind: Literal["l2", "decoupled"] | None = None
    """l2 for Adam, decoupled for AdamW, if the file doesn't distinguish them."""
    step: int | None = None
    """Optimizer steps done, for SGD, which doesn't count them; or the step of the run's checkpoint. Default: the
    latest."""


def read(model: Model, source: str, options: TrainingStateOptions) -> Model:
    """Returns an imported model with the training state of its checkpoint."""
    from jax_transformer.porting.optimizers.port import import_training_state

    return import_training_state(
        model,
        source,
        optimizer=options.optimizer,
        frozen=options.frozen,
        decay_kind=options.weight_decay_kind,
        step=options.step,
    )


def load(source: str, step: int | None) -> Model:
    """Loads a model with its training state: a run's at a checkpoint, or that of a model directory."""
    from jax_transformer.porting.optimizers.port import training_state_of_run
    from jax_transformer.storage.model_directory import load_model
    from jax_transformer.training.export import load_training_model
    from jax_transformer.training.run_directory import CHECKPOINTS, CONFIG

    path = Path(source)
    if not ((path / CONFIG).is_file() and (path / CHECKPOINTS).is_dir()):
        if step is not None:
            raise ValueError(f"--step: expected a run directory, which has checkpoints by step; received {source}")
        return load_model(source, mapped=True)
    trained = load_training_model(path, step)
    return training_state_of_run(trained.model, trained.state, trained.peak_rate, trained.former)


def described(state: TrainingState) -> str:
    """Describes an imported state: the optimizer, the steps done, the parameters that it moves, and its settings."""
    moved = f"moments of {len(state.paths)} parameters" if state.slots else "no moments"
    settings = {name: value for name, value in state.train.items() if name not in ("optimizer", "freeze", "no_decay")}
    frozen = f", {len(state.train['freeze'])} frozen" if state.train.get("freeze") else ""
    listed = ", ".join(f"{name}={value}" for name, value in settings.items())
    left_out = state.origin.get("left_out")
    more = f"\n          left out: {', '.join(left_out)}" if left_out else ""
    return f"{state.optimizer} after {state.step:,} steps, {moved}{frozen} ({listed}){more}"


def written(state: TrainingState) -> str:
    """Describes an exported state."""
    scheduler = "" if state.origin["scheduler"] else ", without a scheduler's state"
    return f"{state.optimizer} after {state.step:,} steps{scheduler}"
