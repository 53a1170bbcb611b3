"""Lower `shard_map`: the devices of a mesh run its body in lock-step, each on its own part of the arrays.

A variable has a value on each device. An equation without communication is lowered for each device by the rules for
one, and once for devices that hold the same: these go on to hold the same. A collective reads the values of all devices
of a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.extend import core as jex_core

from jax_transformer.proof.building import Builder
from jax_transformer.proof.complex_numbers import Unread
from jax_transformer.proof.grids import Grid, Shares, names_of
from jax_transformer.proof.jax_collectives import COLLECTIVES
from jax_transformer.proof.jaxprs import CALLS, called, closed_of, counts_of, slice_of, stack
from jax_transformer.proof.programs import UnknownOperation, Value, digest_of

if TYPE_CHECKING:
    from jax_transformer.proof.jax_programs import Lowering

Layout = tuple[tuple[str, ...], ...]
"""The axes of the mesh that divide each dimension of an array, the first of them into the largest blocks."""


class Devices:
    """Lowers jaxprs on all devices of a grid."""

    def __init__(self, lowering: Lowering, grid: Grid) -> None:
        self.lowering, self.grid = lowering, grid

    @property
    def builder(self) -> Builder:
        return self.lowering.builder

    def run(self, closed: Any, inputs: Sequence[Shares]) -> list[Shares]:
        """Lowers a closed jaxpr on these inputs, and returns its outputs."""
        jaxpr = closed.jaxpr
        held: dict[Any, Shares] = dict(zip(jaxpr.constvars, map(self._constant, closed.consts), strict=True))
        held |= dict(zip(jaxpr.invars, inputs, strict=True))

        def shares(each: Any) -> Shares:
            return self._constant(each.val) if isinstance(each, jex_core.Literal) else held[each]

        for equation in jaxpr.eqns:
            read = [shares(each) for each in equation.invars]
            found = self._together(equation, read) if self._communicates(equation) else self._apart(equation, read)
            held |= dict(zip(equation.outvars, found, strict=True))
        return [shares(each) for each in jaxpr.outvars]

    # --- equations

    def _constant(self, array: Any) -> Shares:
        constant = self.lowering.constant(array)
        if not isinstance(constant, Value):
            raise UnknownOperation("constant", self.builder.line, "complex numbers on a mesh")
        return (constant,) * self.grid.count

    def _communicates(self, equation: Any) -> bool:
        """Returns whether an equation, or one within it, reads what other devices hold, or which device it runs on."""
        named = names_of(equation.params.get("axis_name", equation.params.get("axes", ())))
        if equation.primitive.name == "shard_map" or any(axis in self.grid.sizes for axis in named):
            return True
        return any(self._communicates(each) for jaxpr in _within(equation.params.values()) for each in jaxpr.eqns)

    def _apart(self, equation: Any, inputs: Sequence[Shares]) -> list[Shares]:
        """Lowers an equation for each device alone, once for those that read the same."""
        found: dict[Any, list[Value]] = {}
        by_device = []
        for device in range(self.grid.count):
            read = [shares[device] for shares in inputs]
            key = tuple(map(key_of_value, read))
            if key not in found:
                found[key] = self._values(equation, self.lowering.lower_equation(equation, read))
            by_device.append(found[key])
        return list(zip(*by_device, strict=True))

    def _values(self, equation: Any, found: Sequence[Any]) -> list[Value]:
        """Raises UnknownOperation for what isn't known on a device, or is complex."""
        for each in found:
            if isinstance(each, Unread):
                raise each.error
            if not isinstance(each, Value):
                raise UnknownOperation(equation.primitive.name, self.builder.line, "complex numbers on a mesh")
        return [*found]

    def _together(self, equation: Any, inputs: list[Shares]) -> list[Shares]:
        """Lowers an equation in which devices communicate."""
        name, params = equation.primitive.name, equation.params
        with self.lowering.at(equation):
            if name in CALLS:
                found = self.run(called(name, params), inputs)
            elif name in CONTROL:
                found = CONTROL[name](self, params, inputs)
            elif name in COLLECTIVES:
                self.builder.read[name] = self.builder.read.get(name, 0) + 1
                read = [_of_dtype(shares, of.aval.dtype) for shares, of in zip(inputs, equation.invars, strict=True)]
                found = [COLLECTIVES[name](self.builder, self.grid, *read, **params)]
            else:
                raise UnknownOperation(name, self.builder.line)
            return [
                tuple(self.lowering.checked(name, value, variable.aval) for value in shares)
                for variable, shares in zip(equation.outvars, found, strict=True)
            ]

    def _scan(self, params: Mapping[str, Any], inputs: list[Shares]) -> list[Shares]:
        """Runs the body once for each slice, as a `Lowering` does."""
        (num_consts, num_carry), steps = counts_of(params), range(params["length"])
        constants, carry = inputs[:num_consts], inputs[num_consts : num_consts + num_carry]
        outputs: dict[int, list[Shares]] = {}
        for step in reversed(steps) if params["reverse"] else steps:
            stacked = inputs[num_consts + num_carry :]
            slices = [tuple(slice_of(self.builder, each, step) for each in shares) for shares in stacked]
            found = self.run(params["jaxpr"], [*constants, *carry, *slices])
            carry, outputs[step] = found[:num_carry], found[num_carry:]
        avals = [each.aval for each in params["jaxpr"].jaxpr.outvars[num_carry:]]
        by_step = [[outputs[step][place] for step in steps] for place in range(len(avals))]
        return [
            *carry,
            *(
                tuple(stack(self.builder, [one[device] for one in found], aval) for device in range(self.grid.count))
                for found, aval in zip(by_step, avals, strict=True)
            ),
        ]

    def _cond(self, params: Mapping[str, Any], inputs: list[Shares]) -> list[Shares]:
        branches = params["branches"]
        if params.get("branches_platforms") is not None:
            raise UnknownOperation("cond", self.builder.line, "which branch communicates depends on the kind of device")
        return self.run(branches[int(np.clip(self._decided("cond", inputs[0]), 0, len(branches) - 1))], inputs[1:])

    def _while(self, params: Mapping[str, Any], inputs: list[Shares]) -> list[Shares]:
        of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
        condition, body = inputs[:of_condition], inputs[of_condition : of_condition + of_body]
        carry = inputs[of_condition + of_body :]
        while self._decided("while", self.run(params["cond_jaxpr"], [*condition, *carry])[0]):
            carry = self.run(params["body_jaxpr"], [*body, *carry])
        return carry

    def _decided(self, name: str, shares: Shares) -> np.ndarray:
        """Returns the number that tells all devices where to go on."""
        first, *others = [share.known for share in shares]
        if first is None or any(each is None for each in others):
            raise UnknownOperation(name, self.builder.line, "control flow depends on weights")
        if any(each != first for each in others):
            raise UnknownOperation(
                name, self.builder.line, "devices take different ways, and communicate on one of them"
            )
        return first

    # --- a shard_map within

    def _shard_map(self, params: Mapping[str, Any], inputs: Sequence[Shares]) -> list[Shares]:
        """Divides the arrays of each device over more axes, and joins those that the body returns."""
        new = {axis: size for axis, size in params["mesh"].shape.items() if axis in params["newly_manual_axes"]}
        inner = Devices(self.lowering, Grid({**self.grid.sizes, **new}, params["mesh"].axis_names))
        each, share = range(inner.grid.count), math.prod(new.values())
        divided = []
        for shares, spec in zip(inputs, params["in_specs"], strict=True):
            layout = self._layout(spec, new, len(shares[0].shape))
            divided.append(tuple(inner._part(shares[device // share], layout, device) for device in each))
        joined = []
        for number, (shares, spec) in enumerate(
            zip(inner.run(closed_of(params["jaxpr"]), divided), params["out_specs"], strict=True)
        ):
            layout = self._layout(spec, new, len(shares[0].shape))
            parts = [range(first, first + share) for first in each[::share]]
            joined.append(tuple(inner._joined(shares, layout, devices, f"output {number}") for devices in parts))
        return joined

    def _layout(self, spec: Any, new: Mapping[str, int], rank: int) -> Layout:
        """Returns which axes divide each dimension, by a spec."""
        layout = tuple(names_of(entry) for entry in spec)
        if spec.unreduced or spec.reduced:
            raise UnknownOperation("shard_map", self.builder.line, f"{spec} leaves sums to others")
        for axis in (axis for axes in layout for axis in axes):
            if axis not in new:
                raise UnknownOperation("shard_map", self.builder.line, f"{spec} names the axis {axis!r} of another")
        return (*layout, *[()] * (rank - len(layout)))

    def _part(self, whole: Value, layout: Layout, device: int) -> Value:
        """Returns the part of an array that a device has."""
        sizes = [size // self._blocks(axes) for size, axes in zip(whole.shape, layout, strict=True)]
        places = np.arange(whole.size).reshape(whole.shape)
        return self.builder.take(whole, places[self._block(layout, device, sizes)])

    def _joined(self, shares: Shares, layout: Layout, devices: range, name: str) -> Value:
        """Returns the array that devices have parts of. Those that have the same part have to agree on it."""
        sizes = shares[devices[0]].shape
        parts: dict[tuple[int, ...], list[int]] = {}
        for device in devices:
            parts.setdefault(tuple(self.grid.place(device, axes) for axes in layout), []).append(device)
        agreed = [self._agreed([shares[device] for device in group], name) for group in parts.values()]
        if len(agreed) == 1:
            return agreed[0]
        size = math.prod(sizes)
        places = np.zeros([size * self._blocks(axes) for size, axes in zip(sizes, layout, strict=True)], np.int64)
        for number, group in enumerate(parts.values()):
            own = np.arange(number * size, (number + 1) * size).reshape(sizes)
            places[self._block(layout, group[0], sizes)] = own
        b = self.builder
        return b.take(b.concatenate([b.reshape(each, (size,)) for each in agreed], 0), places)

    def _agreed(self, values: list[Value], name: str) -> Value:
        """Returns what several devices hold of an output. Unless they hold the same operation, the program itself
        checks that they hold the same number: out_specs promises it, and JAX may not have checked it."""
        different = list({key_of_value(value): value for value in values}.values())
        if len(different) == 1:
            return different[0]
        line, self.builder.line = self.builder.line, f"{name} of {self.builder.line}"
        found = self.builder.agreed(different)
        self.builder.line = line
        return found

    def _blocks(self, axes: Sequence[str]) -> int:
        return math.prod(self.grid.sizes[axis] for axis in axes)

    def _block(self, layout: Layout, device: int, sizes: Sequence[int]) -> tuple[slice, ...]:
        """Returns where the part of a device is, whose dimensions have these sizes."""
        starts = [self.grid.place(device, axes) * size for axes, size in zip(layout, sizes, strict=True)]
        return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


CONTROL: dict[str, Callable[[Devices, Mapping[str, Any], list[Shares]], list[Shares]]] = {
    "scan": Devices._scan,
    "cond": Devices._cond,
    "while": Devices._while,
    "shard_map": Devices._shard_map,
}
"""Primitives in which devices may communicate, and that run jaxprs."""


def lower_shard_map(lowering: Lowering, params: Mapping[str, Any], inputs: Sequence[Value]) -> list[Value]:
    """Lowers a shard_map that is within no other."""
    if not all(isinstance(each, Value) for each in inputs):
        raise UnknownOperation("shard_map", lowering.builder.line, "complex numbers on a mesh")
    alone = Devices(lowering, Grid({}))
    return [found for (found,) in alone._shard_map(params, [(each,) for each in inputs])]


def key_of_value(value: Value) -> Any:
    """Returns what values have in common that are one."""
    return value.kind, value.shape, digest_of(value.known) if value.node is None else value.node


def _of_dtype(shares: Shares, dtype: Any) -> Shares:
    """Returns integers in the type that the program has for them."""
    if shares[0].kind != "int":
        return shares
    return tuple(Value(each.shape, each.kind, np.asarray(each.known).astype(dtype)) for each in shares)


def _within(params: Iterable[Any]) -> Iterator[Any]:
    """Yields the jaxprs among an equation's parameters."""
    for each in params:
        if isinstance(each, list | tuple):
            yield from _within(each)
        elif hasattr(each, "eqns"):
            yield each
