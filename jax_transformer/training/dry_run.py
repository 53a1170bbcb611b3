"""Describes a run before it starts: its config, parameters, batches, and memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jax_transformer.config.files import dump_config
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import RunConfig
from jax_transformer.data.batching import Batch, Shape
from jax_transformer.data.preparation import PreparedCorpus
from jax_transformer.runtime.trees import flatten
from jax_transformer.training.scheduled_batch import known
from jax_transformer.training.step import TrainState, init_state, make_train_step
from jax_transformer.training.stream_schedule import make_batch_schedule


def describe(config: RunConfig, model: TransformerConfig, corpus: PreparedCorpus) -> Iterator[str]:
    """Yields the description line by line. To report the memory, it compiles the largest training step without running
    it."""
    schedule = make_batch_schedule(config, corpus)
    state = jax.eval_shape(lambda: init_state(model, config.train))
    yield dump_config(dataclasses.replace(config, model=model))
    yield from parameter_table(state)
    yield ""
    batches, steps, epochs = known(schedule.batches_per_epoch), known(schedule.last_step), known(schedule.epochs, ".1f")
    yield f"{batches} batches per epoch; {steps} steps, {epochs} epochs"
    yield f"programs: {len(schedule.shapes)}, one per shape; {schedule.padding:.1%} padding"
    for shape in schedule.shapes:
        yield f"  {shape.rows:>5} rows  {shape.source_length:>4} source and {shape.target_length:>4} target positions"
    yield from _memory(config, model, state, schedule.shapes)


def parameter_table(state: TrainState) -> Iterator[str]:
    """Yields a line per parameter with its shape and size, and the total; marks frozen parameters and constants."""
    rows = [
        (path, leaf.shape, note)
        for tree, note in ((state.params, ""), (state.frozen, "frozen"), ({"constants": state.constants}, "constant"))
        for path, leaf in flatten(tree).items()
    ]
    width = max(len(path) for path, _, _ in rows)
    for path, shape, note in sorted(rows):
        yield f"{path:<{width}}  {int(np.prod(shape)):>12,}  {'×'.join(map(str, shape)):<16} {note}".rstrip()
    trained, others = (
        sum(int(np.prod(shape)) for _, shape, note in rows if bool(note) == marked) for marked in (False, True)
    )
    yield f"{'trained':<{width}}  {trained:>12,}" + (f"  (and {others:,} not trained)" if others else "")


def _memory(config: RunConfig, model: TransformerConfig, state: TrainState, shapes: tuple[Shape, ...]) -> Iterator[str]:
    largest = max(shapes, key=lambda shape: shape.rows * (shape.source_length + shape.target_length))
    source, target = (
        np.zeros((largest.rows, length), np.int32) for length in (largest.source_length, largest.target_length)
    )
    step: Any = make_train_step(model, config.train)
    compiled = step.lower(state, Batch(source, target, target)).compile()
    usage = compiled.memory_analysis()
    kept = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    if usage is None:
        yield f"memory: {_mebibytes(kept)} of state; this device doesn't report the memory of a step"
        return
    yield (
        f"memory: {_mebibytes(kept)} of state and {_mebibytes(usage.temp_size_in_bytes)} for the largest step, "
        f"{_mebibytes(kept + usage.temp_size_in_bytes)} in total"
    )


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.0f} MiB"
