"""Replay a node with changes: the tools that all variants share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import Arrays
from jax_transformer.comparison.gates.compare import relative_rms
from jax_transformer.config.specs import LayerNorm, RmsNorm
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import Kind, Node, nodes, norm_roles, parameter, parameter_index, place

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig
    from jax_transformer.config.specs import Norm, Stack


Parts = Mapping[str, Any]
"""Parts of a config by argument of a node's formula."""


@dataclass(frozen=True)
class Replay:
    """Holds a node to compute again, and everything that a variant may change."""

    config: TransformerConfig
    node: Node
    inputs: Arrays
    """Arrays by argument of the node's formula."""
    parameters: Arrays
    captured: Arrays
    """All captured values by name."""
    params: Mapping[str, Any]
    """The model's parameters."""

    def compute(
        self, inputs: Arrays | None = None, parameters: Arrays | None = None, parts: Parts | None = None
    ) -> np.ndarray:
        """Computes the node with some inputs, all parameters, or all parts of the config replaced."""
        parameters = self.parameters if parameters is None else parameters
        arguments = {**self.inputs, **(inputs or {}), **parameters}
        return self.node.formula(**(self.parts if parts is None else parts), **arguments)

    @cached_property
    def own(self) -> np.ndarray:
        """Returns the node's value without any fault."""
        return self.compute()

    @cached_property
    def without_mask(self) -> np.ndarray:
        """Returns attention logits before the mask is applied."""
        inputs = {argument: array for argument, array in self.inputs.items() if argument != "mask"}
        return self.node.compute(self.config, inputs, self.parameters)

    @cached_property
    def received(self) -> np.ndarray:
        """Returns the captured value in float64, reduced to length 1 along axes where the node is constant.

        Raises:
          LookupError: it wasn't captured, or has the wrong shape.
        """
        kept = np.asarray(self.captured[self.node.name])
        if kept.ndim != self.own.ndim:
            raise LookupError("another shape")
        kept = kept[tuple(slice(1) if size == 1 else slice(None) for size in self.own.shape)]
        if kept.shape != self.own.shape:
            raise LookupError("another shape")
        return kept.astype(np.float64)

    def error(self, value: np.ndarray) -> float:
        """Returns the relative RMS between the received value and this one, on unmasked logits alone."""
        where = self.inputs.get("mask")
        return relative_rms(self.received, value, where if where is None or where.any() else None)

    @cached_property
    def is_right(self) -> bool:
        """Returns whether the received value has no fault; variants that recognise a fault then inject one."""
        return self.error(self.own) <= tolerances.FLOAT64_RELATIVE_RMS

    @cached_property
    def parts(self) -> Parts:
        """Returns the parts of the config that the node's formula reads, by argument."""
        return self.node.parts_of(self.config)

    def option(self, name: str) -> Any:
        """Returns the value of an option of the node's parts. Raises LookupError if none of them has it."""
        return getattr(self.parts[self._argument(name)], name)

    def with_options(self, **options: Any) -> Parts:
        """Returns the node's parts with changed options. Raises LookupError if no part has one of them."""
        changed: dict[str, dict[str, Any]] = {}
        for name, value in options.items():
            changed.setdefault(self._argument(name), {})[name] = value
        return {**self.parts, **{argument: _with(self.parts[argument], own) for argument, own in changed.items()}}

    def under(self, **options: Any) -> np.ndarray:
        """Computes the node with changed options. Raises LookupError if one is unchanged."""
        if any(self.option(name) == value for name, value in options.items()):
            raise LookupError("as it is")
        return self.compute(parts=self.with_options(**options))

    def _argument(self, option: str) -> str:
        """Returns the argument of the first part that has an option."""
        for argument, part in self.parts.items():
            if is_dataclass(part) and any(field.name == option for field in fields(part)):
                return argument
        raise LookupError(option)

    @property
    def stack(self) -> Stack:
        """Returns the config of the node's stack. Raises LookupError if it belongs to none."""
        stack = place(self.node.name).stack
        if stack is None:
            raise LookupError("of no stack")
        found: Stack = getattr(self.config, stack)
        return found

    @property
    def other_stack(self) -> Stack:
        """Returns the config of the stack that the node isn't in."""
        return self.config.decoder if place(self.node.name).stack == "encoder" else self.config.encoder

    @property
    def norm(self) -> Norm:
        """Returns the norm of the node's stack. Raises LookupError if it has none."""
        if self.stack.norm is None:
            raise LookupError("no norm")
        return self.stack.norm

    def own_parameter(self, module: str, role: str) -> np.ndarray:
        """Returns a parameter of the same layer, such as the `scale` of `feed_forward_norm`. Raises ValueError if it
        doesn't exist, LookupError outside layers."""
        at = place(self.node.name)
        if at.layer is None:
            raise LookupError("in no layer")
        index = parameter_index(self.stack, at.layer)
        return parameter(self.params, f"{at.stack}/layers/{module}/{role}[{index}]")

    def layer_activation(self, name: str) -> np.ndarray:
        """Returns another activation of the layer, such as `feed_forward_norm`. Raises LookupError if it doesn't
        exist."""
        at = place(self.node.name)
        return in_float64(self.captured[f"{at.stack}.layers.{at.layer}.{name}"])

    def sibling(self, name: str) -> Node:
        """Returns another node of the layer, such as `feed_forward.hidden`. Raises LookupError if it doesn't exist."""
        at = place(self.node.name)
        full = f"{at.stack}.layers.{at.layer}.{name}"
        for node in nodes(self.config):
            if node.name == full:
                return node
        raise LookupError(full)

    def at(self, node: Node, arguments: Collection[str]) -> Replay:
        """Returns the replay of another node with some of its inputs. Raises LookupError if one wasn't captured."""
        inputs = {argument: in_float64(self.captured[node.inputs[argument]]) for argument in arguments}
        parameters = {argument: parameter(self.params, path) for argument, path in node.parameters.items()}
        return replace(self, node=node, inputs=inputs, parameters=parameters)

    def norm_of(self, module: str) -> dict[str, np.ndarray]:
        """Returns scale and bias of a norm of the layer. Raises ValueError if it doesn't exist."""
        return {role: self.own_parameter(module, role) for role in norm_roles(self.stack)}


