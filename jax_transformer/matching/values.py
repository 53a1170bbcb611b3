"""Evaluates the reference at one point of a field, and finds where its values meet its weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from jax_transformer.matching.weights import NONE, OF_PAIRS, Elements, moved
from jax_transformer.proof.distinct import distinct
from jax_transformer.proof.domains import Residues, mix
from jax_transformer.proof.evaluating import evaluate
from jax_transformer.proof.programs import MOVES, Program

SAMPLE = 256
"""Numbers that are looked for before all others: most arrays have none of those that they are compared with."""


@dataclass(frozen=True, eq=False)
class Product:
    """A product of a matrix of values [M, K] and one of weights [K, N]."""

    node: int
    rows: np.ndarray
    """A number for each of the K columns of the values: it depends on the elements, not on their order."""
    weights: np.ndarray
    """The elements of weights, [K, N]."""
    groups: tuple[np.ndarray, ...]
    """The N columns in groups, as what follows takes them apart."""


@dataclass(frozen=True, eq=False)
class Meeting:
    """An operation on pairs of a value and an element of a weight."""

    node: int
    values: np.ndarray
    elements: np.ndarray

    @cached_property
    def sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the values, sorted, and the order that sorts them."""
        order = np.argsort(self.values, axis=None, kind="stable")
        return np.ravel(self.values)[order], order

    def partners(self, values: np.ndarray) -> np.ndarray:
        """Returns the element that each of these values meets; NONE where it meets none. A value that occurs more than
        once meets the element at its own place, if that is one of them."""
        if values.size == self.values.size and np.array_equal(values.ravel(), self.values.ravel()):
            return self.elements.ravel()
        ordered, order = self.sorted
        flat = values.ravel()
        if not _is_found(flat[:: max(1, flat.size // SAMPLE)], ordered).any():
            return np.full(flat.size, NONE)
        places = np.searchsorted(ordered, flat).clip(max=ordered.size - 1)
        found = ordered[places] == flat
        return np.where(found, self.elements.ravel()[order[places]], NONE)


class Operands(NamedTuple):
    """Elements of weights that one operation reads."""

    node: int
    elements: tuple[np.ndarray, ...]


class Term(NamedTuple):
    """A term of a sum, or a factor of a product, in the shape of the whole."""

    values: np.ndarray
    elements: np.ndarray | None
    """The elements of weights that it is, or is computed of one by one."""


@dataclass(frozen=True, eq=False)
class Chain:
    """A sum of up to four terms, or a product of up to four factors, that programs write in any order."""

    node: int
    """The last operation."""
    name: str
    terms: tuple[Term, ...]


@dataclass(eq=False)
class Reference:
    """The reference's values at one point.

    Args:
      elements: the elements of its weights.
      domain: the field.
      weights: its inputs, drawn.
    """

    elements: Elements
    domain: Residues
    weights: Mapping[str, np.ndarray]
    arrays: dict[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        evaluate(self.program, self.domain, self.weights, self.arrays.__setitem__)
        self.row = self.elements.row(self.weights).astype(np.int64)

    @property
    def program(self) -> Program:
        return self.elements.program

    @cached_property
    def _table(self) -> np.ndarray:
        """Returns every number that an operation computes, sorted."""
        parts = [np.array([0, 1], np.int64), self.row]
        for node, one in enumerate(self.program.operations):
            is_data = one.name == "input" and one.attributes["name"] not in self.elements.shapes
            if (one.name not in MOVES or is_data) and not self.elements.is_known[node]:
                parts.append(self.arrays[node].ravel())
        parts += [self._joined(chain, chosen).ravel() for chain in self.chains for chosen in _subsets(len(chain.terms))]
        return distinct(self._unsigned(np.concatenate(parts)))

    def _unsigned(self, array: np.ndarray) -> np.ndarray:
        return np.minimum(array, self.domain.field.negate(array))

    def has(self, array: np.ndarray) -> bool:
        """Returns whether every number of an array, or its negative, is one that the reference computes."""
        flat = self._unsigned(array.ravel())
        is_likely = _is_found(flat[:: max(1, flat.size // SAMPLE)], self._table).all()
        return bool(is_likely and _is_found(np.sort(flat), self._table).all())

    @cached_property
    def products(self) -> dict[int, list[Product]]:
        """Returns products with weights, by a number for the values that they read, in execution order."""
        found: dict[int, list[Product]] = {}
        for node, one in enumerate(self.program.operations):
            if one.name != "matmul":
                continue
            for weighs, elements in self._sides(node):
                values = self.arrays[one.inputs[1 - weighs]]
                groups = tuple(self.elements.column_groups(node)) if weighs else (np.arange(one.shape[1]),)
                for batch in range(values.shape[0]):
                    rows, kernel = matrices(values[batch], elements[batch], weighs)
                    found.setdefault(key_of(rows), []).append(Product(node, rows, kernel, groups))
        return found

    @cached_property
    def meetings(self) -> dict[tuple[str, int], list[Meeting]]:
        """Returns operations on pairs of values and elements of weights, by their name and by which of the two is the
        weight: −1 where that makes no difference."""
        found: dict[tuple[str, int], list[Meeting]] = {}
        for node, one in enumerate(self.program.operations):
            if one.name in OF_PAIRS:
                for weighs, elements in self._sides(node):
                    key = one.name, weighs if one.name == "subtract" else -1
                    values = np.asarray(self.arrays[one.inputs[1 - weighs]])
                    found.setdefault(key, []).append(Meeting(node, values, elements))
        for chain in self.chains:
            for place, term in enumerate(chain.terms):
                if term.elements is not None:
                    others = [each for each in range(len(chain.terms)) if each != place]
                    for chosen in _subsets(len(others), 1):
                        values = self._joined(chain, [others[each] for each in chosen])
                        found.setdefault((chain.name, -1), []).append(Meeting(chain.node, values, term.elements))
        return found

    @cached_property
    def chains(self) -> list[Chain]:
        """Returns sums and products of three or four."""
        found = []
        for node, one in enumerate(self.program.operations):
            if one.name in ("add", "multiply") and not self.elements.is_known[node]:
                terms = [term for each in one.inputs for term in self._terms(each, one.name)]
                if len(terms) > 2:
                    found.append(Chain(node, one.name, tuple(terms)))
        return found

    def _terms(self, node: int, name: str) -> list[Term]:
        """Returns the terms of which an operation is the sum, or the factors of a product; itself if it is neither."""
        one = self.program.operations[node]
        if one.name == name and not self.elements.is_known[node]:
            return [Term(self.arrays[each], self.elements.places[each]) for each in one.inputs]
        is_moved = one.name in ("reshape", "transpose", "broadcast") or (
            one.name == "take" and (one.attributes["places"] >= 0).all()
        )
        if is_moved and self.elements.places[node] is None:
            inner = self._terms(one.inputs[0], name)
            if len(inner) > 1:
                return [
                    Term(moved(one, [values]), None if elements is None else moved(one, [elements]))
                    for values, elements in inner
                ]
        return [Term(self.arrays[node], self.elements.places[node])]

    def _joined(self, chain: Chain, chosen: Sequence[int]) -> np.ndarray:
        """Returns the sum or the product of some terms."""
        found = chain.terms[chosen[0]].values
        for each in chosen[1:]:
            found = self.domain.apply(chain.name, [found, chain.terms[each].values], {})
        return found

    def _sides(self, node: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yields which inputs of an operation on two are elements of weights, next to one that isn't known."""
        inputs = self.program.operations[node].inputs
        for weighs in (1, 0):
            elements = self.elements.places[inputs[weighs]]
            may_meet = not self.elements.is_known[inputs[1 - weighs]] or self.program.operations[node].name == "matmul"
            if elements is not None and may_meet:
                yield weighs, elements

    @cached_property
    def operands(self) -> dict[str, list[Operands]]:
        """Returns the elements of weights that operations read, by the operations' names, in execution order."""
        found: dict[str, list[Operands]] = {}
        for node, one in enumerate(self.program.operations):
            if self.elements.places[node] is None and not self.elements.is_known[node]:
                every = [self.elements.places[each] for each in one.inputs]
                if read := tuple(each for each in every if each is not None):
                    found.setdefault(one.name, []).append(Operands(node, read))
        for chain in self.chains:
            read = tuple(term.elements for term in chain.terms if term.elements is not None)
            for pair in itertools.combinations(read, 2):
                found.setdefault(chain.name, []).append(Operands(chain.node, pair))
        return found


def _subsets(count: int, least: int = 2) -> Iterator[tuple[int, ...]]:
    """Yields which of several terms are taken, from `least` on: some of all, or with at least one, also all."""
    for size in range(least, count if least > 1 else count + 1):
        yield from itertools.combinations(range(count), size)


def matrices(values: np.ndarray, elements: np.ndarray, weighs: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns a number for each of the K columns of values [M, K], and elements [K, N], of a product in which either is
    the left one."""
    values, elements = (values, elements) if weighs else (values.T, elements.T)
    with np.errstate(over="ignore"):
        rows = mix(values.astype(np.uint64)).sum(axis=0, dtype=np.uint64)
    return rows, elements


def key_of(rows: np.ndarray) -> int:
    """Returns a number for all columns of a matrix, in any order."""
    with np.errstate(over="ignore"):
        return int(mix(rows).sum(dtype=np.uint64))


def _is_found(numbers: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Returns which numbers are among others, which are sorted."""
    places = np.searchsorted(ordered, numbers).clip(max=ordered.size - 1)
    return np.asarray(ordered[places] == numbers)
