"""Faults of whole layers: the weights of another layer, as in layers shared by mistake."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.parity.faults.replay import Replay, Variant
from jax_transformer.parity.oracle.graph import Kind, parameter, place

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig

KINDS: tuple[Kind, ...] = (
    *("projection", "feed_forward_hidden", "norm", "residual", "residual_norm", "parallel_residual", "head_scale"),
    *("context_norm", "position_bias", "attention_logits", "context"),
)
"""Kinds of nodes that may have parameters of their layer."""


def layers(config: TransformerConfig) -> Iterator[Variant]:
    for layer in range(max(config.encoder.num_layers, config.decoder.num_layers)):
        yield Variant(f"weights of layer {layer}", KINDS, partial(_with_layer, layer=layer))


def _with_layer(replay: Replay, layer: int) -> np.ndarray:
    """Computes the node with another layer's parameters. Raises LookupError for the layer itself, and for nodes without
    such parameters; ValueError if the layer doesn't exist."""
    own = place(replay.node.name).layer
    if own is not None and replay.stack.share_layers:
        raise LookupError("all layers have the same weights")
    paths = {role: re.sub(r"\[\d+\]$", f"[{layer}]", path) for role, path in replay.node.parameters.items()}
    if own in (None, layer) or paths == dict(replay.node.parameters):
        raise LookupError("the same weights")
    return replay.compute(parameters={role: parameter(replay.params, path) for role, path in paths.items()})
