"""MFU by the count of FLOPs and the device's peak, and goodput over all processes of a run."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_runs import tiny_run

from jax_transformer.config.flops import train_flops
from jax_transformer.config.lora import LoraConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import make_batch
from jax_transformer.parallel.chips import GPUS, TPUS, chip_of
from jax_transformer.parallel.mesh import make_mesh
from jax_transformer.training import utilization
from jax_transformer.training.interruption import Interrupted
from jax_transformer.training.loop import train
from jax_transformer.training.throughput import Window
from jax_transformer.training.utilization import Utilization, peak_flops

MODEL = TransformerConfig(
    source_vocab_size=9, target_vocab_size=8, d_model=8, num_heads=2, d_ff=8, num_encoder_layers=1, num_decoder_layers=1
)  # fmt: skip


def counted(config: TransformerConfig = MODEL, *, before: float = 0.0, **options: Any) -> Utilization:
    return Utilization(config, TrainConfig(**options), make_mesh(), started=time.perf_counter(), seconds_before=before)


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_mfu_is_the_models_flops_over_those_of_the_devices() -> None:
    batch = make_batch([[4, 5, 3], [6, 3]], [[4, 5], [6]])
    used = counted(peak_tflops=2.0)
    assert used.note == ""
    flops = used.step_flops(batch)
    assert flops == train_flops(MODEL, 2, 3, 3)
    line = used.figures({"target_tokens": 5, "seconds": 1e-6, "data_seconds": 0.0}, 4 * flops)
    assert line["mfu"] == pytest.approx(4 * flops / (1e-6 * 2e12 * make_mesh().size), abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "MFU: left out, since the peak of cpu isn't known; train.peak_tflops sets it"),
        ({"peak_tflops": 1.0, "freeze": ("encoder/*",)}, "for training all parameters"),
        ({"peak_tflops": 1.0, "lora": LoraConfig(rank=2)}, "for training all parameters"),
    ],
)
def test_mfu_is_left_out_and_said(options: dict[str, Any], message: str) -> None:
    used = counted(**options)
    assert message in used.note
    assert "mfu" not in used.figures({"target_tokens": 5, "seconds": 1.0, "data_seconds": 0.0}, 1e9)


def test_the_peak_is_that_of_the_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chip_of("NVIDIA H200") is GPUS["h200"]
    assert chip_of("TPU v5 lite") is TPUS["v5e"]
    assert chip_of("cpu") is chip_of("NVIDIA H100 PCIe") is None
    monkeypatch.setattr(utilization, "platform_of", lambda mesh: "gpu")
    monkeypatch.setattr(utilization, "chip_of", lambda kind: GPUS["h100"])
    assert peak_flops(MODEL, TrainConfig(), make_mesh()) == 494e12
    assert peak_flops(MODEL.replace(compute_dtype="bfloat16"), TrainConfig(), make_mesh()) == 989e12
    assert peak_flops(MODEL, TrainConfig(peak_tflops=3.0), make_mesh()) == 3e12


def test_goodput_counts_the_steps_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    used = counted(before=10.0)
    kept = {"target_tokens": 5, "seconds": 3.0, "data_seconds": 1.0}
    used.go_on_from([kept, {"step": 1, "valid_loss": 1.0}])
    now = time.perf_counter()
    monkeypatch.setattr(utilization.time, "perf_counter", lambda: now + 10.0)
    assert used.figures({"target_tokens": 5, "seconds": 2.0, "data_seconds": 0.0}, 0.0)["goodput"] == pytest.approx(
        (3 - 1 + 2) / 20, abs=1e-4
    )
    used.go_on_from([kept])
    assert used.goodput()["goodput"] == pytest.approx(2 / 20, abs=1e-4)


def test_waiting_counts_while_the_devices_have_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Step:
        """A number on a device, which is ready or not."""

        ready = False

        def is_ready(self) -> bool:
            return self.ready

        def __float__(self) -> float:
            return 1.0  # as `saved` reads it

    clock = itertools.count(100.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    window, step = Window(), Step()
    window.add(dict.fromkeys(("loss", "gradient_norm", "tokens", "learning_rate"), step))  # type: ignore[arg-type]
    window.waiting()
    window.waited()
    assert window.saved()["waited"] == 0.0
    step.ready = True
    window.waiting()  # starts to count
    window.waiting()
    window.waited()
    assert window.saved()["waited"] == 1.0


@pytest.mark.usefixtures("quick_compilation")
def test_a_run_counts_its_time_over_all_processes(
    tmp_path: Path, stopped_after: Callable[[int], AbstractContextManager[None]], capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny_run(tmp_path, max_steps=6, log_every=1, peak_tflops=0.001)

    def batches() -> Iterator[Any]:
        while True:
            time.sleep(0.05)
            yield make_batch([[4, 5, 3], [6, 3]], [[4, 5], [6]])

    class Slow:
        def __iter__(self) -> Iterator[Any]:
            return batches()

        def state_dict(self) -> dict[str, int]:
            return {}

        def load_state_dict(self, state: dict[str, int]) -> None:
            """Goes on anywhere."""

    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **text(tmp_path)))
    with stopped_after(3), pytest.raises(Interrupted):
        train(config, batches=Slow())
    first = records(Path(config.run_dir))
    time.sleep(0.3)  # no process trains it
    train(config, resume=True, batches=Slow())
    whole = records(Path(config.run_dir))
    steps = [record for record in whole if "target_tokens" in record]
    assert len(steps) == 6
    assert all(record["mfu"] > 0 for record in steps)
    assert sum(record["data_seconds"] for record in steps[2:]) > 0.04
    seconds = [record["run_seconds"] for record in whole if "run_seconds" in record]
    assert seconds == sorted(seconds)
    assert seconds[-1] > max(record.get("run_seconds", 0.0) for record in first)
    productive = sum(record["seconds"] - record["data_seconds"] for record in steps)
    assert whole[-1]["goodput"] == pytest.approx(productive / whole[-1]["run_seconds"], rel=0.02)
    assert "MFU" in capsys.readouterr().out


def text(folder: Path) -> dict[str, Any]:
    for name in ("source", "target"):
        (folder / name).write_text("\n".join(f"a{number % 5} b" for number in range(30)) + "\n")
    files = (str(folder / "source"), str(folder / "target"))
    return {"train": files, "valid": files, "test": files, "valid_pairs": 0, "test_pairs": 0}


def test_flops_are_numbers() -> None:
    assert np.isfinite(counted(peak_tflops=1.0).step_flops(make_batch([[4]], [[4]])))
