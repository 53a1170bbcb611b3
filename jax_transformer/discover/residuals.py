"""Read residual streams: the input of each sublayer, and how its result is added to the stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jax_transformer.discover.graph import Graph, distance
from jax_transformer.discover.norms import Norm
from jax_transformer.discover.problems import Unknown
from jax_transformer.discover.sublayers import Sublayer
from jax_transformer.discover.sums import Sum, Sums
from jax_transformer.programs.trace import Value

EXACT = 1e-12
"""Maximum distance of a factor from the number that it is identified with."""


@dataclass(frozen=True, eq=False)
class Addition:
    """Holds the sum in which a sublayer's result is added to its stream."""

    root: Value
    total: Sum
    rest: Sum
    """The sum without the sublayer's part."""
    factor: float
    """Multiplies the sublayer's result."""
    norm: Norm | None
    """A norm of the result before it is added."""
    scale: np.ndarray | None
    """Elements of a trained scale of the result: one, or one per channel."""


@dataclass(frozen=True, eq=False)
class Step:
    """Holds how one sublayer changes its stream."""

    placement: str
    """pre, post or none"""
    norm: Norm | None
    addition: Addition
    stream_factor: float
    """Multiplies the stream before the result is added."""
    stream_scale: np.ndarray | None
    """Elements of a trained scale of the stream there [C]."""
    after: Sum
    """The stream behind it."""


