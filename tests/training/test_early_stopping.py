"""Early stopping follows from the metrics of a run."""

from __future__ import annotations

import pytest

from jax_transformer.training.trainer import evaluations_since_best


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
    assert evaluations_since_best(records, "loss") == stale


def test_bleu_goes_up() -> None:
    records = [{"valid_loss": 1.0, "valid_bleu": bleu} for bleu in (10.0, 30.0, 20.0)]
    assert evaluations_since_best(records, "bleu") == 1
