"""Attention and feed-forward layers of a user's own, in the NNX module."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jax_transformer as jt

pytestmark = pytest.mark.usefixtures("quick_compilation")
CONFIG = jt.TransformerConfig(
    source_vocab_size=9, target_vocab_size=11, d_model=8, num_heads=2, num_kv_heads=1, d_ff=8, num_encoder_layers=1,
    num_decoder_layers=1, max_length=8, dropout_rate=0.2, attention_dropout_rate=0.3, attention_path="reference",
)  # fmt: skip
SOURCE, TARGET = np.array([[3, 4, 2, 0], [5, 8, 2, 0]]), np.array([[1, 3, 2], [1, 10, 7]])


def usual(query: Any, key: Any, value: Any, *, mask: Any, bias: Any, scale: float, dropout: Any) -> jax.Array:
    """The library's attention, written anew."""
    logits = jnp.einsum("BQNH,BKNH->BNQK", query, key) * scale
    logits = logits if bias is None else logits + bias
    logits = logits if mask is None else jnp.where(mask, logits, jnp.finfo(logits.dtype).min)
    return jnp.einsum("BNQK,BKNH->BQNH", dropout(jax.nn.softmax(logits)), value)


def linear(query: Any, key: Any, value: Any, *, mask: Any, bias: Any, scale: float, dropout: Any) -> jax.Array:
    """Attention without softmax."""
    weights = jnp.einsum("BQNH,BKNH->BNQK", query, key) * scale
    weights = weights if mask is None else jnp.where(mask, weights, 0.0)
    return jnp.einsum("BNQK,BKNH->BQNH", dropout(weights), value)


def logits_of(model: jt.Transformer, target: np.ndarray = TARGET) -> np.ndarray:
    return np.asarray(nnx.jit(lambda model, target: model(SOURCE, target))(model, target))


def loss_and_gradients(model: jt.Transformer, rngs: nnx.Rngs | None = None) -> tuple[jax.Array, Any]:
    @nnx.jit
    def computed(model: jt.Transformer, rngs: nnx.Rngs | None) -> Any:
        def loss(model: jt.Transformer, rngs: nnx.Rngs | None) -> jax.Array:
            logits = model(SOURCE, TARGET[:, :-1], rngs=rngs)
            return optax.softmax_cross_entropy_with_integer_labels(logits, TARGET[:, 1:]).mean()

        return nnx.value_and_grad(loss)(model, rngs)

    value, gradients = computed(model, rngs)
    return value, nnx.to_pure_dict(gradients)


