"""Find the attentions in a graph, their heads and projections, and measure their numerics.

An attention is a product whose left operand holds the attention weights. The search goes back from there, element by
element: the weights, the logits whose softmax they are, the product of queries and keys, and the linear maps that
project query, key and value, with the channels of each head.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from jax_transformer.discover.graph import CLOSE, Graph, Linear, Product, close, distance
from jax_transformer.discover.labels import TARGET
from jax_transformer.discover.problems import Unknown
from jax_transformer.programs.trace import Value


@dataclass(frozen=True, eq=False)
class Projection:
    """Holds the query, key or value of an attention: linear maps of one input, and the channels of each head."""

    linears: tuple[Linear, ...]
    """One, or one for each group of heads."""
    elements: np.ndarray
    """[B, N, P, H], of the linear maps' outputs"""
    used: np.ndarray
    """[B, N, P, H], the same as the attention uses them, perhaps scaled or rotated"""

    @property
    def inputs(self) -> np.ndarray:
        """Returns elements [B, P, In]."""
        return self.linears[0].inputs

    @cached_property
    def groups(self) -> int:
        """Returns the number of distinct heads if equally many neighbouring heads share each; 0 for another sharing."""
        heads = self.elements[0, :, 0]
        count = len(np.unique(heads, axis=0))
        return count if np.array_equal(heads, heads[:: len(heads) // count].repeat(len(heads) // count, axis=0)) else 0

    @cached_property
    def kernel(self) -> np.ndarray:
        """Returns elements of parameters [In, G, H], G heads of its own."""
        return np.stack([linear.kernel[:, channels] for linear, channels in self._heads], axis=1)

    @cached_property
    def bias(self) -> np.ndarray | None:
        """Returns elements of parameters [G, H]."""
        found = [None if linear.bias is None else linear.bias[channels] for linear, channels in self._heads]
        return None if any(one is None for one in found) else np.stack(found)  # type: ignore[arg-type]

    @property
    def _heads(self) -> list[tuple[Linear, list[int]]]:
        """Returns each head's linear map and the channels of its components."""
        heads = []
        for head in self.elements[0, :: self.elements.shape[1] // (self.groups or self.elements.shape[1]), 0]:
            linear = next(one for one in self.linears if int(head[0]) in one.channels)
            heads.append((linear, [linear.channels[int(element)] for element in head]))
        return heads


@dataclass(frozen=True, eq=False)
class Attention:
    """Holds one attention, with all its heads."""

    first: Value
    """Returns the product of the first head's context, the first in execution order."""
    query: Projection
    key: Projection
    value: Projection
    raw: np.ndarray
    """query · key of the projections [B, N, Q, K], before any scale, rotation, bias or mask."""
    logits: np.ndarray
    """[B, N, Q, K]"""
    weights: np.ndarray
    """[B, N, Q, K]"""
    context: np.ndarray
    """Elements [N, H] of the first token's context."""
    sides: tuple[bool, bool]
    """Whether queries and keys belong to the target."""

    @property
    def kind(self) -> str:
        """Returns encoder_self, decoder_self or cross."""
        kinds = {(False, False): "encoder_self", (True, True): "decoder_self", (True, False): "cross"}
        return kinds.get(self.sides, "source to target")

    @property
    def raw_scale(self) -> float:
        """Returns 1/sqrt(head_dim)."""
        return float(self.query.elements.shape[-1] ** -0.5)


def attentions(graph: Graph) -> list[Attention]:
    """Returns the attentions of a graph in execution order, one for each product that makes contexts.

    Raises:
      Unknown: an attention has an unknown form.
    """
    found = []
    for product in graph.products.values():
        left = graph.recording.roots(product.left)
        if graph.attends(product.value) or not all(graph.attends(root) for root in left):
            continue
        found.append(_read(graph, product))
    return found


def merged(parts: list[Attention]) -> Attention:
    """Returns one attention of attentions that are heads of it."""
    if len(parts) == 1:
        return parts[0]

    def heads(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts], axis=1)

    def projection(name: str) -> Projection:
        found = [getattr(part, name) for part in parts]
        return Projection(
            tuple(dict.fromkeys(linear for one in found for linear in one.linears)),
            np.concatenate([one.elements for one in found], axis=1),
            np.concatenate([one.used for one in found], axis=1),
        )

    return replace(
        parts[0],
        query=projection("query"),
        key=projection("key"),
        value=projection("value"),
        raw=heads("raw"),
        logits=heads("logits"),
        weights=heads("weights"),
        context=np.concatenate([part.context for part in parts]),
    )


def _read(graph: Graph, mix: Product) -> Attention:
    """Reads the attention that a product of weights and values belongs to."""
    order = _order(graph, mix)
    weights = _matrix(mix.left, order)  # elements [B, N, Q, K]
    value = _projection(graph, _rows(mix.right, order), mix.value, "value")
    logits = _logits(graph, weights, mix.value)
    scored = graph.pull(logits, lambda root: root in graph.products and graph.attends(root))
    if scored is None:
        raise Unknown(mix.value, "attention logits that aren't made from a product of queries and keys")
    product = graph.products[graph.root_of(scored)] if graph.root_of(scored) else None  # type: ignore[index]
    if product is None:
        raise Unknown(mix.value, "attention logits made of several products")
    query, key = _operands(product, scored, graph)
    queries = _projection(graph, query, mix.value, "query")
    keys = _projection(graph, key, mix.value, "key")
    token = [bool((graph.labels.at(part[0, 0, :1, 0]).token >= TARGET).all()) for part in (query, key)]
    return Attention(
        mix.value,
        queries,
        keys,
        value,
        raw=_multiplied(graph, queries.elements, keys.elements),
        logits=graph.values(logits),
        weights=graph.values(weights),
        context=_contexts(graph, mix, order),
        sides=(token[0], token[1]),
    )


@dataclass(frozen=True)
class _Order:
    """Holds the positions of each sentence's heads, queries and keys in a product."""

    heads: np.ndarray
    """[B, N], the number in the product's first axis"""
    queries: np.ndarray
    """[B, N, Q], rows of the left operand"""
    keys: np.ndarray
    """[B, N, K], its columns"""


def _order(graph: Graph, mix: Product) -> _Order:
    left = graph.labels.at(mix.left)
    batch = left.batch[:, 0, 0]
    rows = [np.flatnonzero(batch == one) for one in np.unique(batch)]
    if (left.batch != batch[:, None, None]).any() or len({len(row) for row in rows}) != 1:
        raise Unknown(mix.value, "an attention over several sentences")
    heads = np.stack(rows)
    return _Order(heads, np.argsort(left.token[:, :, 0], axis=1)[heads], np.argsort(left.key[:, 0], axis=1)[heads])


def _matrix(left: np.ndarray, order: _Order) -> np.ndarray:
    """Returns the elements [B, N, Q, K]."""
    return left[order.heads[..., None, None], order.queries[..., :, None], order.keys[..., None, :]]


def _rows(right: np.ndarray, order: _Order) -> np.ndarray:
    """Returns the elements [B, N, K, H] that the weights multiply."""
    return right[order.heads[..., None], order.keys]


def _contexts(graph: Graph, mix: Product, order: _Order) -> np.ndarray:
    return mix.result[order.heads[0], order.queries[0, :, 0]]


def _logits(graph: Graph, weights: np.ndarray, where: Value) -> np.ndarray:
    """Returns the elements whose softmax the weights are, searching backwards from the weights."""
    computed, apart = np.nan_to_num(graph.values(weights)), float("inf")
    for elements in _behind(graph, weights):
        softmax = _softmax(graph.values(elements))
        if close(softmax, computed):
            return elements
        apart = min(apart, distance(softmax, computed))
    nearest = None if apart == float("inf") else ("the softmax of their inputs", apart)
    raise Unknown(where, "attention weights that aren't a softmax over the keys", nearest)


def _behind(graph: Graph, elements: np.ndarray) -> Iterator[np.ndarray]:
    """Yields elements of attention matrices behind these, the nearest first, up to the product that they come from."""
    queue, seen = [elements], set()
    while queue:
        one = queue.pop(0)
        root = graph.root_of(one)
        if root is None or root in seen:
            continue
        seen.add(root)
        if one is not elements:
            yield one
        if root in graph.products:
            continue
        for operand in root.inputs:
            if operand.depends_on_ids and operand.is_float:
                before = graph.operand(root, operand, one)
                if before is not None and all(graph.attends(part) for part in graph.recording.roots(before)):
                    queue.append(before)


def _softmax(logits: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        highest = logits.max(axis=-1, keepdims=True)
        exponentials = np.exp(logits - np.where(np.isfinite(highest), highest, 0))
        total = exponentials.sum(axis=-1, keepdims=True)
        return np.where(total > 0, exponentials / np.where(total > 0, total, 1), 0)


def _operands(product: Product, scored: np.ndarray, graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Returns the elements of query [B, N, Q, H] and key [B, N, K, H] behind elements of their product [B, N, Q, K]."""
    order = np.argsort(product.result.ravel())
    places = order[np.searchsorted(product.result.ravel(), scored, sorter=order)]
    n, row, column = np.unravel_index(places, product.result.shape)
    return product.left[n[..., 0], row[..., 0]], product.right[n[:, :, 0], :, column[:, :, 0]]


def _projection(graph: Graph, used: np.ndarray, where: Value, what: str) -> Projection:
    elements = graph.pull(used, lambda root: root in graph.linears)
    if elements is None:
        odd = graph.behind(graph.recording.roots(used)[0], lambda root: root in graph.odd)
        raise Unknown(
            odd[-1] if odd else where, f"an attention's {what} that isn't a linear projection of a whole token"
        )
    elements = _each_once(graph, used, elements)
    return Projection(tuple(graph.linears[root] for root in graph.recording.roots(elements)), elements, used)


def _each_once(graph: Graph, used: np.ndarray, elements: np.ndarray) -> np.ndarray:
    """Returns the elements [B, N, P, H] before a rotation. A rotation of a pair (a, b) writes both sums with a first,
    so b is the last operand of the second."""
    repeats = (elements[..., :, None] == elements[..., None, :]) & np.tri(elements.shape[-1], k=-1, dtype=bool)
    again = repeats.any(axis=-1)
    others = graph.pull(used, lambda root: root in graph.linears, last=True) if again.any() else None
    return elements if others is None else np.where(again, others, elements)


def _multiplied(graph: Graph, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    product: np.ndarray = graph.values(query) @ np.swapaxes(graph.values(key), -1, -2)
    return product


# --- numerics


@dataclass(frozen=True, eq=False)
class LogitsFit:
    """Describes logits as an affine function of query · key: logits = scale · raw + bias."""

    scale: float
    bias: np.ndarray | None
    """[N, Q, K], shared by all sentences; NaN where every sentence masks it. None: no bias."""
    residual: float


def with_products(attention: Attention, query: np.ndarray, key: np.ndarray) -> Attention:
    """Returns the attention with the products of these queries [B, N, Q, H] and keys [B, N, K, H] as its raw scores."""
    return replace(attention, raw=query @ np.swapaxes(key, -1, -2))


def fit_logits(attention: Attention) -> LogitsFit:
    """Fits the factor between logits and query · key, and a bias that all sentences share.

    Raises:
      Unknown: the logits of visible keys fit neither form.
    """
    scale, residual = fit_scale(attention)
    if residual <= CLOSE:
        return LogitsFit(scale, None, residual)
    raw, logits = _where_visible(attention)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # keys that no sentence shows
        centred = raw - np.nanmean(raw, axis=0)
        scale = float(np.nansum(centred * logits) / np.nansum(centred * raw))
        scale = next((one for one in (1.0, attention.raw_scale) if abs(scale / one - 1) < 1e-9), scale)
        bias = np.nanmean(logits - scale * raw, axis=0)
    if (residual := _relative(logits - scale * raw - bias, logits)) <= CLOSE:
        return LogitsFit(scale, bias, residual)
    what = "attention logits other than query · key times a number plus a bias"
    raise Unknown(attention.first, what, (f"{scale:.3g} · query · key + a bias", residual))


def fit_scale(attention: Attention) -> tuple[float, float]:
    """Returns the number nearest to logits / (query · key), and how far logits are from that multiple."""
    raw, logits = _where_visible(attention)
    scale = float(np.nansum(raw * logits) / np.nansum(raw * raw))
    return scale, _relative(logits - scale * raw, logits)


def _where_visible(attention: Attention) -> tuple[np.ndarray, np.ndarray]:
    """Returns raw products and logits, NaN where a query doesn't attend to a key."""
    visible = visible_keys(attention)
    return np.where(visible, attention.raw, np.nan), np.where(visible, attention.logits, np.nan)


def _relative(error: np.ndarray, whole: np.ndarray) -> float:
    return float(np.sqrt(np.nanmean(error**2) / np.nanmean(whole**2)))


def visible_keys(attention: Attention) -> np.ndarray:
    """Returns a mask [B, N, Q, K] of the keys that each query attends to, without fully masked rows."""
    weights = np.nan_to_num(attention.weights)
    uniform = np.ptp(weights, axis=-1, keepdims=True) < 1e-9
    return (weights > 0) & ~(uniform & (weights.shape[-1] > 1) & (np.abs(attention.logits) > 1e3))
