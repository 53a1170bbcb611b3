"""Two small programs of the same weights, and the task of proving them one function.

Axes: B batch, T tokens, Q/K query/key length, D model, F feed-forward, N heads, H head_dim, V vocabulary, L layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from jax_transformer.proof import Program, Task

Shapes = Mapping[str, tuple[int, ...]]
"""The weights' names → their shapes."""
Weights = Mapping[str, Any]
Function = Callable[[Weights], Any]
"""Weights → an array, or arrays by name."""


class Side(NamedTuple):
    """A program, and the framework that it is written in."""

    framework: Literal["jax", "torch"]
    function: Function

    def lower(self, weights: Mapping[str, np.ndarray]) -> Program:
        """Lowers the program. Random float64 weights stand for all."""
        if self.framework == "jax":
            from jax_transformer.proof import jax_programs

            return jax_programs.lower(lambda held: named(self.function(held)), weights)
        import torch

        from jax_transformer.proof import torch_programs

        tensors = {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}
        return torch_programs.lower(lambda: named(self.function(tensors)), tensors)


def in_jax(function: Function) -> Side:
    return Side("jax", function)


def in_torch(function: Function) -> Side:
    return Side("torch", function)


@dataclass(frozen=True)
class Pair:
    """Two programs written differently."""

    name: str
    shapes: Shapes
    candidate: Side
    reference: Side

    def weights(self) -> dict[str, np.ndarray]:
        """Returns random float64 weights, the same at each call."""
        rng = np.random.default_rng([*self.name.encode()])
        return {name: rng.standard_normal(shape) for name, shape in self.shapes.items()}

    def draw(self, one: Callable[[tuple[int, ...]], np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Draws weights, which both programs read."""
        drawn = {name: one(shape) for name, shape in self.shapes.items()}
        return drawn, drawn

    def task(self) -> Task:
        """Lowers both programs."""
        weights = self.weights()
        return Task(self.candidate.lower(weights), self.reference.lower(weights), self.draw)


def named(outputs: Any) -> Mapping[str, Any]:
    """Returns outputs by name."""
    return outputs if isinstance(outputs, Mapping) else {"output": outputs}


def gradients_in_jax(function: Function) -> Function:
    """Returns the function's loss, and its gradients by the weights' names. It may return a loss and other arrays."""

    def both(weights: Weights) -> dict[str, Any]:
        import jax

        loss, gradients = jax.value_and_grad(function)(weights)
        return {"loss": loss, **{f"gradient of {name}": gradients[name] for name in weights}}

    return both


def gradients_in_torch(function: Function) -> Function:
    """Returns the function's loss, and its gradients by the weights' names."""

    def both(weights: Weights) -> dict[str, Any]:
        import torch

        loss = function(weights)
        found = torch.autograd.grad(loss, list(weights.values()))
        return {"loss": loss, **{f"gradient of {name}": each for name, each in zip(weights, found, strict=True)}}

    return both
