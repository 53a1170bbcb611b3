"""Measure the distance of a captured value from the correct one, by its effect on the model.

Softmax ignores the exact value of masked logits, so these are judged by the weights that they leave: a fill of −1e30
is the same function as one of −1e9. Fully masked rows, in which a query sees no key, have no agreed value (uniform
weights, zeros, NaN), so they are measured separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jax_transformer.comparison.findings import Effect
from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import Arrays
from jax_transformer.comparison.gates.compare import relative_rms
from jax_transformer.parity.oracle.graph import Node, place

GATE = tolerances.FLOAT64_RELATIVE_RMS


class Apart(NamedTuple):
    """Holds the distance between two values, each part a relative RMS."""

    seen: float
    """Distance in rows with a visible key, of unmasked logits."""
    blind: float = 0.0
    """Distance in fully masked rows; for logits, that of the weights that they leave."""
    blind_as_given: float = 0.0
    """The same for the logits themselves."""
    fill: float = 0.0
    """Distance of the masked logits themselves."""

    @property
    def blind_residual(self) -> float:
        """Returns the distance in fully masked rows, of the weights or of the logits themselves."""
        return min(self.blind, self.blind_as_given)

    def effect(self, gate: float = GATE) -> Effect:
        """Returns the effect of the first part that is outside its gate.

        Args:
          gate: the gate of rows with a visible key.
        """
        if not self.seen <= gate:
            return "function"
        return "fully masked rows" if not self.blind <= gate else "none"

    def under(self, effect: Effect, gate: float = GATE) -> float:
        """Returns the distance that counts for a variant that should explain a difference with this effect."""
        if effect == "function":
            return self.seen
        if not self.seen <= gate:
            return np.inf
        return self.blind_residual if effect == "fully masked rows" else self.fill


class Rows(NamedTuple):
    """Holds the masks of the attentions that a value is computed from."""

    mask: np.ndarray | None = None
    """Mask of attention logits, broadcastable to [B, N, Q, K]; None for other nodes, or without a mask."""
    blind: np.ndarray | None = None
    """Which rows are fully masked, broadcastable to the value; None if none is."""
    undefined: np.ndarray | None = None
    """Rows of attention logits without information: their query is NaN, or sees no key and some key is NaN."""


NO_ROWS = Rows()


def rows_of(node: Node, known: Arrays, hidden: Sequence[Node], masks: Mapping[str, str]) -> Rows:
    """Returns the masks that a node's value depends on, through itself or through nodes that weren't captured.

    Args:
      hidden: the nodes leading to this one that weren't captured.
      masks: the mask's name by the name of the attention's logits and weights.
    """
    if node.name in masks:
        mask = known[masks[node.name]]
        blind = _some(~np.asarray(mask.any(axis=-1, keepdims=True)))
        if node.kind != "attention_logits":
            return Rows(None, blind)
        undefined = [
            np.asarray(np.isnan(known[node.inputs[name]]).any(axis=-1)) for name in ("query", "key")
        ]  # [B, T, N]
        undefined_query = undefined[0].swapaxes(1, 2)[..., None]
        shared = undefined[0].shape[2] // undefined[1].shape[2]  # heads of queries that share one of keys
        undefined_key = np.asarray(undefined[1].any(axis=1)).repeat(shared, axis=1)[:, :, None, None]
        return Rows(mask, blind, _some(undefined_query if blind is None else undefined_query | (blind & undefined_key)))
    if node.kind in ("mask", "attention_logits"):
        return NO_ROWS
    chain = [one for one in (*hidden, node) if stack_of(one) == stack_of(node)]
    weights = {one.inputs["weights"] for one in chain if one.kind == "context"} & masks.keys()
    blind_rows = [
        ~known[masks[name]].any(axis=(1, 3)) for name in weights
    ]  # [B, Q], 1 along an axis without difference
    if not blind_rows:
        return NO_ROWS
    rows = np.logical_or.reduce(np.broadcast_arrays(*blind_rows))
    return Rows(None, _some(rows.reshape(*rows.shape, *[1] * _features(node))))


OF_KEYS = ("key", "value", "normed_key", "rotated_key")
OF_QUERIES = ("query", "normed_query", "rotated_query", "scaled_context")
"""Activations of an attention with an axis of heads, at the positions of its keys and of its queries."""


def stack_of(node: Node) -> str:
    """Returns the stack whose positions the node's value has; the decoder for logits."""
    stack, _, path = place(node.name)
    return "encoder" if path[0] == "cross_attention" and path[-1] in OF_KEYS else stack or "decoder"


