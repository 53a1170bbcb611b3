"""A run stops at the evaluation at which EarlyStoppingCallback of transformers stops Trainer."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import transformers

from jax_transformer.training.metrics import BEST_METRICS
from jax_transformer.training.trainer import evaluations_without_improvement

VALUES = (1.0, 1.25, 1.5, 2.0)
"""Their differences are exact, also when they equal a threshold."""


def stopped_at(values: tuple[float, ...], patience: int, threshold: float, *, greater: bool) -> int | None:
    """Returns the number of the evaluation at which transformers stops."""
    metric = "eval_bleu" if greater else "eval_loss"
    callback = transformers.EarlyStoppingCallback(patience, threshold)
    arguments: Any = SimpleNamespace(metric_for_best_model=metric, greater_is_better=greater, save_strategy="no")
    state, control = transformers.TrainerState(), transformers.TrainerControl()
    trainer = SimpleNamespace(args=arguments, state=state)
    for number, value in enumerate(values):
        callback.on_evaluate(arguments, state, control, {metric: value})
        transformers.Trainer._determine_best_metric(trainer, {metric: value}, None)  # type: ignore[arg-type]
        if control.should_training_stop:
            return number
    return None


@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.5])
@pytest.mark.parametrize("metric", ["loss", "bleu"])
def test_it_stops_where_trainer_stops(metric: Any, threshold: float) -> None:
    """Every course of five evaluations, for each patience."""
    key, sign = BEST_METRICS[metric]
    stops = set()
    for values, patience in itertools.product(itertools.product(VALUES, repeat=5), (1, 2, 3)):
        records = [{key: value} for value in values]
        counts = [evaluations_without_improvement(records[: i + 1], metric, threshold) for i in range(len(records))]
        here = next((number for number, count in enumerate(counts) if count >= patience), None)
        assert here == stopped_at(values, patience, threshold, greater=sign > 0), (values, patience)
        stops.add(here)
    assert stops == {None, 1, 2, 3, 4}
