"""Products are rounded once; how parameters of a TPU program stay wide, traced on a CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.data import make_batch
from jax_transformer.model import dtypes
from jax_transformer.model.dtypes import keep_wide, product
from jax_transformer.training import init_state, make_train_step

pytestmark = pytest.mark.usefixtures("quick_compilation")


def squares(x: jax.Array) -> jax.Array:
    return jnp.square(keep_wide(x)).sum()


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize(("count", "axis"), [(5, 0), (5, 1), (1, 0), (1, 1)])
def test_a_product_of_bfloat16_is_summed_exactly_and_rounded_once(
    count: int, axis: int, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dtypes, "platform", lambda: platform)
    rng = np.random.default_rng(0)
    rows = jnp.asarray(rng.integers(-9, 9, (count, 700)), jnp.bfloat16)  # whose products and sums float32 holds exactly
    kernel = jnp.asarray(rng.integers(-9, 9, (700, 6) if axis == 0 else (6, 700)), jnp.bfloat16)
    found, gradient = jax.value_and_grad(lambda x: product(x, kernel, axis).astype(jnp.float32).sum())(rows)
    exact = np.tensordot(np.asarray(rows, np.int64), np.asarray(kernel, np.int64), (1, axis))
    rounded = jnp.asarray(exact, jnp.float32).astype(jnp.bfloat16)
    np.testing.assert_array_equal(product(rows, kernel, axis).astype(float), rounded.astype(float))
    assert found == rounded.astype(jnp.float32).sum()
    assert gradient.dtype == jnp.bfloat16
    expected = jnp.asarray(np.asarray(kernel, np.int64).sum(1 - axis), jnp.float32).astype(jnp.bfloat16)
    np.testing.assert_array_equal(gradient[0].astype(float), expected.astype(float))


def test_products_on_a_cpu_give_float32_of_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else, XLA converts the operands: it has the processor's own products for this form alone."""

    def program() -> str:
        return str(
            jax.make_jaxpr(lambda *arrays: product(*arrays))(
                jnp.ones((2, 3), jnp.bfloat16), jnp.ones((3, 4), jnp.bfloat16)
            )
        )

    assert "preferred_element_type=float32" in program()
    monkeypatch.setattr(dtypes, "platform", lambda: "gpu")
    assert "preferred_element_type=float32" not in program()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_values_and_gradients_pass_unchanged(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtypes, "platform", lambda: "tpu")
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray([1.5, -0.0, np.inf, np.nan, 1e-30], dtype)
        kept = jax.jit(lambda x: keep_wide(x))(x)
        assert kept.dtype == x.dtype
        assert np.asarray(kept).tobytes() == np.asarray(x).tobytes()
        _, tangent = jax.jvp(keep_wide, (x,), (x,))
        for one, expected in ((jax.grad(squares)(x), 2 * x), (tangent, x)):
            assert one.dtype == x.dtype
            np.testing.assert_array_equal(one.astype(float), expected.astype(float))


def test_only_a_tpu_has_the_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> str:
        return str(jax.make_jaxpr(jax.grad(squares))(jnp.ones(3)))

    assert "optimization_barrier" not in program()
    monkeypatch.setattr(dtypes, "platform", lambda: "tpu")
    assert "optimization_barrier" in program()


def test_a_training_step_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TransformerConfig(
        source_vocab_size=7, target_vocab_size=7, d_model=8, num_heads=2, d_ff=16, num_encoder_layers=2,
        num_decoder_layers=2, max_length=8, dropout_rate=0.3, compute_dtype="bfloat16",
    )  # fmt: skip
    batch = make_batch([[4, 5, 3], [6, 3]], [[5, 6], [4, 4, 5]])
    optimizer = optax.sgd(0.1)

    def stepped() -> list[np.ndarray]:
        jax.clear_caches()  # the model's functions are traced anew, for the other platform
        state, metrics = make_train_step(config, optimizer=optimizer)(init_state(config, optimizer=optimizer), batch)
        return [np.asarray(leaf) for leaf in jax.tree.leaves((state.params, metrics))]

    plain = stepped()
    monkeypatch.setattr(dtypes, "platform", lambda: "tpu")
    kept = stepped()
    jax.clear_caches()
    for one, other in zip(plain, kept, strict=True):
        np.testing.assert_array_equal(one, other)
