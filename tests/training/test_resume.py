"""A resumed run leaves the records of one that was never stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_runs import rows, tiny_run

from jax_transformer.config.run import RunConfig
from jax_transformer.training import step as step_module
from jax_transformer.training import trainer
from jax_transformer.training.interruption import Interrupted
from jax_transformer.training.loop import train

pytestmark = pytest.mark.usefixtures("quick_compilation")

Stopped = Callable[[int], contextlib.AbstractContextManager[None]]


@pytest.mark.parametrize("step", [3, 5])
def test_means_go_on_in_the_middle_of_a_window(tmp_path: Path, stopped_after: Stopped, step: int) -> None:
    options = {"max_steps": 9, "log_every": 4, "evaluate_every": 9}
    whole = train(tiny_run(tmp_path / "whole", **options))
    config = tiny_run(tmp_path / "parts", **options)
    with stopped_after(step), pytest.raises(Interrupted):
        train(config)
    resumed = train(RunConfig(run_dir=config.run_dir), resume=True)
    assert rows(resumed.run) == rows(whole.run)


def test_a_run_that_goes_on_in_the_same_process_draws_no_weights_and_traces_no_step_again(
    tmp_path: Path, stopped_after: Stopped, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_run(tmp_path)
    with stopped_after(3), pytest.raises(Interrupted):
        train(config)
    monkeypatch.setattr(trainer, "init_state", None)
    monkeypatch.setattr(step_module, "summed_loss", None)  # which tracing a step or an evaluation would call
    assert train(RunConfig(run_dir=config.run_dir), resume=True).step in (2, 4, 6)


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    run = train(tiny_run(tmp_path)).run
    before, model = rows(run), (run / "model" / "manifest.json").read_bytes()
    train(RunConfig(run_dir=str(run)), resume=True)
    assert rows(run) == before
    assert (run / "model" / "manifest.json").read_bytes() == model
