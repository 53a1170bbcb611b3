"""Checks of the arguments of `functional`'s functions, each reported in one line before tracing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax.sharding import AxisType

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model.features import Features, SourceInput
from jax_transformer.model.ids import Ids

Function = TypeVar("Function", bound=Callable[..., Any])

VOCABULARIES = {
    "decoder_input_ids": "target_vocab_size",
    "ids": "target_vocab_size",
}
"""Argument with token ids → the config field with the size of their vocabulary."""


def compiled(*static: str) -> Callable[[Function], Function]:
    """Decorates a function of (config, params, …): compiles it once per config and shape, and checks its arguments.

    Args:
      static: names of further arguments that are compiled in.
    """

    def decorate(function: Function) -> Function:
        jitted = jax.jit(function, static_argnames=("config", *static))
        signature, name = inspect.signature(function), function.__name__

        @wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if args:
                check_config(name, args[0])
            arguments = signature.bind(*args, **kwargs).arguments
            config = arguments["config"]
            check_config(name, config)
            check_params(name, arguments["params"])
            check_axes(name, arguments["params"])
            if "source_ids" in arguments:
                check_source(name, config, arguments["source_ids"])
            for argument, size in VOCABULARIES.items():
                if argument in arguments:
                    check_ids(name, argument, arguments[argument], getattr(config, size))
            return jitted(*args, **kwargs)

        return cast(Function, checked)

    return decorate


def check_config(function: str, config: Any) -> None:
    """Raises ValueError for anything but a TransformerConfig."""
    if not isinstance(config, TransformerConfig):
        raise ValueError(
            f"{function}: config: expected a TransformerConfig, the first argument; received {type(config).__name__}"
            + (": pass model.config and model.params" if hasattr(config, "params") else "")
        )


def check_axes(function: str, params: Any) -> None:
    """Raises ValueError for a mesh with explicit axes, in force or of the parameters: layers don't say how outputs
    are sharded."""
    leaf = params
    while isinstance(leaf, Mapping):
        leaf = next(iter(leaf.values()), None)
    meshes = [jax.sharding.get_abstract_mesh(), getattr(getattr(leaf, "sharding", None), "mesh", None)]
    if any(AxisType.Explicit in mesh.axis_types for mesh in meshes if mesh is not None):
        raise ValueError(
            f"{function}: expected a mesh whose axes are of type Auto; received Explicit ones, as jax.make_mesh makes "
            "them: give it axis_types=(jax.sharding.AxisType.Auto,) * 3, or use make_mesh of jax_transformer.parallel"
        )


def check_params(function: str, params: Any) -> None:
    """Raises ValueError for anything but a nested dict."""
    if not isinstance(params, Mapping):
        raise ValueError(
            f"{function}: params: expected a nested dict of arrays, as init_params returns and model.params holds; "
            f"received {type(params).__name__}"
        )


def check_ids(function: str, name: str, ids: Any, size: int) -> None:
    """Raises ValueError unless ids are an array of integers from 0 to size - 1, [rows, length] or, for `ids` of a step,
    [rows].

    Only concrete values are checked: not tracers inside a caller's `jax.jit`, `jax.grad` or `jax.vmap`, nor arrays with
    shards on devices of other processes.
    """
    if not hasattr(ids, "shape") or not hasattr(ids, "dtype"):
        raise ValueError(
            f"{function}: {name}: expected an array of integers, such as jnp.array([[4, 5]]); received "
            f"{type(ids).__name__}"
        )
    rank = (1, 2) if name == "ids" else (2,)
    if len(ids.shape) not in rank:
        raise ValueError(
            f"{function}: {name}: expected an array [rows, length]; received shape {list(ids.shape)}"
            + (f": one sentence is {name}[None]" if len(ids.shape) == 1 else "")
        )
    if not jax.numpy.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"{function}: {name}: expected integers; received an array of {ids.dtype}")
    if isinstance(ids, jax.core.Tracer | jax.ShapeDtypeStruct):
        return
    if isinstance(ids, jax.Array) and not ids.is_fully_addressable:
        return
    values = np.asarray(ids)
    outside = values[(values < 0) | (values >= size)]
    if outside.size:
        raise ValueError(
            f"{function}: {name}: expected ids of the vocabulary, from 0 to {size - 1}; received {outside[0]}"
        )


def check_source(function: str, config: TransformerConfig, source: Any) -> None:
    """Raises ValueError unless a source is what the config reads: ids of its vocabulary, or features with a stem. Of
    lengths, only concrete values are checked, as of ids."""
    where = f"{function}: source_ids"
    if config.stem is None:
        if isinstance(source, Features):
            raise ValueError(f"{where}: expected token ids, since the config has no stem; received Features")
        check_ids(function, "source_ids", source, config.source.vocab_size)
        return
    wanted = f"Features(vectors [rows, length, {config.stem.features}], lengths [rows])"
    if not isinstance(source, Features):
        raise ValueError(f"{where}: expected {wanted}, since the config has a stem; received {type(source).__name__}")
    vectors, lengths = source
    if np.ndim(vectors) != 3 or vectors.shape[2] != config.stem.features or not vectors.shape[1]:
        raise ValueError(f"{where}: expected {wanted}; received vectors of shape {list(np.shape(vectors))}")
    if not jax.numpy.issubdtype(vectors.dtype, np.floating):
        raise ValueError(f"{where}: expected vectors of floating-point numbers; received an array of {vectors.dtype}")
    if lengths is None:
        return
    if np.shape(lengths) != vectors.shape[:1] or not jax.numpy.issubdtype(lengths.dtype, np.integer):
        raise ValueError(
            f"{where}: expected an integer length for each of {vectors.shape[0]} rows; received {lengths.dtype} "
            f"{list(np.shape(lengths))}"
        )
    if isinstance(lengths, np.ndarray) or (
        not isinstance(lengths, jax.core.Tracer) and getattr(lengths, "is_fully_addressable", False)
    ):
        values = np.asarray(lengths)
        outside = values[(values < 0) | (values > vectors.shape[1])]
        if outside.size:
            raise ValueError(f"{where}: expected lengths from 0 to {vectors.shape[1]}; received {outside[0]}")


def check_rows(function: str, source_ids: SourceInput, decoder_input_ids: Ids) -> None:
    """Raises ValueError unless there are as many targets as sources."""
    if source_ids.shape[0] != decoder_input_ids.shape[0]:
        raise ValueError(
            f"{function}: expected as many rows of decoder_input_ids as of source_ids; received "
            f"{decoder_input_ids.shape[0]} and {source_ids.shape[0]}"
        )


def check_fit(params: Mapping[str, Any], abstract: Mapping[str, Any]) -> None:
    """Raises ValueError unless the parameters have the names and shapes of a config."""
    found, wanted = _shapes(params), _shapes(abstract)
    problems = [f"{path} {list(shape)} is missing" for path, shape in wanted.items() if path not in found]
    problems += [f"{path} isn't one of them" for path in found if path not in wanted]
    problems += [
        f"{path} is {list(found[path])} instead of {list(shape)}"
        for path, shape in wanted.items()
        if found.get(path, shape) != shape
    ]
    if problems:
        more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ValueError(f"params: expected the parameters of this config; {'; '.join(problems[:3])}{more}")


def _shapes(tree: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.shape(leaf) for path, leaf in leaves}


def check_key(function: str, key: Any) -> None:
    """Raises ValueError for anything but an array or a PRNG key."""
    if not isinstance(key, jax.Array | np.ndarray):
        raise ValueError(
            f"{function}: key: expected a PRNG key, such as jax.random.key(0); received {type(key).__name__}"
        )
