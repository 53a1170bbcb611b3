"""Places batches and parameters on the mesh, and fetches them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_transformer.data.batching import Batch
from jax_transformer.model.sharding import ROWS
from jax_transformer.parallel.mesh import AnyMesh, with_auto_axes
from jax_transformer.parallel.rules import tree_shardings

Tree = TypeVar("Tree")


def row_shards(mesh: AnyMesh | None) -> int:
    """Returns among how many devices the mesh divides the rows of a batch; 1 without a mesh."""
    return 1 if mesh is None else math.prod(mesh.shape[axis] for axis in ROWS)


def pad_rows(batch: Batch, multiple: int, pad_ids: tuple[int, int]) -> Batch:
    """Appends rows of padding to a batch, up to a multiple. They count in no loss.

    Args:
      batch: the batch, on the host.
      multiple: the divisor of the resulting number of rows.
      pad_ids: the padding ids of source and target.

    Example:
      >>> from jax_transformer.data import make_batch
      >>> from jax_transformer.parallel import pad_rows
      >>> pad_rows(make_batch([[4, 3]], [[5]]), 4, (0, 0)).labels.shape
      (4, 2)
    """
    filling = -len(batch.labels) % multiple
    if not filling:
        return batch
    source, target = pad_ids
    fillers = {"source_ids": source, "decoder_input_ids": target, "labels": target}
    arrays = {name: ids for name, ids in batch._asdict().items() if ids is not None}
    return batch._replace(**{name: add_rows(ids, filling, fillers.get(name, 0)) for name, ids in arrays.items()})


def add_rows(array: np.ndarray, count: int, value: int = 0) -> np.ndarray:
    """Returns an array [B, …], such as ids [B, T], with `count` more rows that hold a value, such as the pad, alone."""
    width = ((0, count), *((0, 0) for _ in array.shape[1:]))
    return np.pad(array, width, constant_values=value) if count else array


def row_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of arrays [B, …] over rows."""
    return NamedSharding(with_auto_axes(mesh), PartitionSpec(ROWS))


@dataclass(frozen=True)
class RowShare:
    """Describes the rows of each batch that this process makes: those of its devices."""

    mesh: Mesh
    multiple: int = 1
    """The number of rows is padded up to a multiple of this."""

    def rows_of(self, count: int) -> np.ndarray:
        """Returns the numbers of the rows, in order, of a batch of `count`, and of rows of padding from `count` on."""
        total = count + -count % self.multiple
        indices = row_sharding(self.mesh).addressable_devices_indices_map((total,)).values()
        spans = sorted({index[0].indices(total)[:2] for index in indices if index is not None})
        return np.concatenate([np.arange(*span) for span in spans])

    def place(self, arrays: Tree) -> Tree:
        """Returns arrays [B, …] on the mesh, from the rows that this process makes."""
        lie = row_sharding(self.mesh)
        return jax.tree.map(lambda own: jax.make_array_from_process_local_data(lie, own), arrays)


def place_rows(arrays: Tree, mesh: Mesh | None) -> Tree:
    """Returns arrays [B, …], such as those of a batch, on the mesh, each device with its share of the rows.

    With several processes, each passes all rows.

    Raises:
      ValueError: the devices don't divide the rows; see `pad_rows`.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.parallel import make_mesh, place_rows
      >>> place_rows(np.zeros((8, 3)), make_mesh()).shape
      (8, 3)
    """
    if mesh is None:
        return arrays
    placed: Tree = jax.tree.map(lambda array: _placed(array, row_sharding(mesh)), arrays)
    return placed


def place_params(params: Any, mesh: Mesh) -> Any:
    """Returns complete parameters on the mesh, each device with its part of them. No array of the result shares memory
    with `params`, unless that is on the mesh already.

    Example:
      >>> import jax
      >>> from jax_transformer import TransformerConfig, init_params
      >>> from jax_transformer.parallel import make_mesh, place_params
      >>> config = TransformerConfig(source_vocab_size=7, target_vocab_size=7, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1)
      >>> params = place_params(init_params(config, jax.random.key(0)), make_mesh())
      >>> params["head"]["kernel"].sharding.spec
      P('fsdp', 'tensor')
    """
    return jax.tree.map(_placed, params, tree_shardings(params, params, mesh))


def fetch(tree: Any) -> Any:
    """Returns a tree of arrays as NumPy arrays, complete in every process, wherever their shards are.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.parallel import make_mesh, place_rows
      >>> from jax_transformer.parallel.placement import fetch
      >>> fetch(place_rows(np.arange(8), make_mesh())).sum()
      28
    """
    return jax.tree.map(_fetched, tree)


def _fetched(array: Any) -> np.ndarray:
    if isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated):
        array = _replicator(array.sharding.mesh)(array)  # type: ignore[attr-defined]
    return np.asarray(array)


@cache
def _replicator(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    """Returns a function that puts an array on every device. A mesh has one, so that each shape is compiled once."""
    return jax.jit(lambda array: array, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _placed(array: Any, sharding: NamedSharding) -> jax.Array:
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return jax.device_put(array, sharding)
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    complete = np.asarray(array)
    made: Callable[..., jax.Array] = jax.make_array_from_callback
    return made(complete.shape, sharding, lambda index: complete[index])
