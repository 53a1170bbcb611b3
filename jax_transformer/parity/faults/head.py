"""Faults of the head.

A head that should be tied but isn't can't be replayed: its kernel is in neither side's parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from jax_transformer.parity.faults.attention import CAPS
from jax_transformer.parity.faults.feed_forward import ACTIVATIONS
from jax_transformer.parity.faults.replay import Replay, Variant, configured
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import Kind, parameter


def head() -> Iterator[Variant]:
    for activation, name in ACTIVATIONS.items():
        yield configured(f"head's transform: {name}", ("head_transform",), transform=activation)
    kinds: tuple[Kind, ...] = ("logits",)
    yield configured("head scaled by 1/√d_model", kinds, scales_input=True)
    yield configured("head not scaled by 1/√d_model", kinds, scales_input=False)
    yield Variant("head scaled by √d_model", kinds, _scaled_by_root)
    yield configured("factor of the logits missing", kinds, factor=1.0)
    yield Variant("factor of the logits applied twice", kinds, _transposed)
    yield Variant("factor of the logits applied before their bias", kinds, _before_the_bias)
    yield configured("cap of the logits missing", kinds, cap=None)
    for cap in CAPS:
        yield configured(f"logits capped at {cap:g}", kinds, cap=cap)
    yield Variant("bias added twice", kinds, lambda replay: _more_of_the_bias(replay, replay.config.head.factor))
    yield Variant("log-softmax taken already", kinds, _log_softmax)
    yield Variant("softmax taken already", kinds, lambda replay: formulas.attention_weights(replay.own))
    for side in ("source", "target"):
        yield Variant(f"head tied to the {side} embedding", kinds, partial(_tied, path=f"{side}_embedding/embedding"))


def _tied(replay: Replay, path: str) -> np.ndarray:
    if path in replay.node.parameters.values():
        raise LookupError("tied to it anyway")
    bias = {role: array for role, array in replay.parameters.items() if role == "bias"}
    return formulas.tied_logits(replay.config.head, replay.inputs["x"], parameter(replay.params, path), **bias)


def _scaled_by_root(replay: Replay) -> np.ndarray:
    x = replay.inputs["x"] * math.sqrt(replay.inputs["x"].shape[-1])
    return replay.compute({"x": x}, parts=replay.with_options(scales_input=False))


def _transposed(replay: Replay) -> np.ndarray:
    return replay.under(factor=replay.config.head.factor**2)


def _before_the_bias(replay: Replay) -> np.ndarray:
    if replay.config.head.factor == 1.0:
        raise LookupError("no factor")
    return _more_of_the_bias(replay, 1.0 - replay.config.head.factor)


def _more_of_the_bias(replay: Replay, share: float) -> np.ndarray:
    straight = replay.compute(parts=replay.with_options(cap=None)) + share * replay.parameters["bias"]
    return formulas.capped(straight, replay.config.head.cap)


def _log_softmax(replay: Replay) -> np.ndarray:
    shifted = replay.own - replay.own.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
