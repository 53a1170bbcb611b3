"""The loss in NumPy: a target distribution for each token, its distance from the model's, and their mean.

Every choice between formulas is a field of `LossRule`, including known mistakes, so that another rule answers a "what
if". Arrays are float64, labels are integers.

Axes: B batch, T target, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

Smoothing = Literal["all", "others", "others_but_pad", "all_but_pad", "others_by_all", "others_by_two_less"]
MeanOver = Literal["tokens", "sentences", "batch", "positions", "elements", "sum"]
Normalizer = Literal["log_softmax", "log_softmax_of_softmax", "none"]


class Share(NamedTuple):
    """Holds the entries of a token's distribution that receive a share of ε, and the share."""

    on_label: bool
    on_pad: bool
    fewer: int
    """The share is ε / (V - fewer)."""


SHARES: dict[Smoothing, Share] = {
    "all": Share(True, True, 0),  # Szegedy et al. 2016, §7; torch's cross_entropy
    "others": Share(False, True, 1),  # fairseq
    "others_but_pad": Share(False, False, 2),  # the Annotated Transformer
    "all_but_pad": Share(True, False, 1),
    "others_by_all": Share(False, True, 0),  # adds up to less than 1
    "others_by_two_less": Share(False, True, 2),  # adds up to more than 1
}


@dataclass(frozen=True)
class LossRule:
    """Defines the loss of a batch, which `loss` and `logits_gradient` compute."""

    pad_id: int
    label_smoothing: float = 0.0
    """ε; the label keeps the probability 1 - ε."""
    smoothing: Smoothing = "all"
    counts_pads: bool = False
    """Whether pads count like real labels. Labels below 0 never count."""
    mean_over: MeanOver = "tokens"
    """tokens: the sum over counted labels, divided by their number. sentences: the mean over sentences of their tokens'
    means. batch: the sum divided by B. positions: by B · T. elements: by B · T · V. sum: undivided."""
    subtracts_entropy: bool | None = None
    """Whether the loss is the divergence from the smoothed distribution rather than the cross-entropy. None: only with
    "others_but_pad"."""
    normalizer: Normalizer = "log_softmax"
    """The function from logits to log-probabilities."""
    label_shift: int = 0
    """Number of positions by which labels are late: the label of t + shift is compared with the logits of t, as far as
    both exist."""
    negated: bool = False


def loss(rule: LossRule, logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the loss of logits [B, T, V] and labels [B, T]; 0 if no token counts.

    Raises:
      ValueError: the shapes don't fit; a label that counts is V or above.
    """
    logits, labels, weights = _compared(rule, logits, labels)
    targets = _targets(rule, labels, logits.shape[-1])
    losses = -(targets * _log_probabilities(rule, logits)).sum(axis=-1)
    if _is_divergence(rule):
        losses = losses + (targets * np.log(np.where(targets > 0, targets, 1.0))).sum(axis=-1)
    return float((weights * losses).sum())


def logits_gradient(rule: LossRule, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns the gradient of `loss` to the logits, [B, T, V]. Raises as `loss` does."""
    gradient = np.zeros(logits.shape)
    compared, labels, weights = _compared(rule, logits, labels)
    targets = _targets(rule, labels, logits.shape[-1])
    inside = gradient[:, max(-rule.label_shift, 0) :][:, : compared.shape[1]]
    inside[...] = weights[..., None] * _gradient_of_tokens(rule, compared, targets)
    return gradient


def _compared(rule: LossRule, logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the logits [B, T', V] and labels [B, T'] that are compared, and the weight [B, T'] of each token's
    loss."""
    logits, labels, shift = np.asarray(logits, np.float64), np.asarray(labels), rule.label_shift
    if logits.ndim != 3 or labels.shape != logits.shape[:2]:
        raise ValueError(
            f"expected logits [B, T, V] and labels [B, T]; received {list(logits.shape)} and {list(labels.shape)}"
        )
    length = labels.shape[1] - abs(shift)
    logits, labels = logits[:, max(-shift, 0) :][:, :length], labels[:, max(shift, 0) :][:, :length]
    counts = (labels >= 0) & (rule.counts_pads | (labels != rule.pad_id))
    if (labels[counts] >= logits.shape[-1]).any():
        raise ValueError(
            f"expected labels below {logits.shape[-1]}, the number of logits; received {labels[counts].max()}"
        )
    weights = counts * _shares_of_tokens(rule, counts, logits.shape[-1])
    return logits, labels, -weights if rule.negated else weights


def _shares_of_tokens(rule: LossRule, counts: np.ndarray, vocabulary: int) -> np.ndarray | float:
    """Returns the weight of each counted token's loss: [B, 1], or one number for all."""
    if rule.mean_over == "sentences":
        lengths = counts.sum(axis=1, keepdims=True)
        return 1.0 / (np.maximum(lengths, 1) * max((lengths > 0).sum(), 1))
    number = {
        "tokens": counts.sum(),
        "batch": len(counts),
        "positions": counts.size,
        "elements": counts.size * vocabulary,
        "sum": 1,
    }[rule.mean_over]
    return 1.0 / max(int(number), 1)


def _targets(rule: LossRule, labels: np.ndarray, vocabulary: int) -> np.ndarray:
    """Returns the target distributions, [B, T, V]."""
    share, epsilon = SHARES[rule.smoothing], rule.label_smoothing
    entries = np.arange(vocabulary)
    is_label = labels[..., None] == entries
    smoothed = (share.on_label | ~is_label) & (share.on_pad | (entries != rule.pad_id))
    return (1.0 - epsilon) * is_label + smoothed * (epsilon / max(vocabulary - share.fewer, 1))


def _is_divergence(rule: LossRule) -> bool:
    return rule.smoothing == "others_but_pad" if rule.subtracts_entropy is None else rule.subtracts_entropy


def _log_probabilities(rule: LossRule, logits: np.ndarray) -> np.ndarray:
    if rule.normalizer == "none":
        return logits
    return _log_softmax(logits if rule.normalizer == "log_softmax" else np.exp(_log_softmax(logits)))


def _gradient_of_tokens(rule: LossRule, logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Returns the gradient of each token's loss to its logits, [B, T, V]; the entropy has none."""
    if rule.normalizer == "none":
        return -targets
    mass = targets.sum(axis=-1, keepdims=True)
    if rule.normalizer == "log_softmax":
        return mass * np.exp(_log_softmax(logits)) - targets
    probabilities = np.exp(_log_softmax(logits))
    inner = mass * np.exp(_log_softmax(probabilities)) - targets
    return probabilities * (inner - (inner * probabilities).sum(axis=-1, keepdims=True))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
