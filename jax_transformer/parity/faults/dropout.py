"""Dropout left on (Srivastava et al. 2014).

What it dropped isn't known, so it is recognised rather than replayed (and where nothing is wrong, drawn): every value
must be either kept, and divided by 1 − p with the same p everywhere, or zero, and about p of them must be zero. Inside
a feed-forward that is wider than the model it can't be told: many choices of hidden units give one output. Nor can it
be of attention weights with more than MOST_KEYS keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, partial

import numpy as np

from jax_transformer.parity.faults.replay import Replay, Variant
from jax_transformer.parity.gates import tolerances
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import Kind, place

RATES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
MOST_KEYS = 12
OWN: tuple[Kind, ...] = (
    "token_embedding",
    "embedding",
    "projection",
    "attention_weights",
    "feed_forward_hidden",
    "norm",
    "same",
)
NEAR = 1e-9
"""How far, relative to the largest, a value may be from what dropout makes of it before the search is given up. The
gate decides later."""
SAMPLE = 256
"""Values looked at first."""
TOLD_APART = 1e-6
"""Weights that are smaller don't say whether they were dropped."""


def dropout() -> Iterator[Variant]:
    for rate in RATES:
        name = f"dropout of {rate:g} left on"
        yield Variant(name, OWN, partial(_of_value, rate=rate))
        yield Variant(f"{name} the sublayer's output", ("residual",), partial(_of_sublayer, rate=rate))
        yield Variant(f"{name} the sublayer's output", ("residual_norm",), partial(_of_normed_sublayer, rate=rate))
        yield Variant(f"{name} the attention weights", ("context",), partial(_of_weights, rate=rate))
        yield Variant(f"{name} the hidden units", ("projection",), partial(_of_hidden, rate=rate))


def _of_value(replay: Replay, rate: float) -> np.ndarray:
    kept = drawn(replay.own.shape, rate) if replay.is_right else _kept(replay.received, replay.own, rate)
    return kept * replay.own / (1.0 - rate)


def _of_sublayer(replay: Replay, rate: float) -> np.ndarray:
    x, y = replay.inputs["x"], replay.inputs["y"]
    kept = drawn(y.shape, rate) if replay.is_right else _kept(replay.received - x, y, rate, np.abs(x))
    return x + kept * y / (1.0 - rate)


def _of_hidden(replay: Replay, rate: float) -> np.ndarray:
    kernel, hidden = replay.parameters["kernel"], replay.inputs["x"]
    if place(replay.node.name).path != ("feed_forward", "output") or len(kernel) > kernel.shape[1]:
        raise LookupError("not to be told")
    if replay.is_right:
        return replay.compute({"x": drawn(hidden.shape, rate) * hidden / (1.0 - rate)})
    received = (replay.received - replay.parameters.get("bias", 0.0)) @ np.linalg.pinv(kernel)
    return replay.compute({"x": _kept(received, hidden, rate) * hidden / (1.0 - rate)})


def drawn(shape: tuple[int, ...], rate: float) -> np.ndarray:
    """Which of so many values one dropout keeps: what a fault does, where there is none to recognise."""
    return np.random.default_rng(0).random(shape) >= rate


def _kept(received: np.ndarray, value: np.ndarray, rate: float, size: np.ndarray | float = 0.0) -> np.ndarray:
    """Which of the values were kept, and scaled; raises LookupError where they aren't all either that or zero.

    Args:
      size: of what was taken from the received, which therefore is less precise.
    """
    scaled = value / (1.0 - rate)
    for part in (np.s_[:SAMPLE], np.s_[:]):
        of, scale = received.ravel()[part], scaled.ravel()[part]
        kept = np.abs(of) > np.abs(scale) / 2.0
        if not np.abs(of - kept * scale).max() <= NEAR * (np.abs(scaled).max() + np.max(size)):
            raise LookupError("not dropped")
    kept = kept.reshape(value.shape)
    _check_share(kept, value != 0.0, rate)
    return kept


def _check_share(kept: np.ndarray, counts: np.ndarray, rate: float) -> None:
    """Raises LookupError unless some are kept, some dropped, and these about as often as the rate says at every index
    of each axis: or else it is a head or a column that is missing.

    Args:
      counts: which of them say anything.
    """
    is_dropped, spread = counts & ~kept, rate * (1.0 - rate)
    if not is_dropped.any() or not (counts & kept).any():
        raise LookupError("none or all dropped")
    for axis in range(kept.ndim):
        others = tuple(other for other in range(kept.ndim) if other != axis)
        number, found = counts.sum(axis=others), is_dropped.sum(axis=others)
        number, found = number[number > 0], found[number > 0]
        squares = np.square(found - rate * number) / (spread * number)  # 1 each in the mean
        deviation = math.sqrt((2.0 + 1.0 / (spread * number)).sum())
        if squares.sum() - len(squares) > tolerances.DROPOUT_SCATTER_DEVIATIONS * deviation:
            raise LookupError("not at this rate everywhere")


