"""Lower JAX programs: read their jaxprs, and repeat each primitive in a `Builder`, on one device or on a mesh."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core as jex_core

from jax_transformer.proof import jax_choices, jax_convolutions, jax_pooling, jax_rules
from jax_transformer.proof.building import Builder
from jax_transformer.proof.complex_numbers import Complex, Unread, by_parts, computed, constant, first_unread
from jax_transformer.proof.emitting import has_nan
from jax_transformer.proof.grids import Grid, Shares, names_of
from jax_transformer.proof.jax_choices import FINDING
from jax_transformer.proof.jax_collectives import COLLECTIVES
from jax_transformer.proof.jax_complex import apply_to_complex
from jax_transformer.proof.jax_modules import named_modules
from jax_transformer.proof.jax_rules import CUTS, LAYOUTS, MOVES, ROUNDED, RULES
from jax_transformer.proof.jaxprs import (
    CALLS,
    array_of,
    called,
    closed_of,
    counts_of,
    is_exp_of_negated_square,
    on_one_device,
    site_of,
    slice_of,
    stack,
    without_dead_code,
)
from jax_transformer.proof.programs import OutOfBounds, Program, UnknownOperation, Value, WideIntegers, digest_of
from jax_transformer.proof.tape import origins_of

CONTROL = frozenset((*CALLS, "scan", "while", "cond", "shard_map", "pallas_call"))
"""Primitives whose narrowing is that of the operations inside them."""
REGISTERED = (jax_convolutions, jax_pooling, jax_rules)
"""The modules that hold rules."""
PASSES = frozenset((*CALLS, "scan", "while", "cond"))
"""Primitives that pass values on, including unknown ones."""
GROWING = frozenset((
    "add", "sub", "mul", "neg", "integer_pow", "pow", "reduce_sum", "reduce_prod", "cumsum", "cumprod", "dot_general",
    "shift_left", "convert_element_type",
))  # fmt: skip
"""Primitives whose results may need more bits than their operands."""
BITS_OF_FLOAT32 = 24
PLATFORMS_DISAGREE = "branches of platform_dependent compute different values"
TEXT_WRITERS = ("jax", "jaxlib", "flax", "optax", "chex", "equinox", "haiku")
"""Packages that write texts of traced arrays for messages alone."""
RANDOM = ("random_", "rng_", "threefry")
"""Begin the names of primitives that draw random numbers."""
Layout = tuple[tuple[str, ...], ...]
"""Axes of the mesh that divide each dimension of an array, the first of them into the largest blocks."""


def lower(
    program: Callable[..., Mapping[str, Any]], weights: Mapping[str, Any], *args: Any, whole_bits: int = 64
) -> Program:
    """Lowers a function that returns named arrays.

    Args:
      program: called with `weights` and `args`, and traced unchanged.
      weights: arrays or shapes by name; the inputs of the program.
      args: its further arguments, ids and masks, by their values.
      whole_bits: 32 to refuse integers that need more bits: a 32-bit program would wrap them.

    Raises:
      WideIntegers: it computes such integers.
      UnknownOperation: the function needs a primitive without a rule, or its control flow depends on weights.
    """
    names, keys = list(weights), list[str]()
    for name, array in weights.items():
        if not jax.dtypes.issubdtype(getattr(array, "dtype", np.asarray(array).dtype), np.floating):
            raise UnknownOperation("input", "", f"the weight {name} holds no real numbers")

    def flat(*leaves: Any) -> list[Any]:
        outputs = program(dict(zip(names, leaves, strict=True)), *args)
        keys.extend(outputs)  # in execution order, which a pytree would not keep
        return list(outputs.values())

    with _texts_refused(), named_modules():
        closed = without_dead_code(jax.make_jaxpr(flat)(*weights.values()))
    builder = Builder()
    inputs = [builder.input(name, np.shape(weights[name])) for name in names]
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):  # it computes integers on one device
        found = Lowering(builder, whole_bits).run(closed, inputs)
    return builder.program(dict(zip(keys, map(_output, found), strict=True)))


def _output(value: Any) -> Value | UnknownOperation:
    if isinstance(value, Complex):
        return UnknownOperation("output", "", "it is complex: return its real and imaginary parts")
    return value.error if isinstance(value, Unread) else value


@contextmanager
def _texts_refused() -> Iterator[None]:
    """Refuses texts of traced arrays to the user's code: without a trace, they hold numbers."""
    own = jax.core.Tracer.__dict__.get("__repr__"), jax.core.Tracer.__dict__.get("__format__")

    def refusing(text: Callable[..., str]) -> Callable[..., str]:
        def refused(tracer: Any, *args: Any) -> str:
            frame = sys._getframe(1)
            package = str(frame.f_globals.get("__name__")).partition(".")[0]
            if package not in TEXT_WRITERS:
                line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise UnknownOperation("str", line, "the program branches on, or reads, numbers that depend on weights")
            return text(tracer, *args)

        return refused

    Tracer: Any = jax.core.Tracer
    Tracer.__repr__, Tracer.__format__ = refusing(Tracer.__repr__), refusing(Tracer.__format__)
    try:
        yield
    finally:
        for name, method in zip(("__repr__", "__format__"), own, strict=True):
            if method is None:
                delattr(Tracer, name)
            else:
                setattr(Tracer, name, method)


