"""What a parity run compares, and what it has found so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jax_transformer.config.model import GenerationConfig, TransformerConfig
from jax_transformer.parity.backends.side import Arrays, Dtype, Side
from jax_transformer.parity.diagnosis.findings import Fault, SideName
from jax_transformer.parity.gates.stages import Stage
from jax_transformer.parity.report.report import Effect, HeatMap
from jax_transformer.parity.stages.forward import Forward
from jax_transformer.runtime.trees import flatten

STAGES = ("weights", "inputs", "masks", "forward", "loss", "gradients", "step", "trajectory", "decode")
DTYPES: tuple[Dtype, ...] = ("float64", "float32", "bfloat16")

LARGE = 20_000_000
"""Parameters."""


@dataclass(frozen=True)
class Pair:
    """What is compared."""

    config: TransformerConfig
    params: Mapping[str, Any]
    """The candidate's own."""
    candidate: Side
    reference: Side
    generation: GenerationConfig
    visible: frozenset[str] | None = None
    """The activations that both sides are able to show; None: all."""

    @property
    def is_large(self) -> bool:
        """Whether memory matters more than the time that saving it takes."""
        return sum(np.size(leaf) for leaf in flatten(self.params).values()) > LARGE

    @property
    def sides(self) -> dict[SideName, Side]:
        return {"candidate": self.candidate, "reference": self.reference}

    def shown(self, arrays: Arrays) -> Arrays:
        """Those that both sides are able to show."""
        return (
            arrays if self.visible is None else {name: array for name, array in arrays.items() if name in self.visible}
        )


@dataclass
class Found:
    """What a run has found so far."""

    progress: Callable[[str], None] = lambda what: None
    """Told what is done next."""
    stages: dict[str, dict[str, Stage]] = field(default_factory=dict)
    """By stage and problem."""
    faults: list[Fault] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    heat_maps: list[HeatMap] = field(default_factory=list)
    doubts: dict[str, None] = field(default_factory=dict)
    own: Forward | None = None
    truth: Arrays | None = None
    """The reference's activations of its own weights in float64."""
    size_of_logits: float = 0.0
    low: dict[SideName, Mapping[str, float]] = field(default_factory=dict)
    """Errors in float32, by side and activation."""

    def add(self, stage: Stage, problem: str) -> None:
        self.stages.setdefault(stage.name, {})[problem] = stage
