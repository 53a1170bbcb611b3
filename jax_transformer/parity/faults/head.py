"""Faults of the head.

A head that should be tied but isn't can't be replayed: its kernel is in neither side's parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.parity.faults.replay import Replay, Variant, changed, configured
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import Kind
from jax_transformer.parity.oracle.replay import parameter

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig


def head(config: TransformerConfig) -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = ("logits",)
    yield configured(
        f"head {'not ' if config.scale_head else ''}scaled by 1/√d_model", kinds, scale_head=not config.scale_head
    )
    yield Variant("head scaled by √d_model", kinds, partial(_scaled, factor=math.sqrt(config.d_model)))
    if config.logits_factor != 1.0:
        for name, power in (("missing", 0), ("applied twice", 2)):
            yield configured(f"factor of the logits {name}", kinds, logits_factor=config.logits_factor**power)
        rest = partial(_more_of_the_bias, share=1.0 - config.logits_factor)
        yield Variant("factor of the logits applied before their bias", kinds, rest)
    yield Variant("bias added twice", kinds, partial(_more_of_the_bias, share=config.logits_factor))
    yield Variant("log-softmax taken already", kinds, _log_softmax)
    yield Variant("softmax taken already", kinds, lambda replay: formulas.attention_weights(replay.config, replay.own))
    for side in ("source", "target"):
        yield Variant(f"head tied to the {side} embedding", kinds, partial(_tied, path=f"{side}_embedding/embedding"))


def _tied(replay: Replay, path: str) -> np.ndarray:
    if path in replay.node.parameters.values():
        raise LookupError("tied to it anyway")
    bias = {role: array for role, array in replay.parameters.items() if role == "bias"}
    return formulas.tied_logits(replay.config, replay.inputs["x"], parameter(replay.params, path), **bias)


def _scaled(replay: Replay, factor: float) -> np.ndarray:
    x = replay.inputs["x"] * factor
    return replay.compute({"x": x}, config=changed(replay.config, scale_head=False))


def _more_of_the_bias(replay: Replay, share: float) -> np.ndarray:
    return replay.own + share * replay.parameters["bias"]


def _log_softmax(replay: Replay) -> np.ndarray:
    shifted = replay.own - replay.own.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
