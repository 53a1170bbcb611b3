"""Computes the learning rates of a rule, for both sides and the diagnosis."""

from __future__ import annotations

from jax_transformer.comparison.precision import in_precision
from jax_transformer.config.run import TrainConfig
from jax_transformer.training.schedules import make_schedule


def learning_rates(train: TrainConfig, d_model: int, steps: int) -> tuple[float, ...]:
    """Returns the learning rates of the first steps, computed in float64."""
    with in_precision("float64"):
        schedule = make_schedule(train, d_model)
        return tuple(float(schedule(step)) for step in range(steps))
