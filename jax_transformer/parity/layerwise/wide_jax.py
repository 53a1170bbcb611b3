"""Evaluates a traced JAX program in float64, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from jax_transformer.comparison.sides import CannotRun

INLINED = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""Parameters of operations that call another program."""
CALLS = frozenset(("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2", "custom_jvp_call"))
CALLS |= {"custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin"}
TURNS = frozenset(("transpose", "dot_general"))
"""Operations that read weights themselves."""
READS_BITS = frozenset(("bitcast_convert_type",))
IDENTITIES = frozenset(("reduce_precision", "optimization_barrier", "sharding_constraint", "copy", "copy_p"))

Wide = Callable[[Any], Any]


class Turned(NamedTuple):
    """A weight that isn't read yet, with its axes in another order: a wide copy of a large table would be made twice
    for a product with its transpose."""

    weight: Any
    order: tuple[int, ...]

    @property
    def dtype(self) -> Any:
        return self.weight.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weight.shape[axis] for axis in self.order)


def evaluate(closed: Any, arguments: Sequence[Any], widen: Wide) -> list[Any]:
    """Evaluates a program with no narrower floating-point type than float64.

    The program is the one that was traced: what it decided by its dtypes while it was traced, such as an ε of
    `finfo(x.dtype)`, stays.

    Args:
      closed: a closed jaxpr.
      arguments: of it, in order: arrays, or weights to read when an operation needs them.
      widen: reads an argument, and returns an array.

    Raises:
      CannotRun: an operation can't be repeated in float64.
    """
    with jax.enable_x64(True), jax.default_matmul_precision("highest"), jax.default_device(jax.devices("cpu")[0]):
        return _evaluate(closed.jaxpr, closed.consts, list(arguments), widen)


def wide_array(array: Any) -> Any:
    """Returns an array in float64, or complex128; integers, booleans and keys are what they are."""
    if isinstance(array, np.ndarray | np.generic | float | int | bool):
        array = np.asarray(array)
    dtype = _wide_dtype(array.dtype)
    on_device = jnp.asarray(array)
    return on_device.astype(dtype) if dtype != array.dtype else on_device  # NumPy would hold a second wide copy


def _wide_dtype(dtype: Any) -> Any:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.dtype(np.complex128)
    return np.dtype(np.float64) if jnp.issubdtype(dtype, jnp.floating) else dtype


def _evaluate(jaxpr: Any, constants: Sequence[Any], arguments: list[Any], widen: Wide) -> list[Any]:
    held: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))
    del arguments
    last = {each: number for number, one in enumerate(jaxpr.eqns) for each in one.invars if _is_variable(each)}
    kept = {each for each in jaxpr.outvars if _is_variable(each)}

    def read(each: Any) -> Any:
        return _read(held[each], widen) if _is_variable(each) else wide_array(each.val)

    for number, one in enumerate(jaxpr.eqns):
        is_late = _is_call(one) or one.primitive.name in TURNS
        given = [held[each] if _is_variable(each) and is_late else read(each) for each in one.invars]
        results = _operation(one, given, widen)
        del given
        held.update(zip(one.outvars, results, strict=True))
        for each in {each for each in (*one.invars, *one.outvars) if _is_variable(each)}:
            if last.get(each, -1) <= number and each not in kept:
                del held[each]
    return [read(each) for each in jaxpr.outvars]


def _is_variable(each: Any) -> bool:
    return not isinstance(each, core.Literal)


def _is_call(one: Any) -> bool:
    return one.primitive.name in CALLS and any(name in one.params for name in INLINED)


def _read(value: Any, widen: Wide) -> Any:
    return widen(value.weight).transpose(value.order) if isinstance(value, Turned) else widen(value)


def _operation(one: Any, given: list[Any], widen: Wide) -> list[Any]:
    name, params = one.primitive.name, one.params
    if name == "transpose" and not isinstance(given[0], jax.Array | np.ndarray):
        weight, order = (
            given[0] if isinstance(given[0], Turned) else Turned(given[0], tuple(range(len(given[0].shape))))
        )
        return [Turned(weight, tuple(order[axis] for axis in params["permutation"]))]
    if name == "dot_general":
        given, params = _unturned(given, params, widen)
    elif name == "transpose":
        given = [_read(given[0], widen)]
    if _is_call(one):
        inner = next(params[each] for each in INLINED if each in params)
        given = [each if _is_traced(each) else wide_array(each) for each in given]
        return _evaluate(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), given, widen)
    if name == "scan":
        return _scan(params, given, widen)
    if name == "while":
        return _while(params, given, widen)
    if name == "cond":
        branch = params["branches"][int(np.clip(int(given[0]), 0, len(params["branches"]) - 1))]
        return _evaluate(branch.jaxpr, branch.consts, given[1:], widen)
    if name in IDENTITIES:
        return given
    if name in READS_BITS:
        raise CannotRun(f"{name} reads the bits of floating-point numbers, which float64 hasn't")
    try:
        found = one.primitive.bind(*given, **{key: _wide_param(value) for key, value in params.items()})
    except Exception as error:  # JAX raises errors of many kinds for types that an operation doesn't take
        raise CannotRun(f"{name} can't be repeated in float64: {str(error).splitlines()[0]}") from error
    return list(found) if one.primitive.multiple_results else [found]


def _unturned(given: list[Any], params: Any, widen: Wide) -> tuple[list[Any], Any]:
    """Returns the operands and parameters of a product that reads transposed weights as they are stored."""
    numbers, arrays = [*map(list, zip(*params["dimension_numbers"], strict=True))], []
    for side, value in enumerate(given):
        is_turned = isinstance(value, Turned)
        free = [axis for axis in range(len(value.shape)) if not any(axis in axes for axes in numbers[side])]
        if is_turned and sorted(value.order[axis] for axis in free) == [value.order[axis] for axis in free]:
            numbers[side] = [tuple(value.order[axis] for axis in axes) for axes in numbers[side]]
            value = value.weight
        arrays.append(_read(value, widen))
    return arrays, {**params, "dimension_numbers": tuple(zip(*map(tuple, numbers), strict=True))}


def _is_traced(each: Any) -> bool:
    """Returns whether a value is an array or a weight that is read later."""
    return hasattr(each, "dtype")


def _wide_param(value: Any) -> Any:
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return _wide_dtype(np.dtype(value))
    if isinstance(value, jax.lax.DotAlgorithm | jax.lax.DotAlgorithmPreset):
        return None
    return value


def _scan(params: Any, given: list[Any], widen: Wide) -> list[Any]:
    consts, carries = params["num_consts"], params["num_carry"]
    fixed, carry, rows = given[:consts], given[consts : consts + carries], given[consts + carries :]
    steps = range(params["length"])
    inner, made = params["jaxpr"], list[list[Any]]()
    for step in reversed(steps) if params["reverse"] else steps:
        found = _evaluate(inner.jaxpr, inner.consts, [*fixed, *carry, *(row[step] for row in rows)], widen)
        carry = found[:carries]
        made.append(found[carries:])
    made = made[::-1] if params["reverse"] else made
    return [*carry, *(jnp.stack(several) for several in zip(*made, strict=True))]


def _while(params: Any, given: list[Any], widen: Wide) -> list[Any]:
    first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    of_condition, of_body, carry = given[:first], given[first:second], given[second:]
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    while bool(_evaluate(condition.jaxpr, condition.consts, [*of_condition, *carry], widen)[0]):
        carry = _evaluate(body.jaxpr, body.consts, [*of_body, *carry], widen)
    return carry
