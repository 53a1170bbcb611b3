"""Dropout left on (Srivastava et al. 2014).

The dropped values are unknown, so the fault is recognised rather than replayed (and drawn at random for a correct
value): every value must be either zero, or kept and divided by 1 − p with the same p everywhere, and a share of about p
must be zero. It can't be recognised inside a feed-forward layer wider than the model, in which many choices of hidden
units give the same output, nor in attention weights with more than MOST_KEYS keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache, partial

import numpy as np

from jax_transformer.comparison.gates import tolerances
from jax_transformer.parity.faults.replay import Replay, Variant, norm_scale, terms
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
"""Largest distance of a value from a dropout's result, relative to the largest value, at which the search goes on. The
gate decides later."""
SAMPLE = 256
"""The number of values that are checked first."""
TOLD_APART = 1e-6
"""Smaller weights don't show whether they were dropped."""


def dropout() -> Iterator[Variant]:
    for rate in RATES:
        name = f"dropout of {rate:g} left on"
        yield Variant(name, OWN, partial(_dropped_value, rate=rate), True)
        sums: tuple[Kind, ...] = ("residual", "parallel_residual")
        yield Variant(f"{name} the sublayer's output", sums, partial(_dropped_sublayer, rate=rate), True)
        yield Variant(
            f"{name} the sublayer's output", ("residual_norm",), partial(_dropped_before_norm, rate=rate), True
        )
        yield Variant(f"{name} the attention weights", ("context",), partial(_dropped_weights, rate=rate), True)
        yield Variant(f"{name} the hidden units", ("projection",), partial(_dropped_hidden, rate=rate), True)


def _dropped_value(replay: Replay, rate: float) -> np.ndarray:
    kept = drawn(replay.own.shape, rate) if replay.is_right else _kept(replay.received, replay.own, rate)
    return kept * replay.own / (1.0 - rate)


def _dropped_sublayer(replay: Replay, rate: float) -> np.ndarray:
    """Recognises dropout of one sublayer's output in a sum, from the difference to the remaining terms."""
    scaled = terms(replay)
    for sublayer in [*scaled][1:]:
        y, rest = scaled[sublayer], replay.own - scaled[sublayer]
        try:
            kept = drawn(y.shape, rate) if replay.is_right else _kept(replay.received - rest, y, rate, np.abs(rest))
        except LookupError:
            continue
        return rest + kept * y / (1.0 - rate)
    raise LookupError("not dropped")


def _dropped_hidden(replay: Replay, rate: float) -> np.ndarray:
    kernel, hidden = replay.parameters["kernel"], replay.inputs["x"]
    if place(replay.node.name).path != ("feed_forward", "output") or len(kernel) > kernel.shape[1]:
        raise LookupError("not recognisable")
    if replay.is_right:
        return replay.compute({"x": drawn(hidden.shape, rate) * hidden / (1.0 - rate)})
    received = (replay.received - replay.parameters.get("bias", 0.0)) @ np.linalg.pinv(kernel)
    return replay.compute({"x": _kept(received, hidden, rate) * hidden / (1.0 - rate)})


def drawn(shape: tuple[int, ...], rate: float) -> np.ndarray:
    """Draws which values a dropout keeps, to inject a fault."""
    return np.random.default_rng(0).random(shape) >= rate


def _kept(received: np.ndarray, value: np.ndarray, rate: float, size: np.ndarray | float = 0.0) -> np.ndarray:
    """Returns a mask of the kept and scaled values. Raises LookupError unless all remaining values are zero.

    Args:
      size: the magnitude of the array subtracted from the received one, which costs precision.
    """
    scaled = value / (1.0 - rate)
    for part in (np.s_[:SAMPLE], np.s_[:]):
        of, scale = received.ravel()[part], scaled.ravel()[part]
        kept = np.abs(of) > np.abs(scale) / 2.0
        if not np.abs(of - kept * scale).max() <= NEAR * (np.abs(scaled).max() + np.max(size)):
            raise LookupError("not dropped")
    kept = kept.reshape(value.shape)
    _check_share(~kept, value != 0.0, rate)
    return kept


