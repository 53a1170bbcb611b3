"""Infers the masks of a reference from its attention logits, if it shows no masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.comparison.gates import tolerances
from jax_transformer.parity.oracle.graph import known_nodes, shown_by

if TYPE_CHECKING:
    from jax_transformer.comparison.gates.arrays import Arrays
    from jax_transformer.config.model import TransformerConfig


def infer_masks(named: Arrays, config: TransformerConfig) -> dict[str, np.ndarray]:
    """Infers the config's masks that `named` lacks, each from the logits of the first attention that applies it.

    Masks are boolean, True = may attend, and shaped as in our trace: [B, 1, Q, K], with 1 for an axis that the config's
    padding ignores and along which the mask is constant; [B, N, Q, K] if heads have different masks.

    Args:
      named: activations by our names. A mask whose logits are missing is left out.
    """
    graph, found = known_nodes(config), {}
    logits = shown_by(graph)
    for node in graph:
        if node.kind == "mask" and node.name not in named and logits.get(node.name) in named:
            shown = named[logits[node.name]]
            batch, _, queries, keys = shown.shape
            ids = {"source_ids": np.zeros((batch, keys), int), "decoder_input_ids": np.zeros((batch, queries), int)}
            own = node.compute(config, {argument: ids[name] for argument, name in node.inputs.items()}, {})
            found[node.name] = _mask(shown, own.shape)
    return found


def _mask(logits: np.ndarray, own: tuple[int, ...]) -> np.ndarray:
    """Returns the mask of logits [B, N, Q, K]. Reduces axes along which it is constant to 1 if the config's own mask
    has size 1 there."""
    mask = ~(logits <= tolerances.MASKED_BELOW)  # NaN isn't a fill value, but the result of earlier numbers
    for axis, size in enumerate(own):
        mask = _without(mask, axis) if size == 1 else mask
    return mask


def _without(mask: np.ndarray, axis: int) -> np.ndarray:
    """Returns the mask with this axis reduced to 1 if the mask is constant along it."""
    first = mask.take([0], axis)
    return first if (mask == first).all() else mask
