"""Reads the training state of T5X: Adafactor's moments and the number of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jax_transformer.model.matrices import matrix_size
from jax_transformer.porting.formats.t5x import AdafactorState, adafactor_state
from jax_transformer.porting.optimizers.conversion import Slots, Table, slots_from_entries
from jax_transformer.porting.optimizers.kinds import Fields, kind_for
from jax_transformer.storage.tensors import PortingError
from jax_transformer.storage.training_state import TrainingState

USUAL_FACTORED_FROM = 128
"""T5X's min_dim_size_to_factor, unless its gin file says otherwise."""
FIXED: dict[str, tuple[Any, ...]] = {
    "beta1": (None,),
    "decay_rate": (0.8,),
    "step_offset": (0,),
    "clipping_threshold": (1.0,),
    "weight_decay_rate": (None,),
    "weight_decay_rate_lr_exponent": (None,),
    "global_norm_clip_threshold": (None,),
    "max_parameter_scale": (None,),
    "skip_nan_updates": (False, None),
    "epsilon1": (1e-30,),
    "epsilon2": (1e-3,),
}
"""Arguments of T5X's Adafactor that change its update, and their values that the update has here."""


def training_state(path: Path, table: Table) -> TrainingState:
    """Returns the training state of a checkpoint, by the table that moves its parameters.

    The learning rate isn't part of it: T5X's default, constant times the inverse square root of the step after 10,000
    steps of warm-up, is schedule="relative" with relative_step=0.01.

    Raises:
      PortingError: see `adafactor_state`; settings that no Adafactor here has.
    """
    state = adafactor_state(path)
    fields = _settings(path, state)
    kind = kind_for({"optimizer": "adafactor"})  # transformers', whose update is T5X's
    keys = {slot: key for key, slot in kind.slots.items()}
    entries = {name: {keys[slot]: array for slot, array in held.items()} for name, held in state.moments.items()}
    missing = [name for name in sorted(table.names_of(list(table.shapes))) if name not in entries]
    if missing:
        raise PortingError(f"{path}: expected Adafactor's state of every parameter; received none of {missing[0]}")
    slots = slots_from_entries(kind, entries, table)
    return TrainingState("adafactor", state.step, slots, fields | _factored_from(path, slots, table))


def _settings(path: Path, state: AdafactorState) -> Fields:
    problems = [
        f"{name} must be {' or '.join(map(repr, values))}; received {state.settings[name]!r}"
        for name, values in FIXED.items()
        if state.settings.get(name, values[0]) not in values
    ]
    scales = state.settings.get("multiply_by_parameter_scale", True)
    if not isinstance(scales, bool):
        problems.append(f"multiply_by_parameter_scale must be True or False; received {scales!r}")
    if problems:
        raise PortingError(f"{path}: Adafactor with settings that no run here has", problems)
    return {
        "optimizer": "adafactor",
        "weight_decay": 0.0,
        "weight_decay_kind": "decoupled",
        "scale_by_parameter": scales,
    }


def _factored_from(path: Path, slots: Slots, table: Table) -> Fields:
    """Returns the least size of a matrix that is factored: T5X's usual one, or one that tells these apart."""
    sides = {name: matrix_size(name, shape) for name, shape in table.shapes.items()}
    sizes = {name: min(side) for name, side in sides.items() if side is not None}
    factored = {name for name in sizes if name in slots.get("input_squares", {})}
    whole = max((sizes[name] for name in sizes if name not in factored), default=0)
    least = min((sizes[name] for name in factored), default=max(whole + 1, USUAL_FACTORED_FROM))
    if least <= whole:
        smallest = min(factored, key=sizes.__getitem__)
        largest = max((name for name in sizes if name not in factored), key=sizes.__getitem__)
        raise PortingError(
            f"{path}: expected larger matrices to be factored, and smaller ones not; received {smallest} "
            f"({least} wide), which is, and {largest} ({whole} wide), which isn't"
        )
    return {"factored_from": min(max(whole + 1, USUAL_FACTORED_FROM), least)}
