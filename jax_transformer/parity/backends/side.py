"""What a parity run asks of either side."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from jax_transformer.config.model import GenerationConfig
from jax_transformer.parity.problems import Problem

Arrays = Mapping[str, np.ndarray]
Dtype = Literal["float64", "float32", "bfloat16"]


class CannotRun(Exception):
    """Why a side can't do what a stage needs; the run goes on, and is inconclusive."""


class Gradients(NamedTuple):
    """Of one batch's loss, in float64."""

    loss: float
    parameters: Arrays
    """By path, layers one by one: `encoder/layers/…/kernel[0]`."""
    activations: Arrays
    """By the names of a trace."""


class Training(NamedTuple):
    """Some optimizer steps on one batch, in float64."""

    losses: np.ndarray
    """[steps]: before each."""
    parameters: tuple[Arrays, ...]
    """By path, layers one by one: before the first step, after it, and so on; or only at the end."""
    gradients: tuple[Arrays, ...]
    """At each step, before clipping; or none."""


class Plan(NamedTuple):
    """What a run is going to ask of a side, in float64."""

    stages: Collection[str]
    problem: Problem
    """What is trained on."""
    decoded: Problem | None
    """What is decoded greedily; None where nothing is, or where memory matters more than time."""
    max_new_tokens: int


class Side(Protocol):
    """One of the two. All are given the same problems and answer in the same names."""

    @property
    def name(self) -> str: ...

    def in_force(self, dtype: Dtype) -> Mapping[str, Any]:
        """What decides about precision, as it is: "float64", "TF32", …"""

    def get_ready(self, plan: Plan) -> None:
        """Told what comes, so that what takes long may begin."""

    def rest(self) -> None:
        """Told that the other side needs the memory: what can be made again may go."""

    def weights(self) -> Arrays:
        """Its own parameters and constants, by path, layers one by one, in their own dtypes."""

    def forward(self, problem: Problem, dtype: Dtype) -> Arrays:
        """Masks and activations in execution order; those in bfloat16 as float32."""

    def gradients(self, problem: Problem) -> Gradients: ...

    def train(self, problem: Problem, steps: int, *, keep_all: bool) -> Training: ...

    def decode(self, problem: Problem, beam_size: int, max_new_tokens: int) -> np.ndarray:
        """[B, T]: tokens without the start token, up to and with the end token, and pads."""


def layer_by_layer(leaves: Arrays) -> dict[str, np.ndarray]:
    """Stacked leaves taken apart: `encoder/layers/…/kernel` [L, …] becomes `…/kernel[0]`, …"""
    parts: dict[str, np.ndarray] = {}
    for path, leaf in leaves.items():
        if "/layers/" in path:
            parts |= {f"{path}[{i}]": layer for i, layer in enumerate(leaf)}
        else:
            parts[path] = leaf
    return parts


def starts_and_ends(generation: GenerationConfig) -> tuple[int, int]:
    """The tokens that targets begin and end with. Raises CannotRun where the model doesn't know them."""
    if generation.decoder_start_id is None or generation.eos_id is None:
        raise CannotRun("the model doesn't know how sentences begin and end: give --decoder-start-id and --eos-id")
    return generation.decoder_start_id, generation.eos_id
