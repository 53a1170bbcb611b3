"""Puts batches and parameters on the mesh."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_transformer.data.batching import Batch
from jax_transformer.model.sharding import ROWS
from jax_transformer.parallel.rules import tree_shardings

Tree = TypeVar("Tree")


def row_shards(mesh: Mesh | None) -> int:
    """Returns among how many devices the mesh divides the rows of a batch; 1 without a mesh."""
    return 1 if mesh is None else math.prod(mesh.shape[axis] for axis in ROWS)


def pad_rows(batch: Batch, multiple: int, pad_ids: tuple[int, int]) -> Batch:
    """Returns the batch with rows of padding after the others, up to a multiple. They count in no loss.

    Args:
      batch: the batch, on the host.
      multiple: of which the number of rows shall be one.
      pad_ids: the source's and the target's.

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
    given = {name: ids for name, ids in batch._asdict().items() if ids is not None}
    return batch._replace(**{name: add_rows(ids, filling, fillers.get(name, 0)) for name, ids in given.items()})


def add_rows(ids: np.ndarray, count: int, pad_id: int) -> np.ndarray:
    """Returns ids [B, T] with `count` more rows of pads alone."""
    return np.pad(ids, ((0, count), (0, 0)), constant_values=pad_id) if count else ids


def row_sharding(mesh: Mesh) -> NamedSharding:
    """Returns how arrays [B, …] lie on the mesh: each device has its share of the rows."""
    return NamedSharding(mesh, PartitionSpec(ROWS))


def place_rows(arrays: Tree, mesh: Mesh | None) -> Tree:
    """Returns arrays [B, …], such as those of a batch, on the mesh, each device with its share of the rows.

    Raises:
      ValueError: the devices don't divide the rows; see `pad_rows`.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.parallel import make_mesh, place_rows
      >>> place_rows(np.zeros((8, 3)), make_mesh()).shape
      (8, 3)
    """
    return arrays if mesh is None else jax.device_put(arrays, row_sharding(mesh))


def place_params(params: Any, mesh: Mesh) -> Any:
    """Returns complete parameters on the mesh, each device with its part of them.

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
    return jax.device_put(params, tree_shardings(params, params, mesh))
