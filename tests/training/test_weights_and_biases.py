"""Weights & Biases by its own library, offline: its files hold the history of a run, under one id when resumed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import tiny_run
from wandb_files import OfflineRun, offline_runs

from jax_transformer.cli import main
from jax_transformer.config.run import RunConfig
from jax_transformer.training import Interrupted, RunEnd, RunStart, figures, train
from jax_transformer.training.run_directory import RunError
from jax_transformer.training.weights_and_biases import WeightsAndBiases

pytestmark = pytest.mark.usefixtures("quick_compilation")
needs_wandb = pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="the package wandb is not installed")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """W&B neither measures this machine nor leaves files in the home directory."""
    for name, value in {
        "WANDB_X_DISABLE_STATS": "true",
        "WANDB_DISABLE_GIT": "true",
        "WANDB_CONFIG_DIR": str(tmp_path / "settings"),
        "WANDB_CACHE_DIR": str(tmp_path / "wandb_cache"),
        "WANDB_DATA_DIR": str(tmp_path / "wandb_data"),
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)


def expected_history(run: Path) -> dict[int, dict[str, float]]:
    """Returns the figures of metrics.jsonl by step, without those of the model."""
    rows: dict[int, dict[str, float]] = {}
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if "model_step" not in record:
            rows.setdefault(record["step"], {}).update(figures(record))
    return rows


def history(run: OfflineRun) -> dict[int, dict[str, float]]:
    """Returns the rows that W&B has, by step, without what it adds."""
    steps = [row["_step"] for row in run.history]
    assert steps == sorted(set(steps))
    return {
        row["_step"]: {name: value for name, value in row.items() if name.startswith(("train/", "valid/"))}
        for row in run.history
    }


@needs_wandb
def test_a_resumed_run_goes_on_under_its_id(
    tmp_path: Path, stopped_after: Callable[[int], contextlib.AbstractContextManager[None]]
) -> None:
    options = {
        "log_every": 1,
        "max_steps": 4,
        "evaluate_sentences": 2,
        "wandb_project": "house",
        "wandb_mode": "offline",
    }
    config = tiny_run(tmp_path, **options)
    with stopped_after(3), pytest.raises(Interrupted):
        train(config)
    result = train(RunConfig(run_dir=config.run_dir), resume=True)
    first, second = offline_runs(result.run)
    assert first.id == second.id == json.loads((result.run / "wandb.json").read_text())["id"]
    assert (first.project, first.exit_code, first.summary["state"]) == ("house", 1, "interrupted")
    assert (second.project, second.exit_code, second.summary["state"]) == ("house", 0, "finished")
    assert [*history(first), *history(second)] == [1, 2, 3, 4]
    assert history(first) | history(second) == expected_history(result.run)
    assert first.config["train"]["max_steps"] == 4
    assert first.config["environment"]["platform"] == "cpu"
    assert second.summary["test/bleu"] == pytest.approx(result.scores["test"].bleu)
    tables = sorted(result.run.glob("wandb/*/files/media/table/samples_*.json"), key=lambda file: file.name)
    table = json.loads(tables[0].read_text(encoding="utf-8"))
    kept = json.loads((result.run / "samples.jsonl").read_text(encoding="utf-8").splitlines()[0])["samples"]
    assert table["columns"] == ["source", "reference", "translation"]
    assert table["data"] == [[*sample.values()] for sample in kept]


@needs_wandb
def test_steps_after_a_rollback_are_left_out_until_they_are_new(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = WeightsAndBiases("house", mode="offline")
    records.on_start(RunStart(tmp_path, 0, False, {}))
    for step, loss in ((1, 5.0), (2, 9.0), (1, 4.0), (2, 3.0), (3, 2.0)):
        if (step, loss) == (1, 4.0):
            records.on_nonfinite(1, {"action": "rollback"})
        records.on_step(step, {"step": step, "time": 0.0, "loss": loss})
    records.on_end(RunEnd("interrupted"))
    (written,) = offline_runs(tmp_path)
    assert history(written) == {1: {"train/loss": 5.0}, 2: {"train/loss": 3.0}, 3: {"train/loss": 2.0}}
    assert "W&B can't take back steps: it shows those after step 1 once the run has passed step 2" in (
        capsys.readouterr().out
    )


@needs_wandb
def test_without_a_key_the_run_makes_no_step_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(RunError, match=r"WeightsAndBiases\.on_start raised UsageError: .*; no step was made; resume"):
        train(tiny_run(tmp_path, wandb_project="house"))


def test_a_missing_package_is_refused_before_anything_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find: Any = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "wandb" else find(name, *rest))
    run, cache = tmp_path / "run", tmp_path / "cache"
    options = ["--train.wandb-project", "house", "--run-dir", str(run), "--data.cache-dir", str(cache)]
    assert main(["train", "demo", *options]) == 2
    assert "pip install 'jax-transformer[wandb]'" in capsys.readouterr().err
    assert not run.exists()
    assert not cache.exists()
