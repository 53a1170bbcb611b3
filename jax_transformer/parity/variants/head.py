"""Faults of the head."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.parity.truth import formulas
from jax_transformer.parity.truth.graph import Kind
from jax_transformer.parity.truth.replay import parameter
from jax_transformer.parity.variants.replay import Replay, Variant, configured

if TYPE_CHECKING:
    from jax_transformer.config import TransformerConfig


def head(config: TransformerConfig) -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = ("logits",)
    yield configured(f"head {'not ' if config.scale_head else ''}scaled by 1/√d_model", kinds, scale_head=not config.scale_head)
    for side in ("source", "target"):
        yield Variant(f"head tied to the {side} embedding", kinds, partial(_tied, path=f"{side}_embedding/embedding"))


def _tied(replay: Replay, path: str) -> np.ndarray:
    if path in replay.node.parameters.values():
        raise LookupError("tied to it anyway")
    bias = {role: array for role, array in replay.parameters.items() if role == "bias"}
    return formulas.tied_logits(replay.config, replay.inputs["x"], parameter(replay.params, path), **bias)
