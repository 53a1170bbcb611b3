"""Losses against their formulas in NumPy, and the chunked loss against the whole one."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_transformer.training import losses
from jax_transformer.training.losses import Criterion, chunked_cross_entropy, chunked_losses, cross_entropy

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

B, T, V, D, PAD = 3, 5, 7, 4, 2


def make_batch(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random logits [B, T, V], and labels [B, T] with pads at the end, pads inside, and a row of pads only."""
    rng = np.random.default_rng(seed)
    labels = rng.choice([i for i in range(V) if i != PAD], (B, T))
    labels[0, 3:] = labels[1, 1] = labels[2] = PAD
    return 3.0 * rng.standard_normal((B, T, V)), labels


@partial(jax.jit, static_argnames="smoothing")
def loss_of(logits: Any, labels: Any, smoothing: float = 0.1) -> tuple[jax.Array, jax.Array]:
    return cross_entropy(logits, labels, Criterion(PAD, smoothing))


def expected_loss(logits: np.ndarray, labels: np.ndarray, smoothing: float) -> float:
    """−Σ target · log softmax, token by token."""
    total = 0.0
    for b, t in np.ndindex(labels.shape):
        if labels[b, t] != PAD:
            log_probabilities = logits[b, t] - np.log(np.exp(logits[b, t]).sum())
            target = np.full(V, smoothing / V)
            target[labels[b, t]] += 1 - smoothing
            total -= target @ log_probabilities
    return total


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_cross_entropy_is_its_formula(smoothing: float) -> None:
    logits, labels = make_batch()
    total, count = loss_of(logits, labels, smoothing=smoothing)
    np.testing.assert_allclose(total, expected_loss(logits, labels, smoothing), rtol=1e-13)
    assert int(count) == 7


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_its_gradient_is_softmax_minus_target(smoothing: float) -> None:
    logits, labels = make_batch()
    gradient = jax.jit(jax.grad(lambda x: cross_entropy(x, jnp.asarray(labels), Criterion(PAD, smoothing))[0]))(logits)
    softmax = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    target = (1 - smoothing) * np.eye(V)[labels] + smoothing / V
    np.testing.assert_allclose(
        gradient, np.where((labels != PAD)[..., None], softmax - target, 0.0), rtol=1e-12, atol=1e-15
    )


def test_logits_at_pads_do_not_matter() -> None:
    logits, labels = make_batch()
    other = np.where((labels == PAD)[..., None], 1e30, logits)
    np.testing.assert_array_equal(loss_of(other, labels), loss_of(logits, labels))


def test_large_logits_stay_finite() -> None:
    logits = jnp.asarray([[[1e4, 0.0, -1e4]]], jnp.float32)
    for label, expected in ((0, 0.0), (1, 1e4)):
        assert float(loss_of(logits, np.array([[label]]), smoothing=0.0)[0]) == expected


def test_bfloat16_logits_are_summed_in_float32() -> None:
    logits, labels = make_batch()
    narrow = jnp.asarray(logits, jnp.bfloat16)
    total, _ = loss_of(narrow, labels)
    assert total.dtype == jnp.float32
    np.testing.assert_allclose(total, expected_loss(np.asarray(narrow, np.float64), labels, 0.1), rtol=1e-6)


# --- in chunks


@pytest.fixture
def head() -> tuple[jax.Array, jax.Array, jax.Array]:
    """hidden [B, T, D], kernel [D, V], bias [V]."""
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.standard_normal(shape)) for shape in ((B, T, D), (D, V), (V,)))  # type: ignore[return-value]


def labels() -> jax.Array:
    return jnp.asarray(make_batch()[1])


def in_chunks(*head: Any, smoothing: float = 0.1) -> tuple[jax.Array, jax.Array]:
    hidden, kernel, bias = head if len(head) == 3 else (*head, None)
    return chunked_cross_entropy(hidden, kernel, bias, labels(), Criterion(PAD, smoothing))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("tokens_at_once", [1, 4, 7, 15])
