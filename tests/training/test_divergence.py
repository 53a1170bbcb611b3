"""Tests of steps that aren't finite: they are reported, skipped or undone, and no such state is saved."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tiny_runs import rows, tiny_run

from jax_transformer.config.run import RunConfig, TrainConfig
from jax_transformer.config.validation import ConfigError
from jax_transformer.data.preparation import prepare
from jax_transformer.storage.model_directory import load_model
from jax_transformer.training import trainer
from jax_transformer.training.checkpoints import saved_steps
from jax_transformer.training.divergence import Explosion
from jax_transformer.training.interruption import Interrupted
from jax_transformer.training.loop import train
from jax_transformer.training.report import write_report
from jax_transformer.training.run_directory import RunError
from jax_transformer.training.state import TrainState, init_state

pytestmark = pytest.mark.usefixtures("quick_compilation")

Stopped = Callable[[int], contextlib.AbstractContextManager[None]]
HOT = {"schedule": "constant", "learning_rate": 1e30, "warmup_steps": 0}
"""Options that make the weights huge after one step, and the loss NaN after the next."""


def divergences(run: Path) -> list[dict[str, Any]]:
    return [row["nonfinite"] for row in rows(run) if "nonfinite" in row]


@pytest.fixture
def huge_token(monkeypatch: pytest.MonkeyPatch) -> int:
    """A source token whose embedding is so large that a batch with it has no finite loss."""
    token = 150

    def poisoned(*arguments: Any, **options: Any) -> TrainState:
        state = init_state(*arguments, **options)
        table = state.params["source_embedding"]["embedding"].at[token].set(3e38)
        return state._replace(params={**state.params, "source_embedding": {"embedding": table}})

    monkeypatch.setattr(trainer, "init_state", poisoned)
    return token


def test_the_run_stops_and_says_where_it_began(tmp_path: Path) -> None:
    config = tiny_run(tmp_path, **HOT, log_every=50, evaluate_every=50, max_steps=60)
    with pytest.raises(RunError, match=r"^step 2: expected a finite loss; received nan; the run has no checkpoint"):
        train(config)
    (found,) = divergences(Path(config.run_dir))
    assert (found["step"], found["action"], found["loss"]) == (2, "stop", "nan")
    assert 0 < len(found["sentences"]) <= 32
    assert all(pair["source"] and pair["target"] for pair in found["sentences"])
    assert saved_steps(Path(config.run_dir) / "checkpoints") == []


def test_a_stopped_run_with_nan_weights_keeps_the_last_good_checkpoint(tmp_path: Path, stopped_after: Stopped) -> None:
    config = tiny_run(tmp_path, log_every=50, evaluate_every=50, max_steps=60)
    with stopped_after(2), pytest.raises(Interrupted):
        train(config)
    file = Path(config.run_dir) / "config.yaml"
    file.write_text(file.read_text(encoding="utf-8").replace("learning_rate: 1.0", "learning_rate: 1.0e+35"))
    with stopped_after(5), pytest.raises(RunError, match=r"^step 4: .* nan; the run is saved at step 2: lower train"):
        train(RunConfig(run_dir=config.run_dir), resume=True)
    assert saved_steps(Path(config.run_dir) / "checkpoints") == [2]


def test_weights_that_arent_finite_are_never_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "has_finite_weights", lambda state: int(state.step) < 4)
    config = tiny_run(tmp_path)
    with pytest.raises(RunError, match=r"^step 4: weights contain NaN or infinity; .* saved at step 2"):
        train(config)
    assert saved_steps(Path(config.run_dir) / "checkpoints") == [2]


def test_steps_are_skipped_and_counted(tmp_path: Path, huge_token: int) -> None:
    config = tiny_run(tmp_path, on_nonfinite="skip", log_every=3, max_steps=12, evaluate_every=12)
    corpus = prepare(config.data)
    result = train(config)
    word = corpus.source_tokenizer.tokens([huge_token])[0]
    found = divergences(result.run)
    assert found
    assert {one["action"] for one in found} == {"skip"}
    assert all(any(word in pair["source"].split() for pair in one["sentences"]) for one in found)
    means = [row for row in rows(result.run) if "loss" in row]
    assert sum(row.get("skipped_steps", 0) for row in means) == len(found) < 12
    assert all(np.isfinite([row["loss"], row["gradient_norm"]]).all() for row in means)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(load_model(result.run).params))


def test_a_run_that_would_skip_everything_stops(tmp_path: Path) -> None:
    config = tiny_run(tmp_path, **HOT, on_nonfinite="skip", log_every=1, max_steps=60, evaluate_every=60)
    with pytest.raises(RunError, match=r"^step 2: expected a finite loss; received nan"):
        train(config)


COOLED = HOT | {"on_nonfinite": "rollback", "rollback_factor": 1e-33, "log_every": 2, "max_steps": 8}


def test_a_run_goes_back_and_on_with_a_lower_rate(tmp_path: Path) -> None:
    result = train(tiny_run(tmp_path, **COOLED, evaluate_every=4))
    (found,) = divergences(result.run)
    assert (found["step"], found["action"]) == (2, "rollback")
    rates = [row["learning_rate"] for row in rows(result.run) if "learning_rate" in row]
    np.testing.assert_allclose(rates, [1e-3] * 4, rtol=1e-6)
    assert rows(result.run)[0]["step"] == 0, "it went back to the beginning"


def test_a_run_that_went_back_resumes_at_its_lower_rate(tmp_path: Path, stopped_after: Stopped) -> None:
    whole = train(tiny_run(tmp_path / "whole", **COOLED, evaluate_every=4))
    config = tiny_run(tmp_path / "parts", **COOLED, evaluate_every=4)
    with stopped_after(8), pytest.raises(Interrupted):  # steps, two of them before the rollback
        train(config)
    resumed = train(RunConfig(run_dir=config.run_dir), resume=True)
    assert rows(resumed.run) == rows(whole.run)


def test_a_run_that_was_stopped_before_goes_back_behind_the_stop(tmp_path: Path, stopped_after: Stopped) -> None:
    """The state saved at the stop is between two evaluations, and may be about to diverge."""
    options = COOLED | {"log_every": 1, "keep_checkpoints": 1}
    whole = train(tiny_run(tmp_path / "whole", **options, evaluate_every=4))
    config = tiny_run(tmp_path / "parts", **options, evaluate_every=4)
    with stopped_after(1), pytest.raises(Interrupted):
        train(config)
    resumed = train(RunConfig(run_dir=config.run_dir), resume=True)
    assert rows(resumed.run) == rows(whole.run)
    weights = [(run / "model" / "params.safetensors").read_bytes() for run in (resumed.run, whole.run)]
    assert weights[0] == weights[1]


def test_a_run_goes_back_to_one_checkpoint_five_times_at_most(tmp_path: Path, huge_token: int) -> None:
    config = tiny_run(tmp_path, on_nonfinite="rollback", log_every=1, max_steps=12, evaluate_every=12)
    with pytest.raises(RunError, match="expected a finite loss"):
        train(config)
    actions = [one["action"] for one in divergences(Path(config.run_dir))]
    assert actions == ["rollback"] * 5 + ["stop"]


def test_the_report_shows_where_it_began(tmp_path: Path) -> None:
    config = tiny_run(tmp_path, **HOT, log_every=50, evaluate_every=50, max_steps=60)
    with pytest.raises(RunError):
        train(config)
    page = write_report(config.run_dir).read_text(encoding="utf-8")
    (found,) = divergences(Path(config.run_dir))
    assert '"action":"stop","loss":"nan"' in page
    assert json.dumps(found["sentences"][0]["source"], ensure_ascii=False)[1:-1] in page


def test_the_factor_of_rollbacks_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"rollback_factor must be in \(0, 1\); received 1.0"):
        TrainConfig(rollback_factor=1.0)


# --- losses that are finite


def test_exploded_losses_are_reported_once_until_they_recover() -> None:
    explosion = Explosion(1000)
    assert explosion.warning(1, 40.0) == ""  # a high loss at the beginning is no explosion
    assert explosion.warning(2, 6.9) == ""
    warning = explosion.warning(3, 1e7)
    assert warning.startswith("warning: step 3: loss 1e+07, where guessing has 6.91: the training diverges; lower ")
    assert explosion.warning(4, 1e7) == ""
    assert "validation loss 2e+07" in explosion.warning(4, 2e7, "validation loss", is_new=True)
    assert explosion.warning(5, 6.0) == ""
    assert explosion.warning(6, 1e7) != ""


def test_a_resumed_exploded_run_is_reported() -> None:
    assert Explosion(1000).warning(70, 1e7) != ""


def test_a_run_whose_loss_explodes_prints_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The losses stay finite, so that only the warning shows the divergence."""
    hot = {"schedule": "constant", "warmup_steps": 0, "learning_rate": 1e4, "clip_norm": 0.0, "log_every": 1}
    train(tiny_run(tmp_path, **hot))
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: step")]
    assert any("validation loss of the model" in line for line in warnings)
    assert all("the training diverges; lower train.learning_rate" in line for line in warnings)
