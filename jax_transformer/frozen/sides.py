"""Presents a frozen program as a side of a proof."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jax_transformer.comparison.capture import OWN
from jax_transformer.comparison.gates.arrays import Arrays, ParityError
from jax_transformer.comparison.lowering import GRADIENT, AnyProgram, Selection
from jax_transformer.comparison.ties import Leaf, MemoryPlace
from jax_transformer.frozen.record import Frozen
from jax_transformer.proof import Program, UnknownOperation


def check_same_inputs(inputs: Arrays, frozen: Frozen) -> None:
    """Raises ParityError for inputs that aren't those of a frozen reference: a proof holds for its ids and masks."""
    same = inputs.keys() == frozen.inputs.keys() and all(
        np.array_equal(inputs[name], array) and inputs[name].dtype == array.dtype
        for name, array in frozen.inputs.items()
    )
    if not same:
        raise ParityError(
            f"inputs: expected none, or those of {frozen.path or frozen.name}: its program is for these ids and masks"
        )


class FrozenSide(AnyProgram):
    """A frozen program and its weights.

    Args:
      frozen: the reference.
      constants: tensors that its program takes as constants.
    """

    def __init__(self, frozen: Frozen, constants: tuple[str, ...] = ()) -> None:
        weights = {
            name: array for name, array in frozen.weights.items() if array.dtype.kind == "f" and name not in constants
        }
        super().__init__(frozen.name, _never, frozen.inputs, weights)
        object.__setattr__(self, "frozen", frozen)
        object.__setattr__(self, "constants", constants)

    frozen: Frozen
    constants: tuple[str, ...]

    @property
    def parameters(self) -> frozenset[str]:
        trained = {each for name in self.frozen.trained for each in (name, *self.frozen.tied.get(name, ()))}
        return frozenset(trained & {*self.weights})

    @property
    def is_module(self) -> bool:
        return True  # it differentiates what is trained, and no other tensors

    def shared_memory(self) -> dict[str, MemoryPlace]:
        found: dict[str, MemoryPlace] = {}
        for block, (name, others) in enumerate(self.frozen.tied.items()):
            found |= {each: MemoryPlace(block, None) for each in (name, *others) if each in self.weights}
        return found

    def lower(self, leaves: Mapping[str, Leaf], shapes: Mapping[str, tuple[int, ...]], wanted: Selection) -> Program:
        stage = "forward" if wanted.gradients is None else "gradients"
        held = self.frozen.program(stage, self.constants)
        if held is None:
            raise UnknownOperation(
                "frozen", "", f"the reference has no program of its {stage}: {self.frozen.unlowered}"
            )
        program = held.program
        wrong = [name for name in program.inputs if name in self.weights and leaves[name].variable != name]
        if wrong:
            raise UnknownOperation("tie", "", f"{wrong[0]} is tied to another weight than when it was frozen")
        if wanted.gradients is None:
            return program
        return program.restricted([OWN, *(GRADIENT + name for name in wanted.gradients)])


def _never(*arguments: object) -> None:
    raise AssertionError("a frozen program isn't run")
