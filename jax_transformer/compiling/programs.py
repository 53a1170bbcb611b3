"""The programs that `jax-transformer compile` compiles: a training step, an evaluation step, and a search."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jax_transformer.config.decoding import DecodingConfig, GenerationConfig
from jax_transformer.config.flops import decode_flops, forward_flops, train_flops
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import Batch
from jax_transformer.decoding import beam, sampling_loop
from jax_transformer.decoding.cache import Weights
from jax_transformer.decoding.search_params import SearchParams, SearchProgram
from jax_transformer.model.functional import Params
from jax_transformer.model.lora import split_adapters
from jax_transformer.parallel.placement import row_sharding
from jax_transformer.parallel.tracing import on_mesh
from jax_transformer.training.state import abstract_state, stored_params
from jax_transformer.training.step import make_evaluation_step, make_train_step

Name = Literal["train", "evaluate", "decode"]


@dataclass(frozen=True)
class Shape:
    """Holds the shape of a batch; with `decode`, target is the most tokens that are decoded."""

    rows: int
    source: int
    target: int


@dataclass(frozen=True)
class ModelProgram:
    """Holds a program of a model before XLA compiles it."""

    lowered: Any
    """A `jax.stages.Lowered`."""
    flops: float
    """The floating-point operations that the model needs, on all devices together."""


def lower(
    name: Name, model: TransformerConfig, train: TrainConfig, shape: Shape, mesh: Mesh, beams: int = 1
) -> ModelProgram:
    """Returns a program for the devices of a mesh, which needn't be there.

    Args:
      name: which program.
      model: the model's config, with its vocabulary sizes set.
      train: how to train, for "train".
      shape: of the batch.
      mesh: the devices.
      beams: for "decode", how many.

    Raises:
      ConfigError: the mesh doesn't divide the model's heads, feed-forward units or features.
      ValueError: the mesh doesn't divide the rows.
    """
    sizes = shape.rows, shape.source, shape.target
    state = abstract_state(model, train, mesh=mesh)
    if name == "train":
        step = make_train_step(model, train, mesh=mesh)
        return ModelProgram(_lower(step, state, _batch(shape, mesh)), train_flops(model, *sizes))
    params, _ = split_adapters(stored_params(state))  # merged kernels have the shapes of the model's own
    if name == "evaluate":
        evaluate = make_evaluation_step(model, mesh)
        return ModelProgram(_lower(evaluate, params, _batch(shape, mesh)), forward_flops(model, *sizes))
    decode = jax.jit(on_mesh(partial(_decode, model, shape.target, beams), mesh))
    lowered = _lower(decode, params, _ids(shape.rows, shape.source, mesh))
    return ModelProgram(lowered, decode_flops(model, *sizes, beams))


def _lower(function: Any, *arguments: Any) -> Any:
    return function.lower(*arguments)


def _batch(shape: Shape, mesh: Mesh) -> Batch:
    lengths = shape.source, shape.target, shape.target
    return Batch(*(_ids(shape.rows, length, mesh) for length in lengths))  # type: ignore[arg-type]


def _ids(rows: int, length: int, mesh: Mesh) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((rows, length), np.int32, sharding=row_sharding(mesh))


def _decode(config: TransformerConfig, length: int, beams: int, params: Params, source_ids: jax.Array) -> Any:
    """Decodes hypotheses of at most `length` tokens, from stored parameters."""
    decoding = DecodingConfig(beam_size=beams, max_new_tokens=length).resolved(GenerationConfig())
    program = SearchProgram.from_config(decoding)
    penalties = jnp.maximum(jnp.arange(length + 1, dtype=jnp.float32), 1.0)
    search = SearchParams.from_numbers(1, 2, config.target_pad_id, length, penalties)
    loop: Any = beam if program.uses_beams else sampling_loop
    weights = Weights.of(config, params)
    state = loop.start(config, program, weights, source_ids, search, length)
    return loop.run(config, program, weights, search, state).hypotheses(search)
