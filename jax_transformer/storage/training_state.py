"""Holds the training state of a model: an optimizer's moments by parameter path, and the number of steps done.

A model directory keeps it in `optimizer.safetensors`, under names such as first_moment/encoder/final_norm/scale, and
the rest of it in its manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from jax_transformer.config.run import TrainConfig
from jax_transformer.storage.tensor_files import Relocated
from jax_transformer.storage.tensors import PortingError, Tensors

SLOTS: Mapping[str, tuple[str, ...]] = {
    "adam": ("first_moment", "second_moment"),
    "sgd": ("momentum",),
    "adafactor": ("input_squares", "output_squares", "squares"),
}
"""The slots of each optimizer. Slots of Adam and SGD have the parameters' shapes. Adafactor keeps the means of a
matrix's squared gradients over its outputs, [(L,) inputs], and over its inputs, [(L,) outputs], and of other parameters
all squares."""


@dataclass(frozen=True)
class TrainingState:
    """Holds an optimizer's state, whatever framework it came from.

    Example:
      >>> import numpy as np
      >>> moments = {name: {"head/kernel": np.zeros((8, 9))} for name in ("first_moment", "second_moment")}
      >>> TrainingState("adam", 20, moments).paths
      ['head/kernel']
    """

    optimizer: Literal["adam", "sgd", "adafactor"]
    step: int
    """Optimizer steps done."""
    slots: Mapping[str, Mapping[str, Any]]
    """Arrays by slot and by the parameter's path, such as "encoder/layers/self_attention/query/kernel"."""
    train: Mapping[str, Any] = field(default_factory=dict)
    """Fields of TrainConfig that the checkpoint determines."""
    next_rate: float | None = None
    """The learning rate of the next step, as the checkpoint's schedule has it; None if it holds no schedule."""
    origin: Mapping[str, Any] = field(default_factory=dict)
    """The rest of the checkpoint's training settings, which an export writes back. Empty if the state can't be
    exported."""

    @property
    def paths(self) -> list[str]:
        """Returns the paths of the parameters that have a state."""
        return list(dict.fromkeys(path for leaves in self.slots.values() for path in leaves))

    def arrays(self) -> dict[str, Any]:
        """Returns the arrays under the names that the file has for them."""
        return {f"{slot}/{path}": leaf for slot, leaves in self.slots.items() for path, leaf in leaves.items()}

    def described(self) -> dict[str, Any]:
        """Returns everything but the arrays, for the manifest."""
        return {
            "optimizer": self.optimizer,
            "step": self.step,
            "train": dict(self.train),
            "next_rate": self.next_rate,
            "origin": dict(self.origin),
        }


PARTS: Mapping[str, type] = {
    "form": str, "keys": dict, "order": list, "parameters": list, "groups": list, "step": str, "is_flat": bool,
    "extras": dict, "others": dict, "left_out": list,
}  # fmt: skip
"""The parts of an origin that isn't empty."""


def parse_training_state(described: Any) -> TrainingState:
    """Returns the state, without arrays, that `described` describes.

    Raises:
      ValueError, TypeError, LookupError: it describes none.
    """
    known = {field.name for field in fields(TrainConfig)}
    train, rate, origin = described["train"], described["next_rate"], described["origin"]
    if described["optimizer"] not in SLOTS or not known >= train.keys():
        raise ValueError(f"unknown fields {sorted(train.keys() - known)}")
    is_whole = not origin or all(isinstance(origin[name], kind) for name, kind in PARTS.items())
    if not isinstance(rate, float | None) or not is_whole:
        raise ValueError("parts of other types")
    return TrainingState(described["optimizer"], int(described["step"]), {}, train, rate, origin)


def arrange_training_state(tensors: Tensors, described: Any) -> TrainingState:
    """Returns the training state of the arrays in a file, each read on access, and of its description in the manifest.

    Raises:
      PortingError: names or a description of another form.
    """
    try:
        optimizer = described["optimizer"]
        places: dict[str, dict[str, tuple[Tensors, str]]] = {slot: {} for slot in SLOTS[optimizer]}
        for name in tensors:
            slot, _, path = name.partition("/")
            places[slot][path] = (tensors, name)
        state = parse_training_state(described)
        return replace(state, slots={slot: Relocated(leaves) for slot, leaves in places.items() if leaves})
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise PortingError(
            f"expected an optimizer's state as the manifest describes it; received another ({error!r})"
        ) from None