def cut(tree: Any, *, is_weight: bool) -> Any:
    """Marks arrays as values of an unknown function of them; the other program has to do so with its own.

    Programs of many steps need it: degrees, and with them the number of points, would grow from step to step.

    Args:
      is_weight: whether the arrays are weights after an optimizer step.
    """
    name = next(name for name, of_weights in CUTS.items() if of_weights is is_weight)
    return jax.tree.map(lambda leaf: checkpoint_name(leaf, name), tree)


class Lowering:
    """Lowers jaxprs to one builder."""

    def __init__(self, builder: Builder, whole_bits: int = 64) -> None:
        self.builder, self.whole_bits = builder, whole_bits
        self._steps: tuple[int, ...] = ()
        """Those of the loops that are lowered now."""

    @property
    def _line(self) -> str:
        return self.builder.site.line

    def run(self, closed: Any, inputs: Sequence[Any]) -> list[Any]:
        """Lowers a closed jaxpr on these inputs, and returns its outputs: values, pairs for complex numbers, and
        unknown ones."""
        constants = [self.constant(each) for each in closed.consts]
        return self._run(closed.jaxpr, constants, inputs)

    def _run(self, jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        held: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
        held |= dict(zip(jaxpr.invars, inputs, strict=True))

        def value(each: Any) -> Any:
            is_literal = isinstance(each, jex_core.Literal)
            return self.constant(np.asarray(array_of(each.val), each.aval.dtype)) if is_literal else held[each]

        for equation in jaxpr.eqns:
            outputs = self.lower_equation(equation, [value(each) for each in equation.invars])
            held |= dict(zip(equation.outvars, outputs, strict=True))
        return [value(each) for each in jaxpr.outvars]

    def lower_equation(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """Lowers an equation on these inputs, and returns its outputs. The outputs of an operation without a rule are
        unknown, and so is everything that depends on them."""
        name = equation.primitive.name
        with self.at(equation):
            unread = None if name in PASSES else first_unread(inputs)
            try:
                if unread is not None:
                    raise unread.error
                outputs = self._apply(name, equation, inputs)
                narrowed = self._narrowed(name, equation)
                pairs = zip(equation.outvars, outputs, strict=True)
                checked = [self.checked(name, output, variable.aval) for variable, output in pairs]
                return list(map(self._in_range, checked, equation.outvars, narrowed))
            except UnknownOperation as error:
                return [Unread(tuple(each.aval.shape), error) for each in equation.outvars]
            finally:
                self.builder.tape.origins = ()

    @contextmanager
    def at(self, equation: Any) -> Iterator[None]:
        """Returns a context for lowering at an equation's line."""
        outer = self.builder.site, self.builder.line
        self.builder.site = site_of(equation, outer[0], self._steps)
        self.builder.line = f"{equation.primitive.name}, {self._line}"
        yield
        self.builder.site, self.builder.line = outer

    @contextmanager
    def in_step(self, step: int) -> Iterator[None]:
        """Returns a context for lowering a step of a loop."""
        outer = self._steps
        self._steps = (*outer, step)
        yield
        self._steps = outer

    def constant(self, array: Any) -> Any:
        """Returns a constant of a jaxpr."""
        array = array_of(array)
        return constant(self.builder, array) if array.dtype.kind == "c" else self.builder.constant(array)

    def checked(self, name: str, found: Any, aval: Any) -> Any:
        """Returns a result that has the shape and the kind of number that the primitive's has."""
        if isinstance(found, Unread):
            return found
        if found.shape != tuple(aval.shape):
            raise UnknownOperation(name, self._line, f"its rule returns {list(found.shape)} for {list(aval.shape)}")
        if isinstance(found, Complex) or jax.dtypes.issubdtype(aval.dtype, np.complexfloating):
            if isinstance(found, Complex) and jax.dtypes.issubdtype(aval.dtype, np.complexfloating):
                return found
            raise UnknownOperation(name, self._line, f"its rule returns another kind of number than {aval.dtype}")
        if jax.dtypes.issubdtype(aval.dtype, np.floating):
            return self.builder.as_float(found)
        if found.kind == "indicator" and aval.dtype == np.bool_:
            return found
        if found.table is not None and jax.dtypes.issubdtype(aval.dtype, np.integer):
            return found
        if found.known is None or found.kind == "float":
            raise UnknownOperation(name, self._line, f"{aval.dtype} that depend on weights")
        if self.whole_bits == 32 and name in GROWING and found.size:
            lowest, highest = np.iinfo(np.int32).min, np.iinfo(np.int32).max
            if aval.dtype == np.int64 and (found.known.min() < lowest or found.known.max() > highest):
                raise WideIntegers(f"{name}: {self._line}")
        return found

    def _narrowed(self, name: str, equation: Any) -> list[bool]:
        """Returns whether each result has narrower floats than the operation's inputs, and records it."""
        most = max((_bits(each.aval) for each in equation.invars), default=0)
        narrowed = [name not in CONTROL and 0 < _bits(result.aval) < most for result in equation.outvars]
        for result, is_narrowed in zip(equation.outvars, narrowed, strict=True):
            if is_narrowed:
                self.builder.narrow(str(result.aval.dtype))
        if name == "reduce_precision":
            kept, whole = equation.params, jax.dtypes.finfo(equation.invars[0].aval.dtype)
            if kept["mantissa_bits"] < whole.nmant or kept["exponent_bits"] < whole.nexp:
                self.builder.narrow(f"{kept['mantissa_bits']} bits")
        precision = equation.params.get("precision") if name == "dot_general" else None
        if isinstance(precision, jax.lax.DotAlgorithm | jax.lax.DotAlgorithmPreset):
            self.builder.narrow(str(precision))
        return narrowed

    def _in_range(self, found: Any, variable: Any, is_narrowed: bool) -> Any:
        if not isinstance(found, Value) or found.kind != "float" or not (is_narrowed or found.fills is not None):
            return found
        return self.builder.in_range(found, partial(np.asarray, dtype=variable.aval.dtype))

    def _apply(self, name: str, equation: Any, inputs: list[Any]) -> Sequence[Any]:
        params = equation.params
        if name == "custom_jvp_call" and is_exp_of_negated_square(called(name, params)):
            return [self.builder.exp(self.builder.negate(self.builder.power(inputs[0], 2)))]
        if name in CALLS:
            return self.run(called(name, params), inputs)
        if name == "scan":
            return self._scan(params, inputs)
        if name == "cond":
            return self._cond(params, inputs)
        if name == "while":
            return self._while(params, inputs)
        if name == "shard_map":
            return lower_shard_map(self, params, inputs)
        if name == "pallas_call":
            return self._kernel(equation, inputs)
        if name.startswith(RANDOM):
            raise UnknownOperation(name, self._line, "random numbers are no function of weights and ids")
        if name == "empty":
            raise UnknownOperation(name, self._line, "nothing was written to its memory")
        if "callback" in name or name == "infeed":
            raise UnknownOperation(name, self._line, "it calls what isn't part of the program")
        self.builder.tape.origins = origins_of(inputs)
        is_complex = any(isinstance(each, Complex) for each in inputs) or _is_complex(equation)
        if any(each.table is not None for each in inputs):
            if is_complex:
                raise UnknownOperation(name, self._line, "complex numbers at places that depend on weights")
            self.builder.read[name] = self.builder.read.get(name, 0) + 1
            return [jax_choices.apply(self.builder, name, equation, inputs)]
        is_computed = name not in LAYOUTS  # on one device, they would search for the rest of the mesh
        if is_computed and all(each.kind in ("int", "bool") and each.known is not None for each in inputs):
            return self._computed(equation, inputs)
        self.builder.read[name] = self.builder.read.get(name, 0) + 1
        if name in MOVES:
            return [by_parts(partial(self._move, equation), *inputs)]
        inputs = self._widened(equation, inputs)
        is_known = all(each.known is not None for each in inputs)
        if is_known and is_complex:
            return self._computed(equation, inputs)
        if is_complex:
            found = apply_to_complex(self.builder, name, inputs, params)
            return found if isinstance(found, list | tuple) else [found]
        try:
            found = self._ruled(name, params, inputs, is_known)
        except UnknownOperation:
            values = self._computed(equation, inputs) if is_known else []  # of constants: as the program computes it
            if not values or any(map(has_nan, values)):
                raise
            return values
        if name in ROUNDED and is_known:
            return [self.builder.rounded(found, self._arrays(equation, inputs)[0])]
        return found if isinstance(found, list | tuple) else [found]

    def _widened(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """Returns inputs in the type of the equation. Constants of a narrower type stay rounded to it; constants whose
        precision the equation reduces are rounded."""
        b, name = self.builder, equation.primitive.name
        avals = [each.aval for each in (equation.outvars if name == "convert_element_type" else equation.invars)]
        widest: Any = max((aval for aval in avals if _bits(aval)), key=_bits, default=None)

        def widened(one: Any, aval: Any) -> Any:
            if not isinstance(one, Value) or one.kind != "float":
                return one
            if one.known is not None and name == "reduce_precision":
                return b.constant(self._arrays(equation, [one])[0])
            is_narrower = widest is not None and 0 < _bits(aval) < min(_bits(widest), BITS_OF_FLOAT32)
            return b.widened(one, widest.dtype) if is_narrower else one

        return [widened(one, variable.aval) for one, variable in zip(inputs, equation.invars, strict=True)]

    def _ruled(self, name: str, params: Mapping[str, Any], inputs: list[Any], is_known: bool) -> Any:
        """Applies a primitive's rule."""
        if name in FINDING and not is_known:
            return FINDING[name](self.builder, *inputs, **params)
        if name not in RULES:
            raise UnknownOperation(name, self._line)
        return RULES[name](self.builder, *inputs, **params)

    def _computed(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """Computes the results that depend on no weight."""
        b, found = self.builder, self._arrays(equation, inputs)
        if all(each.kind in ("int", "bool") for each in inputs):
            return [constant(b, each) if each.dtype.kind == "c" else b.constant(each) for each in found]
        return computed(b, lambda parts: self._arrays(equation, parts), inputs, found)

    def _arrays(self, equation: Any, inputs: Sequence[Any]) -> list[np.ndarray]:
        """Runs an equation on constants or arrays, as the program does."""
        known = [np.asarray(each.known if isinstance(each, Value | Complex) else each) for each in inputs]
        arrays = [each.astype(of.aval.dtype) for each, of in zip(known, equation.invars, strict=True)]
        found = equation.primitive.bind(*arrays, **on_one_device(equation.params))
        return [array_of(each) for each in (found if equation.primitive.multiple_results else [found])]

    def _move(self, equation: Any, source: Value, *rest: Value) -> Value:
        """Lowers a move of elements: the primitive moves the places of its first operand's elements."""
        if any(each.known is None for each in rest):
            raise UnknownOperation(equation.primitive.name, self._line, "an index depends on weights")
        params = on_one_device(equation.params)
        fill = params.get("fill_value")
        if "fill_value" in params:
            params["fill_value"] = -1
        places = np.arange(source.size, dtype=np.int64).reshape(source.shape)
        if params.get("mode") == jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS:
            params["mode"] = jax.lax.GatherScatterMode.FILL_OR_DROP  # so that violated promises show
            params["fill_value"], fill = -1, None
        with jax.enable_x64(True):
            moved = np.asarray(equation.primitive.bind(places, *[each.known for each in rest], **params))
        found = self.builder.take(source, moved)
        if not (moved < 0).any() or fill == 0:
            return found
        if fill is None or not np.isfinite(fill):
            raise OutOfBounds(equation.primitive.name, self._line, "an index is out of bounds")
        filling = self.builder.constant(np.asarray(fill, equation.outvars[0].aval.dtype))
        return self.builder.where(self.builder.constant(moved < 0), filling, found)

    def _scan(self, params: Mapping[str, Any], inputs: list[Value]) -> list[Value]:
        """Runs the body once for each slice."""
        b, closed, count = self.builder, params["jaxpr"], params["length"]
        num_consts, num_carry = counts_of(params)
        constants, carry, stacked = (
            inputs[:num_consts],
            inputs[num_consts : num_consts + num_carry],
            inputs[num_consts + num_carry :],
        )
        slices: list[list[Value]] = []
        order = range(count)[::-1] if params["reverse"] else range(count)
        for step in order:
            parts = [_on_parts(partial(slice_of, b, step=step), each) for each in stacked]
            with self.in_step(step):
                found = self.run(closed, [*constants, *carry, *parts])
            carry = found[:num_carry]
            slices.append(found[num_carry:])
        if params["reverse"]:
            slices.reverse()
        avals = [each.aval for each in closed.jaxpr.outvars[num_carry:]]
        outputs = []
        for place, aval in enumerate(avals):
            outputs.append(_on_parts(lambda *own, aval=aval: stack(b, own, aval), *(each[place] for each in slices)))
        return [*carry, *outputs]

    def _cond(self, params: Mapping[str, Any], inputs: list[Value]) -> list[Value]:
        index, *rest = inputs
        if isinstance(index, Unread):
            raise index.error
        if index.known is None:
            raise UnknownOperation("cond", self.builder.line, "control flow depends on weights")
        branches = params["branches"]
        if params.get("branches_platforms") is not None:  # each kind of device takes its own
            return [self._agreed(each) for each in zip(*(self.run(branch, rest) for branch in branches), strict=True)]
        return self.run(branches[int(np.clip(index.known, 0, len(branches) - 1))], rest)

    def _agreed(self, values: Sequence[Value]) -> Value:
        """Returns the common result of the branches for all kinds of devices."""
        if (unread := first_unread(values)) is not None:
            raise unread.error
        different = list({key_of_value(value): value for value in values}.values())
        return different[0] if len(different) == 1 else self.builder.agreed(different, PLATFORMS_DISAGREE)

    def _while(self, params: Mapping[str, Any], inputs: list[Value]) -> list[Value]:
        condition_count, body_count = params["cond_nconsts"], params["body_nconsts"]
        condition, body = inputs[:condition_count], inputs[condition_count : condition_count + body_count]
        carry = inputs[condition_count + body_count :]
        for step in itertools.count():
            with self.in_step(step):
                (goes_on,) = self.run(params["cond_jaxpr"], [*condition, *carry])
            if isinstance(goes_on, Unread):
                raise goes_on.error
            if goes_on.known is None:
                raise UnknownOperation("while", self.builder.line, "control flow depends on weights")
            if not goes_on.known:
                break
            with self.in_step(step):
                carry = self.run(params["body_jaxpr"], [*body, *carry])
        return list(carry)

    def _kernel(self, equation: Any, inputs: list[Value]) -> list[Value]:
        """Runs a Pallas kernel like Pallas's interpreter: block after block of its grid, with references to memory as
        arrays that are passed on. Elements that no block writes are NaN."""
        from jax._src.pallas.hlo_interpreter import pallas_call_hlo_interpret  # private, as all of pallas_call's rules

        aliased = {output for _, output in equation.params["input_output_aliases"]}
        outputs = [each.aval for number, each in enumerate(equation.outvars) if number not in aliased]
        for memory in (*outputs, *equation.params["grid_mapping"].scratch_avals):
            if not jax.dtypes.issubdtype(memory.dtype, np.floating):
                reason = f"memory of {memory.dtype} holds integers before it is written"
                raise UnknownOperation("pallas_call", self._line, reason)
        params = {name: each for name, each in equation.params.items() if name not in ("interpret", "backend")}
        shapes = [jax.ShapeDtypeStruct(each.aval.shape, each.aval.dtype) for each in equation.invars]
        with jax.sharding.use_abstract_mesh(equation.outvars[0].aval.sharding.mesh):  # that of a shard_map around it
            kernel = jax.make_jaxpr(partial(pallas_call_hlo_interpret, **params))(*shapes)
        return self.run(kernel, inputs)


def _on_parts(function: Callable[..., Any], *values: Any) -> Any:
    """Applies a move of elements to values, complex ones, or one that isn't known."""
    unread = first_unread(values)
    return by_parts(function, *values) if unread is None else Unread(unread.shape, unread.error)


def _is_complex(equation: Any) -> bool:
    return any(
        jax.dtypes.issubdtype(getattr(each.aval, "dtype", bool), np.complexfloating) for each in equation.outvars
    )


def _bits(aval: Any) -> int:
    """Returns the number of significant bits of an array's floats; 0 for other numbers."""
    dtype = getattr(aval, "dtype", None)
    is_float = dtype is not None and jax.dtypes.issubdtype(dtype, np.floating)
    return int(jax.dtypes.finfo(dtype).nmant) + 1 if is_float else 0  # powers of two have one


# --- shard_map


class Devices:
    """Lowers jaxprs on all devices of a grid, which run a `shard_map` in lock-step, each on its own part of the arrays.

    A variable has a value on each device. An equation without communication is lowered for each device by the rules of
    one device, and only once for devices with equal inputs, which have equal results. A collective reads the values of
    all devices of a group.
    """

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
        """Returns whether an equation, or one within it, reads the values of other devices, or the device's number."""
        named = names_of(equation.params.get("axis_name", equation.params.get("axes", ())))
        if equation.primitive.name == "shard_map" or any(axis in self.grid.sizes for axis in named):
            return True
        return any(self._communicates(each) for jaxpr in _within(equation.params.values()) for each in jaxpr.eqns)

    def _apart(self, equation: Any, inputs: Sequence[Shares]) -> list[Shares]:
        """Lowers an equation separately for each device, once for devices with equal inputs."""
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
        """Raises UnknownOperation for values that are unknown on a device, or complex."""
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
            elif name in ON_MESHES:
                found = ON_MESHES[name](self, params, inputs)
            elif name in COLLECTIVES:
                self.builder.read[name] = self.builder.read.get(name, 0) + 1
                read = [_as_dtype(shares, of.aval.dtype) for shares, of in zip(inputs, equation.invars, strict=True)]
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
            with self.lowering.in_step(step):
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
        condition_count, body_count = params["cond_nconsts"], params["body_nconsts"]
        condition, body = inputs[:condition_count], inputs[condition_count : condition_count + body_count]
        carry = inputs[condition_count + body_count :]
        while self._decided("while", self.run(params["cond_jaxpr"], [*condition, *carry])[0]):
            carry = self.run(params["body_jaxpr"], [*body, *carry])
        return carry

    def _decided(self, name: str, shares: Shares) -> np.ndarray:
        """Returns the number that decides the branch of all devices."""
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
        """Divides the arrays of each device over more axes, and joins the body's results."""
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
        """Returns the axes that divide each dimension, by a spec."""
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
        """Joins the parts that devices hold of an array. Devices with the same part have to agree on it."""
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
        """Returns the value of an output that several devices hold. Unless it is one operation, the program asserts
        that the values are equal: out_specs promises it, and JAX may not have checked it."""
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
        """Returns the place of a device's part, whose dimensions have these sizes."""
        starts = [self.grid.place(device, axes) * size for axes, size in zip(layout, sizes, strict=True)]
        return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


ON_MESHES: dict[str, Callable[[Devices, Mapping[str, Any], list[Shares]], list[Shares]]] = {
    "scan": Devices._scan,
    "cond": Devices._cond,
    "while": Devices._while,
    "shard_map": Devices._shard_map,
}
"""Primitives in which devices may communicate, and that run jaxprs."""


def lower_shard_map(lowering: Lowering, params: Mapping[str, Any], inputs: Sequence[Value]) -> list[Value]:
    """Lowers a shard_map that isn't nested in another."""
    if not all(isinstance(each, Value) for each in inputs):
        raise UnknownOperation("shard_map", lowering.builder.line, "complex numbers on a mesh")
    alone = Devices(lowering, Grid({}))
    return [found for (found,) in alone._shard_map(params, [(each,) for each in inputs])]


def key_of_value(value: Value) -> Any:
    """Returns a key that equal values share."""
    return value.kind, value.shape, digest_of(value.known) if value.node is None else value.node


def _as_dtype(shares: Shares, dtype: Any) -> Shares:
    """Returns integers in the program's own type."""
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