class Residuals:
    """Follows a stream through sublayers."""

    def __init__(self, graph: Graph, sums: Sums, norms: dict[Value, Norm]) -> None:
        self.graph, self.sums, self.norms = graph, sums, norms

    def start(self, layer: Sequence[Sublayer]) -> Sum:
        """Returns the stream that the first sublayer of the first layer reads, or reads a norm of."""
        first = layer[0]
        reading, rest = self.sums.of(first.inputs), self.addition(first).rest
        if self._factors(rest, reading) is not None:
            return reading
        norm = self.norm_of(reading)
        if norm is not None and self._factors(rest, self.sums.of(norm.inputs)) is not None:
            return self.sums.of(norm.inputs)
        stream = self._read_by(first)
        # Parallel sublayers may be added to each other first, and then no sum holds the stream and one result alone.
        if self.are_parallel(layer, stream):
            self.parallel_steps(layer, stream)
            return stream
        raise self._elsewhere(first.result, rest, reading)

    def step(self, sublayer: Sublayer, stream: Sum, following: Sequence[Sum], after: Sublayer | None) -> Step:
        """Reads a sublayer on its stream.

        Args:
          following: the inputs of the stream's readers, for the last sublayer.

        Raises:
          Unknown: it reads neither its stream nor a norm of it, or its result is added to something else.
        """
        reading, addition = self.sums.of(sublayer.inputs), self.addition(sublayer)
        factors = self._factors(addition.rest, stream)
        if factors is None:
            raise self._elsewhere(addition.root, addition.rest, stream)
        if reading.same_as(stream):
            expected = [self.sums.of(after.inputs), self.addition(after).rest] if after is not None else following
            norm = next((one for one in (self._norm_between(addition.total, each) for each in expected) if one), None)
            stream = addition.total if norm is None else self.sums.at_root(norm.value)
            return Step("post" if norm else "none", norm, addition, *factors, stream)
        norm = self.norm_of(reading)
        if norm is None or not self.sums.of(norm.inputs).same_as(stream):
            nearest = "its stream" if norm is None else "a norm of its stream"
            apart = distance(*map(self.sums.values, (stream, reading if norm is None else self.sums.of(norm.inputs))))
            what = "a sublayer that reads neither its stream nor a norm of it"
            raise Unknown(sublayer.result, what, (nearest, apart))
        return Step("pre", norm, addition, *factors, addition.total)

    def _elsewhere(self, where: Value, rest: Sum, stream: Sum) -> Unknown:
        """Builds the error of a result that is added to another stream than its sublayer's."""
        apart = distance(self.sums.values(stream), self.sums.values(rest))
        return Unknown(
            where, "a residual connection to something other than the sublayer's stream", ("its stream", apart)
        )

    def are_parallel(self, layer: Sequence[Sublayer], stream: Sum) -> bool:
        """Returns whether all sublayers of a layer read its input."""
        return len(layer) > 1 and all(self._read_by(one).same_as(stream) for one in layer)

    def parallel_steps(self, layer: Sequence[Sublayer], stream: Sum) -> list[Step]:
        """Reads the parallel sublayers of a layer."""
        results = [self.sums.at_root(one.result).only or one.result for one in layer]
        for root in self._streams_after(max((one.result for one in layer), key=lambda one: one.number)):
            total = self.sums.at_root(root)
            found = [
                next(((term, made) for term in total.terms if (made := self._made_of(term, result))), None)
                for result in results
            ]
            if any(one is None for one in found):
                continue
            rest = total
            for term, _ in filter(None, found):
                rest = rest.without(term)
            factors = self._factors(rest, stream)
            if factors is not None:
                pairs = zip(layer, filter(None, found), strict=True)
                return [self._side_by_side(one, root, total, term, made, factors) for one, (term, made) in pairs]
        raise Unknown(layer[-1].result, "parallel sublayers whose results aren't added to their layer's input")

    def _side_by_side(
        self,
        one: Sublayer,
        root: Value,
        total: Sum,
        term: Value,
        made: tuple[Norm | None, np.ndarray | None],
        factors: tuple[float, np.ndarray | None],
    ) -> Step:
        addition = Addition(root, total, total.without(term), total.terms[term], *made)
        norm = self.norm_of(self.sums.of(one.inputs))
        return Step("none" if norm is None else "pre", norm, addition, *factors, total)

    def _read_by(self, sublayer: Sublayer) -> Sum:
        reading = self.sums.of(sublayer.inputs)
        norm = self.norm_of(reading)
        return reading if norm is None else self.sums.of(norm.inputs)

    def addition(self, sublayer: Sublayer) -> Addition:
        """Returns the first sum of a sublayer's result with something else."""
        result = self.sums.at_root(sublayer.result).only or sublayer.result
        for root in self._streams_after(sublayer.result):
            total = self.sums.at_root(root)
            if len(total.terms) + len(total.tables) < 2:
                continue
            for term, factor in total.terms.items():
                made = self._made_of(term, result)
                if made is not None:
                    return Addition(root, total, total.without(term), factor, *made)
        raise Unknown(sublayer.result, "a sublayer without residual connection")

    def _streams_after(self, value: Value) -> list[Value]:
        return [
            root
            for root in self.graph.recording.values[value.number + 1 :]
            if not root.is_moved and root.depends_on_ids and self.graph.stream(root) is not None
        ]

    def _made_of(self, term: Value, result: Value) -> tuple[Norm | None, np.ndarray | None] | None:
        """Returns the norm and trained scale that turn a result into a term; None if the term has another origin."""
        norm: Norm | None = None
        scale: np.ndarray | None = None
        while term is not result:
            if term in self.norms and norm is None:
                norm = self.norms[term]
                inner = self.sums.of(norm.inputs).only
            elif term in self.sums.scales and scale is None:
                scale, total = self.sums.scales[term]
                inner = total.only
            else:
                return None
            if inner is None or inner.number < result.number:
                return None
            term = inner
        return norm, scale

    def _factors(self, rest: Sum, stream: Sum) -> tuple[float, np.ndarray | None] | None:
        """Returns the factor and trained scale that turn a stream into `rest`; None if nothing does."""
        if len(rest.terms) == 1 and not rest.tables:
            ((term, factor),) = rest.terms.items()
            if term in self.sums.scales and self.sums.scales[term][1].same_as(stream):
                return factor, self.sums.scales[term][0]
        if rest.terms.keys() != stream.terms.keys() or not rest.terms:
            return None
        first = next(iter(stream.terms))
        factor = rest.terms[first] / stream.terms[first]
        return (_rounded(factor), None) if rest.same_as(stream.scaled(factor)) else None

    def norm_of(self, total: Sum) -> Norm | None:
        """Returns the norm that is the sum's only term, or None."""
        return self.norms.get(total.only) if total.only is not None else None

    def _norm_between(self, total: Sum, following: Sum) -> Norm | None:
        """Returns the norm of a sum that the following stream equals or scales."""
        norm = self.norm_of(following)
        if norm is None and len(following.terms) == 1:  # the stream is scaled
            term = next(iter(following.terms))
            norm = self.norms.get(term)
            if norm is None and term in self.sums.scales:
                norm = self.norm_of(self.sums.scales[term][1])
        while norm is not None:
            inputs = self.sums.of(norm.inputs)
            if inputs.same_as(total):
                return norm
            norm = self.norm_of(inputs)
        return None


def _rounded(factor: float) -> float:
    """Returns 1.0 for a factor that is 1 up to rounding."""
    return 1.0 if abs(factor - 1) < EXACT else factor
