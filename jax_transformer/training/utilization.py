"""Measures how much of the devices and of the time a run uses: MFU and goodput.

MFU, model FLOPs utilization, is the FLOPs that the steps' matrix products need (`config.flops`) over those that the
devices could compute in the time of the steps (Chowdhery et al. 2022, PaLM, B). Goodput is the share of the run's time
that its steps took.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from jax.sharding import Mesh

from jax_transformer.config.flops import train_flops
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import Batch
from jax_transformer.parallel.chips import chip_of
from jax_transformer.parallel.mesh import platform_of
from jax_transformer.training.run_directory import PROGRESS, RunDirectory, RunError

TERA = 1e12


class Utilization:
    """Counts the model's FLOPs and the run's time, over all processes that trained it one after the other.

    The time between two processes counts as none of the run's; what the later one does before its first step does, and
    so do steps that it repeats.
    """

    def __init__(
        self,
        config: TransformerConfig,
        train: TrainConfig,
        mesh: Mesh,
        *,
        started: float,
        seconds_before: float = 0.0,
    ) -> None:
        """Begins to count.

        Args:
          config: the model.
          train: the run's options.
          mesh: its devices.
          started: the `perf_counter` at which this process began with the run.
          seconds_before: the seconds that earlier processes spent on it.
        """
        self._config, self._trains_all = config, not (train.freeze or train.lora.rank)
        self._peak, self._count = peak_flops(config, train, mesh), mesh.size
        self._kind = mesh.devices.flat[0].device_kind
        self._started = started - seconds_before
        self._productive = 0.0

    @property
    def note(self) -> str:
        """Returns a line on why there is no MFU; "" if there is."""
        if not self._trains_all:
            return "MFU: left out, since its count of FLOPs is for training all parameters"
        if self._peak is None:
            return f"MFU: left out, since the peak of {self._kind} isn't known; train.peak_tflops sets it"
        return ""

    def step_flops(self, batch: Batch) -> float:
        """Returns the FLOPs of the model in a step on the batch."""
        rows, target = batch.labels.shape[-2:]
        return train_flops(self._config, int(rows), int(batch.source_ids.shape[-1]), int(target))

    @property
    def run_seconds(self) -> float:
        """Returns the seconds spent on the run so far."""
        return time.perf_counter() - self._started

    def go_on_from(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Counts the steps in the lines of metrics.jsonl that are kept, and no others."""
        self._productive = sum(productive_seconds(record) for record in records)

    def figures(self, window: Mapping[str, float], flops: float) -> dict[str, float]:
        """Returns the figures for a line of metrics.jsonl, and counts its steps.

        Args:
          window: the line's seconds and data_seconds.
          flops: those of its steps.
        """
        self._productive += productive_seconds(window)
        mfu = {}
        if self._peak is not None and self._trains_all:
            mfu = {"mfu": round(flops / (max(window["seconds"], 1e-9) * self._peak * self._count), 6)}
        return {**mfu, **self.goodput()}

    def goodput(self) -> dict[str, float]:
        """Returns the share of the run's time so far that its steps took, and that time."""
        seconds = max(self.run_seconds, 1e-9)
        return {"goodput": round(min(self._productive / seconds, 1.0), 6), "run_seconds": round(seconds, 2)}


def productive_seconds(record: Mapping[str, Any]) -> float:
    """Returns the seconds that the steps of a line of metrics.jsonl took, without those in which the devices waited for
    batches; 0 for a line of another kind."""
    return float(record["seconds"] - record.get("data_seconds", 0.0)) if "target_tokens" in record else 0.0


def peak_flops(config: TransformerConfig, train: TrainConfig, mesh: Mesh) -> float | None:
    """Returns the most FLOPs per second of one device, in the dtype in which the model computes. None: unknown."""
    if train.peak_tflops:
        return train.peak_tflops * TERA
    chip = None if platform_of(mesh) == "cpu" else chip_of(mesh.devices.flat[0].device_kind)
    if chip is None:
        return None
    return chip.flops if config.compute_dtype == "bfloat16" else chip.flops_float32


def seconds_of_earlier_processes(run: RunDirectory) -> float:
    """Returns the seconds that a run had taken when its last process stopped, as far as it wrote them."""
    try:
        progress = run.read(PROGRESS)
    except RunError:  # a damaged progress.json harms nothing
        progress = {}
    return max((float(record.get("run_seconds", 0.0)) for record in (*run.records(), progress)), default=0.0)
