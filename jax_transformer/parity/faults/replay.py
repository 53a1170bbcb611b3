"""What the variants share: a node about to be computed again, and the usual ways to change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jax_transformer.parity.gates import tolerances
from jax_transformer.parity.gates.arrays import Arrays
from jax_transformer.parity.gates.compare import relative_rms
from jax_transformer.parity.oracle.graph import Kind, Node, place
from jax_transformer.parity.oracle.replay import parameter

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig


@dataclass(frozen=True)
class Replay:
    """A node about to be computed again: everything that a variant may change."""

    config: TransformerConfig
    node: Node
    inputs: Arrays
    """By argument of the node's formula."""
    parameters: Arrays
    captured: Arrays
    """Everything that was captured, by name."""
    params: Mapping[str, Any]
    """The model's."""

    def compute(self, inputs: Arrays | None = None, parameters: Arrays | None = None, config: Any = None) -> np.ndarray:
        """The node, with what is given in place of its own: some inputs, all parameters."""
        given = self.parameters if parameters is None else parameters
        return self.node.compute(config or self.config, {**self.inputs, **(inputs or {})}, given)

    @cached_property
    def own(self) -> np.ndarray:
        """The node's value without any fault."""
        return self.compute()

    @cached_property
    def received(self) -> np.ndarray:
        """What the candidate has for it, in float64, cut to the length 1 of axes along which the node is the same.

        Raises:
          LookupError: it wasn't captured, or has another shape.
        """
        kept = np.asarray(self.captured[self.node.name])
        if kept.ndim != self.own.ndim:
            raise LookupError("another shape")
        kept = kept[tuple(slice(1) if size == 1 else slice(None) for size in self.own.shape)]
        if kept.shape != self.own.shape:
            raise LookupError("another shape")
        return kept.astype(np.float64)

    def error(self, value: np.ndarray) -> float:
        """The relative RMS between what was received and this; of masked logits that of the unmasked."""
        where = self.inputs.get("mask")
        return relative_rms(self.received, value, where if where is None or where.any() else None)

    @cached_property
    def is_right(self) -> bool:
        """Whether there is no fault to recognise: then what recognises one puts one in."""
        return self.error(self.own) <= tolerances.FLOAT64_RELATIVE_RMS

    def under(self, **changes: Any) -> np.ndarray:
        """The node under a config of which some fields read otherwise."""
        return self.compute(config=changed(self.config, **changes))

    def own_parameter(self, module: str, role: str) -> np.ndarray:
        """A parameter of the same layer, such as the `scale` of `feed_forward_norm`. Raises ValueError where there is
        none."""
        at = place(self.node.name)
        return parameter(self.params, f"{at.stack}/layers/{module}/{role}[{at.layer}]")

    def beside(self, name: str) -> np.ndarray:
        """Another activation of the same layer, such as `feed_forward_norm`. Raises LookupError where there is none."""
        at = place(self.node.name)
        return in_float64(self.captured[f"{at.stack}.layers.{at.layer}.{name}"])


def in_float64(array: np.ndarray) -> np.ndarray:
    """But integers and booleans, which stay what they are."""
    return array if array.dtype.kind in "biu" else array.astype(np.float64, copy=False)


def changed(config: TransformerConfig, **changes: Any) -> Any:
    """What reads as the config, but for some fields; not validated, as one formula reads few of them."""
    read = {field.name: getattr(config, field.name) for field in fields(config)}
    return SimpleNamespace(**read | {"encoder": config.encoder, "decoder": config.decoder} | changes)


class Variant(NamedTuple):
    """One fault."""

    name: str
    """As it is told: what the candidate does."""
    kinds: tuple[Kind, ...]
    compute: Callable[[Replay], np.ndarray]
    """The node's value with the fault. Raises LookupError, or ValueError, where it makes no sense."""


def configured(name: str, kinds: tuple[Kind, ...], **changes: Any) -> Variant:
    """The node under another config, as a fault."""
    return Variant(name, kinds, partial(Replay.under, **changes))


def without(replay: Replay, role: str) -> np.ndarray:
    """The node without one of its parameters. Raises LookupError where it has none."""
    if role not in replay.parameters:
        raise LookupError(role)
    return replay.compute(parameters={name: array for name, array in replay.parameters.items() if name != role})


def exchanged(replay: Replay, roles: Mapping[str, str]) -> np.ndarray:
    """The node with the parameters of its roles given by others of its own. Raises LookupError where it hasn't
    these."""
    return replay.compute(parameters={role: replay.parameters[roles[role]] for role in replay.parameters})
