"""Describes a run before it starts: its config, parameters, batches, and memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jax_transformer.config.dumped import dump_described
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import RunConfig
from jax_transformer.data.batching import Batch
from jax_transformer.data.planning import Shape
from jax_transformer.parallel.mesh import described
from jax_transformer.parallel.placement import row_sharding, row_shards
from jax_transformer.runtime.trees import flatten
from jax_transformer.training.batch_schedule import batch_figures, known, make_batch_schedule
from jax_transformer.training.fitting import FittedRun, memory_problem
from jax_transformer.training.state import TrainState, abstract_state
from jax_transformer.training.step import make_train_step


def describe(run: FittedRun) -> Iterator[str]:
    """Yields the description line by line. To report the memory, compiles the largest training step without running it;
    for a run that can't fit here, reports a lower bound of its memory instead."""
    config, model, mesh = run.config, run.model, run.mesh
    if problem := memory_problem(config, model, mesh):  # no error: the run may be meant for other machines
        yield from (dump_described(dataclasses.replace(config, model=model)), problem)
        return
    schedule = make_batch_schedule(config, run.corpus)
    state = abstract_state(model, config.train, mesh=mesh)
    yield dump_described(dataclasses.replace(config, model=model))
    if mesh.size > 1:
        yield f"mesh: {described(mesh)}"
    yield from parameter_table(state)
    yield ""
    batches, steps, epochs = known(schedule.batches_per_epoch), known(schedule.last_step), known(schedule.epochs, ".1f")
    yield f"{batches} batches per epoch; {steps} steps, {epochs} epochs"
    yield f"programs: {len(schedule.shapes)}, one per shape; {batch_figures(schedule)}"
    for shape in schedule.shapes:
        yield f"  {shape.rows:>5} rows  {shape.source_length:>4} source and {shape.target_length:>4} target positions"
    yield from _memory(config, model, state, schedule.shapes, mesh)


def parameter_table(state: TrainState) -> Iterator[str]:
    """Yields a line per parameter with its shape and size, and the total; marks frozen parameters and constants.

    On a mesh of several devices, each line includes the parameter's sharding and its bytes on each device.
    """
    rows = [
        (path, leaf, note)
        for tree, note in ((state.params, ""), (state.frozen, "frozen"), ({"constants": state.constants}, "constant"))
        for path, leaf in flatten(tree).items()
    ]
    width = max(len(path) for path, _, _ in rows)
    for path, leaf, note in sorted(rows, key=lambda row: row[0]):
        place = f"{_placement(leaf):<32}" if leaf.sharding is not None and leaf.sharding.mesh.size > 1 else ""
        yield f"{path:<{width}}  {leaf.size:>12,}  {'×'.join(map(str, leaf.shape)):<16} {place} {note}".rstrip()
    trained, others = (sum(leaf.size for _, leaf, note in rows if bool(note) == marked) for marked in (False, True))
    yield f"{'trained':<{width}}  {trained:>12,}" + (f"  (and {others:,} not trained)" if others else "")


def _placement(leaf: jax.ShapeDtypeStruct) -> str:
    """Describes the sharding of a leaf, such as "(-, fsdp, tensor, -)  2.0 MiB"."""
    axes = (*leaf.sharding.spec, *[None] * (leaf.ndim - len(leaf.sharding.spec)))
    names = ("-" if axis is None else "+".join(axis) if isinstance(axis, tuple) else axis for axis in axes)
    return f"({', '.join(names)})  {bytes_per_device(leaf) / 2**20:,.3f} MiB"


def bytes_per_device(tree: Any) -> int:
    """Returns the bytes that each device holds of a tree of `jax.ShapeDtypeStruct`s with shardings."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape) if leaf.sharding else leaf.shape) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def _memory(
    config: RunConfig, model: TransformerConfig, state: TrainState, shapes: tuple[Shape, ...], mesh: Mesh
) -> Iterator[str]:
    largest = max(shapes, key=lambda shape: shape.rows * (shape.source_length + shape.target_length))
    rows = largest.rows + -largest.rows % (config.train.accumulate * row_shards(mesh))
    lengths = [largest.source_length, largest.target_length, largest.target_length]
    lengths += lengths[:2] if config.data.packing else []
    arrays = (jax.ShapeDtypeStruct((rows, length), np.int32, sharding=row_sharding(mesh)) for length in lengths)
    step: Any = make_train_step(model, config.train, mesh=mesh)
    compiled = step.lower(state, Batch(*arrays)).compile()  # type: ignore[arg-type]
    usage, kept = compiled.memory_analysis(), bytes_per_device(state)
    where = " on each device" if mesh.size > 1 else ""
    if usage is None:
        yield f"memory: {_mebibytes(kept)} of state{where}; this device doesn't report the memory of a step"
        return
    yield (
        f"memory{where}: {_mebibytes(kept)} of state and {_mebibytes(usage.temp_size_in_bytes)} for the largest step, "
        f"{_mebibytes(kept + usage.temp_size_in_bytes)} in total"
    )


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
