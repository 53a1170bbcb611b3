"""Pairs of ways to write losses and whole batches that are the same function."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch.nn import functional

from proof.pairs import Pair, Weights, gradients_in_jax, gradients_in_torch, in_jax, in_torch

B, T, D, V, PAD = 3, 4, 6, 7, 2
LABELS = np.array([[4, 1, 6, 0], [3, 5, 2, 2], [6, 2, 2, 2]])
COUNTS = LABELS != PAD
SMOOTHING = 0.1
LOGITS = {"logits": (B, T, V)}
MODEL = {"x": (B, T, D), "kernel": (D, 5), "head": (5, V)}


def picked(log_probabilities: jax.Array) -> jax.Array:
    return jnp.take_along_axis(log_probabilities, LABELS[..., None], axis=-1)[..., 0]


# --- cross-entropy


def library_loss(w: Weights) -> torch.Tensor:
    logits, labels = w["logits"].flatten(0, 1), torch.from_numpy(LABELS).flatten()
    return functional.cross_entropy(logits, labels, ignore_index=PAD)


def smoothed_library_loss(w: Weights) -> torch.Tensor:
    logits, labels = w["logits"].flatten(0, 1), torch.from_numpy(LABELS).flatten()
    return functional.cross_entropy(logits, labels, ignore_index=PAD, label_smoothing=SMOOTHING)


def by_log_softmax(w: Weights) -> jax.Array:
    losses = -picked(jax.nn.log_softmax(w["logits"], axis=-1))
    return jnp.where(COUNTS, losses, 0).sum() / COUNTS.sum()


def by_logsumexp(w: Weights) -> jax.Array:
    losses = jax.nn.logsumexp(w["logits"], axis=-1) - picked(w["logits"])
    return (losses * COUNTS).sum() / COUNTS.sum()


def by_hand(w: Weights) -> torch.Tensor:
    """log Σ exp, with no largest logit subtracted."""
    logits, labels = w["logits"], torch.from_numpy(LABELS)
    losses = logits.exp().sum(-1).log() - logits.gather(-1, labels[..., None])[..., 0]
    return losses[torch.from_numpy(COUNTS)].mean()


def by_one_hot(w: Weights) -> jax.Array:
    one_hot = jax.nn.one_hot(LABELS, V)
    losses = -(one_hot * jax.nn.log_softmax(w["logits"], axis=-1)).sum(axis=-1)
    return jnp.sum(losses, where=COUNTS) / jnp.sum(COUNTS)


def by_optax(w: Weights) -> jax.Array:
    losses = optax.softmax_cross_entropy_with_integer_labels(w["logits"], jnp.asarray(LABELS))
    return losses[COUNTS].mean()


def log_of_softmax(w: Weights) -> torch.Tensor:
    """As tutorials have it: a softmax, and its logarithm."""
    found = torch.log(torch.softmax(w["logits"], dim=-1))
    return functional.nll_loss(found.flatten(0, 1), torch.from_numpy(LABELS).flatten(), ignore_index=PAD)


def log_softmax(w: Weights) -> jax.Array:
    return jax.nn.log_softmax(w["logits"], axis=-1)


def log_softmax_by_hand(w: Weights) -> torch.Tensor:
    return w["logits"] - torch.logsumexp(w["logits"], dim=-1, keepdim=True)


def softmax(w: Weights) -> torch.Tensor:
    return functional.softmax(w["logits"], dim=-1)


def softmax_by_hand(w: Weights) -> jax.Array:
    exp = jnp.exp(w["logits"])
    return exp / exp.sum(axis=-1, keepdims=True)


def softmax_about_first(w: Weights) -> jax.Array:
    exp = jnp.exp(w["logits"] - w["logits"][..., :1])
    return exp / exp.sum(axis=-1, keepdims=True)


def exp_of_log_softmax(w: Weights) -> torch.Tensor:
    return torch.log_softmax(w["logits"], dim=-1).exp()


def softmax_by_logsumexp(w: Weights) -> jax.Array:
    return jnp.exp(w["logits"] - jax.nn.logsumexp(w["logits"], axis=-1, keepdims=True))


def softmax_of_shifted(w: Weights) -> torch.Tensor:
    return torch.softmax(w["logits"] + w["shift"], dim=-1)


# --- smoothing


def smoothed_by_optax(w: Weights) -> jax.Array:
    targets = optax.smooth_labels(jax.nn.one_hot(LABELS, V), SMOOTHING)
    return jnp.where(COUNTS, optax.softmax_cross_entropy(w["logits"], targets), 0).sum() / COUNTS.sum()


def smoothed_by_mean(w: Weights) -> jax.Array:
    """(1 − s) · loss + s · the mean of all classes' losses."""
    log_probabilities = jax.nn.log_softmax(w["logits"], axis=-1)
    losses = -(1 - SMOOTHING) * picked(log_probabilities) - SMOOTHING * log_probabilities.mean(axis=-1)
    return (losses * COUNTS).sum() / COUNTS.sum()


def smoothed_as_fairseq(w: Weights) -> torch.Tensor:
    """ε_i = s/V, (1 − s) · nll + ε_i · Σ nll, summed over tokens and divided afterwards."""
    log_probabilities = torch.log_softmax(w["logits"], dim=-1).flatten(0, 1)
    labels = torch.from_numpy(LABELS).flatten()[:, None]
    pad = labels.eq(PAD)
    nll = -log_probabilities.gather(-1, labels).masked_fill(pad, 0.0).sum()
    smooth = -log_probabilities.sum(-1, keepdim=True).masked_fill(pad, 0.0).sum()
    return ((1 - SMOOTHING) * nll + SMOOTHING / V * smooth) / (~pad).sum()


