"""Defines the interface of both sides of a parity run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from jax_transformer.comparison.sides import Arrays, CannotRun, Dtype
from jax_transformer.config.decoding import DecodingConfig, GenerationConfig
from jax_transformer.parity.problems import Problem
from jax_transformer.storage.training_state import TrainingState


class NotFinite(CannotRun):
    """Raised when some sentences of a batch have logits that aren't finite, such as a sentence of only padding with
    masks of -inf: then gradients are meaningless."""

    def __init__(self, message: str, rows: Collection[int]) -> None:
        super().__init__(message)
        self.rows = rows
        """Their rows in the batch."""


class Gradients(NamedTuple):
    """Holds the loss of one batch and its gradients, in float64."""

    loss: float
    parameters: Arrays
    """By path, layer by layer: `encoder/layers/…/kernel[0]`."""
    activations: Arrays
    """By name in the trace."""


class Training(NamedTuple):
    """Holds the results of optimizer steps on one batch, in float64."""

    losses: np.ndarray
    """The loss before each step, [steps]."""
    parameters: tuple[Arrays, ...]
    """By path, layer by layer: before the first step and after each, or only after the last."""
    gradients: tuple[Arrays, ...]
    """The gradients of each step before clipping, or none."""


class Halt(NamedTuple):
    """Holds a stopped training that either side can continue."""

    params: Mapping[str, Any]
    """All parameters of the model, a nested dict in float64."""
    state: TrainingState
    losses: np.ndarray
    """The loss before each step since this side began or continued the training."""


class Hypotheses(NamedTuple):
    """Holds the best hypothesis of each of B sentences."""

    ids: np.ndarray
    """[B, T], without the start token, up to and including the end token, then pads."""
    scores: np.ndarray | None = None
    """[B]: the sum of the tokens' log-probabilities divided by the length penalty. None: unknown."""


class Plan(NamedTuple):
    """Announces the work of a run in float64, so that a side can prepare it."""

    stages: Collection[str]
    problem: Problem
    """The problem to train on."""
    decoded: Problem | None
    """The problem to decode by the first search. None: nothing to decode, or nothing in advance to save memory."""
    decoding: DecodingConfig
    """The first search."""


class Backend(Protocol):
    """Computes the model on one side. Both sides receive the same problems and return arrays by the same names."""

    @property
    def name(self) -> str: ...

    @property
    def doubts(self) -> Collection[str]:
        """Returns the reasons found so far to doubt that the results are those of the user's program."""

    def in_force(self, dtype: Dtype) -> Mapping[str, Any]:
        """Returns the settings that affect precision: dtype, TF32, …"""

    def get_ready(self, plan: Plan) -> None:
        """Starts slow work in the background."""

    def rest(self) -> None:
        """Frees memory for the other side; everything freed can be computed again."""

    def weights(self) -> Arrays:
        """Returns its own parameters and constants by path, layer by layer, in their own dtypes."""

    def forward(self, problem: Problem, dtype: Dtype) -> Arrays:
        """Returns masks and activations in execution order; bfloat16 as float32."""

    def gradients(self, problem: Problem) -> Gradients: ...

    def train(self, problem: Problem, steps: int, *, keep_all: bool) -> Training: ...

    def resume(self, problem: Problem, steps: int, halt: Halt | None = None) -> Halt:
        """Trains for some steps, from the problem's parameters or from a halted training of either side."""

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
    """Returns the start and end tokens of targets. Raises CannotRun if the model doesn't know them."""
    if generation.decoder_start_id is None or generation.eos_id is None:
        raise CannotRun("the model doesn't know how sentences begin and end: give --decoder-start-id and --eos-id")
    return generation.decoder_start_id, generation.eos_id
