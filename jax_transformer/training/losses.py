"""Losses over logits, summed over tokens and returned with the number of tokens."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jax_transformer.model import sharding
from jax_transformer.model.attention import capped
from jax_transformer.model.sharding import ROWS, constrain, divisor, row_shards, width_shards

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
    return _summed_loss(logits, labels, criterion, logits.shape[-1]), counted.sum(dtype=jnp.int32)


def _summed_loss(logits: jax.Array, labels: jax.Array, criterion: Criterion, vocabulary: int) -> jax.Array:
    """Returns the sum of the losses. The columns of `logits` after the first `vocabulary` are padding."""
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    columns = jnp.arange(logits.shape[-1])
    existing = logits if vocabulary == len(columns) else jnp.where(columns < vocabulary, logits, -jnp.inf)
    log_normalizer = jax.nn.logsumexp(existing, axis=-1)
    label_logit = _column(logits, labels[..., None])
    losses = log_normalizer - (1.0 - criterion.label_smoothing) * label_logit
    if criterion.label_smoothing:
        losses = losses - criterion.label_smoothing * _mean_of_smoothed(logits, label_logit, criterion, vocabulary)
    if criterion.label_smoothing and criterion.smoothing == "others_but_pad":
        losses = losses - _entropy(criterion.label_smoothing, vocabulary - 2)
    return jnp.where(counted_tokens(labels, criterion), losses, 0.0).sum()


def _column(logits: jax.Array, number: jax.Array | int) -> jax.Array:
    """Returns one column [...] of the logits [..., V]. It is selected by a comparison, because the gradient of a gather
    is a scatter, and that of a slice moves the columns between the devices of a mesh."""
    return jnp.sum(jnp.where(number == jnp.arange(logits.shape[-1]), logits, 0.0), axis=-1)


def counted_tokens(labels: jax.Array, criterion: Criterion) -> jax.Array:
    """Returns a boolean mask of the labels [B, T] that count; negative labels never do."""
    return labels >= 0 if criterion.counts_pads else labels != criterion.pad_id


def without_filling(labels: jax.Array, criterion: Criterion) -> jax.Array:
    """Returns the labels [B, T]. If pads count, replaces rows of only padding by -1: they fill up a batch, and don't
    count."""
    if not criterion.counts_pads:
        return labels
    return jnp.where(jnp.any(labels != criterion.pad_id, axis=1, keepdims=True), labels, -1)


def _mean_of_smoothed(logits: jax.Array, label_logit: jax.Array, criterion: Criterion, vocabulary: int) -> jax.Array:
    """Returns the mean of the logits [B, T, V] over the entries that share ε."""
    rest, count = logits.sum(axis=-1), vocabulary
    if criterion.smoothing != "all":
        rest, count = rest - label_logit, count - 1
    if criterion.smoothing == "others_but_pad":
        rest, count = rest - _column(logits, criterion.pad_id), count - 1
    return rest / count


def _entropy(epsilon: float, others: int) -> float:
    """Returns the entropy of the smoothed target distribution, in nats."""
    return -((1.0 - epsilon) * math.log(1.0 - epsilon) + epsilon * math.log(epsilon / others))


CHUNK_BYTES = 16 * 2**20
"""Approximate size of the logits held at once: large enough for full speed, small enough for a CPU's cache."""
ACCELERATOR_CHUNKS = {"gpu": 4096, "tpu": 1024}
"""Tokens in a chunk, by platform. Each chunk reads the kernel and updates its gradient in the device's memory, which
takes longer than the products if the chunk has fewer tokens. Compiled by XLA for a GPU, a step of paper_big with 24,576
tokens moves 335 GB with chunks of 1,024, and 315 GB with these."""


def chunk_on(platform: str) -> int | None:
    """Returns a fast `chunk` of `chunked_cross_entropy` for a platform, such as "cpu" or "tpu"."""
    return ACCELERATOR_CHUNKS.get(platform)


