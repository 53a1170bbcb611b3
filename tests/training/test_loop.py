"""Whole runs: the files they write, and that a resumed run equals an uninterrupted one."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from jax_transformer.config.files import dump_config
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.presets import get_preset
from jax_transformer.config.run import DataConfig, RunConfig, TrainConfig
from jax_transformer.data.preparation import prepare
from jax_transformer.storage.model_directory import load_model
from jax_transformer.training import trainer
from jax_transformer.training.batch_schedule import BatchSchedule
from jax_transformer.training.loop import train
from jax_transformer.training.report_data import read_run
from jax_transformer.training.run_directory import RunError
from jax_transformer.training.trainer import TrainingResult

pytestmark = pytest.mark.usefixtures("quick_compilation")

TIMINGS = {"seconds", "tokens_per_second", "compile_seconds", "programs", "time", "data_seconds", "goodput"}
TIMINGS |= {"run_seconds", "mfu"}


def small_run(folder: Path, num_shapes: int = 2, **options: int) -> RunConfig:
    """24 steps over 3 epochs, dropout in every place, a checkpoint every 5 steps."""
    return RunConfig(
        model=TransformerConfig(
            d_model=32,
            num_heads=2,
            d_ff=48,
            num_encoder_layers=1,
            num_decoder_layers=1,
            max_length=32,
            dropout_rate=0.2,
        ),
        data=DataConfig(
            phrasebook_pairs=300,
            valid_pairs=8,
            test_pairs=8,
            max_length=32,
            batch_tokens=640,
            num_shapes=num_shapes,
            cache_dir=str(folder / "cache"),
        ),
        train=TrainConfig(
            schedule="constant",
            learning_rate=3e-3,
            warmup_steps=5,
            log_every=1,
            evaluate_sentences=4,
            **{"max_steps": 24, "evaluate_every": 5, **options},
        ),
        run_dir=str(folder / "run"),
    )


def metrics(run: Path) -> list[dict[str, object]]:
    lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]  # the last line may be half written
    return [{key: value for key, value in json.loads(line).items() if key not in TIMINGS} for line in lines]


def parameters(run: Path) -> bytes:
    return (run / "model" / "params.safetensors").read_bytes()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    return train(small_run(tmp_path_factory.mktemp("unbroken")))


def start(config: RunConfig, folder: Path) -> subprocess.Popen[str]:
    file = folder / "run.yaml"
    file.write_text(dump_config(config))
    return subprocess.Popen(
        [sys.executable, "-m", "jax_transformer.cli", "train", "--config", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def wait_for_step(run: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if (run / "metrics.jsonl").exists() and len(metrics(run)) and metrics(run)[-1]["step"] >= step:  # type: ignore[operator]
            return
        time.sleep(0.02)
    raise AssertionError("the run made no progress")


def test_a_run_writes_its_files(unbroken: TrainingResult) -> None:
    run = unbroken.run
    files = {
        "config.yaml",
        "metrics.jsonl",
        "samples.jsonl",
        "data.json",
        "parameters.json",
        "report.html",
        "checkpoints",
        "model",
    }
    assert files <= {path.name for path in run.iterdir()}
    steps = [line["step"] for line in metrics(run) if "loss" in line]
    assert steps == list(range(1, 25))
    validations = [line for line in metrics(run) if "valid_loss" in line]
    assert [line["step"] for line in validations] == [5, 10, 15, 20, 24]
    assert str(validations[0]["valid_bleu_signature"]).startswith("nrefs:1|case:mixed")
    assert validations[-1]["valid_loss"] < validations[0]["valid_loss"]  # type: ignore[operator]
    model = load_model(run)
    assert model.training is not None
    assert model.training["step"] == unbroken.step
    assert {"test", "combinations"} <= model.training["scores"].keys()
    assert not any(path.name.startswith(".run") or path.name.endswith(".tmp") for path in run.rglob("*"))
    report = read_run(run)
    assert (report["state"], report["step"], report["best"]["step"]) == ("finished", 24, unbroken.step)
    assert report["speed"]["programs"] == unbroken.programs
    assert [evaluation["step"] for evaluation in report["samples"]["evaluations"]] == [5, 10, 15, 20, 24]
    assert sum(row["count"] for row in report["parameters"]) == sum(leaf.size for leaf in jax.tree.leaves(model.params))
    assert report["data"]["splits"]["train"]["kept"] == 300


def test_the_same_seed_gives_the_same_run(unbroken: TrainingResult, tmp_path: Path) -> None:
    again = train(small_run(tmp_path))
    assert metrics(again.run) == metrics(unbroken.run)
    assert parameters(again.run) == parameters(unbroken.run)


def test_another_seed_gives_another_run(unbroken: TrainingResult, tmp_path: Path) -> None:
    config = small_run(tmp_path, max_steps=1)
    other = train(dataclasses.replace(config, train=dataclasses.replace(config.train, seed=1)))
    assert metrics(other.run)[0]["loss"] != metrics(unbroken.run)[0]["loss"]


def test_a_killed_run_goes_on_where_its_checkpoint_stood(unbroken: TrainingResult, tmp_path: Path) -> None:
    config = small_run(tmp_path)
    with start(config, tmp_path) as process:
        wait_for_step(Path(config.run_dir), 12)
        process.kill()
    resumed = train(RunConfig(run_dir=config.run_dir), resume=True)
    assert metrics(resumed.run) == metrics(unbroken.run)
    assert parameters(resumed.run) == parameters(unbroken.run)


def test_ctrl_c_saves_and_prints_how_to_resume(unbroken: TrainingResult, tmp_path: Path) -> None:
    config = small_run(tmp_path)
    with start(config, tmp_path) as process:
        wait_for_step(Path(config.run_dir), 7)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    stopped_at = int(output.split("saved at step ")[1].split(";")[0])
    assert f"--resume {config.run_dir}" in output
    assert (Path(config.run_dir) / "checkpoints" / str(stopped_at)).is_dir()
    assert '"state":"interrupted"' in (Path(config.run_dir) / "report.html").read_text(encoding="utf-8")
    resumed = train(RunConfig(run_dir=config.run_dir), resume=True)
    assert parameters(resumed.run) == parameters(unbroken.run)
    assert metrics(resumed.run) == metrics(unbroken.run)


def test_a_run_that_another_process_trains_is_refused(tmp_path: Path) -> None:
    config = small_run(tmp_path, max_steps=2000, evaluate_every=1000)
    with start(config, tmp_path) as process:
        try:
            wait_for_step(Path(config.run_dir), 1)
            with pytest.raises(RunError, match="another process is training"):
                train(RunConfig(run_dir=config.run_dir), resume=True)
        finally:
            process.kill()


def test_epochs_bound_a_run(tmp_path: Path) -> None:
    result = train(small_run(tmp_path, max_epochs=1, max_steps=1000, evaluate_every=1000))
    epochs = [line["epoch"] for line in metrics(result.run) if "epoch" in line]
    assert epochs[-1] == 1.0
    assert len(epochs) < 20


def test_the_best_checkpoint_becomes_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of three checkpoints has the lowest loss: the model equals that of a run that ended there."""
    shorter = train(small_run(tmp_path / "shorter", max_steps=8, evaluate_every=4))
    losses = iter([2.0, 1.0, 3.0, 1.0])  # the last one is of the model itself
    monkeypatch.setattr(trainer, "mean_loss", lambda *_: next(losses))
    result = train(small_run(tmp_path / "longer", max_steps=12, evaluate_every=4))
    assert result.step == shorter.step == 8
    assert parameters(result.run) == parameters(shorter.run)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    config = small_run(tmp_path, num_shapes=1)
    model = dataclasses.replace(config.model, dropout_rate=0.0)
    hot = dataclasses.replace(config.train, learning_rate=1e30, warmup_steps=0)
    with pytest.raises(RunError, match=r"step \d+: expected a finite loss; received nan"):
        train(dataclasses.replace(config, train=hot, model=model))


