"""Read jaxprs: their calls, their lines in the user's source, and the slices of their scans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any

import jax
import numpy as np
from jax._src import source_info_util
from jax.extend import core as jex_core
from jax.interpreters import partial_eval

from jax_transformer.programs.sites import Frame, Site, Stack, is_of_framework, own_frame
from jax_transformer.proof.building import Builder
from jax_transformer.proof.programs import UnknownOperation, Value

CALLS = {
    "pjit": "jaxpr", "jit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat2": "jaxpr",
    "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr", "custom_lin": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
}  # fmt: skip
"""Primitives that call a jaxpr → the parameter that holds it."""
OUTERMOST = "lower.<locals>.flat"
"""The function of `jax_programs` that calls a program."""


def without_dead_code(closed: Any) -> Any:
    """Removes equations that no output needs, such as the keys of an unused dropout."""
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    return jex_core.ClosedJaxpr(jaxpr, closed.consts)


def used_inputs(closed: Any) -> list[bool]:
    """Returns of each input of a closed jaxpr whether an output needs it."""
    return list(partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))[1])


def on_one_device(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an equation's parameters without those that place its results on a mesh."""
    return {name: None if name in ("sharding", "out_sharding") else each for name, each in params.items()}


def counts_of(params: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the numbers of constants and of carried values of a scan; from jax 0.11 on, trees hold them."""
    if "ft_in" in params:
        constants, carry, _ = params["ft_in"].unpack()
        return len(constants), len(carry)
    return params["num_consts"], params["num_carry"]


def slice_of(b: Builder, x: Value, step: int) -> Value:
    """Returns the slice of x that a scan reads in a step."""
    if x.known is not None and x.kind != "float":
        return b.constant(x.known[step])
    size = int(np.prod(x.shape[1:], dtype=np.int64))
    places = np.arange(step * size, (step + 1) * size).reshape(x.shape[1:])
    return b.take(x, places)


def stack(b: Builder, slices: Sequence[Value], aval: Any) -> Value:
    """Stacks the slices that a scan's steps return, of type `aval`."""
    if not slices:
        return b.constant(np.zeros((0, *aval.shape), aval.dtype))
    return b.concatenate([b.reshape(each, (1, *each.shape)) for each in slices], 0)


def called(name: str, params: Mapping[str, Any]) -> Any:
    """Returns the jaxpr that a primitive of `CALLS` calls."""
    return closed_of(params[CALLS[name] if CALLS[name] in params else "jaxpr"])  # versions of jax differ


def is_exp_of_negated_square(closed: Any) -> bool:
    """Returns whether a jaxpr is JAX's accurate exp(−x²), which it uses from 0.12 on for the derivative of erf. It
    splits x into bits, which have no rule."""
    if len(closed.jaxpr.invars) != 1:
        return False
    aval = closed.jaxpr.invars[0].aval
    return str(closed) == _jaxpr_of_exp_of_negated_square(aval.shape, aval.dtype)


@cache
def _jaxpr_of_exp_of_negated_square(shape: tuple[int, ...], dtype: Any) -> str | None:
    try:
        from jax._src.lax.erf import exp_neg_sq  # type: ignore[import-not-found, unused-ignore]  # private, and new
    except ImportError:
        return None
    (equation,) = jax.make_jaxpr(exp_neg_sq)(jax.ShapeDtypeStruct(shape, dtype)).eqns
    return str(called(equation.primitive.name, equation.params))


def closed_of(jaxpr: Any) -> Any:
    """Returns a jaxpr with its constants."""
    return jaxpr if hasattr(jaxpr, "consts") else jex_core.ClosedJaxpr(jaxpr, ())


def array_of(each: Any) -> np.ndarray:
    """Returns a constant of a jaxpr."""
    if hasattr(each, "dtype") and jax.dtypes.issubdtype(each.dtype, jax.dtypes.prng_key):
        raise UnknownOperation("random key", "", "random numbers are no function of weights and ids")
    return np.asarray(each)


def site_of(equation: Any, outer: Site, steps: tuple[int, ...]) -> Site:
    """Returns the site of an equation.

    Args:
      outer: the site of the equation that runs it, if there is one.
      steps: the current steps of the enclosing loops.
    """
    info = equation.source_info
    stack = _stack_of(info.traceback)
    frame = own_frame(stack)
    line = "" if frame is None or (is_of_framework(frame.file) and outer.line) else f"{frame.file}:{frame.line}"
    scopes = [each.name for each in info.name_stack.stack if isinstance(each, source_info_util.Scope)]
    scopes = [name for name in scopes if not set(name) & {",", ">"}]  # einsum's, which is an equation
    module = ".".join(filter(None, (outer.module, *(each.replace("/", ".") for each in scopes))))
    frames = partial(_joined, stack, outer.frames)
    return Site(equation.primitive.name, line or outer.line, module, steps, frames)


@lru_cache(2**14)
def _stack_of(traceback: Any) -> Stack:
    """Returns the calls of the program that a traceback has, but for JAX's own."""
    found = []
    for frame in source_info_util.user_frames(traceback):
        if frame.function_name == OUTERMOST and is_of_framework(frame.file_name):
            break
        found.append(Frame(frame.file_name, frame.start_line, frame.function_name))
    return tuple(found)


def _joined(stack: Stack, outer: Callable[[], Stack]) -> Stack:
    """Joins the calls within a function that JAX traced once to the calls that led to it this time."""
    callers = outer()
    return stack if stack[len(stack) - len(callers) :] == callers else stack + callers
