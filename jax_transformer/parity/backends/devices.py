"""The devices on which the candidate computes: one, or a mesh that shares its weights and the rows of its batches."""

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
    """None: JAX's default device. The devices of an abstract mesh needn't be there; programs are only traced for it."""

    @property
    def real(self) -> Mesh | None:
        """Returns the mesh. Raises CannotRun for an abstract one, which computes no numbers."""
        if isinstance(self.mesh, AbstractMesh):
            raise CannotRun("the mesh is abstract, and its devices compute nothing: prove takes it, or pass a Mesh")
        return self.mesh

    def tracing(self) -> AbstractContextManager[Any]:
        """Returns a context in which programs are traced for the devices."""
        return in_mesh(self.mesh)

    def filled_up(self, problem: Problem, pad_id: int) -> Problem:
        """Returns the problem with rows that count in no loss after its own, until the devices divide them: the first
        row again, with labels of pads alone."""
        filling = -len(problem.labels) % row_shards(self.mesh)
        if not filling:
            return problem

        def again(ids: np.ndarray) -> np.ndarray:
            return np.concatenate([ids, np.repeat(ids[:1], filling, axis=0)])

        return dataclasses.replace(
            problem,
            source_ids=again(problem.source_ids),
            decoder_input_ids=again(problem.decoder_input_ids),
            labels=add_rows(problem.labels, filling, pad_id),
        )

    def own_rows(self, value: Array, problem: Problem, filled: Problem) -> Array:
        """Returns an activation without the rows that only fill up; one without rows as it is."""
        return value[: len(problem.labels)] if value.shape[:1] == filled.labels.shape[:1] else value

    def params(self, params: Params) -> Params:
        """Returns parameters where they belong."""
        return params if self.real is None else place_params(params, self.real)

    def ids(self, problem: Problem) -> Any:
        """Returns the ids that the model reads where they belong."""
        return place_rows(problem.ids, self.real)

    def abstract_params(self, params: Params) -> Params:
        """Returns shapes and dtypes of parameters, and how they lie."""
        if self.real is None:
            return params
        return jax.tree.map(_lying, params, tree_shardings(params, params, self.real))

    def abstract_state(self, state: TrainState) -> TrainState:
        """Returns shapes and dtypes of a state, and how its arrays lie."""
        if self.real is None:
            return state
        lying: TrainState = jax.tree.map(_lying, state, tree_shardings(state, all_params(state), self.real))
        return lying

    def abstract_rows(self, arrays: Any) -> Any:
        """Returns shapes and dtypes of arrays [B, …], and how they lie."""
        if self.real is None:
            return arrays
        lie = row_sharding(self.real)
        return jax.tree.map(lambda array: _lying(array, lie), arrays)

    def prepared(self, model: Model) -> Model:
        """Returns the model for decoding."""
        return model if self.real is None else prepare(model, self.real)


def _lying(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=sharding)
