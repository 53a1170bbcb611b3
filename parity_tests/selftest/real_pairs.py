"""Real divergences: one published system's weights in the program of another, whose checkpoints have the same names and
shapes."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import Any

from jax_transformer.parity.backends.torch_module import TorchSide
from jax_transformer.parity.stages.forward import compare_forward
from selftest.matrix import Prepared


@dataclass(frozen=True)
class RealPair:
    """Weights, a program, and what must be said of it."""

    weights: str
    """One of SUBJECTS."""
    program: str
    """A module of torch_reference."""
    expected: tuple[str, ...]
    """Each must be among the causes that are given."""


REAL_PAIRS = (
    RealPair("annotated_zh", "harvard", ("norm: ε outside the root", "ReLU")),
    RealPair(
        "sayhello, with biases",
        "hyunwoongko",
        (
            "norm: variance over D",
            "masked logits are -10000",
            "pads masked as keys",
            "pads masked as queries, by the target's pad id",
        ),
    ),
)


@dataclass(frozen=True)
class Verdict:
    """What was said."""

    pair: RealPair
    causes: Counter[str]
    """Every cause, and at how many nodes."""

    @property
    def missing(self) -> list[str]:
        """What should have been said and wasn't."""
        return [cause for cause in self.pair.expected if cause not in self.causes]


def judge(pair: RealPair, seed: int = 0) -> Verdict:
    """The causes that are given for the program, with the system's own weights."""
    system = Prepared.of(pair.weights, seed)
    reference: Any = dataclasses.replace(system.program.reference, program=pair.program)  # type: ignore[type-var]
    program = TorchSide(pair.program, system.model, reference)
    problem = system.problems[0]
    result = compare_forward(system.model.config, problem, program.forward(problem, "float64"), system.right[0])
    findings = [fault.finding for fault in (*result.faults, *result.notes) if fault.side == "candidate"]
    return Verdict(pair, Counter(match.variant for finding in findings for match in finding.matches))
