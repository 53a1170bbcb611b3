"""Training: the step and its state, the loop around them, optimizers, schedules, losses and scores.

`train` runs a whole `RunConfig`. `init_state` and `make_train_step` are the pieces for your own loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from jax_transformer.training.averaging import mean_params
    from jax_transformer.training.callbacks import Callback, RunEnd, RunStart, figures
    from jax_transformer.training.evaluation import Sample
    from jax_transformer.training.interruption import Interrupted
    from jax_transformer.training.loop import train
    from jax_transformer.training.losses import Criterion, chunked_cross_entropy, cross_entropy
    from jax_transformer.training.metrics import TranslationScores, score_translations
    from jax_transformer.training.optimizers import make_optimizer
    from jax_transformer.training.schedules import make_schedule
    from jax_transformer.training.state import TrainState, abstract_state, all_params, evaluation_params, init_state
    from jax_transformer.training.step import make_evaluation_step, make_train_step
    from jax_transformer.training.trainer import TrainingResult

_HOMES = {
    "jax_transformer.training.averaging": ("mean_params",),
    "jax_transformer.training.callbacks": ("Callback", "RunEnd", "RunStart", "figures"),
    "jax_transformer.training.evaluation": ("Sample",),
    "jax_transformer.training.interruption": ("Interrupted",),
    "jax_transformer.training.loop": ("train",),
    "jax_transformer.training.losses": ("Criterion", "chunked_cross_entropy", "cross_entropy"),
    "jax_transformer.training.metrics": ("TranslationScores", "score_translations"),
    "jax_transformer.training.optimizers": ("make_optimizer",),
    "jax_transformer.training.schedules": ("make_schedule",),
    "jax_transformer.training.state": ("TrainState", "abstract_state", "all_params", "evaluation_params", "init_state"),
    "jax_transformer.training.step": ("make_evaluation_step", "make_train_step"),
    "jax_transformer.training.trainer": ("TrainingResult",),
}

__all__ = [
    "Callback",
    "Criterion",
    "Interrupted",
    "RunEnd",
    "RunStart",
    "Sample",
    "TrainState",
    "TrainingResult",
    "TranslationScores",
    "abstract_state",
    "all_params",
    "chunked_cross_entropy",
    "cross_entropy",
    "evaluation_params",
    "figures",
    "init_state",
    "make_evaluation_step",
    "make_optimizer",
    "make_schedule",
    "make_train_step",
    "mean_params",
    "score_translations",
    "train",
]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