def smoothed_by_divergence(w: Weights) -> torch.Tensor:
    """KL divergence from a smoothed distribution: the loss and a constant, so the same gradients."""
    target = torch.full((B, T, V), SMOOTHING / V, dtype=torch.float64)
    target.scatter_(2, torch.from_numpy(LABELS)[..., None], 1 - SMOOTHING + SMOOTHING / V)
    target[torch.from_numpy(~COUNTS)] = 0
    return functional.kl_div(torch.log_softmax(w["logits"], -1), target, reduction="sum") / int(COUNTS.sum())


# --- batches


def token_losses(w: Weights, rows: slice) -> jax.Array:
    logits = jnp.tanh(w["x"][rows] @ w["kernel"]) @ w["head"]
    log_probabilities = jax.nn.log_softmax(logits, axis=-1)
    losses = -jnp.take_along_axis(log_probabilities, LABELS[rows][..., None], axis=-1)[..., 0]
    return jnp.where(COUNTS[rows], losses, 0).sum()


def whole_batch(w: Weights) -> torch.Tensor:
    logits = torch.tanh(w["x"] @ w["kernel"]) @ w["head"]
    return functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(LABELS).flatten(), ignore_index=PAD)


def accumulated(w: Weights) -> dict[str, jax.Array]:
    """Sums the gradients of two microbatches, each token weighted alike."""
    parts = [jax.value_and_grad(token_losses)(w, rows) for rows in (slice(0, 2), slice(2, 3))]
    loss = sum(part[0] for part in parts) / COUNTS.sum()
    return {"loss": loss, **{f"gradient of {n}": sum(part[1][n] for part in parts) / COUNTS.sum() for n in w}}


def accumulated_by_backward(w: Weights) -> dict[str, torch.Tensor]:
    """Calls backward for each sentence, as training loops in PyTorch do."""
    total = 0.0
    for row in range(B):
        logits = torch.tanh(w["x"][row] @ w["kernel"]) @ w["head"]
        loss = functional.cross_entropy(logits, torch.from_numpy(LABELS[row]), ignore_index=PAD, reduction="sum")
        (loss / int(COUNTS.sum())).backward()
        total = total + loss / int(COUNTS.sum())
    return {"loss": total, **{f"gradient of {name}": tensor.grad for name, tensor in w.items()}}


def by_vmap(w: Weights) -> jax.Array:
    one = jax.vmap(lambda x: jax.nn.softmax(jnp.tanh(x @ w["kernel"]) @ w["head"], axis=-1))
    return one(w["x"])


def by_loop(w: Weights) -> torch.Tensor:
    return torch.stack([torch.softmax(torch.tanh(x @ w["kernel"]) @ w["head"], dim=-1) for x in w["x"]])


PAIRS = (
    Pair("a softmax by exp and sum", LOGITS, in_jax(softmax_by_hand), in_torch(softmax)),
    Pair("a softmax about its first logit", LOGITS, in_jax(softmax_about_first), in_torch(softmax)),
    Pair("exp(log_softmax)", LOGITS, in_jax(softmax_by_hand), in_torch(exp_of_log_softmax)),
    Pair("a softmax by logsumexp", LOGITS, in_jax(softmax_by_logsumexp), in_torch(softmax)),
    Pair(
        "a number added to each row of a softmax",
        {**LOGITS, "shift": (B, T, 1)},
        in_jax(softmax_by_hand),
        in_torch(softmax_of_shifted),
    ),
    Pair("log_softmax of JAX, and by torch.logsumexp", LOGITS, in_jax(log_softmax), in_torch(log_softmax_by_hand)),
    Pair("cross-entropy by log_softmax, with pads", LOGITS, in_jax(by_log_softmax), in_torch(library_loss)),
    Pair("cross-entropy by logsumexp, with pads", LOGITS, in_jax(by_logsumexp), in_torch(library_loss)),
    Pair("cross-entropy by log Σ exp, with pads", LOGITS, in_jax(by_logsumexp), in_torch(by_hand)),
    Pair("cross-entropy by one-hot labels", LOGITS, in_jax(by_one_hot), in_torch(library_loss)),
    Pair("optax's cross-entropy", LOGITS, in_jax(by_optax), in_torch(library_loss)),
    Pair("cross-entropy of log(softmax)", LOGITS, in_jax(by_log_softmax), in_torch(log_of_softmax)),
    Pair("smoothing by optax, and by PyTorch", LOGITS, in_jax(smoothed_by_optax), in_torch(smoothed_library_loss)),
    Pair("smoothing by a mean of classes", LOGITS, in_jax(smoothed_by_mean), in_torch(smoothed_library_loss)),
    Pair("smoothing as fairseq has it", LOGITS, in_jax(smoothed_by_optax), in_torch(smoothed_as_fairseq)),
    Pair(
        "gradients of a divergence, and of cross-entropy",
        LOGITS,
        in_jax(lambda w: jax.grad(lambda v: smoothed_by_mean(v))(w)["logits"]),
        in_torch(lambda w: gradients_in_torch(smoothed_by_divergence)(w)["gradient of logits"]),
    ),
    Pair("two microbatches, and one batch", MODEL, in_jax(accumulated), in_torch(gradients_in_torch(whole_batch))),
    Pair(
        "backward of each sentence, and one batch",
        MODEL,
        in_jax(gradients_in_jax(lambda w: token_losses(w, slice(None)) / COUNTS.sum())),
        in_torch(accumulated_by_backward),
    ),
    Pair("vmap, and a loop", MODEL, in_jax(by_vmap), in_torch(by_loop)),
)
