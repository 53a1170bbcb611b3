"""Losses over logits, summed over tokens, with the number of tokens beside them."""

from __future__ import annotations

from collections.abc import Callable

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
    unembed: Callable[[jax.Array], jax.Array],
    hidden: jax.Array,
    labels: jax.Array,
    *,
    vocab_size: int,
    pad_id: int,
    label_smoothing: float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """`cross_entropy(unembed(hidden), labels)` without ever holding all the logits: they are made, and in the backward pass made again,
    for some tokens at a time. Of large vocabularies the logits are the largest array by far.

    Args:
      unembed: the head, [1, C, D] → logits [1, C, V].
      hidden: [B, T, D].
      labels: [B, T].
    """
    tokens = labels.size
    most = max(CHUNK_BYTES // (4 * vocab_size), 1)
    chunks = -(-tokens // most)
    length = -(-tokens // chunks)
    filling = chunks * length - tokens  # pads, which cost nothing but their place
    hidden = jnp.pad(hidden.reshape(tokens, -1), ((0, filling), (0, 0))).reshape(chunks, 1, length, -1)
    labels = jnp.pad(labels.reshape(tokens), (0, filling), constant_values=pad_id).reshape(chunks, 1, length)

    @jax.checkpoint
    def chunk_loss(hidden: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        return cross_entropy(unembed(hidden), labels, pad_id=pad_id, label_smoothing=label_smoothing)

    if chunks == 1:
        return cross_entropy(unembed(hidden[0]), labels[0], pad_id=pad_id, label_smoothing=label_smoothing)

    def add_chunk(sums: tuple[jax.Array, jax.Array], chunk: tuple[jax.Array, jax.Array]) -> tuple[tuple[jax.Array, jax.Array], None]:
        total, count = chunk_loss(*chunk)
        return (sums[0] + total, sums[1] + count), None

    zero = (jnp.zeros((), jnp.promote_types(hidden.dtype, jnp.float32)), jnp.zeros((), jnp.int32))
    return jax.lax.scan(add_chunk, zero, (hidden, labels))[0]