def _features(node: Node) -> int:
    """Returns the number of axes after batch and position."""
    return 2 if node.kind == "context" or place(node.name).path[-1] in (*OF_KEYS, *OF_QUERIES) else 1


def _some(blind: np.ndarray) -> np.ndarray | None:
    return blind if blind.any() else None


def measure(received: np.ndarray, expected: np.ndarray, rows: Rows = NO_ROWS) -> Apart:
    """Measures the distance of a received value from an expected one; infinite for a wrong shape."""
    if received.dtype == bool or expected.dtype == bool or not _fits(received, expected, *rows):
        return Apart(distance(received, expected))
    if rows.mask is not None:
        received = received if rows.undefined is None else np.where(rows.undefined, expected, received)
        return _measure_logits(received, expected, rows.mask)
    if rows.blind is None:
        return Apart(distance(received, expected))
    blind = within(received, expected, rows.blind)
    return Apart(within(received, expected, ~rows.blind), blind, blind)


def _fits(received: np.ndarray, *others: np.ndarray | None) -> bool:
    """Returns whether all other arrays can be broadcast to the received value."""
    try:
        shapes = [other.shape for other in others if other is not None]
        return np.broadcast_shapes(received.shape, *shapes) == received.shape
    except ValueError:
        return False


def _measure_logits(received: np.ndarray, expected: np.ndarray, mask: np.ndarray) -> Apart:
    """Measures logits [B, N, Q, K]: unmasked ones directly, masked ones by the weights that they leave."""
    seen = within(received, expected, mask)
    if not seen <= tolerances.MOST_FOR_ROUNDING:
        return Apart(seen)
    hidden = ~np.broadcast_to(mask, received.shape)
    if np.array_equal(received[hidden], np.broadcast_to(expected, received.shape)[hidden], equal_nan=True):
        return Apart(seen)
    sees = np.broadcast_to(mask.any(axis=-1, keepdims=True), received.shape)
    seen, fill = max(seen, _left_by_masked(received, expected, mask, sees)), within(received, expected, hidden)
    if sees.all():
        return Apart(seen, fill=fill)
    blind = within(softmax(received), softmax(expected), ~sees)
    return Apart(seen, blind, within(received, expected, ~sees), fill)


def _left_by_masked(received: np.ndarray, expected: np.ndarray, mask: np.ndarray, sees: np.ndarray) -> float:
    """Returns the change in weights, due to masked logits, of queries that see a key."""
    highest = np.where(mask, expected, -np.inf).max(axis=-1, keepdims=True)
    if all((array <= highest - VANISHES)[sees & ~mask].all() for array in (received, expected)):
        return 0.0
    return within(softmax(np.where(mask, expected, received)), softmax(expected), sees)


VANISHES = 750.0
"""A logit so far below the row's largest has a weight of exactly zero in float64."""


def softmax(logits: np.ndarray) -> np.ndarray:
    """Returns the weights that logits leave; NaN in a row of −inf alone."""
    with np.errstate(all="ignore"):
        exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def distance(received: np.ndarray, expected: np.ndarray, where: np.ndarray | None = None) -> float:
    """Returns the relative RMS of the difference; for masks, the share of values that differ.

    It is infinite if shapes or non-finite values differ. NaN equals NaN, since a node with NaN inputs returns NaN.

    Args:
      where: boolean, broadcastable; values inside and outside it are compared separately, and the larger distance
        counts: the fill values of masked logits would hide any difference in the rest.
    """
    try:
        shape = np.broadcast_shapes(received.shape, expected.shape)
    except ValueError:
        return np.inf
    if received.dtype == bool or expected.dtype == bool:
        return float(np.mean(received != expected))
    if shape != received.shape:
        return np.inf
    if where is not None:
        return max(within(received, expected, where), within(received, expected, ~where))
    if np.isfinite(expected).all():
        error = relative_rms(received, np.broadcast_to(expected, shape)) if received.size else 0.0
        return np.inf if np.isnan(error) else error
    return within(received, expected, np.True_)


def within(received: np.ndarray, expected: np.ndarray, where: np.ndarray | np.bool_) -> float:
    """Returns the distance of the values for which `where` is True; 0 if there are none."""
    expected, inside = (np.broadcast_to(array, received.shape) for array in (expected, where))
    same = (received == expected) | (np.isnan(received) & np.isnan(expected))
    counts = inside & (np.isfinite(expected) | ~same)
    error = relative_rms(received, expected, counts) if counts.any() else 0.0
    return np.inf if np.isnan(error) else error
