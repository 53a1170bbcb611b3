"""The functions of a model that are exported: pure functions of flat dicts of arrays, {"encoder/norm/scale": array, …}.

Flat dicts, since a reader needs no classes of this package for them, and a `.safetensors` file is one.

    encode(params, source_ids)                                → encoder_output, source_mask
    prepare(params)                                           → layers
    start(params, layers, encoder_output, source_ids)         → state
    decode_step(params, layers, state, token_ids)             → logits, state
    logits(params, source_ids, decoder_input_ids)             → logits
    greedy(params, source_ids), beam_search(…)                → tokens, lengths, scores
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Table
from jax_transformer.decoding import beam, cache, sampling_loop
from jax_transformer.decoding.cache import Weights
from jax_transformer.decoding.search_params import SearchParams, SearchProgram
from jax_transformer.model import functional
from jax_transformer.runtime.trees import flatten, unflatten

Arrays = Mapping[str, Any]
"""Arrays, or their shapes and dtypes, by name."""

FIRST_ROOM, ROOM_FACTOR = 64, 4
"""Decoding starts with room for FIRST_ROOM tokens, and multiplies it by ROOM_FACTOR while a sentence goes on. A step's
time grows with the room, and each room needs a compiled program."""


@dataclass(frozen=True)
class Sizes:
    """Holds the sizes of the programs' arrays."""

    batch: int | None
    """Rows of a batch. None: any number."""
    source_length: int | None
    """Tokens of a source, padding included. None: any number that the model takes."""
    target_length: int
    """The most tokens that are decoded."""


@dataclass(frozen=True)
class Program:
    """Holds a function to export, and the shapes and dtypes of its arguments by name."""

    function: Callable[..., dict[str, Any]]
    inputs: dict[str, Any]


@dataclass(frozen=True)
class Search:
    """Holds a search with everything about it but the weights and the sources."""

    program: SearchProgram
    params: SearchParams
    eos_id: int


def model_programs(
    config: TransformerConfig, params: Arrays, sizes: Sizes, searches: Mapping[str, Search]
) -> dict[str, Program]:
    """Returns the programs by name.

    Args:
      params: the shapes and dtypes of the parameters by path.
      searches: searches by name, to export as a program each.
    """
    sources = _ids(config, sizes, "source_length")
    pair = _ids(config, sizes, "source_length", "target_length")
    encoded = _encoded(config, params, **sources)
    steps = _Steps(config, params, encoded, sizes.target_length)
    step = {"layers": steps.layers, "state": steps.state, "token_ids": _int32(sources["source_ids"].shape[0])}
    programs = {
        "encode": Program(partial(_encode, config), {"params": params, **sources}),
        "prepare": Program(steps.prepare, {"params": params}),
        "start": Program(steps.start, {"params": params, "layers": steps.layers, **encoded}),
        "decode_step": Program(steps.step, {"params": params, **step}),
        "logits": Program(partial(_logits, config), {"params": params, **pair}),
    }
    for name, search in searches.items():
        function = partial(_search, config, search, sizes.target_length)
        programs[name] = Program(function, {"params": params, **sources})
    return programs


# --- shapes


def _ids(config: TransformerConfig, sizes: Sizes, *lengths: str) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of a program's ids, one array per length, with symbols for open sizes.

    Each program's symbols form a separate scope.
    """
    most = largest_sizes(config)
    fixed = {"batch": sizes.batch, "source_length": sizes.source_length, "target_length": None}
    names = ("batch", *lengths)
    free = [name for name in names if fixed[name] is None]
    limits = [f"{name} <= {most[name]}" for name in free if name in most]
    symbols = dict(zip(free, export.symbolic_shape(", ".join(free), constraints=limits), strict=True)) if free else {}
    dims = {name: symbols.get(name, fixed[name]) for name in names}
    arguments = {"source_length": "source_ids", "target_length": "decoder_input_ids"}
    return {arguments[name]: _int32(dims["batch"], dims[name]) for name in lengths}


def largest_sizes(config: TransformerConfig) -> dict[str, int]:
    """Returns the sizes that the model's position tables limit: of batch, source_length and target_length."""
    limits: dict[str, int] = {}
    for length, stack in (("source_length", config.encoder), ("target_length", config.decoder)):
        if isinstance(stack.positions, Table):
            name = "batch" if stack.positions.index == "batch_row" else length
            limits[name] = min(stack.max_length, limits.get(name, stack.max_length))
    return limits


