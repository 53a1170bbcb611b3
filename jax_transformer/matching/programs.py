"""Turns JAX modules into functions of a tree of weights and of inputs by name: NNX, Linen and Equinox modules."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jax_transformer.storage.tensors import PortingError

OUTPUTS = ("logits", "last_hidden_state", "prediction_logits", "sample")
"""Fields of a result that is a record, in order of preference."""

WEIGHTS = ("params", "batch_stats")
"""Linen's collections of weights; others are constants of a program."""


class PureProgram(NamedTuple):
    """A function (params, inputs) → an array, and its weights."""

    function: Callable[[Any, Mapping[str, Any]], Any]
    params: Any


def is_jax_module(program: Any) -> bool:
    """Returns whether a program is an NNX, Equinox or Linen module."""
    return _holds_weights(program) or _is(program, "flax.linen", "Module")


def _holds_weights(program: Any) -> bool:
    return _is(program, "flax.nnx", "Module") or _is(program, "equinox", "Module")


def pure_program(program: Any, params: Any, name: str) -> PureProgram:
    """Returns a program as a function of its weights.

    Args:
      program: an NNX or Equinox module, a Linen module, or a function (params, inputs).
      params: None for a module with weights of its own; a Linen module's variables, or its "params" alone; a function's
        tree of weights.

    Raises:
      PortingError: a module with weights of its own was given others; another program was given none.
    """
    if _holds_weights(program) != (params is None):
        what = "its variables, in Side(module, params=...)" if params is None else "no params: the module has its own"
        raise PortingError(f"{name}: expected {what}")
    if _is(program, "flax.nnx", "Module"):
        return _nnx(program, name)
    if _is(program, "equinox", "Module"):
        return _equinox(program, name)
    if _is(program, "flax.linen", "Module"):
        return _linen(program, params, name)
    return PureProgram(lambda weights, inputs: output_of(program(weights, inputs), name), params)


def _nnx(module: Any, name: str) -> PureProgram:
    from flax import nnx

    definition, weights, rest = nnx.split(module, nnx.Any(nnx.Param, nnx.BatchStat), ...)

    def function(params: Any, inputs: Mapping[str, Any]) -> Any:
        return output_of(_called(nnx.merge(definition, params, rest), inputs, name), name)

    return PureProgram(function, weights)


def _linen(module: Any, variables: Any, name: str) -> PureProgram:
    has_collections = isinstance(variables, Mapping) and "params" in variables
    collections = dict(variables) if has_collections else {"params": variables}
    weights = {kind: collections.pop(kind) for kind in WEIGHTS if kind in collections}

    def function(params: Any, inputs: Mapping[str, Any]) -> Any:
        def apply(*args: Any, **kwargs: Any) -> Any:
            return module.apply({**params, **collections}, *args, **kwargs)

        return output_of(_called(apply, inputs, name, signature=module.__call__), name)

    return PureProgram(function, weights)


def _equinox(module: Any, name: str) -> PureProgram:
    equinox = sys.modules["equinox"]
    weights, rest = equinox.partition(module, equinox.is_inexact_array)

    def function(params: Any, inputs: Mapping[str, Any]) -> Any:
        return output_of(_called(equinox.combine(params, rest), inputs, name), name)

    return PureProgram(function, weights)


def _called(program: Callable[..., Any], inputs: Mapping[str, Any], name: str, signature: Any = None) -> Any:
    """Calls a program with inputs by name, or in their order if it has other names for them.

    Raises:
      PortingError: it takes fewer arguments by place, or needs more.
    """
    own = inspect.signature(program if signature is None else signature).parameters
    if all(key in own for key in inputs) or any(each.kind is each.VAR_KEYWORD for each in own.values()):
        return program(**inputs)
    places = [each for each in own.values() if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    needed = [each.name for each in places if each.default is each.empty]
    if len(needed) <= len(inputs) <= len(places):
        return program(*inputs.values())
    raise PortingError(
        f"{name}: expected inputs for its arguments {', '.join(own)}; received {', '.join(inputs) or 'none'}"
    )


def output_of(result: Any, name: str) -> Any:
    """Returns the array that a program returns, or the first one of a tuple, or the logits or hidden state of a record.

    Raises:
      PortingError: there is none.
    """
    if hasattr(result, "shape"):
        return result
    if isinstance(result, Sequence) and result and hasattr(result[0], "shape"):
        return result[0]
    for field in OUTPUTS:
        found = result.get(field) if isinstance(result, Mapping) else getattr(result, field, None)
        if hasattr(found, "shape"):
            return found
    raise PortingError(
        f"{name}: expected an array, a tuple that begins with one, or a record with {' or '.join(OUTPUTS)}; received "
        f"{type(result).__name__}"
    )


def _is(program: Any, package: str, kind: str) -> bool:
    """Returns whether an object is of a class of a package that may not be imported."""
    module = sys.modules.get(package)
    return module is not None and isinstance(program, getattr(module, kind))


def with_one_output(module: Any, name: str) -> Any:
    """Returns a PyTorch module, sharing all tensors, whose forward returns the array that `pure_program` would take."""
    kind = type(module)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return output_of(kind.forward(self, *args, **kwargs), name)

    found = copy.copy(module)
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    found.__class__ = type(kind.__name__, (kind,), {**named, "forward": forward})
    return found
