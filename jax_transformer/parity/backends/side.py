"""The interface of both sides of a parity run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from jax_transformer.comparison.sides import Arrays, CannotRun, Dtype
from jax_transformer.config.decoding import DecodingConfig, GenerationConfig
from jax_transformer.parity.problems import Problem
from jax_transformer.storage.training_state import TrainingState


class NotFinite(CannotRun):
    """Raised when some sentences of a batch have logits that aren't finite, such as one of padding alone where masks
    are -inf: no gradient means anything then."""

    def __init__(self, message: str, rows: Collection[int]) -> None:
        super().__init__(message)
        self.rows = rows
        """Their rows in the batch."""


class Gradients(NamedTuple):
    """Holds the loss of one batch and its gradients, in float64."""

    loss: float
    parameters: Arrays
    """By path, layers one by one: `encoder/layers/…/kernel[0]`."""
    activations: Arrays
    """By name in the trace."""


class Training(NamedTuple):
    """Holds the results of optimizer steps on one batch, in float64."""

    losses: np.ndarray
    """The loss before each step, [steps]."""
    parameters: tuple[Arrays, ...]
    """By path, layers one by one: before the first step and after each; or only after the last."""
    gradients: tuple[Arrays, ...]
    """The gradients of each step before clipping; or none."""


class Halt(NamedTuple):
    """Holds a training that was stopped, so that either side can continue it."""

    params: Mapping[str, Any]
    """All of the model's, a nested dict in float64."""
    state: TrainingState
    losses: np.ndarray
    """The loss before each step since it was begun or continued."""


class Hypotheses(NamedTuple):
    """Holds the best hypothesis of each of B sentences."""

    ids: np.ndarray
    """[B, T], without the start token, up to and with the end token, then pads."""
    scores: np.ndarray | None = None
    """[B]: the sum of the tokens' log-probabilities divided by the length penalty; None: not known."""


class Plan(NamedTuple):
    """Announces the work of a run in float64, so that a side can prepare it."""

    stages: Collection[str]
    problem: Problem
    """The problem to train on."""
    decoded: Problem | None
    """The problem to decode by the first search; None if there is none, or if memory matters more than time."""
    decoding: DecodingConfig
    """The first search."""


class Backend(Protocol):
    """Computes the model on one side. Both sides receive the same problems and return arrays by the same names."""

    @property
    def name(self) -> str: ...

    @property
    def doubts(self) -> Collection[str]:
        """Returns what has shown so far that its results may not be what its program computes."""

    def in_force(self, dtype: Dtype) -> Mapping[str, Any]:
        """Returns the settings that decide about precision: dtype, TF32, …"""

    def get_ready(self, plan: Plan) -> None:
        """Begins work that takes long, in the background."""

    def rest(self) -> None:
        """Frees what can be computed again, as the other side needs the memory."""

    def weights(self) -> Arrays:
        """Returns its own parameters and constants by path, layers one by one, in their own dtypes."""

    def forward(self, problem: Problem, dtype: Dtype) -> Arrays:
        """Returns masks and activations in execution order; bfloat16 as float32."""

    def gradients(self, problem: Problem) -> Gradients: ...

    def train(self, problem: Problem, steps: int, *, keep_all: bool) -> Training: ...

    def resume(self, problem: Problem, steps: int, halt: Halt | None = None) -> Halt:
        """Trains for some steps, from the problem's parameters or from where either side halted."""

    def decode(self, problem: Problem, decoding: DecodingConfig) -> Hypotheses: ...


def layer_by_layer(leaves: Arrays) -> dict[str, np.ndarray]:
    """Splits stacked leaves: `encoder/layers/…/kernel` [L, …] becomes `…/kernel[0]`, …"""
    parts: dict[str, np.ndarray] = {}
    for path, leaf in leaves.items():
        if "/layers/" in path:
            parts |= {f"{path}[{i}]": layer for i, layer in enumerate(leaf)}
        else:
            parts[path] = leaf
    return parts


def starts_and_ends(generation: GenerationConfig) -> tuple[int, int]:
    """Returns the tokens that targets begin and end with. Raises CannotRun if the model doesn't know them."""
    if generation.decoder_start_id is None or generation.eos_id is None:
        raise CannotRun("the model doesn't know how sentences begin and end: give --decoder-start-id and --eos-id")
    return generation.decoder_start_id, generation.eos_id
