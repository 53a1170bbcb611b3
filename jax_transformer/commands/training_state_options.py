"""Options of `port` for training states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class TrainingStateOptions:
    """Holds what an optimizer's state may not tell. An error message asks for missing ones by name."""

    with_optimizer: bool = False
    """Also port the training state: the optimizer's moments, the number of steps, and what the file says of the
    schedule. From a run, the state of a checkpoint."""
    optimizer: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Torch file with the optimizer's state_dict, if the checkpoint holds none."""
    frozen: tuple[str, ...] = ()
    """Parameters that the optimizer never received: patterns of paths, such as encoder/*."""
    weight_decay_kind: Literal["l2", "decoupled"] | None = None
    """l2 for Adam, decoupled for AdamW, if the file doesn't tell them apart."""
    step: int | None = None
    """Optimizer steps done, for SGD, which doesn't count them; or the step of the run's checkpoint. Default: the
    latest."""
