"""Places the candidate on its devices: one, or a mesh that shares its weights and the rows of its batches."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from jax_transformer.comparison.sides import CannotRun
from jax_transformer.decoding.prepared import prepare
from jax_transformer.model.functional import Params
from jax_transformer.parallel.mesh import AnyMesh
from jax_transformer.parallel.placement import add_rows, place_params, place_rows, row_sharding, row_shards
from jax_transformer.parallel.rules import tree_shardings
from jax_transformer.parallel.tracing import in_mesh
from jax_transformer.parity.problems import Problem
from jax_transformer.storage.model_directory import Model
from jax_transformer.training.state import TrainState, all_params

Array = TypeVar("Array", np.ndarray, jax.Array)


@dataclass(frozen=True)
class Devices:
    """Puts problems on the devices."""

    mesh: AnyMesh | None = None
    """None: JAX's default device. An abstract mesh needs no devices, since programs are only traced for it."""

    @property
    def real(self) -> Mesh | None:
        """Returns the mesh. Raises CannotRun for an abstract mesh, which has no devices."""
        if isinstance(self.mesh, AbstractMesh):
            raise CannotRun("the mesh is abstract, and its devices compute nothing: prove takes it, or pass a Mesh")
        return self.mesh

    def tracing(self) -> AbstractContextManager[Any]:
        """Returns a context in which programs are traced for the devices."""
        return in_mesh(self.mesh)

    def filled_up(self, problem: Problem, pad_id: int) -> Problem:
        """Appends copies of the first row, with only pads as labels, until the devices divide the rows. No loss counts
        these rows."""
        filling = -len(problem.labels) % row_shards(self.mesh)
        if not filling:
            return problem

        count = len(problem.labels)
        filled = problem.rows(np.array([*range(count), *[0] * filling]))
        return dataclasses.replace(filled, labels=add_rows(problem.labels, filling, pad_id))

    def own_rows(self, value: Array, problem: Problem, filled: Problem) -> Array:
        """Returns an activation without the rows that `filled_up` appended, if it has rows."""
        return value[: len(problem.labels)] if value.shape[:1] == filled.labels.shape[:1] else value

    def params(self, params: Params) -> Params:
        """Places parameters on the devices."""
        return params if self.real is None else place_params(params, self.real)

    def ids(self, problem: Problem) -> Any:
        """Places what the model reads on the devices."""
        return place_rows(problem.inputs, self.real)

    def abstract_params(self, params: Params) -> Params:
        """Returns shapes, dtypes and shardings of parameters."""
        if self.real is None:
            return params
        return jax.tree.map(_sharded, params, tree_shardings(params, params, self.real))

    def abstract_state(self, state: TrainState) -> TrainState:
        """Returns shapes, dtypes and shardings of a state."""
        if self.real is None:
            return state
        sharded: TrainState = jax.tree.map(_sharded, state, tree_shardings(state, all_params(state), self.real))
        return sharded

    def abstract_rows(self, arrays: Any) -> Any:
        """Returns shapes, dtypes and shardings of arrays [B, …]."""
        if self.real is None:
            return arrays
        sharding = row_sharding(self.real)
        return jax.tree.map(lambda array: _sharded(array, sharding), arrays)

    def prepared(self, model: Model) -> Model:
        """Returns the model for decoding."""
        return model if self.real is None else prepare(model, self.real)


def _sharded(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=sharding)