@pytest.mark.parametrize("has_bias", [True, False])
def test_chunks_give_the_same_loss_and_gradients(
    monkeypatch: pytest.MonkeyPatch, head: Any, tokens_at_once: int, smoothing: float, has_bias: bool
) -> None:
    """Of fifteen tokens: one by one, with the last chunk filled up by one or by six, and all at once; of the loss times
    three."""
    head = head[: 2 + has_bias]

    def tripled(loss: Any) -> Any:
        return jax.jit(
            jax.value_and_grad(
                lambda *head: (3.0 * loss(*head)[0], loss(*head)), argnums=range(len(head)), has_aux=True
            )
        )

    def whole(hidden: Any, kernel: Any, bias: Any = 0.0) -> Any:
        return cross_entropy(hidden @ kernel + bias, labels(), Criterion(PAD, smoothing))

    monkeypatch.setattr(losses, "CHUNK_BYTES", tokens_at_once * 4 * V)
    received, expected = tripled(partial(in_chunks, smoothing=smoothing))(*head), tripled(whole)(*head)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13), received, expected)


def test_without_a_gradient_none_is_computed(head: Any) -> None:
    """The program of the loss alone has one matrix product."""
    program = str(jax.make_jaxpr(lambda *head: in_chunks(*head)[0])(*head))
    assert program.count("dot_general") == 1


def test_in_bfloat16_sums_are_wide(head: Any) -> None:
    hidden, kernel, bias = (x.astype(jnp.float32) for x in head)
    narrow = hidden.astype(jnp.bfloat16)
    total, gradients = jax.jit(jax.value_and_grad(lambda *head: in_chunks(*head)[0], argnums=(0, 1, 2)))(
        narrow, kernel, bias
    )
    assert (total.dtype, *(x.dtype for x in gradients)) == (jnp.float32, jnp.bfloat16, jnp.float32, jnp.float32)
    exact = jax.jit(jax.grad(lambda *head: in_chunks(*head)[0], argnums=(0, 1, 2)))(
        narrow.astype(jnp.float32), kernel, bias
    )
    for received, expected in zip(gradients, exact, strict=True):
        np.testing.assert_allclose(np.asarray(received, np.float32), expected, rtol=0.05, atol=0.05)


def test_all_logits_are_never_held_at_once(monkeypatch: pytest.MonkeyPatch, head: Any) -> None:
    """In neither direction does an array of the program have as many elements as the logits of three chunks."""

    def largest(chunk_bytes: int) -> int:
        monkeypatch.setattr(losses, "CHUNK_BYTES", chunk_bytes)
        return largest_array(
            jax.make_jaxpr(jax.grad(lambda *head: in_chunks(*head)[0], argnums=(0, 1, 2)))(*head).jaxpr
        )

    assert largest(2 * 4 * V) < 6 * V + B * T * D  # two tokens of fifteen
    assert largest(2**20) == B * T * V  # which the measure would show


def largest_array(jaxpr: Any) -> int:
    """Returns the elements of the largest array that a program computes, loop bodies included."""
    sizes = [0]
    for equation in jaxpr.eqns:
        sizes += [variable.aval.size for variable in equation.outvars]
        for parameter in equation.params.values():
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                sizes.append(largest_array(inner))
    return max(sizes)


@pytest.mark.parametrize("tokens_at_once", [4, 15])
def test_the_loss_without_smoothing_comes_with_it_and_has_no_gradient(
    monkeypatch: pytest.MonkeyPatch, head: Any, tokens_at_once: int
) -> None:
    monkeypatch.setattr(losses, "CHUNK_BYTES", 4 * V * tokens_at_once)
    smoothed = Criterion(PAD, 0.1)

    def both(*head: Any) -> Any:
        found = chunked_losses(*head, labels(), smoothed, with_plain=True)
        return found[0] + 100.0 * found[1], found

    (_, (loss, plain)), gradients = jax.jit(jax.value_and_grad(both, argnums=(0, 1, 2), has_aux=True))(*head)
    np.testing.assert_allclose(loss, in_chunks(*head)[0], rtol=1e-12)
    np.testing.assert_allclose(plain, in_chunks(*head, smoothing=0.0)[0], rtol=1e-12)
    expected = jax.grad(lambda *head: in_chunks(*head)[0], argnums=(0, 1, 2))(*head)
    for received, one in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(received, one, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(both(*head)[1], chunked_losses(*head, labels(), smoothed, with_plain=True))