@pytest.mark.parametrize(("position_kind", "with_dropout"), [("sinusoidal", True), ("alibi", False)])
def test_the_same_attention_gives_the_same_logits_and_gradients(position_kind: Any, with_dropout: bool) -> None:
    """To the bit; of the same weights, with the same weights dropped."""
    config = CONFIG.replace(position_kind=position_kind)
    library = jt.Transformer(config, rngs=nnx.Rngs(0))
    own = jt.Transformer.of(config, library.params, attention=usual)
    found = [loss_and_gradients(model, nnx.Rngs(dropout=1) if with_dropout else None) for model in (library, own)]
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_another_attention_is_another_function_and_trains() -> None:
    model = jt.Transformer(CONFIG, rngs=nnx.Rngs(0), attention=linear)
    library = jt.Transformer(CONFIG, rngs=nnx.Rngs(0))
    assert abs(np.asarray(model(SOURCE, TARGET) - library(SOURCE, TARGET))).max() > 1e-3
    changed = model(SOURCE, np.where(TARGET[0, -1] == TARGET, 5, TARGET))[0, :2]  # later tokens stay hidden
    np.testing.assert_array_equal(model(SOURCE, TARGET)[0, :2], changed)
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(model: jt.Transformer, optimizer: nnx.Optimizer) -> jax.Array:
        def loss(model: jt.Transformer) -> jax.Array:
            logits = model(SOURCE, TARGET[:, :-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, TARGET[:, 1:]).mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    losses = [float(step(model, optimizer)) for _ in range(20)]
    assert losses[-1] < 0.8 * losses[0]


class Squared(nnx.Module):
    """Two linear maps with a squared ReLU between."""

    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.wide, self.narrow = nnx.Linear(width, 12, rngs=rngs), nnx.Linear(12, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.narrow(jax.nn.relu(self.wide(x)) ** 2)


def test_layers_of_a_feed_forward_of_ones_own_have_their_own_weights() -> None:
    model = jt.Transformer(CONFIG.replace(num_encoder_layers=2), rngs=nnx.Rngs(0), feed_forward=Squared)
    kernel = model.encoder.layers.feed_forward.module.wide.kernel[...]
    assert kernel.shape == (2, 8, 12)
    assert (kernel[0] != kernel[1]).any()
    _, gradients = loss_and_gradients(model)
    of_own = gradients["decoder"]["layers"]["feed_forward"]["module"]
    assert all((np.asarray(leaf) != 0).any() for leaf in jax.tree.leaves(of_own))


def test_a_feed_forward_like_the_librarys_gives_its_logits() -> None:
    config = CONFIG.replace(activation="relu_squared", num_kv_heads=None, d_ff=12)
    own = jt.Transformer(config, rngs=nnx.Rngs(0), feed_forward=Squared)
    state = nnx.to_pure_dict(nnx.state(own))
    params = jt.init_params(config, jax.random.key(0))
    for name in ("encoder", "decoder"):
        theirs, layers = state[name]["layers"], params[name]["layers"]
        parts = theirs.pop("feed_forward")["module"]
        params[name]["layers"] = {**theirs, "feed_forward": {"hidden": parts["wide"], "output": parts["narrow"]}}
        assert layers.keys() == params[name]["layers"].keys()
        params[name] |= {part: value for part, value in state[name].items() if part != "layers"}
    params |= {name: part for name, part in state.items() if name not in ("encoder", "decoder")}
    np.testing.assert_allclose(logits_of(own), jt.apply(config, params, SOURCE, TARGET), atol=1e-5)


def test_parameters_of_such_a_model_are_not_those_of_its_config() -> None:
    model = jt.Transformer(CONFIG, rngs=nnx.Rngs(0), attention=linear, feed_forward=Squared)
    with pytest.raises(ValueError, match="received one with attention and feed_forward of your own, which apply, "):
        _ = model.params


@pytest.mark.parametrize(
    ("options", "parts", "message"),
    [
        ({}, {"attention": 3}, "attention: expected a function of query, key and value; received int"),
        ({}, {"feed_forward": 3}, r"feed_forward: expected a function \(d_model, rngs\) → a module; received int"),
        ({}, {"feed_forward": lambda width, rngs: jnp.tanh}, "expected a function that returns a module of Flax NNX"),
        ({"position_kind": "relative_vectors"}, {"attention": usual}, "received relative_vectors in the encoder"),
        ({"attention_logits_cap": 5.0}, {"attention": usual}, "a config without logits_cap, .* the encoder's self_att"),
        ({"feed_forward": False}, {"feed_forward": Squared}, "expected a config with feed-forward layers"),
    ],
)
def test_parts_that_do_not_fit_are_refused(options: Any, parts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jt.Transformer(CONFIG.replace(**options), rngs=nnx.Rngs(0), **parts)


@pytest.mark.parametrize(
    ("attention", "received"),
    [
        (lambda query, key, value, **_: query.swapaxes(1, 2), r"received \(2, 2, 4, 4\) of float32"),
        (lambda query, key, value, **_: query.astype(jnp.bfloat16), r"received \(2, 4, 2, 4\) of bfloat16"),
        (lambda query, key, value, **_: None, "received NoneType"),
    ],
)
def test_contexts_of_another_shape_or_dtype_are_refused(attention: Any, received: str) -> None:
    model = jt.Transformer(CONFIG, rngs=nnx.Rngs(0), attention=attention)
    expected = r"attention: expected contexts \[B, Q, N, W\], \(2, 4, 2, 4\) of float32; "
    with pytest.raises(ValueError, match=expected + received):
        model(SOURCE, TARGET)


def test_outputs_of_another_shape_are_refused() -> None:
    model = jt.Transformer(CONFIG, rngs=nnx.Rngs(0), feed_forward=lambda width, rngs: nnx.Linear(width, 9, rngs=rngs))
    with pytest.raises(ValueError, match=r"expected outputs \[B, T, D\], \(2, 4, 8\) of float32; received"):
        model(SOURCE, TARGET)