def chunked_cross_entropy(
    hidden: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    labels: jax.Array,
    criterion: Criterion,
    chunk: int | None = None,
    *,
    cap: float | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Returns `cross_entropy(hidden @ kernel + bias, labels, criterion)` without holding all logits, by far the largest
    array.

    Computes the logits of some tokens at a time, with their gradients to hidden, kernel and bias, so that the backward
    pass recomputes nothing.

    Args:
      hidden: [B, T, D], in the compute dtype.
      kernel: [D, V].
      bias: [V], or None.
      labels: [B, T], integers.
      criterion: label smoothing, and which labels count.
      chunk: the number of tokens whose logits a device holds at once. None: as many as a CPU's cache holds.
      cap: the cap c of the logits, c · tanh(logits / c). None: no cap.

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
    (total,) = chunked_losses(hidden, kernel, bias, labels, criterion, chunk, cap=cap)
    return total, counted_tokens(labels, criterion).sum(dtype=jnp.int32)


def chunked_losses(
    hidden: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    labels: jax.Array,
    criterion: Criterion,
    chunk: int | None = None,
    *,
    with_plain: bool = False,
    cap: float | None = None,
) -> tuple[jax.Array, ...]:
    """Returns a tuple of the sum of `chunked_cross_entropy` and, `with_plain`, the sum without label smoothing, which
    has no gradient."""
    narrow = jax.lax.stop_gradient(kernel.astype(hidden.dtype))
    head = Head(*_wide_head(kernel, bias, gather=False), _wide_head(narrow, None, gather=True)[0])
    chunk = chunk or max(CHUNK_BYTES * width_shards() // (4 * kernel.shape[1]), 1)
    chunking = Chunking(criterion, kernel.shape[1], with_plain, cap)
    loss_of_shard = partial(_chunked_loss, chunking=chunking, chunk=chunk)
    shards = row_shards()
    if shards > 1:
        by_shard = jax.vmap(loss_of_shard, in_axes=(0, None, 0), spmd_axis_name=ROWS)
        hidden, labels = (array.reshape(shards, -1, *array.shape[1:]) for array in (hidden, labels))
        return tuple(losses.sum() for losses in by_shard(hidden, head, labels))
    return loss_of_shard(hidden, head, labels)


class Chunking(NamedTuple):
    """Configures the losses of chunks."""

    criterion: Criterion
    vocabulary: int
    with_plain: bool
    """Whether to also return the loss without label smoothing."""
    cap: float | None
    """The cap of the logits."""

    def summed_loss(self, logits: jax.Array, labels: jax.Array, criterion: Criterion) -> jax.Array:
        """Returns the summed loss of logits [L, V] before their cap, and labels [L]."""
        return _summed_loss(capped(logits, self.cap), labels, criterion, self.vocabulary)


class Head(NamedTuple):
    """Holds the head's parameters, and its kernel in the dtype of the products."""

    kernel: jax.Array
    """[D, V]; receives the gradient, and is never read."""
    bias: jax.Array | None
    """[V]."""
    narrow: jax.Array
    """[D, V], in the dtype of the hidden states; each device has all features."""


def _wide_head(kernel: jax.Array, bias: jax.Array | None, *, gather: bool) -> tuple[jax.Array, jax.Array | None]:
    """Returns the kernel [D, V] and the bias [V] with the vocabulary divided among the devices of `tensor`, padded with
    zeros to a multiple of their number.

    Args:
      gather: whether each device receives all features.
    """
    filling = -kernel.shape[1] % width_shards()
    if not filling:
        collect = sharding.gather if gather else sharding.scatter_gradient
        return collect(kernel, "features", "width"), bias
    by_features = divisor(len(kernel)), None
    kernel = constrain(jnp.pad(constrain(kernel, *by_features), ((0, 0), (0, filling))), *by_features)
    bias = None if bias is None else jnp.pad(bias, (0, filling))
    return constrain(kernel, None, "width"), None if bias is None else constrain(bias, "width")


def _chunked_loss(
    hidden: jax.Array, head: Head, labels: jax.Array, chunking: Chunking, chunk: int
) -> tuple[jax.Array, ...]:
    """Returns the summed losses of one shard of the rows, hidden [B, T, D] and labels [B, T]."""
    criterion = chunking.criterion
    tokens, filler = labels.size, -1 if criterion.counts_pads else criterion.pad_id
    chunks = -(-tokens // chunk)
    length = -(-tokens // chunks)
    filling = chunks * length - tokens
    hidden = jnp.pad(hidden.reshape(tokens, -1), ((0, filling), (0, 0))).reshape(chunks, length, -1)
    labels = jnp.pad(labels.reshape(tokens), (0, filling), constant_values=filler).reshape(chunks, length)
    return _loss_of_chunks(chunking, hidden, head, labels)


Gradients = tuple[jax.Array, jax.Array, jax.Array | None]
"""Gradients to hidden, kernel and bias."""


def _plain_loss(chunking: Chunking, logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, ...]:
    """Returns a tuple of the summed loss without label smoothing, or an empty one without `with_plain`."""
    if not chunking.with_plain:
        return ()
    plain = chunking.criterion._replace(label_smoothing=0.0)
    return (chunking.summed_loss(logits, labels, plain),)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loss_of_chunks(chunking: Chunking, hidden: jax.Array, head: Head, labels: jax.Array) -> tuple[jax.Array, ...]:
    """Returns the summed losses of hidden [C, L, D] and labels [C, L]: C chunks of L tokens."""

    def chunk_losses(chunk: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        logits = _logits(chunk[0], head.narrow, head.bias)
        loss = chunking.summed_loss(logits, chunk[1], chunking.criterion)
        return loss, *_plain_loss(chunking, logits, chunk[1])

    return tuple(losses.sum() for losses in jax.lax.map(chunk_losses, (hidden, labels)))


def _loss_and_gradients(
    chunking: Chunking, hidden: jax.Array, head: Head, labels: jax.Array
) -> tuple[tuple[jax.Array, ...], Gradients]:
    """Returns the summed losses, and the gradients of the first."""
    kernel, bias, narrow = head

    def loss_of(logits: jax.Array, labels: jax.Array) -> jax.Array:
        return chunking.summed_loss(logits, labels, chunking.criterion)

    def add_chunk(
        sums: tuple[Any, Any, Any], chunk: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[Any, Any, Any], jax.Array]:
        totals, to_kernel, to_bias = sums
        hidden, labels = chunk
        logits = _logits(hidden, narrow, bias)
        loss, to_logits = jax.value_and_grad(loss_of)(logits, labels)
        losses = loss, *_plain_loss(chunking, logits, labels)
        # the barrier keeps XLA from transposing the logits' gradient, which is many times larger
        to_kernel = to_kernel + jax.lax.optimization_barrier(hidden.T) @ to_logits
        to_bias = None if bias is None else to_bias + to_logits.sum(axis=0, dtype=bias.dtype)
        return (tuple(map(jnp.add, totals, losses)), to_kernel, to_bias), to_logits @ narrow.T

    zero = jnp.zeros((), jnp.promote_types(hidden.dtype, jnp.float32))
    no_kernel = constrain(jnp.zeros_like(kernel), None, "width")
    nothing = (
        (zero,) * (1 + chunking.with_plain),
        no_kernel,
        None if bias is None else constrain(jnp.zeros_like(bias), "width"),
    )
    (totals, to_kernel, to_bias), to_hidden = jax.lax.scan(add_chunk, nothing, (hidden, labels))
    return totals, (to_hidden, to_kernel, to_bias)


def _scale_gradients(chunking: Chunking, gradients: Gradients, cotangents: tuple[jax.Array, ...]) -> tuple[Any, ...]:
    cotangent = cotangents[0]  # the loss without smoothing has no gradient
    scaled = jax.tree.map(lambda gradient: (gradient * cotangent).astype(gradient.dtype), gradients)
    to_hidden, to_kernel, to_bias = scaled
    return to_hidden, Head(to_kernel, to_bias, jnp.zeros_like(to_kernel, to_hidden.dtype)), None  # labels have none


_loss_of_chunks.defvjp(_loss_and_gradients, _scale_gradients)


def _logits(hidden: jax.Array, kernel: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Returns the logits [L, V] of hidden [L, D] and a kernel [D, V] of the same dtype, in that dtype."""
    logits = hidden @ kernel
    logits = logits if bias is None else logits + bias.astype(hidden.dtype)
    return constrain(logits, None, "width")
