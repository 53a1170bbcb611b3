"""Faults of relative positions: ALiBi's biases, learned biases, and vectors of keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from jax_transformer.config.positions import Alibi, RelativeBias, RelativeVectors
from jax_transformer.parity.faults.replay import Replay, Variant
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import Kind, parameter


def distances() -> Iterator[Variant]:
    yield from _alibi()
    yield from _biases()
    yield from _vectors("keys", "attention_logits")
    yield Variant("relative vectors: products not scaled", ("attention_logits",), partial(_logits_with, scale=1.0))
    yield from _vectors("values", "context")


# --- ALiBi (Press et al. 2022)

SLOPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "slopes 2^(−8i / N) though N is no power of two": lambda head: 2.0 ** (-8.0 * (head + 1) / len(head)),
    "slopes from 1 on": lambda head: np.array(formulas.alibi_slopes(len(head))) * 2.0 ** (8.0 / len(head)),
    "slopes 2^−i": lambda head: 2.0 ** -(head + 1.0),
    "slopes in the opposite order": lambda head: np.array(formulas.alibi_slopes(len(head)))[::-1],
    "slopes in the order of their size": lambda head: -np.sort(-np.array(formulas.alibi_slopes(len(head)))),
    "the same slope for all heads": lambda head: np.full(len(head), formulas.alibi_slopes(len(head))[0]),
}
"""Wrong slopes, from the number of heads."""
DISTANCES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sign reversed": lambda offsets: -np.abs(offsets),
    "later keys raised": lambda offsets: -offsets,
    "later keys left alone": lambda offsets: np.maximum(-offsets, 0),
    "distances one too far": lambda offsets: np.abs(offsets) + 1,
    "distances from the next key": lambda offsets: np.abs(offsets + 1),
    "by the key's column alone": lambda offsets: -np.broadcast_to(np.arange(len(offsets)), offsets.shape),
}
"""Wrong distances, from the offset of each key from its query."""


def _alibi() -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = ("position_bias",)
    for name, slopes in SLOPES.items():
        yield Variant(f"ALiBi: {name}", kinds, partial(_biased, slopes=slopes))
    for name, distance in DISTANCES.items():
        yield Variant(f"ALiBi: {name}", kinds, partial(_biased, distance=distance))


def _biased(
    replay: Replay,
    slopes: Callable[[np.ndarray], np.ndarray] = lambda head: np.array(formulas.alibi_slopes(len(head))),
    distance: Callable[[np.ndarray], np.ndarray] = np.abs,
) -> np.ndarray:
    if not isinstance(replay.stack.positions, Alibi):
        raise LookupError("learned biases")
    _, heads, length, _ = replay.own.shape
    return (-slopes(np.arange(heads))[:, None, None] * distance(formulas.offsets(length)))[None]


# --- learned biases (Raffel et al. 2020, §2.1)


def _biases() -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = ("position_bias",)
    factors: dict[str, Callable[[Replay], float]] = {
        "factor of relative biases missing": lambda replay: 1.0,
        "factor of relative biases applied twice": lambda replay: _own_factor(replay) ** 2,
        "factor of the other stack's relative biases": _other_stack_factor,
        "relative biases scaled by √head_dim": lambda replay: replay.stack.heads.head_dim**0.5,
        "relative biases scaled by 1/√head_dim": lambda replay: replay.stack.heads.head_dim**-0.5,
    }
    for name, factor in factors.items():
        yield Variant(name, kinds, partial(_scaled, factor=factor))


def _scaled(replay: Replay, factor: Callable[[Replay], float]) -> np.ndarray:
    """Scales the biases by another factor. Raises LookupError if it is their own, or if they aren't learned."""
    _own_factor(replay)
    return replay.under(factor=factor(replay))


def _own_factor(replay: Replay) -> float:
    """Returns the factor of the stack's learned biases. Raises LookupError if it has none."""
    if not isinstance(replay.stack.positions, RelativeBias):
        raise LookupError("no learned biases")
    return replay.stack.positions.factor


def _other_stack_factor(replay: Replay) -> float:
    other = replay.other_stack.positions
    return other.factor if isinstance(other, RelativeBias) else 1.0


# --- vectors (Shaw et al. 2018)


def _vectors(role: str, kind: Kind) -> Iterator[Variant]:
    of: Callable[..., np.ndarray] = _logits_with if role == "keys" else _context_with
    other = "values" if role == "keys" else "keys"
    name = f"relative vectors of {role}"
    yield Variant(f"{name} missing", (kind,), partial(_missing, argument=f"relative_{role}"))
    yield Variant(f"{name} are those of {other}", (kind,), partial(of, table=other))
    yield Variant(f"{name}: directions exchanged", (kind,), partial(of, rows=lambda rows, most: 2 * most - rows))
    for by, way in ((1, "far"), (-1, "near")):
        shifted = partial(_shifted, by=by)
        yield Variant(f"{name}: row one too {way}", (kind,), partial(of, rows=shifted))
    yield Variant(f"{name}: clipped one too near", (kind,), partial(of, rows=_clipped))


def _shifted(rows: np.ndarray, most: int, by: int) -> np.ndarray:
    return np.clip(rows + by, 0, 2 * most)


def _clipped(rows: np.ndarray, most: int) -> np.ndarray:
    return np.clip(rows, 1, 2 * most - 1)


def _missing(replay: Replay, argument: str) -> np.ndarray:
    if argument not in replay.parameters:
        raise LookupError(argument)
    return replay.compute(parameters={})


Rows = Callable[[np.ndarray, int], np.ndarray]
"""(rows [T, T] of the table, the largest distance) → changed rows."""


def _as_they_are(rows: np.ndarray, most: int) -> np.ndarray:
    return rows


def _logits_with(
    replay: Replay, rows: Rows = _as_they_are, table: str = "keys", scale: float | None = None
) -> np.ndarray:
    """Computes logits with other rows, another table, or another scale of the products."""
    vectors, query = _table(replay, "relative_keys", table), replay.inputs["query"]
    products = formulas.relative_products(query, vectors, _rows(replay, rows, query.shape[1]))
    scale = formulas.attention_scale(replay.parts["spec"], query) if scale is None else scale
    return replay.compute({"position_bias": scale * products}, parameters={})


def _context_with(replay: Replay, rows: Rows = _as_they_are, table: str = "values") -> np.ndarray:
    """Computes the context with other rows or another table."""
    vectors, weights = _table(replay, "relative_values", table), replay.inputs["weights"]
    added = formulas.relative_context(weights, vectors, _rows(replay, rows, weights.shape[2]))
    return replay.compute(parameters={}) + added


def _rows(replay: Replay, rows: Rows, length: int) -> np.ndarray:
    vectors: RelativeVectors = replay.parts["vectors"]
    return rows(formulas.relative_rows(vectors, length), vectors.max_distance)


def _table(replay: Replay, argument: str, name: str) -> np.ndarray:
    """Returns the table of "keys" or "values" in the node's attention. Raises LookupError in attentions without
    vectors, and ValueError if the table doesn't exist."""
    own = argument.removeprefix("relative_")
    path = replay.node.parameters[argument]
    return parameter(replay.params, path.replace(f"relative_vectors/{own}", f"relative_vectors/{name}"))
