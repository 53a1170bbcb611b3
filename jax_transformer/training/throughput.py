"""Measures compilation per shape, and collects the metrics of the steps since the last line of metrics.jsonl."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np

from jax_transformer.training.divergence import is_finite

Announce = Callable[[int, tuple[Any, ...]], AbstractContextManager[None]]


class Compiled:
    """Compiles a jitted function ahead of time for each shape and sharding of its arguments, and measures the
    compilation time."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function: Any = function
        self.announce: Announce = lambda number, arguments: nullcontext()
        """Makes the context of a compilation, given the number of the program, from 1, and the arguments."""
        self.programs: dict[Any, Any] = {}
        self.seconds = 0.0
        self._taken = 0.0

    def __call__(self, *arguments: Any) -> Any:
        key = tuple(_kind(leaf) for leaf in jax.tree.leaves(arguments[1:]))  # the state's shapes never change
        if key not in self.programs:
            jax.block_until_ready(arguments)  # otherwise the time of earlier steps would count as compilation
            start = time.perf_counter()
            with self.announce(len(self.programs) + 1, arguments):
                self.programs[key] = self._function.lower(*arguments).compile()
            self.seconds += time.perf_counter() - start
        return self.programs[key](*arguments)

    def take_seconds(self) -> float:
        """Returns the seconds of compilation since the last call."""
        since, self._taken = self.seconds - self._taken, self.seconds
        return since


def _is_ready(value: Any) -> bool:
    return not hasattr(value, "is_ready") or bool(value.is_ready())  # numbers of a saved window always are


def _kind(leaf: Any) -> Any:
    return np.shape(leaf), getattr(leaf, "sharding", None)


SavedWindow = dict[str, Any]
"""The metrics of each step of a window, and its seconds; {} for an empty window."""


class Window:
    """Collects the metrics of the steps since the last line; they stay on the device until `figures` reads them."""

    def __init__(self) -> None:
        self.restart()

    @property
    def steps(self) -> int:
        return len(self._metrics)

    def restart(self, saved: SavedWindow | None = None) -> None:
        """Begins a new window, or continues a saved one."""
        saved = saved or {}
        self._metrics: list[Mapping[str, Any]] = list(saved.get("metrics", []))
        self._finished = 0
        self.flops: float = saved.get("flops", 0.0)
        """The FLOPs of the model in the window's steps."""
        self._waited: float = saved.get("waited", 0.0)
        self._idle_since: float | None = None
        self._start = time.perf_counter() - saved.get("seconds", 0.0)

    def saved(self) -> SavedWindow:
        """Returns the window so far in plain values, for a checkpoint."""
        metrics = [{name: float(value) for name, value in step.items()} for step in self._metrics]
        seconds = {"seconds": time.perf_counter() - self._start, "waited": self._waited}
        return {"metrics": metrics, "flops": self.flops, **seconds} if metrics else {}

    def add(self, metrics: dict[str, jax.Array], flops: float = 0.0) -> None:
        self._metrics.append(metrics)
        self.flops += flops

    def waiting(self) -> None:
        """Notes that there is no batch yet, if the devices have finished all steps."""
        if self._idle_since is None and (not self._metrics or all(map(_is_ready, self._metrics[-1].values()))):
            self._idle_since = time.perf_counter()

    def waited(self) -> None:
        """Notes that there is a batch."""
        if self._idle_since is not None:
            self._waited += time.perf_counter() - self._idle_since
            self._idle_since = None

    def finished(self) -> list[Mapping[str, float]]:
        """Returns the metrics of the first steps, up to one that the devices haven't finished; doesn't wait for it."""
        while self._finished < self.steps and all(map(_is_ready, self._metrics[self._finished].values())):
            step = self._metrics[self._finished]
            self._metrics[self._finished] = {name: float(value) for name, value in step.items()}
            self._finished += 1
        return self._metrics[: self._finished]

    def not_finite(self) -> dict[int, dict[str, float]]:
        """Returns the metrics of the steps whose loss or gradient isn't finite, by their age in steps."""
        metrics = {len(self._metrics) - 1 - number: step for number, step in enumerate(self._metrics)}
        return {
            ago: {name: float(value) for name, value in step.items()}
            for ago, step in metrics.items()
            if not is_finite(step)
        }

    def figures(self, compile_seconds: float) -> dict[str, float]:
        """Returns means over the window's finite steps, of which there must be one, the number of other steps, and
        target tokens in the loss per second, without compilation. `data_seconds` are those in which the devices had
        finished all steps and waited for a batch."""
        finite = [step for step in self._metrics if is_finite(step)]
        metrics = {
            name: np.array([step[name] for step in finite], np.float64)
            for name in finite[0]
            if all(name in step for step in finite)
        }
        seconds = max(time.perf_counter() - self._start - compile_seconds, 1e-9)
        tokens = metrics["tokens"].sum()

        def mean(name: str) -> float:
            return float((metrics[name] * metrics["tokens"]).sum() / max(tokens, 1.0))

        loss = mean("loss")
        has_plain = all("plain_loss" in step for step in finite)  # present with label smoothing
        plain = {"plain_perplexity": math.exp(min(mean("plain_loss"), 700.0))} if has_plain else {}
        skipped = {"skipped_steps": self.steps - len(finite)} if len(finite) < self.steps else {}
        return {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            **plain,
            "learning_rate": float(metrics["learning_rate"][-1]),
            "gradient_norm": float(metrics["gradient_norm"].mean()),
            "target_tokens": int(tokens),
            "tokens_per_second": round(tokens / seconds, 1),
            "seconds": round(seconds, 4),
            "data_seconds": round(min(self._waited, seconds), 4),
            "compile_seconds": round(compile_seconds, 4),
            **skipped,
        }
