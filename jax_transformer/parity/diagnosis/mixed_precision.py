"""Find faults of the catalogue in a node that is computed in lower precision: the rounding hides their exact values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jax_transformer.comparison.findings import Match
from jax_transformer.comparison.gates import tolerances
from jax_transformer.parity.diagnosis.judging import distance
from jax_transformer.parity.faults.catalogue import catalogue
from jax_transformer.parity.faults.norms import with_narrow_variance
from jax_transformer.parity.faults.replay import Replay, Variant
from jax_transformer.parity.faults.rounding import is_of, is_rounding


def narrow_dtype(replay: Replay) -> str:
    """Returns the narrowest dtype that all received values are numbers of and the right ones aren't; "" for none."""
    if replay.own.dtype == bool or replay.received.shape != replay.own.shape:
        return ""
    mask = replay.inputs.get("mask") if replay.node.kind == "attention_logits" else None
    counts = np.broadcast_to(True if mask is None else mask, replay.own.shape)
    received, own = replay.received[counts], replay.own[counts]
    if not np.isfinite(received).all():
        return ""
    narrow = [dtype for dtype in ("bfloat16", "float32") if is_of(received, dtype) and not is_of(own, dtype)]
    return narrow[0] if narrow else ""


def with_precision(replay: Replay, dtype: str) -> tuple[Match, ...]:
    """Returns the faults that, together with rounding to the received dtype, explain the received value."""
    found = []
    where = replay.inputs.get("mask") if replay.node.kind == "attention_logits" else None
    for variant in _single(replay):
        try:
            with np.errstate(all="ignore"):
                residual = replay.error(variant.compute(replay))
                fits = residual <= tolerances.COMPUTED_IN[dtype] and is_rounding(replay, variant.compute, dtype, where)
        except (ValueError, LookupError):
            continue
        if fits:
            found.append(Match(f"{variant.name}, computed in {dtype}", residual))
    found.sort(key=lambda match: match.residual)
    return tuple(match for match in found if match.residual <= MARGIN * found[0].residual)


def with_narrow_norm(replay: Replay) -> tuple[Match, ...]:
    """Returns the wrong norms that, together with float32's rounding of the variance, explain the value."""
    found = [Match(name, distance(replay.received, value)) for name, value in with_narrow_variance(replay)]
    return tuple(match for match in found if match.residual <= tolerances.FLOAT64_RELATIVE_RMS)


def is_near(replay: Replay, dtype: str) -> bool:
    """Returns whether a value is near enough to the correct one for its precision to mean anything."""
    return replay.error(replay.own) <= tolerances.COMPUTED_IN[dtype]


MARGIN = 2.0
"""Largest ratio between the distances of a cause and of the nearest cause: both include rounding, so a farther cause
has no claim."""


def _single(replay: Replay) -> Iterator[Variant]:
    """Yields the variants whose value follows from a formula; recognised variants would return the received value."""
    exact = replay.node.kind
    for variant in catalogue(replay.config):
        if exact in variant.kinds and not variant.recognises:
            yield variant
