"""Read the relative-position vectors that attention adds to keys and values (Shaw et al. 2018, §3.2).

A table is recognized by its numbers, whichever way a program looks it up and multiplies it: its rows reproduce the
recorded results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from jax_transformer.discover.attention import Attention, fit_scale
from jax_transformer.discover.graph import CLOSE, Graph, distance
from jax_transformer.programs.trace import Value


def key_vectors(graph: Graph, attention: Attention) -> np.ndarray | None:
    """Returns the elements [2 M + 1, H] of the table whose rows an attention adds to its keys; None if it adds none."""
    for table in _tables(graph, [attention.first], attention.query.elements.shape[-1]):
        if fit_scale(with_key_vectors(graph, attention, table))[1] <= CLOSE:
            return table
    return None


def with_key_vectors(graph: Graph, attention: Attention, table: np.ndarray) -> Attention:
    """Returns the attention with the products of its queries and a table's rows in its raw ones."""
    query = graph.values(attention.query.elements)
    products = np.einsum("bnqh,qkh->bnqk", query, _rows(graph, table, attention))
    return replace(attention, raw=attention.raw + products)


def value_vectors(graph: Graph, attention: Attention, contexts: np.ndarray) -> np.ndarray | None:
    """Returns the elements [2 M + 1, W] of the table whose rows an attention adds to its values.

    Args:
      contexts: elements [B, N, Q, W] of the attention's output.

    Returns:
      None unless the contexts are weighted sums of values and a table's rows.
    """
    computed = graph.values(contexts)
    plain = attention.weights @ graph.values(attention.value.used)
    for table in _tables(graph, graph.recording.roots(contexts), computed.shape[-1]):
        rows = _rows(graph, table, attention)
        if distance(plain + np.einsum("bnqk,qkw->bnqw", attention.weights, rows), computed) <= CLOSE:
            return table
    return None


def _rows(graph: Graph, table: np.ndarray, attention: Attention) -> np.ndarray:
    """Returns the table's row for every query and key [Q, K, H], the last one for all that are farther."""
    limit = len(table) // 2
    queries, keys = np.ogrid[: attention.weights.shape[2], : attention.weights.shape[3]]
    return graph.values(table)[np.clip(keys - queries, -limit, limit) + limit]


def _tables(graph: Graph, roots: Iterable[Value], width: int) -> Iterator[np.ndarray]:
    """Yields elements [2 M + 1, width] of trained tables that roots are computed from, but for linear maps, in the
    order of distances from a query to its keys and in the opposite one."""
    for one in graph.before_linears(roots):
        if one.trains and one.array.ndim == 2:
            own = graph.recording.own(one)
            tables = (own, own[::-1], own.T, own.T[::-1])
            yield from (table for table in tables if table.shape[1] == width and len(table) % 2)
