"""Write every stream as a sum of its terms: embeddings, tables, results of sublayers and of norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from jax_transformer.discover.graph import Graph
from jax_transformer.discover.norms import Norm
from jax_transformer.programs.trace import Value


@dataclass(frozen=True)
class Sum:
    """Holds a stream as Σ factor · term."""

    terms: Mapping[Value, float] = field(default_factory=dict)
    """Roots that aren't sums themselves → their factors."""
    tables: tuple[tuple[float, np.ndarray], ...] = ()
    """Factors and elements [B, P, C] of the terms that don't depend on ids."""

    @property
    def only(self) -> Value | None:
        """Returns the only term, if its factor is 1 and there is no other."""
        return next(iter(self.terms)) if list(self.terms.values()) == [1.0] and not self.tables else None

    def scaled(self, factor: float) -> Sum:
        return Sum(
            {term: factor * one for term, one in self.terms.items()},
            tuple((factor * one, table) for one, table in self.tables),
        )

    def plus(self, other: Sum) -> Sum:
        terms = dict(self.terms)
        for term, factor in other.terms.items():
            terms[term] = terms.get(term, 0.0) + factor
        return Sum(terms, self.tables + other.tables)

    def without(self, term: Value) -> Sum:
        return Sum({one: factor for one, factor in self.terms.items() if one is not term}, self.tables)

    def same_as(self, other: Sum) -> bool:
        return (
            {term: round(factor, 12) for term, factor in self.terms.items()}
            == {term: round(factor, 12) for term, factor in other.terms.items()}
            and len(self.tables) == len(other.tables)
            and all(
                abs(one[0] - two[0]) < 1e-12 and np.array_equal(one[1], two[1])
                for one, two in zip(self.tables, other.tables, strict=True)
            )
        )


class Sums:
    """Writes streams as sums, each root once."""

    def __init__(self, graph: Graph, norms: Mapping[Value, Norm], pads: Sequence[np.ndarray] = ()) -> None:
        self.graph, self.norms, self.pads = graph, norms, pads
        self.zeroed: list[Value] = []
        self.scales: dict[Value, tuple[np.ndarray, Sum]] = {}
        """Products of a stream and a trained scale → the scale's elements, one or one per channel, and the stream."""
        self._of: dict[Value, Sum] = {}
        self._first: dict[tuple[bytes, str], Value] = {}

    def of(self, elements: np.ndarray) -> Sum:
        """Returns the elements [B, P, C] of a stream as a sum."""
        roots = self.graph.recording.roots(elements)
        if not any(root.depends_on_ids for root in roots):
            return Sum(tables=((1.0, elements),))
        whole = self.graph.whole(elements)
        if whole is not None:
            return self.at_root(whole)
        return Sum({self._same(roots[-1], elements): 1.0})

    def at_root(self, root: Value) -> Sum:
        found = self._of.get(root)
        if found is None:
            found = self._of[root] = self._computed(root)
        return found

    def values(self, total: Sum) -> np.ndarray:
        """Returns the numbers of a sum [B, P, C]."""
        parts = [factor * self.graph.values(table) for factor, table in total.tables]
        for term, factor in total.terms.items():
            stream = self.graph.stream(term)
            assert stream is not None
            parts.append(factor * self.graph.values(stream.elements))
        return np.asarray(sum(parts))

    def _computed(self, root: Value) -> Sum:
        graph, stream = self.graph, self.graph.stream(root)
        assert stream is not None
        if root in self.norms or root in graph.linears or root in graph.lookups or root in graph.products:
            return Sum({self._same(root, stream.elements): 1.0})
        if root.op in ("add", "sub") and len(root.inputs) == 2:
            operands = [graph.operand(root, one, stream.elements) for one in root.inputs]
            if all(one is not None for one in operands):
                sign = float(root.kwargs.get("alpha", 1)) * (1 if root.op == "add" else -1)
                first, second = (self.of(one) for one in operands if one is not None)
                return first.plus(second.scaled(sign))
        if root.op in ("mul", "masked_fill", "where") and (before := self._real_tokens(root)) is not None:
            return self.of(before)
        if root.op in ("mul", "div"):
            factor = self._factor(root)
            operand = next((one for one in root.inputs if one.depends_on_ids), None)
            before = None if operand is None else graph.operand(root, operand, stream.elements)
            if factor is not None and before is not None:
                return self.of(before).scaled(factor)
            if root.op == "mul" and before is not None and (scale := self._scale(root)) is not None:
                self.scales[root] = scale, self.of(before)
        return Sum({self._same(root, stream.elements): 1.0})

    def _scale(self, root: Value) -> np.ndarray | None:
        """Returns the elements of a trained scale that an operation multiplies a stream with."""
        others = [one for one in root.inputs if not one.depends_on_ids]
        stream = self.graph.stream(root)
        if len(root.inputs) != 2 or len(others) != 1 or stream is None:
            return None
        factors = self.graph.operand(root, others[0], stream.elements)
        if factors is None or (factors != factors[:1, :1]).any():
            return None
        if not all(one.trains for one in self.graph.recording.roots(factors)):
            return None
        return factors[0, 0, :1] if (factors == factors[0, 0, 0]).all() else factors[0, 0]

    def _real_tokens(self, root: Value) -> np.ndarray | None:
        """Returns the elements of a stream that an operation keeps, apart from tokens that it sets to zero.

        The zeroed tokens must all be padding, which nothing reads; `zeroed` keeps the operation for a note.
        """
        stream, computed = self.graph.stream(root), None
        assert stream is not None
        computed = self.graph.values(stream.elements)
        for operand in root.inputs:
            before = self.graph.operand(root, operand, stream.elements) if operand.depends_on_ids else None
            if before is None or not operand.is_float or operand.array.size != root.array.size:
                continue
            values = self.graph.values(before)
            real = (computed == values).all(axis=-1)
            if real.any() and not real.all() and (computed[~real] == 0).all() and self._is_padding(~real):
                self.zeroed.append(root)
                return before
        return None

    def _is_padding(self, tokens: np.ndarray) -> bool:
        return any(np.array_equal(tokens, pads) for pads in self.pads)

    def _factor(self, root: Value) -> float | None:
        """Returns the number that an operation multiplies a stream with; None if it isn't one number."""
        others = [one for one in root.inputs if not one.depends_on_ids]
        if len(root.inputs) == 1 and root.literals:
            number = root.literals[0]
        elif len(root.inputs) == 2 and len(others) == 1 and others[0].array.size == 1 and not _trained(others[0]):
            number = float(others[0].array.item())
        else:
            return None
        if root.op == "div":
            return 1 / number if root.inputs[0].depends_on_ids else None
        return number

    def _same(self, root: Value, elements: np.ndarray) -> Value:
        """Returns the first root with the same numbers, as a program may compute a value twice."""
        values = self.graph.values(elements)
        return self._first.setdefault((values.tobytes(), str(values.shape)), root)


def _trained(value: Value) -> bool:
    return any(one.trains for one in value.parameters)
