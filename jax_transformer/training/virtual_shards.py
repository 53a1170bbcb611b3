"""Trains data-parallel with bit-identical results on any number of devices.

The rows of a batch are divided into N virtual shards. One program, compiled for a single device, computes the gradient
of one shard. The gradients are added in a fixed binary tree, whichever devices hold them. Another single-device program
updates each device's copy of the state. (Floating-point addition isn't associative: the rounding of a plain sum depends
on the devices.)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.parallel import AXES
from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import Batch
from jax_transformer.model.functional import Params
from jax_transformer.training.losses import Criterion
from jax_transformer.training.state import TrainState
from jax_transformer.training.step import Metrics, StepFunctions, TokenLoss, summed_loss
from jax_transformer.training.throughput import Announce, Compiled


class Sums(NamedTuple):
    """Holds sums over some rows of a batch."""

    loss: Any  # [], or with label smoothing a pair: with and without it
    tokens: jax.Array  # [] int32
    gradients: Params


class VirtualShards:
    """Trains and evaluates over N virtual shards of each batch. Every device of the mesh holds a copy of the state."""

    def __init__(
        self, model: TransformerConfig, config: TrainConfig, mesh: Mesh, shards: int, loss: TokenLoss | None = None
    ) -> None:
        self.mesh, self.each = mesh, shards // mesh.size
        step = StepFunctions.of("VirtualShards", model, config, loss=loss)
        criterion = Criterion(model.target_pad_id)
        self._gradients = Compiled(jax.jit(partial(_sums, step)))
        self._update = Compiled(jax.jit(partial(_updated, step), donate_argnums=0))
        self._losses = jax.jit(lambda params, shard: summed_loss(model, params, shard, criterion))
        self._add = jax.jit(lambda one, other: jax.tree.map(jnp.add, one, other))
        self._add_devices = jax.jit(_tree_over_devices(mesh))
        self._lengthened = jax.jit(lambda sums: jax.tree.map(lambda leaf: leaf[None], sums))

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """Returns the state after a step on a batch whose rows the mesh divides, and its metrics, as `make_train_step`
        does; donates the state."""
        states = _by_device(state)
        sums = [
            self._on_device([self._gradients(own, shard, number) for number, shard in self._shards(batch, k)])
            for k, own in enumerate(states)
        ]
        totals = _by_device(self._over_devices(sums))
        updated = [self._update(own, total) for own, total in zip(states, totals, strict=True)]
        new_states, metrics = zip(*updated, strict=True)
        return _joined(state, new_states), metrics[0]

    def evaluate(self, params: Params, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Returns the summed loss and the number of tokens, as `make_evaluation_step` does."""
        sums = [
            self._on_device([self._losses(own, shard) for _, shard in self._shards(batch, k)])
            for k, own in enumerate(_by_device(params))
        ]
        total, tokens = _by_device(self._over_devices(sums))[0]
        return np.asarray(total)[0], np.asarray(tokens)[0]

    @property
    def announce(self) -> Announce:
        """Makes the context of each compilation: of gradients, and of the update."""
        return self._gradients.announce

    @announce.setter
    def announce(self, announce: Announce) -> None:
        self._gradients.announce = self._update.announce = announce

    @property
    def programs(self) -> dict[Any, Any]:
        """The compiled gradient programs: one for each shape and device."""
        return self._gradients.programs

    @property
    def seconds(self) -> float:
        """Seconds of compilation so far."""
        return self._gradients.seconds + self._update.seconds

    def take_seconds(self) -> float:
        """Returns the seconds of compilation since the last call."""
        return self._gradients.take_seconds() + self._update.take_seconds()

    def _shards(self, batch: Batch, k: int) -> list[tuple[np.int32, Batch]]:
        """Returns the numbered virtual shards on this process's device k."""
        own = _by_device(batch)[k]
        rows = len(own.labels) // self.each
        device = list(self.mesh.devices.flat).index(next(iter(own.labels.devices())))

        def part(j: int) -> Batch:
            return jax.tree.map(lambda array: jax.lax.dynamic_slice_in_dim(array, np.int32(j * rows), rows), own)

        return [(np.int32(device * self.each + j), part(j)) for j in range(self.each)]

    def _on_device(self, sums: Sequence[Any]) -> Any:
        """Adds 2^k trees in pairs, and their sums in pairs."""
        while len(sums) > 1:
            sums = [self._add(*pair) for pair in zip(sums[::2], sums[1::2], strict=True)]
        return self._lengthened(sums[0])

    def _over_devices(self, sums: Sequence[Any]) -> Any:
        """Sums trees [1, …], one for each device of the mesh; each device receives a copy of the sum."""
        if self.mesh.size == 1:
            return sums[0]
        sharding = NamedSharding(self.mesh, PartitionSpec(AXES))

        def joined(*leaves: jax.Array) -> jax.Array:
            shape = (self.mesh.size, *leaves[0].shape[1:])
            return jax.make_array_from_single_device_arrays(shape, sharding, list(leaves))

        return self._add_devices(jax.tree.map(joined, *sums))