def _check_share(dropped: np.ndarray, counts: np.ndarray, rate: float) -> None:
    """Raises LookupError unless values are dropped at about the rate, at every index of each axis.

    A whole missing head or column is another fault.

    Args:
      dropped: a mask of dropped values, or their share for values that are only known together.
      counts: a mask of the values for which dropping is visible.
    """
    dropped, spread = counts * dropped, rate * (1.0 - rate)
    if not 0 < dropped.sum() < counts.sum():
        raise LookupError("none or all dropped")
    for axis in range(dropped.ndim):
        others = tuple(other for other in range(dropped.ndim) if other != axis)
        number, found = counts.sum(axis=others), dropped.sum(axis=others)
        number, found = number[number > 0], found[number > 0]
        squares = np.square(found - rate * number) / (spread * number)  # 1 each in the mean
        deviation = math.sqrt((2.0 + 1.0 / (spread * number)).sum())
        if squares.sum() - len(squares) > tolerances.DROPOUT_SCATTER_DEVIATIONS * deviation:
            raise LookupError("not at this rate everywhere")


# --- before a norm, which hides its shift and scale


def _dropped_before_norm(replay: Replay, rate: float) -> np.ndarray:
    """Recognises norm(x + kept · y / (1 − rate)): two values of a row give its mean and deviation."""
    if replay.is_right:
        return replay.compute({"y": drawn(replay.inputs["y"].shape, rate) * replay.inputs["y"] / (1.0 - rate)})
    x, y = (term.reshape(-1, replay.own.shape[-1]) for term in terms(replay).values())
    normed = (replay.received - replay.parameters.get("bias", 0.0)) / norm_scale(replay)
    normed = normed.reshape(x.shape)
    if not np.isfinite(normed).all():
        raise LookupError("scaled by zero")
    _kept_before_norm(normed[:1], x[:1], y[:1], rate)
    kept = _kept_before_norm(normed, x, y, rate)
    _check_share(~kept, y != 0.0, rate)
    return replay.compute({"y": kept.reshape(replay.own.shape) * replay.inputs["y"] / (1.0 - rate)})


def _kept_before_norm(normed: np.ndarray, x: np.ndarray, y: np.ndarray, rate: float) -> np.ndarray:
    """Returns a mask of the kept values of y [rows, D].

    The lowest and the highest value of a row are each kept or dropped; the case that fits the row best counts.

    Raises:
      LookupError: no case fits some row.
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


# --- attention weights, known only through the context


def _dropped_weights(replay: Replay, rate: float) -> np.ndarray:
    """Tries every choice of dropped keys for each query, along one direction of the context that distinguishes them."""
    weights = replay.inputs["weights"]
    if weights.shape[-1] > MOST_KEYS:
        raise LookupError("too many keys")
    if replay.is_right:
        return replay.compute({"weights": drawn(weights.shape, rate) * weights / (1.0 - rate)})
    direction = np.cos(1.0 + np.arange(replay.own.shape[-1]))
    terms = weights * _along(replay, direction)  # [B, N, Q, K]
    sums = (replay.received @ direction).transpose(0, 2, 1) * (1.0 - rate)  # [B, N, Q]
    kept = _kept_terms(terms.reshape(-1, terms.shape[-1]), sums.ravel()).reshape(weights.shape)
    counts = weights > TOLD_APART
    _check_share(_shared_by_equals(~kept & counts, terms, counts), counts, rate)
    return replay.compute({"weights": kept * weights / (1.0 - rate)})


def _along(replay: Replay, direction: np.ndarray) -> np.ndarray:
    """Returns the values along a direction [H], with the vectors of their distances: [B, N, Q or 1, K]."""
    weights = replay.inputs["weights"]
    value = formulas.for_all_queries(replay.inputs["value"], weights.shape[1])
    along = (value @ direction).transpose(0, 2, 1)[:, :, None, :]
    if "relative_values" not in replay.parameters:
        return along
    rows = formulas.relative_rows(replay.parts["vectors"], weights.shape[-1])
    return along + (replay.parameters["relative_values"] @ direction)[rows]


def _kept_terms(terms: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Returns a mask [rows, K] of the summed terms. Raises LookupError if no choice gives a row's sum."""
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


def _shared_by_equals(dropped: np.ndarray, terms: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns, for each key [..., K], the share of those with an equal term that were dropped.

    A sum doesn't show which of several equal terms was dropped, such as repeated tokens without positions.
    """
    near = NEAR * np.abs(terms).max(axis=-1)[..., None, None]
    equal = (np.abs(terms[..., :, None] - terms[..., None, :]) <= near) & counts[..., :, None] & counts[..., None, :]
    return (equal & dropped[..., None, :]).sum(axis=-1) / np.maximum(equal.sum(axis=-1), 1)


@cache
def _choices(keys: int) -> np.ndarray:
    """Returns every choice of kept keys, [2^K, K] of 0 and 1."""
    return (np.arange(2**keys)[:, None] >> np.arange(keys) & 1).astype(np.float64)
