"""Losses over logits, summed over tokens, with the number of tokens beside them."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp


def cross_entropy(logits: jax.Array, labels: jax.Array, *, pad_id: int, label_smoothing: float = 0.0) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy of labels [B, T] under logits [B, T, V], pads left out.

    With label_smoothing ε the target is (1 - ε) on the label plus ε / V on every entry (Szegedy et al. 2016, §7; as torch's
    `cross_entropy(label_smoothing=ε)`). Computed in at least float32.

    Returns:
      The sum over tokens, in nats, and how many tokens there were (int32).
    """
    is_real = labels != pad_id
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    # a comparison instead of a gather: its gradient is a fused select, not a scatter
    at_label = labels[..., None] == jnp.arange(logits.shape[-1])
    label_logit = jnp.sum(jnp.where(at_label, logits, 0.0), axis=-1)
    expected_logit = (1.0 - label_smoothing) * label_logit
    if label_smoothing:
        expected_logit = expected_logit + label_smoothing * logits.mean(axis=-1)
    losses = jnp.where(is_real, log_normalizer - expected_logit, 0.0)
    return losses.sum(), is_real.sum(dtype=jnp.int32)


CHUNK_BYTES = 16 * 2**20
"""Logits held at once while training, about: large enough for full speed, small enough to stay in a cache."""


def chunked_cross_entropy(
    hidden: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    labels: jax.Array,
    *,
    pad_id: int,
    label_smoothing: float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """`cross_entropy(hidden @ kernel + bias, labels)` without ever holding all the logits, which are the largest array by far.

    They are made for some tokens at a time, and their gradient is taken to hidden, kernel and bias before the next ones are made, so that
    nothing is computed again in the backward pass.

    Args:
      hidden: [B, T, D], in the compute dtype.
      kernel: [D, V].
      bias: [V], or None.
      labels: [B, T].
    """
    tokens = labels.size
    most = max(CHUNK_BYTES // (4 * kernel.shape[1]), 1)
    chunks = -(-tokens // most)
    length = -(-tokens // chunks)
    filling = chunks * length - tokens  # pads, which cost nothing but their place
    hidden = jnp.pad(hidden.reshape(tokens, -1), ((0, filling), (0, 0))).reshape(chunks, length, -1)
    in_chunks = jnp.pad(labels.reshape(tokens), (0, filling), constant_values=pad_id).reshape(chunks, length)
    total = _loss_of_chunks(pad_id, label_smoothing, hidden, kernel, bias, in_chunks)
    return total, (labels != pad_id).sum(dtype=jnp.int32)


Gradients = tuple[jax.Array, jax.Array, jax.Array | None]
"""To hidden, kernel and bias."""


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _loss_of_chunks(
    pad_id: int, label_smoothing: float, hidden: jax.Array, kernel: jax.Array, bias: jax.Array | None, labels: jax.Array
) -> jax.Array:
    """The summed loss of hidden [C, L, D] and labels [C, L]."""

    def chunk_loss(chunk: tuple[jax.Array, jax.Array]) -> jax.Array:
        logits = _logits(chunk[0], kernel, bias)
        return cross_entropy(logits, chunk[1], pad_id=pad_id, label_smoothing=label_smoothing)[0]

    return jax.lax.map(chunk_loss, (hidden, labels)).sum()


def _loss_and_gradients(
    pad_id: int, label_smoothing: float, hidden: jax.Array, kernel: jax.Array, bias: jax.Array | None, labels: jax.Array
) -> tuple[jax.Array, Gradients]:
    """The same, and its gradients."""

    def loss_of(logits: jax.Array, labels: jax.Array) -> jax.Array:
        return cross_entropy(logits, labels, pad_id=pad_id, label_smoothing=label_smoothing)[0]

    def add_chunk(sums: tuple[Any, Any, Any], chunk: tuple[jax.Array, jax.Array]) -> tuple[tuple[Any, Any, Any], jax.Array]:
        total, to_kernel, to_bias = sums
        hidden, labels = chunk
        loss, to_logits = jax.value_and_grad(loss_of)(_logits(hidden, kernel, bias), labels)
        # the barrier keeps XLA from transposing the logits' gradient, which is many times larger
        to_kernel = to_kernel + jax.lax.optimization_barrier(hidden.T) @ to_logits
        to_bias = None if bias is None else to_bias + to_logits.sum(axis=0, dtype=bias.dtype)
        return (total + loss, to_kernel, to_bias), to_logits @ kernel.astype(hidden.dtype).T

    zero = jnp.zeros((), jnp.promote_types(hidden.dtype, jnp.float32))
    nothing = (zero, jnp.zeros_like(kernel), None if bias is None else jnp.zeros_like(bias))
    (total, to_kernel, to_bias), to_hidden = jax.lax.scan(add_chunk, nothing, (hidden, labels))
    return total, (to_hidden, to_kernel, to_bias)


def _scale_gradients(pad_id: int, label_smoothing: float, gradients: Gradients, cotangent: jax.Array) -> tuple[Any, ...]:
    scaled = jax.tree.map(lambda gradient: (gradient * cotangent).astype(gradient.dtype), gradients)
    return (*scaled, None)  # labels have none


_loss_of_chunks.defvjp(_loss_and_gradients, _scale_gradients)


def _logits(hidden: jax.Array, kernel: jax.Array, bias: jax.Array | None) -> jax.Array:
    """hidden [L, D] → [L, V], in its dtype."""
    logits = hidden @ kernel.astype(hidden.dtype)
    return logits if bias is None else logits + bias.astype(hidden.dtype)
