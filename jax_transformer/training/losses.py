"""Losses over logits, summed over tokens and returned with the number of tokens."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

Smoothing = Literal["all", "others", "others_but_pad"]


class Criterion(NamedTuple):
    """Configures the cross-entropy: the target distribution and the tokens that count.

    Example:
      >>> from jax_transformer.training import Criterion
      >>> Criterion(pad_id=0, label_smoothing=0.1).smoothing
      'all'
    """

    pad_id: int
    label_smoothing: float = 0.0
    """ε; the label keeps the probability 1 - ε."""
    smoothing: Smoothing = "all"
    """How ε is distributed: see SMOOTHINGS."""
    counts_pads: bool = False
    """Whether padding counts like other tokens."""


SMOOTHINGS = {
    "all": "ε / V on every entry, the label's included: Szegedy et al. 2016 (§7), torch's cross_entropy",
    "others": "ε / (V - 1) on every other entry: fairseq",
    "others_but_pad": "ε / (V - 2) on every entry but the label's and the pad's, with the KL divergence as loss: "
    "the Annotated Transformer",
}


def cross_entropy(logits: jax.Array, labels: jax.Array, criterion: Criterion) -> tuple[jax.Array, jax.Array]:
    """Returns the cross-entropy of labels under logits, computed in at least float32.

    Args:
      logits: [B, T, V].
      labels: [B, T], integers.
      criterion: label smoothing, and which labels count.

    Returns:
      The sum over the tokens that count, in nats, and their number (int32).

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_transformer.training import Criterion, cross_entropy
      >>> total, tokens = cross_entropy(jnp.zeros((1, 3, 4)), jnp.array([[2, 1, 0]]), Criterion(pad_id=0))
      >>> round(float(total / tokens), 4), int(tokens)  # log 4; the pad doesn't count
      (1.3863, 2)
    """
    counted = counted_tokens(labels, criterion)
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    log_normalizer = jax.nn.logsumexp(logits, axis=-1)
    # a comparison instead of a gather: its gradient is a fused select, not a scatter
    at_label = labels[..., None] == jnp.arange(logits.shape[-1])
    label_logit = jnp.sum(jnp.where(at_label, logits, 0.0), axis=-1)
    losses = log_normalizer - (1.0 - criterion.label_smoothing) * label_logit
    if criterion.label_smoothing:
        losses = losses - criterion.label_smoothing * _mean_of_smoothed(logits, label_logit, criterion)
    if criterion.label_smoothing and criterion.smoothing == "others_but_pad":
        losses = losses - _entropy(criterion.label_smoothing, logits.shape[-1] - 2)
    return jnp.where(counted, losses, 0.0).sum(), counted.sum(dtype=jnp.int32)


def counted_tokens(labels: jax.Array, criterion: Criterion) -> jax.Array:
    """Returns which labels [B, T] count, as booleans; negative labels never do."""
    return labels >= 0 if criterion.counts_pads else labels != criterion.pad_id


def without_filling(labels: jax.Array, criterion: Criterion) -> jax.Array:
    """Returns the labels [B, T]. If pads count, rows of padding alone become -1: they only fill up a batch, and don't
    count."""
    if not criterion.counts_pads:
        return labels
    return jnp.where(jnp.any(labels != criterion.pad_id, axis=1, keepdims=True), labels, -1)


def _mean_of_smoothed(logits: jax.Array, label_logit: jax.Array, criterion: Criterion) -> jax.Array:
    """Returns the mean of the logits [B, T, V] over the entries that share ε."""
    if criterion.smoothing == "all":
        return logits.mean(axis=-1)
    rest, count = logits.sum(axis=-1) - label_logit, logits.shape[-1] - 1
    if criterion.smoothing == "others_but_pad":
        rest, count = rest - logits[..., criterion.pad_id], count - 1
    return rest / count


def _entropy(epsilon: float, others: int) -> float:
    """Returns the entropy of the smoothed target distribution, in nats."""
    return -((1.0 - epsilon) * math.log(1.0 - epsilon) + epsilon * math.log(epsilon / others))


CHUNK_BYTES = 16 * 2**20
"""Approximate size of the logits held at once: large enough for full speed, small enough for a cache."""


def chunked_cross_entropy(
    hidden: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    labels: jax.Array,
    criterion: Criterion,
) -> tuple[jax.Array, jax.Array]:
    """Returns `cross_entropy(hidden @ kernel + bias, labels, criterion)` without holding all logits, by far the largest
    array.

    It computes the logits of some tokens at a time, and their gradients to hidden, kernel and bias before the next
    ones, so that the backward pass recomputes nothing.

    Args:
      hidden: [B, T, D], in the compute dtype.
      kernel: [D, V].
      bias: [V], or None.
      labels: [B, T], integers.
      criterion: label smoothing, and which labels count.

    Returns:
      The sum over the tokens that count, in nats, and their number (int32).

    Example:
      >>> import jax.numpy as jnp
      >>> from jax_transformer.training import Criterion, chunked_cross_entropy
      >>> hidden, kernel = jnp.ones((1, 2, 3)), jnp.zeros((3, 4))
      >>> total, tokens = chunked_cross_entropy(hidden, kernel, None, jnp.array([[2, 0]]), Criterion(pad_id=0))
      >>> round(float(total), 4), int(tokens)
      (1.3863, 1)
    """
    tokens = labels.size
    most = max(CHUNK_BYTES // (4 * kernel.shape[1]), 1)
    chunks = -(-tokens // most)
    length = -(-tokens // chunks)
    filling, filler = chunks * length - tokens, -1 if criterion.counts_pads else criterion.pad_id
    hidden = jnp.pad(hidden.reshape(tokens, -1), ((0, filling), (0, 0))).reshape(chunks, length, -1)
    in_chunks = jnp.pad(labels.reshape(tokens), (0, filling), constant_values=filler).reshape(chunks, length)
    total = _loss_of_chunks(criterion, hidden, kernel, bias, in_chunks)
    return total, counted_tokens(labels, criterion).sum(dtype=jnp.int32)


Gradients = tuple[jax.Array, jax.Array, jax.Array | None]
"""Gradients to hidden, kernel and bias."""


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loss_of_chunks(
    criterion: Criterion, hidden: jax.Array, kernel: jax.Array, bias: jax.Array | None, labels: jax.Array
) -> jax.Array:
    """Returns the summed loss of hidden [C, L, D] and labels [C, L]: C chunks of L tokens."""

    def chunk_loss(chunk: tuple[jax.Array, jax.Array]) -> jax.Array:
        logits = _logits(chunk[0], kernel, bias)
        return cross_entropy(logits, chunk[1], criterion)[0]

    return jax.lax.map(chunk_loss, (hidden, labels)).sum()


def _loss_and_gradients(
    criterion: Criterion, hidden: jax.Array, kernel: jax.Array, bias: jax.Array | None, labels: jax.Array
) -> tuple[jax.Array, Gradients]:
    """Returns the summed loss and its gradients."""

    def loss_of(logits: jax.Array, labels: jax.Array) -> jax.Array:
        return cross_entropy(logits, labels, criterion)[0]

    def add_chunk(
        sums: tuple[Any, Any, Any], chunk: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[Any, Any, Any], jax.Array]:
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


def _scale_gradients(criterion: Criterion, gradients: Gradients, cotangent: jax.Array) -> tuple[Any, ...]:
    scaled = jax.tree.map(lambda gradient: (gradient * cotangent).astype(gradient.dtype), gradients)
    return (*scaled, None)  # labels have none


_loss_of_chunks.defvjp(_loss_and_gradients, _scale_gradients)


def _logits(hidden: jax.Array, kernel: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Returns the logits [L, V] of hidden [L, D], in its dtype."""
    logits = hidden @ kernel.astype(hidden.dtype)
    return logits if bias is None else logits + bias.astype(hidden.dtype)