def in_float64(array: np.ndarray) -> np.ndarray:
    """Returns floating-point arrays in float64; integers and booleans stay."""
    return array if array.dtype.kind in "biu" else array.astype(np.float64, copy=False)


def _with(part: Any, options: Mapping[str, Any]) -> Any:
    """Returns a part with changed options; a norm of another kind keeps the options that both kinds have."""
    kind = {"layer_norm": LayerNorm, "rms_norm": RmsNorm}.get(options.get("kind", ""))
    if kind is None:
        return replace(part, **options)
    names = {field.name for field in fields(kind) if field.init} & {field.name for field in fields(part)}
    return kind(**{name: options.get(name, getattr(part, name)) for name in names})


class Variant(NamedTuple):
    """Describes one fault."""

    name: str
    """The cause in a report: the fault of the side."""
    kinds: tuple[Kind, ...]
    compute: Callable[[Replay], np.ndarray]
    """Returns the node's value with the fault. Raises LookupError or ValueError if the fault can't occur there."""
    recognises: bool = False
    """Whether it looks for its marks in the received value, rather than computing the value from the inputs alone."""


def factors(replay: Replay, stack_factors: tuple[float, float] | None = None) -> dict[str, float]:
    """Returns the constant factor of each term of a residual sum, by argument; the residual stream is "x".

    Args:
      stack_factors: the factors of the stream and of sublayers' outputs, instead of the stack's own.
    """
    residual = replay.stack.residual
    stream, output = stack_factors or (residual.stream_factor, residual.output_factor)
    return {argument: stream if argument == "x" else output for argument in replay.inputs}


def trained_scales(replay: Replay) -> dict[str, np.ndarray | float]:
    """Returns the trained scale of each term of a residual sum, by argument; 1 if it has none."""
    roles = {"x": "residual_scale", "y": "output_scale"}
    return {name: replay.parameters.get(roles.get(name, f"{name}_scale"), 1.0) for name in replay.inputs}


def terms(replay: Replay) -> dict[str, np.ndarray]:
    """Returns the terms of a residual sum by argument, each scaled as the model scales it."""
    constant, trained = factors(replay), trained_scales(replay)
    return {name: array * constant[name] * trained[name] for name, array in replay.inputs.items()}


def sum_of(replay: Replay) -> np.ndarray:
    """Returns a residual sum, before the norm that may follow it."""
    first, *others = terms(replay).values()
    return sum(others, first)


def norm_parameters(replay: Replay) -> dict[str, np.ndarray]:
    """Returns scale and bias of the node's norm, without those that it lacks."""
    return {role: replay.parameters[role] for role in ("scale", "bias") if role in replay.parameters}


def norm_scale(replay: Replay, norm: Norm | None = None) -> np.ndarray | float:
    """Returns the scale of the node's norm, or of another in its place; 1 without one."""
    scale = formulas.norm_scale(norm or replay.norm, replay.parameters.get("scale"))
    return 1.0 if scale is None else scale


def configured(name: str, kinds: tuple[Kind, ...], **options: Any) -> Variant:
    """Returns the variant that computes the node with changed options."""
    return Variant(name, kinds, partial(Replay.under, **options))


def without(replay: Replay, role: str) -> np.ndarray:
    """Computes the node without one of its parameters. Raises LookupError if it has none."""
    if role not in replay.parameters:
        raise LookupError(role)
    return replay.compute(parameters={name: array for name, array in replay.parameters.items() if name != role})


def exchanged(replay: Replay, roles: Mapping[str, str]) -> np.ndarray:
    """Computes the node with its parameters exchanged among their roles. Raises LookupError if it lacks one."""
    return replay.compute(parameters={role: replay.parameters[roles[role]] for role in replay.parameters})
