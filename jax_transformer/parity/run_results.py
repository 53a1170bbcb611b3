"""The pair that a parity run compares, and the results that its stages collect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jax_transformer.comparison.findings import Fault, SideName
from jax_transformer.comparison.gates.stages import Stage
from jax_transformer.comparison.report.report import Depth, Effect, HeatMap
from jax_transformer.comparison.run import Order, Results
from jax_transformer.comparison.sides import Arrays
from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity.backends.side import Backend
from jax_transformer.parity.diagnosis.head_orders import in_order, inside_attention
from jax_transformer.parity.diagnosis.padding import ZERO, with_padding
from jax_transformer.parity.problems import Problems
from jax_transformer.parity.rules import BUILT_IN, Rules
from jax_transformer.runtime.trees import flatten

STAGES = ("weights", "inputs", "masks", "forward", "loss", "gradients", "step", "trajectory", "decode")
OPTIONAL = ("resume", "ctranslate2", "proof")
"""Stages that run only when they are asked for."""
SUBSTAGES = {"forward": ("truth", "forward float32", "forward bfloat16")}
"""Stages that the report lists after the one they belong to."""
ORDER = Order(
    tuple(name for stage in (*STAGES, *OPTIONAL) for name in (stage, *SUBSTAGES.get(stage, ()))),
    always=("truth",),
    explained_together=(("masks", "forward", "truth"), ("step", "trajectory")),
    from_own_results=("loss", "step", "decode"),  # a side's own logits and gradients
)
LIBRARIES = ("jax-transformer", "jax", "jaxlib", "flax", "optax", "torch", "transformers", "numpy")
"""The libraries whose versions a report or a certificate tells."""
LARGE = 20_000_000
"""The number of parameters above which a run saves memory at the cost of time."""


@dataclass(frozen=True)
class Pair:
    """Holds the two sides of a run and the model that both should compute."""

    config: TransformerConfig
    params: Mapping[str, Any]
    """The candidate's parameters, a nested dict."""
    candidate: Backend
    reference: Backend
    generation: GenerationConfig
    visible: frozenset[str] | None = None
    """The activations that both sides can show; None: all."""
    rules: Rules = BUILT_IN
    allow: frozenset[str] = frozenset()
    """The differences of ALLOWANCES that don't count."""
    kept: frozenset[str] = frozenset()
    """The paths of constants that no tensor of the reference holds, so that it can't receive others."""

    def problems(self, seed: int) -> Problems:
        """Returns the maker of a run's problems."""
        return Problems(self.config, self.params, seed, self.start_id, self.kept, self.allow)

    @property
    def start_id(self) -> int | None:
        """Returns the token that decoded targets begin with; None if none of the target's vocabulary is known."""
        start_id = self.generation.decoder_start_id
        return start_id if start_id is not None and 0 <= start_id < self.config.target.vocab_size else None

    @property
    def is_large(self) -> bool:
        """Whether the model has more than `LARGE` parameters."""
        return sum(np.size(leaf) for leaf in flatten(self.params).values()) > LARGE

    @property
    def sides(self) -> dict[SideName, Backend]:
        return {"candidate": self.candidate, "reference": self.reference}

    def shown(self, arrays: Arrays) -> Arrays:
        """Returns the arrays that both sides can show."""
        if self.visible is None:
            return arrays
        return {name: array for name, array in arrays.items() if name in self.visible}


@dataclass(frozen=True)
class Forward:
    """Holds the results of a forward pass on one problem."""

    masks: Stage
    forward: Stage
    truth: Stage
    faults: tuple[Fault, ...]
    notes: tuple[Fault, ...]
    """Differences that change nothing, such as another value of masked logits."""
    effect: Effect | None
    heat_map: HeatMap | None
    local: Mapping[SideName, Mapping[str, float]]
    """Local errors by side and node."""
    not_finite: tuple[str, ...] = ()
    """The nodes at which the reference makes NaN or infinity of finite values, where every query sees a key: whatever
    depends on them can't be judged."""


@dataclass
class RunResults(Results):
    """Collects what the stages of a run find."""

    not_finite: dict[str, str] = field(default_factory=dict)
    """The nodes at which the reference isn't finite, each with the first problem that shows it."""
    own: Forward | None = None
    """The forward pass on the model's own weights."""
    truth: Arrays | None = None
    """The reference's activations in float64, on the model's own weights."""
    size_of_logits: float = 0.0
    """The largest absolute value of the reference's logits."""
    low: dict[SideName, Mapping[str, float]] = field(default_factory=dict)
    """Errors in float32, by side and activation."""

    @property
    def zeroes_padding(self) -> bool:
        """Returns whether a side zeroes positions of padding, so that arrays are compared without them."""
        return any(match.variant == ZERO for note in self.notes for match in note.finding.matches)

    def harmless(self, config: TransformerConfig) -> frozenset[str]:
        """Returns the activations whose differences change nothing by the notes: those inside attentions with heads in
        another order, and those of a stack whose padding is zero."""
        found = set[str]()
        for note in self.notes:
            finding = note.finding
            if finding.heads:
                found |= inside_attention(config, finding.node)
            elif any(match.variant == ZERO for match in finding.matches):
                found |= with_padding(config, finding.node)
        return frozenset(found)

    def in_order(self, side: SideName, arrays: Arrays) -> Arrays:
        """Returns a side's activations with the heads of each attention in the model's own order."""
        side_findings = {note.finding.node: note.finding for note in self.notes if note.side == side}
        return in_order(arrays, side_findings.values())

    @property
    def depth(self) -> tuple[Depth, ...]:
        """Returns the propagated and local errors of the activations, and those in float32."""
        if self.own is None:
            return ()
        errors = {row.name: row.error.relative_rms for row in self.own.forward.rows if row.error is not None}
        local = [self.own.local.get(side, {}) for side in ("candidate", "reference")]
        low = [self.low.get(side, {}) for side in ("candidate", "reference")]
        return tuple(
            Depth(name, error, *(side.get(name, math.nan) for side in (*local, *low))) for name, error in errors.items()
        )
