"""Traces programs for a mesh: in its context, with batches and parameter-like trees sharded on it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import jax

from jax_transformer.data.batching import Batch
from jax_transformer.model.functional import Params
from jax_transformer.model.sharding import constrain, row_shards
from jax_transformer.parallel.mesh import AnyMesh, with_auto_axes
from jax_transformer.parallel.rules import tree_shardings

Function = TypeVar("Function", bound=Callable[..., Any])
Tree = TypeVar("Tree")


def in_mesh(mesh: AnyMesh | None) -> AbstractContextManager[Any]:
    """Returns a context in which the model, while it is traced, lays out its activations on the mesh."""
    return nullcontext() if mesh is None else jax.sharding.use_abstract_mesh(with_auto_axes(mesh).abstract_mesh)


def on_mesh(function: Function, mesh: AnyMesh | None) -> Function:
    """Returns the function such that it is always traced in the mesh's context."""
    if mesh is None:
        return function

    def traced(*arguments: Any) -> Any:
        with in_mesh(mesh):
            return function(*arguments)

    return traced  # type: ignore[return-value]


def lie_as_parameters(tree: Tree, params: Params, mesh: AnyMesh | None) -> Tree:
    """Returns the tree with each leaf sharded like the parameter at its path; see `tree_shardings`."""
    if mesh is None:
        return tree
    constrained: Tree = jax.lax.with_sharding_constraint(tree, tree_shardings(tree, params, mesh))
    return constrained


def divide_rows(batch: Batch, parts: int) -> Batch:
    """Returns the batch with its rows [B, …] divided among the devices of the mesh.

    Raises:
      ValueError: B isn't a multiple of the number of devices that share the rows, times `parts`.
    """
    rows, multiple = len(batch.labels), parts * row_shards()
    if rows % multiple:
        shared = f", {parts} parts for each of {row_shards()} shares of the mesh" if row_shards() > 1 else ""
        raise ValueError(f"batch: expected rows that are a multiple of {multiple}{shared}; received {rows}")
    return jax.tree.map(lambda array: constrain(array, "rows", None), batch)
