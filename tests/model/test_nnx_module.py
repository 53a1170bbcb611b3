"""The model as an NNX module: its logits, its training with NNX's tools, and its way to the functions and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx

import jax_transformer as jt
from jax_transformer.runtime.trees import flatten

pytestmark = pytest.mark.usefixtures("quick_compilation")
CONFIG = jt.TransformerConfig(
    source_vocab_size=9, target_vocab_size=11, d_model=8, num_heads=2, d_ff=8, num_encoder_layers=1,
    num_decoder_layers=1, max_length=8, dropout_rate=0.2,
)  # fmt: skip
SOURCE, TARGET = np.array([[3, 4, 2, 0], [5, 8, 2, 0]]), np.array([[1, 3, 2], [1, 10, 7]])


@pytest.fixture
def model() -> jt.Transformer:
    return jt.Transformer(CONFIG, rngs=nnx.Rngs(0))


def test_its_logits_are_those_of_apply(model: jt.Transformer) -> None:
    logits = nnx.jit(lambda model: model(SOURCE, TARGET))(model)
    np.testing.assert_allclose(logits, jt.apply(CONFIG, model.params, SOURCE, TARGET), atol=1e-6)


def test_its_parameters_come_from_the_functions_and_go_back() -> None:
    params = jt.init_params(CONFIG, jax.random.key(3))
    model = jt.Transformer.of(CONFIG, params)
    assert flatten(model.params).keys() == flatten(params).keys()
    assert all(leaf is flatten(params)[path] for path, leaf in flatten(model.params).items())
    np.testing.assert_allclose(model(SOURCE, TARGET), jt.apply(CONFIG, params, SOURCE, TARGET), atol=1e-6)


def test_an_optimizer_of_nnx_trains_all_but_tables(model: jt.Transformer) -> None:
    before = {path: np.array(leaf) for path, leaf in flatten(model.params).items()}

    @nnx.jit
    def step(model: jt.Transformer, optimizer: nnx.Optimizer, rngs: nnx.Rngs) -> jax.Array:
        def loss(model: jt.Transformer, rngs: nnx.Rngs) -> jax.Array:
            logits = model(SOURCE, TARGET[:, :-1], rngs=rngs)
            return optax.softmax_cross_entropy_with_integer_labels(logits, TARGET[:, 1:]).mean()

        value, gradients = nnx.value_and_grad(loss)(model, rngs)
        optimizer.update(model, gradients)
        return value

    optimizer, rngs = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param), nnx.Rngs(1)
    losses = [float(step(model, optimizer, rngs)) for _ in range(12)]
    assert losses[-1] < 0.8 * losses[0]
    after = flatten(model.params)
    same = {path for path in before if np.array_equal(before[path], after[path])}
    assert same == {path for path in before if path.startswith("constants/")}


def test_dropout_draws_by_the_stream_alone(model: jt.Transformer) -> None:
    first, again, other = (model(SOURCE, TARGET, rngs=nnx.Rngs(seed)) for seed in (5, 5, 6))
    assert (first == again).all()
    assert not jnp.allclose(first, other)
    assert not jnp.allclose(first, model(SOURCE, TARGET))


def test_orbax_saves_its_state(model: jt.Transformer, tmp_path: Path) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", nnx.state(model))
        checkpointer.wait_until_finished()
        graph, abstract = nnx.split(nnx.eval_shape(lambda: jt.Transformer(CONFIG, rngs=nnx.Rngs(0))))
        restored = nnx.merge(graph, checkpointer.restore(tmp_path / "state", abstract))
    assert (restored(SOURCE, TARGET) == model(SOURCE, TARGET)).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: jt.Transformer(jt.TransformerConfig(), rngs=nnx.Rngs(0)), "source_vocab_size must be set"),
        (lambda: jt.Transformer({"d_model": 8}, rngs=nnx.Rngs(0)), "Transformer: config: expected a TransformerConfig"),
        (lambda: jt.Transformer.of(CONFIG, {"encoder": {}}), "missing parameter|expected"),
    ],
)
def test_mistakes_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
