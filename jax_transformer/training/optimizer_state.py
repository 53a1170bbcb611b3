"""Converts between an Optax state and a `TrainingState`, whose arrays are indexed by slot and path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import numpy as np
from jax.tree_util import DictKey, GetAttrKey, KeyPath

from jax_transformer.config.run import TrainConfig
from jax_transformer.model.matrices import matrix_size
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.training_state import SLOTS, TrainingState
from jax_transformer.training.state import TrainState

SLOT_OF = {"mu": "first_moment", "nu": "second_moment", "trace": "momentum"}
"""Slots by the field of the Optax state whose arrays have the parameters' shapes."""
FACTORS = ("v_row", "v_col")
"""Fields of Adafactor's factors, whose axes depend on which side of a matrix is longer. (The field "v" holds unfactored
squares.)"""


class OptimizerStateError(ValueError):
    """Raised when a run can't continue or write a training state."""


def continue_training(state: TrainState, saved: TrainingState, config: TrainConfig) -> TrainState:
    """Returns the state with the optimizer's arrays and the number of steps of a saved training state.

    Args:
      state: the run's first state, including the model's parameters.
      saved: the training state to continue.
      config: the run's training options.

    Raises:
      OptimizerStateError: a different optimizer; parameters without a state, or with different shapes. The message
        lists all problems.
    """
    layout = check_continues(state, saved, config)

    def value(keys: KeyPath, leaf: jax.Array) -> jax.Array:
        field, path = _place(keys)
        slot = layout.slot(field, path)
        if field == "count":
            return _like(leaf, np.full(leaf.shape, saved.step))
        if slot is None or slot not in saved.slots:  # the optimizer keeps nothing there, or the momentum is 0
            return leaf
        return _like(leaf, np.asarray(saved.slots[slot][path]).reshape(leaf.shape))

    optimizer = jax.tree_util.tree_map_with_path(value, state.optimizer)
    return state._replace(optimizer=optimizer, step=_like(state.step, np.asarray(saved.step)))


def check_continues(state: TrainState, saved: TrainingState, config: TrainConfig) -> Layout:
    """Checks that the run can continue the training state, and returns the layout of its slots; shapes suffice.

    Raises:
      OptimizerStateError: see `continue_training`; the run has no more steps than the training state.
    """
    if config.optimizer != saved.optimizer:
        raise OptimizerStateError(
            f"train.optimizer: expected {saved.optimizer}, whose state the model has; received {config.optimizer}"
        )
    if saved.step >= config.max_steps:
        raise OptimizerStateError(
            f"train.max_steps: expected more than the {saved.step:,} steps that the model has been trained for, which "
            f"count; received {config.max_steps:,}"
        )
    layout = Layout.of(state, config)
    problems = layout.problems(saved)
    if problems:
        raise OptimizerStateError("\n  - ".join(["this training state doesn't fit the run:", *problems]))
    return layout


def training_state(state: TrainState, config: TrainConfig) -> TrainingState:
    """Returns the optimizer's part of a state by slot and path, as NumPy arrays.

    Raises:
      OptimizerStateError: the optimizer is Muon, which has no slots.
    """
    if config.optimizer == "muon":
        raise OptimizerStateError("train.optimizer: expected adam, sgd or adafactor to write its state; received muon")
    layout = Layout.of(state, config)
    slots: dict[str, dict[str, np.ndarray]] = {}
    for keys, leaf in jax.tree_util.tree_flatten_with_path(state.optimizer)[0]:
        field, path = _place(keys)
        slot = layout.slot(field, path)
        if slot is not None and (config.momentum or slot != "momentum"):
            slots.setdefault(slot, {})[path] = np.asarray(leaf).reshape(layout.shape(slot, path))
    return TrainingState(config.optimizer, int(state.step), slots)


def _place(keys: KeyPath) -> tuple[str, str]:
    """Returns the field of the Optax state that contains a leaf, such as "mu" or "count", and the path of its
    parameter."""
    number = max(number for number, key in enumerate(keys) if isinstance(key, GetAttrKey))
    return keys[number].name, "/".join(str(key.key) for key in keys[number + 1 :] if isinstance(key, DictKey))


def _like(leaf: jax.Array, value: np.ndarray) -> jax.Array:
    """Returns an array with the dtype and sharding of the leaf."""
    value = value.astype(leaf.dtype)
    return jax.make_array_from_callback(value.shape, leaf.sharding, lambda index: value[index])


@dataclass(frozen=True)
class Layout:
    """Maps each field of an Optax state to its slot."""

    shapes: Mapping[str, tuple[int, ...]]
    """Shapes of the trained parameters by path."""
    factored_from: int

    @classmethod
    def of(cls, state: TrainState, config: TrainConfig) -> Layout:
        return cls({path: leaf.shape for path, leaf in flatten(state.params).items()}, config.factored_from)

    def slot(self, field: str, path: str) -> str | None:
        """Returns the slot of a parameter's entry in a field; None for a count, and for an unused field of
        Adafactor."""
        if field not in (*FACTORS, "v"):
            return SLOT_OF.get(field)
        matrix = self._factored(path)
        if matrix is None or field == "v":
            return "squares" if matrix is None and field == "v" else None
        inputs, outputs = matrix
        # Optax averages v_row over the longer side, or over the second if both are equal
        return "input_squares" if (field == "v_row") == (inputs <= outputs) else "output_squares"

    def shape(self, slot: str, path: str) -> tuple[int, ...]:
        """Returns the shape of a parameter's entry in a slot."""
        matrix = self._factored(path)
        if matrix is None or slot not in ("input_squares", "output_squares"):
            return self.shapes[path]
        size = matrix[0] if slot == "input_squares" else matrix[1]
        return (self.shapes[path][0], size) if "/layers/" in path else (size,)

    def _factored(self, path: str) -> tuple[int, int] | None:
        """Returns the inputs and outputs of a parameter, or of each layer, if Adafactor factors its moments; None for
        any other."""
        matrix = matrix_size(path, self.shapes[path])
        return matrix if matrix is not None and min(matrix) >= self.factored_from else None

    def problems(self, saved: TrainingState) -> list[str]:
        """Lists the reasons why a saved state can't continue with these parameters."""
        if not saved.slots:
            return []
        known = set(saved.paths)
        problems = [
            f"parameter {path}: it has no state, since it wasn't trained; freeze it (train.freeze), or start without "
            "init_optimizer"
            for path in self.shapes
            if path not in known
        ]
        problems += [
            f"parameter {path}: it has a state that would be lost, since the run doesn't train it"
            for path in sorted(known - self.shapes.keys())
        ]
        for path in self.shapes.keys() & known:
            slots = [slot for slot in SLOTS[saved.optimizer] if path in saved.slots.get(slot, {})]
            expected = self._expected(saved.optimizer, path)
            received = {slot: tuple(saved.slots[slot][path].shape) for slot in slots}
            if expected != received:
                problems.append(f"parameter {path}: expected {_listed(expected)}; received {_listed(received)}")
        return problems

    def _expected(self, optimizer: str, path: str) -> dict[str, tuple[int, ...]]:
        slots = SLOTS[optimizer]
        if optimizer == "adafactor":
            slots = slots[2:] if self._factored(path) is None else slots[:2]
        return {slot: self.shape(slot, path) for slot in slots}


def _listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{slot} {list(shape)}" for slot, shape in shapes.items())
