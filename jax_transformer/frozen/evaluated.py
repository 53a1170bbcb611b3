"""Computes a JAX program in float64 as its operations are read, for a program that runs in float32 by itself.

Many JAX modules pin float32: given weights in float64, they compute in float32. Their operations, read one by one, are
evaluated in float64 instead; nothing is compiled then. A program with an operation that can't be read is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jax_transformer.comparison.capture import OWN
from jax_transformer.comparison.gates.arrays import Arrays
from jax_transformer.comparison.lowering import COTANGENT, GRADIENT, INPUT, AnyProgram, Selection
from jax_transformer.comparison.precision import in_bits
from jax_transformer.comparison.sides import CannotRun
from jax_transformer.comparison.ties import Leaf
from jax_transformer.frozen.jax_runs import JaxRunner
from jax_transformer.frozen.runs import Nudge, factors
from jax_transformer.proof.domains import Floats
from jax_transformer.proof.evaluating import evaluate
from jax_transformer.proof.programs import Program, UnknownOperation


class EvaluatedRunner(JaxRunner):
    """Runs a function in its own type, and evaluates it in float64.

    Args:
      leaves: the leaves that it reads, in their own types.
      the rest: as of `JaxRunner`.
    """

    def __init__(self, leaves: Arrays, *rest: Any, **options: Any) -> None:
        super().__init__(*rest, **options)
        self.side = AnyProgram(self.name, self.called, self.inputs, leaves)

    @cached_property
    def forward_program(self) -> Program | None:
        """Returns the program of the output; None if it can't be read."""
        return self._lowered(None)

    @cached_property
    def gradient_program(self) -> Program | None:
        return self._lowered(frozenset(name for name, array in self.side.weights.items() if array.dtype.kind in "fV"))

    def _lowered(self, gradients: frozenset[str] | None) -> Program | None:
        shapes = {name: tuple(np.shape(array)) for name, array in self.side.weights.items()}
        try:
            found = self.side.lower({name: Leaf(name) for name in shapes}, shapes, Selection(gradients, False))
        except UnknownOperation:
            return None
        return None if OWN in found.unknown else found

    def run(self, dtype: str, nudge: Nudge | None = None) -> dict[str, np.ndarray]:
        program = self.forward_program if dtype == "float64" else None
        if program is not None:
            return {OWN: self.outputs(program.restricted([OWN]), self._moved("float64", nudge))[OWN]}
        found = super().run(dtype, nudge)
        if dtype == "float64" and found[OWN].dtype == np.float32:
            raise CannotRun(f"{self.name}: given weights in float64, it computes in float32, and it can't be read")
        return found

    def outputs(self, program: Program, weights: Arrays, cotangent: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Evaluates a program on weights that its leaves consist of."""
        given = {**self.carry(weights), **{INPUT + name: array for name, array in self.inputs.items()}}
        if cotangent is not None:
            given[COTANGENT] = cotangent
        held = {name: np.asarray(given[name], np.float64) for name in program.inputs}
        return evaluate(program, Floats(), held)

    def rounds(self) -> bool:
        return self.forward_program is None and super().rounds()

    def _slope(self, leaves: Mapping[str, Any], inputs: Mapping[str, Any], factor: float) -> tuple[Any, Any]:
        program = self.gradient_program
        if program is None:
            return super()._slope(leaves, inputs, factor)
        given = {**leaves, **{INPUT + name: array for name, array in self.inputs.items()}}
        held = {name: np.asarray(array) for name, array in given.items()}
        forward = self.forward_program or program
        names = forward.restricted([OWN])
        output = evaluate(names, Floats(), {name: np.asarray(held[name], np.float64) for name in names.inputs})[OWN]
        loss, cotangent = _cotangent(self.loss, output)
        held[COTANGENT] = factor * cotangent
        found = evaluate(program, Floats(), {name: np.asarray(held[name], np.float64) for name in program.inputs})
        gradients = {name.removeprefix(GRADIENT): one for name, one in found.items() if name.startswith(GRADIENT)}
        return factor * loss, gradients


def _cotangent(loss: Callable[..., Any] | None, output: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the loss of an output, and its gradient."""
    if loss is None:
        weights = factors(output.shape)
        return float((output * weights).sum()), weights
    with in_bits(64):
        value, slope = jax.value_and_grad(lambda each: loss(each))(jax.numpy.asarray(output))
        return float(value), np.asarray(slope)
