"""Read a bias of attention logits as relative positions (Raffel et al. 2020, §2.1; Press et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jax_transformer.discover.attention import Attention
from jax_transformer.discover.graph import CLOSE, Graph, distance
from jax_transformer.discover.problems import Unknown
from jax_transformer.parity.oracle import formulas
from jax_transformer.programs.trace import Value

LONGEST_DISTANCE = 1024
"""The largest max_distance that is tried."""


@dataclass(frozen=True, eq=False)
class ByDistance:
    """Holds the terms that an attention adds by the distance between a query and a key."""

    kind: str
    """Kind of positions"""
    leaves: dict[str, np.ndarray]
    """Elements of tables by their paths in a stack or layer, such as relative_bias/embedding [buckets, N]"""
    fields: dict[str, Any]
    residual: float
    runner_up: tuple[str, float] | None = None
    factor: float = 1.0
    """Multiplies the table's biases"""
    distances: frozenset[int] = frozenset()
    """Every max_distance that is consistent with the observed rows"""

    @property
    def described(self) -> str:
        fields = self.fields | ({} if self.factor == 1.0 else {"factor": self.factor})
        fields |= {"max_distance": min(self.distances)} if len(self.distances) == 1 else {}
        return ", ".join([self.kind, *(f"{name} {value}" for name, value in fields.items())])


def read_bias(graph: Graph, attention: Attention, bias: np.ndarray) -> ByDistance:
    """Returns the table whose rows form the bias [N, Q, K], and the buckets of distances.

    Raises:
      Unknown: no table of one row per bucket explains it.
    """
    stack = "decoder" if attention.kind == "decoder_self" else "encoder"
    seen = ~np.isnan(bias)
    slopes = np.array(formulas.alibi_slopes(len(bias)))
    queries, keys = np.ogrid[: bias.shape[1], : bias.shape[2]]
    error = distance((-slopes[:, None, None] * np.abs(keys - queries))[seen], bias[seen])
    if error <= CLOSE * 100:
        return ByDistance("alibi", {}, {}, error)
    for value in _lookups_behind(graph, attention.first):
        table, buckets = value.inputs[0], value.inputs[-1].array
        if table.array.ndim != 2 or table.array.shape[1] != len(bias) or buckets.ndim < 2:
            continue
        rows = buckets.reshape(-1, *buckets.shape[-2:])[0]
        if rows.shape != bias.shape[1:]:
            continue
        expected = np.moveaxis(table.array[rows], -1, 0)
        factor = float((expected[seen] * bias[seen]).sum() / (expected[seen] ** 2).sum())
        factor = 1.0 if abs(factor - 1) < 1e-9 else factor
        error = distance(factor * expected[seen], bias[seen])
        if error <= CLOSE * 100:
            distances = _distances(rows, len(table.array), stack)
            if distances:
                fields = {"buckets": len(table.array)}
                leaves = {"relative_bias/embedding": graph.recording.elements(table)}
                return ByDistance("relative_bias", leaves, fields, error, None, factor, distances)
    raise Unknown(attention.first, "a bias of attention logits that follows from no table by distance")


def _lookups_behind(graph: Graph, value: Value) -> list[Value]:
    """Returns the lookups in trained tables by fixed numbers behind a Value, the nearest first."""
    found, seen, open_ones = [], set(), [value]
    while open_ones:
        one = open_ones.pop(0)
        if one in seen:
            continue
        seen.add(one)
        if one.op in ("embedding", "index", "index_select") and not one.depends_on_ids and one.parameters:
            found.append(one)
        elif one.op != "embedding" and one not in graph.linears:
            open_ones += one.inputs
    return found


def _distances(rows: np.ndarray, count: int, stack: str) -> frozenset[int]:
    """Returns every max_distance that yields the buckets [Q, K]."""
    offsets = np.arange(rows.shape[1]) - np.arange(rows.shape[0])[:, None]
    seen = offsets <= 0 if stack == "decoder" else np.ones(rows.shape, bool)
    offsets, rows = offsets[seen], rows[seen]
    known = dict(zip(offsets.tolist(), rows.tolist(), strict=True))
    if any(known[int(offset)] != row for offset, row in zip(offsets, rows, strict=True)):
        return frozenset()
    # Buckets grow with the distance, so the distances at which they change determine them all.
    edges = {one: row for one, row in known.items() if {known.get(one - 1), known.get(one + 1)} != {row}}
    return frozenset(
        farthest
        for farthest in range(count // 2 + 1, LONGEST_DISTANCE)
        if all(
            formulas.bucket(offset, count, farthest, is_causal=stack == "decoder") == row
            for offset, row in edges.items()
        )
    )
