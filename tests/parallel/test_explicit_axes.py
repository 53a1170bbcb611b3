"""Meshes of jax.make_mesh, whose axes are explicit: what takes a mesh makes them automatic, what can't says so."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.parallel import AXES
from jax_transformer.config.validation import ConfigError
from jax_transformer.data.batching import Batch
from jax_transformer.model.functional import apply, init_params
from jax_transformer.parallel import place_params, place_rows
from jax_transformer.parallel.tracing import in_mesh
from jax_transformer.training import init_state, make_train_step

CONFIG = TransformerConfig(
    source_vocab_size=9, target_vocab_size=9, d_model=8, num_heads=2, d_ff=8, num_encoder_layers=1, num_decoder_layers=1
)
IDS = np.ones((2, 3), np.int32)


@pytest.fixture(scope="module")
def params() -> Any:
    return init_params(CONFIG, jax.random.key(0))


def explicit(names: tuple[str, ...] = AXES) -> Mesh:
    mesh = jax.make_mesh((1, 1, 1), names)
    assert mesh.axis_types == (AxisType.Explicit,) * 3
    return mesh


def test_what_takes_a_mesh_makes_its_axes_automatic(params: Any) -> None:
    placed = [*jax.tree.leaves(place_params(params, explicit())), place_rows(IDS, explicit())]
    assert {array.sharding.mesh.axis_types for array in placed} == {(AxisType.Auto,) * 3}
    with in_mesh(explicit()):
        assert jax.sharding.get_abstract_mesh().axis_types == (AxisType.Auto,) * 3


def test_a_step_on_an_explicit_mesh_is_that_of_one_device(params: Any) -> None:
    batch = Batch(IDS, IDS, IDS)
    losses = []
    for mesh in (None, explicit()):
        state = init_state(CONFIG, params=params, optimizer=optax.sgd(0.1), mesh=mesh)
        step = make_train_step(CONFIG, optimizer=optax.sgd(0.1), mesh=mesh)
        losses.append(float(step(state, place_rows(batch, mesh))[1]["loss"]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_the_functions_say_that_they_need_automatic_axes(params: Any) -> None:
    everywhere = NamedSharding(explicit(), PartitionSpec())
    placed = jax.tree.map(lambda leaf: jax.device_put(leaf, everywhere), params)
    refusal = r"^apply: expected a mesh whose axes are of type Auto; received Explicit"
    with pytest.raises(ValueError, match=refusal):
        apply(CONFIG, placed, IDS, IDS)
    with jax.sharding.use_abstract_mesh(explicit().abstract_mesh), pytest.raises(ValueError, match=refusal):
        apply(CONFIG, params, IDS, IDS)


def test_axes_of_other_names_are_refused(params: Any) -> None:
    with pytest.raises(ConfigError, match=r"^mesh: expected the axes data, fsdp, tensor, .* received x, y, z"):
        place_params(params, explicit(("x", "y", "z")))