def _int32(*shape: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _encoded(config: TransformerConfig, params: Arrays, source_ids: jax.ShapeDtypeStruct) -> dict[str, Any]:
    """Returns the shapes of an encoder's output and of the ids that it is computed from."""
    encoder_output = jax.eval_shape(partial(_encode, config), params, source_ids)["encoder_output"]
    return {"encoder_output": encoder_output, "source_ids": source_ids}


# --- forward passes


def _encode(config: TransformerConfig, params: Arrays, source_ids: jax.Array) -> dict[str, Any]:
    return {
        "encoder_output": functional.encode(config, unflatten(params), source_ids),
        "source_mask": source_ids != config.source.pad_id,
    }


def _logits(
    config: TransformerConfig, params: Arrays, source_ids: jax.Array, decoder_input_ids: jax.Array
) -> dict[str, Any]:
    return {"logits": functional.apply(config, unflatten(params), source_ids, decoder_input_ids)}


# --- decoding step by step


class _Steps:
    """Makes the functions that decode a token of each sentence, and the shapes of their states.

    The layers are the decoder's parameters, unstacked for fast steps; empty if decoding uses no cache. A state is a
    flat dict of everything else that changes.
    """

    def __init__(self, config: TransformerConfig, params: Arrays, encoded: Arrays, length: int) -> None:
        self.config, self.length = config, length
        self._layers = jax.eval_shape(lambda params: Weights.of(config, unflatten(params)).layers, params)
        self._state = jax.eval_shape(self._start, Weights(unflatten(params), self._layers), **encoded)
        self.layers, self.state = named(self._layers), named(self._state)

    def prepare(self, params: Arrays) -> dict[str, Any]:
        return {"layers": named(Weights.of(self.config, unflatten(params)).layers)}

    def start(self, params: Arrays, layers: Arrays, encoder_output: jax.Array, source_ids: jax.Array) -> dict[str, Any]:
        return {"state": named(self._start(self._weights(params, layers), encoder_output, source_ids))}

    def step(self, params: Arrays, layers: Arrays, state: Arrays, token_ids: jax.Array) -> dict[str, Any]:
        weights, before = self._weights(params, layers), _filled(self._state, state)
        logits, after = cache.step(self.config, weights, before, token_ids[:, None])
        return {"logits": logits[:, 0], "state": named(after)}

    def _start(self, weights: Weights, encoder_output: jax.Array, source_ids: jax.Array) -> cache.State:
        return cache.start_from(self.config, weights, encoder_output, source_ids, self.length, 1)

    def _weights(self, params: Arrays, layers: Arrays) -> Weights:
        return Weights(unflatten(params), _filled(self._layers, layers))


def named(tree: Any) -> dict[str, Any]:
    """Returns the leaves of a tree by their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _filled(tree: Any, leaves: Arrays) -> Any:
    """Returns the tree with its leaves replaced by the given ones, by path."""
    return jax.tree.unflatten(jax.tree.structure(tree), [leaves[name] for name in named(tree)])


# --- whole searches


def make_search(decoding: DecodingConfig, params: SearchParams) -> Search:
    """Returns the search of a resolved config."""
    return Search(SearchProgram.from_config(decoding), jax.tree.map(jnp.asarray, params), int(params.eos_id))


def rooms(most: int) -> list[int]:
    """Returns the rooms, in tokens, in which at most this many are decoded."""
    sizes = [FIRST_ROOM]
    while sizes[-1] < most:
        sizes.append(sizes[-1] * ROOM_FACTOR)
    return [*sizes[:-1], most]


def _search(
    config: TransformerConfig, search: Search, length: int, params: Arrays, source_ids: jax.Array
) -> dict[str, Any]:
    loop: Any = beam if search.program.uses_beams else sampling_loop
    weights = Weights.of(config, unflatten(params))
    first, *more = rooms(length)
    settings = search.params
    if search.program.encoder_no_repeat_ngram:
        settings = settings._replace(source=jnp.where(source_ids == config.source.pad_id, -1, source_ids))
    state = loop.start(config, search.program, weights, source_ids, settings, first)
    state = loop.run(config, search.program, weights, settings, state)
    for room in more:
        state = loop.run(config, search.program, weights, settings, state.grown(config, room))
    tokens, scores = state.hypotheses(settings)
    best = tokens[:, 0]  # [B, T]
    return {"tokens": best, "lengths": _lengths(config, search, source_ids, best), "scores": scores[:, 0]}


def _lengths(config: TransformerConfig, search: Search, source_ids: jax.Array, tokens: jax.Array) -> jax.Array:
    """Counts the tokens of each row of [B, T], with the end token, without padding. A source of pads has none."""
    is_end = search.program.is_end(tokens, search.eos_id)
    until_end = jnp.where(jnp.any(is_end, axis=1), jnp.argmax(is_end, axis=1) + 1, tokens.shape[1])
    is_empty = jnp.all(source_ids == config.source.pad_id, axis=1)
    return jnp.where(is_empty, 0, until_end).astype(jnp.int32)


def shapes_of(params: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes and dtypes of nested parameters by path, in order of their names."""
    flat = flatten(params)
    return {path: jax.ShapeDtypeStruct(np.shape(flat[path]), flat[path].dtype) for path in sorted(flat)}