def test_bfloat16_trains(tmp_path: Path) -> None:
    config = small_run(tmp_path, num_shapes=1, max_steps=6, evaluate_every=6)
    result = train(dataclasses.replace(config, model=dataclasses.replace(config.model, compute_dtype="bfloat16")))
    losses = [line["loss"] for line in metrics(result.run) if "loss" in line]
    assert losses[-1] < losses[0]  # type: ignore[operator]
    embedding = load_model(result.run).params["target_embedding"]["embedding"]
    assert embedding.dtype == np.float32  # parameters stay wide


SPLITS = {"train": "train", "valid": "val"}
MULTI30K = Path(os.environ.get("JAX_TRANSFORMER_SHARED", "/nowhere")) / "data" / "multi30k"


@pytest.mark.nightly
@pytest.mark.skipif(not MULTI30K.is_dir(), reason="JAX_TRANSFORMER_SHARED names no folder with data/multi30k")
def test_real_text_trains(tmp_path: Path) -> None:
    """Multi30k with the preset's joint BPE needs at most 8 programs and 15 % padding; a smaller model's loss falls."""
    preset = get_preset("tiny")
    files = {
        split: tuple(str(MULTI30K / f"{name}.lc.norm.tok.{side}.gz") for side in ("en", "de"))
        for split, name in SPLITS.items()
    }
    data = dataclasses.replace(preset.data, **files, cache_dir=str(tmp_path / "cache"))
    schedule = BatchSchedule(dataclasses.replace(preset, data=data), prepare(data))
    assert len(schedule.shapes) + 1 <= 8  # and one for the validation loss
    assert schedule.padding <= 0.15

    for side, name in zip(("en", "de"), data.valid, strict=True):
        with gzip.open(name, "rt", encoding="utf-8") as lines:
            (tmp_path / f"valid.{side}").write_text("".join(itertools.islice(lines, 40)), encoding="utf-8")
    for side, name in zip(("en", "de"), data.train, strict=True):
        with gzip.open(name, "rt", encoding="utf-8") as lines:
            (tmp_path / f"train.{side}").write_text("".join(itertools.islice(lines, 3000)), encoding="utf-8")
    config = dataclasses.replace(
        preset,
        model=dataclasses.replace(
            preset.model, d_model=64, num_heads=4, d_ff=128, num_encoder_layers=1, num_decoder_layers=1
        ),
        data=dataclasses.replace(
            data,
            train=(str(tmp_path / "train.en"), str(tmp_path / "train.de")),
            valid=(str(tmp_path / "valid.en"), str(tmp_path / "valid.de")),
            num_shapes=1,
            max_length=64,
            batch_tokens=512,
        ),
        train=dataclasses.replace(
            preset.train, max_steps=30, evaluate_every=30, evaluate_sentences=0, warmup_steps=10, log_every=5
        ),
        run_dir=str(tmp_path / "run"),
    )
    losses = [line["loss"] for line in metrics(train(config).run) if "loss" in line]
    assert losses[-1] < losses[0] - 1.0  # type: ignore[operator]
