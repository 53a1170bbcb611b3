"""Early stopping follows from the metrics of a run."""

from __future__ import annotations

import pytest

from jax_transformer.training.trainer import evaluations_without_improvement


@pytest.mark.parametrize(
    ("losses", "stale"),
    [
        ([], 0),
        ([3.0], 0),
        ([3.0, 2.0], 0),
        ([2.0, 3.0], 1),
        ([3.0, 2.0, 2.5, 2.1], 2),
        ([2.0, 2.0, 2.0], 2),
        ([2.0, 3.0, 1.0], 0),
    ],
)
def test_losses_go_down(losses: list[float], stale: int) -> None:
    records = [record for loss in losses for record in ({"step": 1, "loss": 0.0}, {"step": 1, "valid_loss": loss})]
    assert evaluations_without_improvement(records, "loss") == stale


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_scores_go_up(metric: str) -> None:
    records = [{"valid_loss": 1.0, f"valid_{metric}": score} for score in (10.0, 30.0, 20.0)]
    assert evaluations_without_improvement(records, metric) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("losses", "stale"),
    [
        ([3.0, 2.5], 1),  # the difference must be larger
        ([3.0, 2.25], 0),
        ([3.0, 2.75, 2.5, 2.25], 3),  # each is the best one that the next is compared with
        ([3.0, 3.25, 2.5], 2),  # as is an earlier one
    ],
)
def test_small_improvements_do_not_count(losses: list[float], stale: int) -> None:
    records = [{"valid_loss": loss} for loss in losses]
    assert evaluations_without_improvement(records, "loss", 0.5) == stale
