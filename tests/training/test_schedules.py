"""Learning-rate schedules: step by step against their formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jax_transformer.config.run import TrainConfig
from jax_transformer.training.schedules import make_schedule

D_MODEL = 512


def rates(**options: object) -> np.ndarray:
    """The rate of each step of a run, and of the one after it."""
    config = TrainConfig(**{"max_steps": 40, "warmup_steps": 8, "learning_rate": 0.5, **options})  # type: ignore[arg-type]
    schedule = make_schedule(config, D_MODEL)
    return np.array([float(schedule(step)) for step in range(config.max_steps + 1)])


def test_the_papers_schedule_is_its_formula() -> None:
    """d_model^-½ · min(t^-½, t · warmup^-1.5), its first step being t = 1 (Vaswani et al. 2017, §5.3)."""
    expected = [0.5 * 512**-0.5 * min(t**-0.5, t * 8**-1.5) for t in range(1, 42)]
    np.testing.assert_allclose(rates(schedule="paper"), expected, rtol=1e-6)


@pytest.mark.parametrize("warmup", [1, 2, 8, 40])
def test_the_papers_schedule_peaks_when_warm_up_ends(warmup: int) -> None:
    received = rates(schedule="paper", warmup_steps=warmup)
    assert received.argmax() == warmup - 1
    assert (np.diff(received[:warmup]) > 0).all()
    assert (np.diff(received[warmup - 1 :]) < 0).all()


AFTER = {
    "constant": lambda share: 1.0,
    "linear": lambda share: 1.0 - share,
    "cosine": lambda share: 0.5 * (1.0 + math.cos(math.pi * share)),
}


@pytest.mark.parametrize("schedule", AFTER)
@pytest.mark.parametrize("warmup", [0, 1, 2, 8])
def test_a_linear_warm_up_precedes_the_named_schedule(schedule: str, warmup: int) -> None:
    """Step number `warmup` is the first at the peak; `linear` and `cosine` reach 0 when the run ends."""
    expected = [0.5 * step / warmup for step in range(1, warmup + 1)]
    expected += [0.5 * AFTER[schedule](step / (40 - warmup)) for step in range(41 - warmup)]
    np.testing.assert_allclose(rates(schedule=schedule, warmup_steps=warmup), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("schedule", AFTER)
@pytest.mark.parametrize("warmup", [39, 40, 100])
def test_a_run_may_end_before_its_warm_up_does(schedule: str, warmup: int) -> None:
    received = rates(schedule=schedule, warmup_steps=warmup)[:39]
    np.testing.assert_allclose(received, 0.5 * np.arange(1, 40) / warmup, rtol=1e-5)


@pytest.mark.parametrize("warmup", [0, 50])
def test_the_relative_step_is_adafactors(warmup: int) -> None:
    schedule = make_schedule(TrainConfig(schedule="relative", learning_rate=2.0, warmup_steps=warmup), d_model=8)
    for step in (1, 7, 50, 9_999, 10_000, 40_000):
        share = min(step / warmup, 1.0) if warmup else 1.0
        assert float(schedule(step - 1)) == pytest.approx(2.0 * share * min(0.01, step**-0.5), rel=1e-6)
