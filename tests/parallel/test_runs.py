"""Runs on eight CPU devices: the command trains as one device does, and its runs go on where there is one device."""

from __future__ import annotations

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

from jax_transformer.cli import main
from jax_transformer.config.files import dump_config
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import DataConfig, RunConfig, TrainConfig

pytestmark = pytest.mark.usefixtures("quick_compilation")

MESH = ("--parallel.fsdp", "2", "--parallel.tensor", "2")
FLOAT32 = 2e-5
"""Relative, of the losses of 12 steps: each step starts from weights that rounded in another order."""


def small_run(folder: Path) -> RunConfig:
    """Batches of 20 rows, which four shares don't divide, in two parts each."""
    return RunConfig(
        model=TransformerConfig(
            d_model=32,
            num_heads=2,
            d_ff=48,
            num_encoder_layers=1,
            num_decoder_layers=1,
            max_length=32,
            dropout_rate=0.0,
        ),
        data=DataConfig(
            phrasebook_pairs=300,
            valid_pairs=9,
            test_pairs=5,
            max_length=32,
            batch_tokens=320,
            num_shapes=1,
            cache_dir=str(folder / "cache"),
        ),
        train=TrainConfig(
            schedule="constant",
            learning_rate=3e-3,
            warmup_steps=5,
            log_every=1,
            evaluate_sentences=4,
            max_steps=12,
            evaluate_every=4,
            accumulate=2,
            ema_decay=0.9,
        ),
        run_dir=str(folder / "run"),
    )


def start(folder: Path, *options: str, command: str = "train", devices: int = 8) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "jax_transformer.cli", command, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "JAX_NUM_CPU_DEVICES": str(devices)},
        cwd=folder,
    )


def records(run: Path) -> list[dict[str, float]]:
    file = run / "metrics.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []  # the last line may be half written
    return [json.loads(line) for line in lines]


def values(run: Path, name: str) -> list[float]:
    return [record[name] for record in records(run) if name in record]


def config_file(folder: Path) -> str:
    file = folder / "run.yaml"
    file.write_text(dump_config(small_run(folder)), encoding="utf-8")
    return str(file)


def assert_same(received: Path, expected: Path) -> None:
    for name in ("loss", "valid_loss", "gradient_norm", "target_tokens"):
        np.testing.assert_allclose(values(received, name), values(expected, name), rtol=FLOAT32, err_msg=name)
    assert len(values(received, "loss")) == 12
    final = [records(run)[-1]["combinations"]["bleu"] for run in (received, expected)]  # type: ignore[index]
    assert final[0] == final[1]


def test_the_command_trains_on_eight_devices_and_averages_on_fewer(
    on_one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with start(tmp_path, "--config", config_file(tmp_path), *MESH) as process:
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "8 × cpu (data 2, fsdp 2, tensor 2)" in output
    run = tmp_path / "run"
    assert_same(run, on_one)
    assert main(["average", str(run), "--output", str(tmp_path / "one"), "--count", "2"]) == 0
    average = (str(run), "--output", str(tmp_path / "four"), "--count", "2", "--parallel.fsdp", "2")
    with start(tmp_path, *average, command="average", devices=4) as process:
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert output.split("(")[1] == capsys.readouterr().out.split("(")[1]  # the steps and the validation loss
    one, four = ((tmp_path / name / "params.safetensors").read_bytes() for name in ("one", "four"))
    assert one == four


def test_a_run_stopped_on_eight_devices_goes_on_on_one_and_on_another_mesh(
    on_one: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with start(tmp_path, "--config", config_file(tmp_path), *MESH) as process:
        deadline = time.monotonic() + 240
        while not values(run, "loss") and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert jax.device_count() == 1
    assert main(["train", "--resume", str(run), "--parallel.fsdp", "1", "--parallel.tensor", "1"]) == 0
    assert "resumed at step" in capsys.readouterr().out
    assert_same(run, on_one)


def test_a_mesh_that_does_not_fit_is_refused_before_the_data_is_read(tmp_path: Path) -> None:
    with start(tmp_path, "--config", config_file(tmp_path), "--parallel.tensor", "3") as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 2, output
    assert "error: parallel: expected sizes whose product is a divisor of 8, the number of devices" in output
    assert not (tmp_path / "cache").exists()


def test_a_dry_run_tells_how_each_parameter_lies(tmp_path: Path) -> None:
    with start(tmp_path, "--config", config_file(tmp_path), *MESH, "--dry-run") as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    line = next(line for line in output.splitlines() if line.startswith("encoder/layers/feed_forward/hidden/kernel"))
    assert line.split() == [
        "encoder/layers/feed_forward/hidden/kernel", "1,536", "1×32×48", "(-,", "fsdp,", "tensor)", "0.001", "MiB",
    ]  # fmt: skip
    assert "memory on each device: " in output


def test_a_run_in_virtual_shards_writes_the_same_bytes_on_two_devices_and_on_one(tmp_path: Path) -> None:
    folders = [tmp_path / "two", tmp_path / "one"]
    commands = []
    for folder in folders:
        folder.mkdir()
        shards = ("--parallel.virtual-shards", "4", "--train.max-steps", "3")
        commands.append(["--config", config_file(folder), *shards])
    with start(folders[0], *commands[0], devices=2) as process:
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert jax.device_count() == 1
    assert main(["train", *commands[1]]) == 0
    two, one = ((folder / "run" / "model" / "params.safetensors").read_bytes() for folder in folders)
    assert two == one