# --- before a norm, which hides by how much it shifted and scaled


def _of_normed_sublayer(replay: Replay, rate: float) -> np.ndarray:
    """norm(x + kept · y / (1 − rate)): of each row, two values say what its mean and deviation were, and these tell the
    others."""
    if replay.is_right:
        return replay.compute({"y": drawn(replay.inputs["y"].shape, rate) * replay.inputs["y"] / (1.0 - rate)})
    x, y = (replay.inputs[name].reshape(-1, replay.own.shape[-1]) for name in ("x", "y"))
    normed = (replay.received - replay.parameters.get("bias", 0.0)) / replay.parameters.get("scale", 1.0)
    normed = normed.reshape(x.shape)
    if not np.isfinite(normed).all():
        raise LookupError("scaled by zero")
    _kept_before_norm(normed[:1], x[:1], y[:1], rate)
    kept = _kept_before_norm(normed, x, y, rate)
    _check_share(kept, y != 0.0, rate)
    return replay.compute({"y": (kept * y / (1.0 - rate)).reshape(replay.own.shape)})


def _kept_before_norm(normed: np.ndarray, x: np.ndarray, y: np.ndarray, rate: float) -> np.ndarray:
    """Which values of y [rows, D] were kept.

    The lowest and the highest value of a row are each kept or dropped: of these four cases the one that fits the row
      best is taken.

    Raises:
      LookupError: none fits some row.
    """
    scaled, row = y / (1.0 - rate), np.arange(len(x))
    low, high = normed.argmin(axis=-1), normed.argmax(axis=-1)
    best, least = np.zeros(x.shape, bool), np.full(len(x), np.inf)
    for keeps_low in (False, True):
        for keeps_high in (False, True):
            bottom = x[row, low] + keeps_low * scaled[row, low]
            top = x[row, high] + keeps_high * scaled[row, high]
            deviation = (top - bottom) / (normed[row, high] - normed[row, low])
            before = bottom[:, None] + deviation[:, None] * (normed - normed[row, low][:, None])
            kept = np.abs(before - x) > np.abs(before - x - scaled)
            misfit = np.abs(before - x - kept * scaled).max(axis=-1)
            is_better = misfit < least
            best[is_better], least[is_better] = kept[is_better], misfit[is_better]
    if not (least <= NEAR * (np.abs(x) + np.abs(scaled)).max(axis=-1)).all():
        raise LookupError("not dropped")
    return best


# --- of attention weights, of which only the sums are seen


def _of_weights(replay: Replay, rate: float) -> np.ndarray:
    """Of each query, all ways to drop some of its keys are tried: in one direction of the context, in which no two of
    them look alike."""
    weights, value = replay.inputs["weights"], replay.inputs["value"]
    if weights.shape[-1] > MOST_KEYS:
        raise LookupError("too many keys")
    if replay.is_right:
        return formulas.context(replay.config, drawn(weights.shape, rate) * weights / (1.0 - rate), value)
    direction = np.cos(1.0 + np.arange(value.shape[-1]))
    terms = weights * (value @ direction).transpose(0, 2, 1)[:, :, None, :]  # [B, N, Q, K]
    sums = (replay.received @ direction).transpose(0, 2, 1) * (1.0 - rate)  # [B, N, Q]
    kept = _kept_terms(terms.reshape(-1, terms.shape[-1]), sums.ravel()).reshape(weights.shape)
    _check_share(kept, weights > TOLD_APART, rate)
    return formulas.context(replay.config, kept * weights / (1.0 - rate), value)


def _kept_terms(terms: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Which of the terms [rows, K] were summed; raises LookupError where no choice gives a row's sum, soon if it is one
    of the first."""
    choices, kept, start, rows = _choices(terms.shape[-1]), np.empty(terms.shape, bool), 0, 4
    while start < len(terms):
        part = np.s_[start : start + rows]
        misfit = terms[part] @ choices.T  # [rows, 2^K]
        misfit -= sums[part][:, None]
        best = np.abs(misfit, out=misfit).argmin(axis=1)
        if not (misfit[np.arange(len(best)), best] <= NEAR * np.abs(terms[part]).max(axis=1)).all():
            raise LookupError("not dropped")
        kept[part] = choices[best] > 0.0
        start, rows = start + rows, SAMPLE
    return kept


@cache
def _choices(keys: int) -> np.ndarray:
    """Every way to keep some of the keys, of 0 and 1: [2^K, K]."""
    return (np.arange(2**keys)[:, None] >> np.arange(keys) & 1).astype(np.float64)
