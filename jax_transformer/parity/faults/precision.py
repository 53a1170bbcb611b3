"""Faults of precision: a node rounded to, or computed in, a narrower dtype than the model's.

Two programs that compute in float32 round differently, so neither can be replayed to the last bit. Such a node is
recognised instead: all its values are numbers of the dtype, the correct ones aren't, and the difference is rounding to
that dtype alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, get_args

import numpy as np

from jax_transformer.comparison.gates import tolerances
from jax_transformer.parity.faults.replay import Parts, Replay, Variant
from jax_transformer.parity.faults.rounding import LOWEST, is_of, is_rounding, rounded
from jax_transformer.parity.oracle.graph import Kind

WITHOUT_ARITHMETIC: tuple[Kind, ...] = ("mask", "positions", "merge_heads", "same")
"""Nodes that only look up or pass on values, and positions, which are computed once for a table."""
ROUNDED_ELSEWHERE: tuple[Kind, ...] = ("mask", "positions")
"""Masks aren't rounded; positions have variants of their own."""


def precision() -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = get_args(Kind)
    for dtype in tolerances.COMPUTED_IN:
        yield Variant(
            f"rounded to {dtype}",
            tuple(kind for kind in kinds if kind not in ROUNDED_ELSEWHERE),
            partial(_rounded, dtype=dtype),
            recognises=True,
        )
        computed = tuple(kind for kind in kinds if kind not in WITHOUT_ARITHMETIC)
        yield Variant(f"computed in {dtype}", computed, partial(_computed, dtype=dtype), recognises=True)


def _rounded(replay: Replay, dtype: str) -> np.ndarray:
    exact = _exact(replay, dtype)
    if is_of(exact, dtype):
        raise LookupError("nothing to round")
    return rounded(exact, dtype)


def _computed(replay: Replay, dtype: str) -> np.ndarray:
    """Returns the received value if it is recognised; for a correct value, one possible result.

    Raises:
      LookupError: otherwise; or if the computed value would only be rounded, or too far off to be recognised.
    """
    exact = _exact(replay, dtype)
    once = rounded(exact, dtype)
    if _is_recognised(replay, exact, once, dtype):
        return np.where(_masked(replay), once, replay.received)
    if not replay.error(exact) <= tolerances.FLOAT64_RELATIVE_RMS:
        raise LookupError("not of this dtype")
    inputs, parameters = _narrow(replay.inputs, dtype), _narrow(replay.parameters, dtype)
    value = rounded(replay.compute(inputs, parameters, _parts(replay, dtype)), dtype)
    if np.array_equal(value, once, equal_nan=True) or not replay.error(value) <= tolerances.COMPUTED_IN[dtype]:
        raise LookupError("only rounded, or not recognisable")
    return value


def _exact(replay: Replay, dtype: str) -> np.ndarray:
    return replay.compute(parts=_parts(replay, dtype)) if replay.node.kind == "attention_logits" else replay.own


def _is_recognised(replay: Replay, exact: np.ndarray, once: np.ndarray, dtype: str) -> bool:
    received, counts = replay.received, ~_masked(replay)
    seen = np.broadcast_to(counts, received.shape)
    if not (is_of(received[seen], dtype) and not is_of(exact[seen], dtype)) or np.array_equal(received, once):
        return False
    if not replay.error(exact) <= tolerances.COMPUTED_IN[dtype]:
        return False
    parts = _parts(replay, dtype)
    return is_rounding(replay, lambda other: other.compute(parts=parts), dtype, counts)


def _masked(replay: Replay) -> np.ndarray:
    """Returns a mask of the masked logits, whose values don't depend on precision."""
    mask = replay.inputs.get("mask") if replay.node.kind == "attention_logits" else None
    return np.zeros((), bool) if mask is None else ~mask


def _parts(replay: Replay, dtype: str) -> Parts:
    """Returns the node's parts; masked logits that are the lowest number of the dtype become that of the narrow
    dtype."""
    if replay.node.kind != "attention_logits" or replay.option("masked_value") is not None:
        return replay.parts
    return replay.with_options(masked_value=LOWEST[dtype])


def _narrow(arrays: Any, dtype: str) -> dict[str, np.ndarray]:
    """Rounds arrays to the dtype, stored in float32; logits below its lowest number become that number."""
    return {
        name: rounded(array.clip(LOWEST[dtype], -LOWEST[dtype]), dtype).astype(np.float32)
        if array.dtype.kind == "f"
        else array
        for name, array in arrays.items()
    }