def _tree_over_devices(mesh: Mesh) -> Any:
    """Returns a function that sums a tree of [D, …], one row on each device, and gives each device the sum.

    In round k, each device adds the partial sum of the device whose number differs in bit k. Since a + b is b + a,
    every device computes the same bits, and the same tree as a single device that adds neighbours in pairs.
    """
    count = mesh.size

    def add(tree: Any) -> Any:
        distance = 1
        while distance < count:
            pairs = [(number, number ^ distance) for number in range(count)]
            tree = jax.tree.map(lambda leaf, pairs=pairs: leaf + jax.lax.ppermute(leaf, AXES, pairs), tree)
            distance *= 2
        return tree

    return jax.shard_map(add, mesh=mesh, in_specs=PartitionSpec(AXES), out_specs=PartitionSpec(AXES))


def _by_device(tree: Any) -> list[Any]:
    """Returns the tree of single-device arrays that each of this process's devices holds, in the mesh's order."""
    leaves, structure = jax.tree.flatten(tree)
    by_leaf = [[shard.data for shard in leaf.addressable_shards] for leaf in leaves]
    return [jax.tree.unflatten(structure, arrays) for arrays in zip(*by_leaf, strict=True)]


def _joined(like: TrainState, copies: Sequence[TrainState]) -> TrainState:
    """Joins single-device copies into one tree, sharded like `like`."""

    def joined(leaf: jax.Array, *copies: jax.Array) -> jax.Array:
        return jax.make_array_from_single_device_arrays(leaf.shape, leaf.sharding, list(copies))

    state: TrainState = jax.tree.map(joined, like, *copies)
    return state


def _sums(step: StepFunctions, state: TrainState, shard: Batch, number: jax.Array) -> Sums:
    """Returns the sums over a virtual shard, whose dropout depends on its number."""
    key = jax.random.fold_in(step.dropout_key(state), number)
    loss, gradients = step.gradients(state, shard, 1, key, with_plain=step.has_plain_loss)
    return Sums(loss, step.count(shard), gradients)


def _updated(step: StepFunctions, state: TrainState, sums: Sums) -> tuple[TrainState, Metrics]:
    """Returns the state after a step, given the sums [1, …] over the batch."""
    loss, tokens, gradients = jax.tree.map(lambda leaf: leaf[0], sums)
    count = jnp.maximum(tokens, 1)
    loss, plain = loss if step.has_plain_loss else (loss, None)
    new, metrics = step.update(
        state, loss / count, tokens, jax.tree.map(lambda leaf: leaf / count.astype(leaf.dtype), gradients)
    )
    return new, metrics if plain is None else metrics | {"plain_loss": plain / count}
