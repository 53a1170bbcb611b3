"""Domains of programs: √x needs an x that isn't negative, log x a positive one, 1/x a nonzero one.

Single points don't count: 1/w is defined for almost all w. √w isn't, and neither is 1/relu(w). Where frameworks return
NaN or ∞, a program has no value here. Two programs are one function if they are defined for the same weights, and equal
there. So arithmetic propagates undefined values, and an operation that maps them to ordinary numbers, such as isnan, is
unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jax_transformer.proof.evaluating import compute
from jax_transformer.proof.programs import Operation, Program, RequiredKind, Requirement, Value
from jax_transformer.proof.signs import Signs

REQUIRES: dict[str, RequiredKind] = {"root": "not negative", "log": "positive", "inverse": "not zero"}
READS_INFINITY = ("exp", "row_exp", "tanh", "erf", "inverse", "largest")
"""Operations with finite results at ∞ or −∞."""
WORDS = {"not negative": "isn't negative", "positive": "is positive", "not zero": "isn't zero"}
ELEMENTWISE = frozenset((
    "add", "subtract", "multiply", "negate", "inverse", "power", "root", "exp", "log", "erf", "tanh", "sin", "cos",
    "step", "given", "broadcast",
))  # fmt: skip

IMPLIED = {"not negative": ("not negative",), "positive": tuple(WORDS), "not zero": ("not zero",)}
"""Kinds → the kinds that they imply."""

Kept = Mapping[int, np.ndarray]


def required(one: Operation, values: Sequence[Value], signs: Signs, operations: Sequence[Operation]) -> Requirement:
    """Returns the requirement of a root, a logarithm or an inverse."""
    x, kind = one.inputs[0], REQUIRES[one.name]
    is_shown = _is_shown(kind, x, values, signs)
    reduced = _reduced(kind, x, operations, signs)
    if is_shown and not _is_shown(*reduced, values, signs):
        reduced = kind, x  # √y is nonzero as far as it is defined, which says nothing about y's sign
    return Requirement(*reduced, is_shown, kind != "not negative" and not _is_shown("not zero", x, values, signs))


def _is_shown(kind: RequiredKind, node: int, values: Sequence[Value], signs: Signs) -> bool:
    """Returns whether a value is of a kind for almost all weights for which it is defined."""
    if values[node].known is not None:
        return True
    if kind == "not negative":
        return signs.never_negative(node)
    is_nonzero = signs.nonzero(node) or signs.has_one_zero_set(node)
    return is_nonzero if kind == "not zero" else signs.positive(node) or (is_nonzero and signs.never_negative(node))


def _reduced(
    kind: RequiredKind, node: int, operations: Sequence[Operation], signs: Signs, *, in_any_shape: bool = True
) -> tuple[RequiredKind, int]:
    """Simplifies a requirement: positive factors and odd powers are left out, and √x and relu(x) are nonzero if x is
    positive."""
    while True:
        one = operations[node]
        is_odd = one.name == "inverse" or (one.name == "power" and one.attributes["exponent"] % 2)
        if is_odd or (in_any_shape and one.name == "reshape"):
            node = one.inputs[0]
        elif one.name == "root" and kind != "not negative":
            kind, node = "positive", one.inputs[0]
        elif kind != "not negative" and (x := signs.relu_of(one)) is not None:
            kind, node = "positive", x
        elif one.name == "multiply" and (rest := _without_positive(one, signs)) is not None:
            node = rest
        else:
            return kind, node


def _without_positive(product: Operation, signs: Signs) -> int | None:
    for factor, rest in (product.inputs, product.inputs[::-1]):
        if signs.positive(factor):
            return rest
    return None


def described(one: Operation, required: Requirement) -> str:
    """Describes the unproven requirement of an operation."""
    place = f" ({one.line})" if one.line else ""
    return f"it isn't shown that what {one.name}{place} reads {WORDS[required.kind]} for all weights"


# --- choices


def is_left_out(
    doubt: int,
    x: Value,
    condition: tuple[int, bool],
    operations: Sequence[Operation],
    doubts: Sequence[frozenset[int]],
    values: Sequence[Value],
    signs: Signs,
) -> bool:
    """Returns whether x is defined wherever it is chosen, as far as it depends on an operation.

    Args:
      condition: a step or an equality, and whether x is chosen where it is 1.
    """

    def reduced(kind: RequiredKind, node: int) -> tuple[RequiredKind, int]:
        kind, node = _reduced(kind, _unbroadcast(node, operations), operations, signs, in_any_shape=False)
        return kind, _unbroadcast(node, operations)

    required, wanted = reduced(REQUIRES[operations[doubt].name], operations[doubt].inputs[0])
    for kind, node in (reduced(*each) for each in _implied_by(*condition, operations, values, signs)):
        if node == wanted and required in IMPLIED[kind]:
            return _is_elementwise(doubt, x, operations, doubts)
    return False


def _implied_by(
    condition: int, holds: bool, operations: Sequence[Operation], values: Sequence[Value], signs: Signs
) -> Iterator[tuple[RequiredKind, int]]:
    """Yields the kinds of values that follow from a step or an equality, or from its negation."""
    one = operations[condition]
    if one.name == "equal":
        for a, other in (one.inputs, one.inputs[::-1]):
            if not holds and _number(values[other].known) == 0:
                yield ("positive" if signs.never_negative(a) else "not zero"), a
        return
    difference = one.inputs[0]
    read = operations[difference]
    compared: list[tuple[int, float | None, bool]] = [(difference, 0.0, holds)]
    """(a, k, whether a is above k): at k at most, or at least, where the condition doesn't hold."""
    if read.name == "negate":
        compared.append((read.inputs[0], 0.0, not holds))
    if read.name == "subtract":
        compared.append((read.inputs[0], _number(values[read.inputs[1]].known), holds))
        compared.append((read.inputs[1], _number(values[read.inputs[0]].known), not holds))
    for a, k, is_above in compared:
        if k is None:
            continue
        if is_above and k >= 0:
            yield ("positive" if k > 0 or holds else "not negative"), a
        elif not is_above and (k < 0 or (k == 0 and holds)):
            yield "not zero", a


def _number(known: np.ndarray | None) -> float | None:
    """Returns the number that all elements of a constant are."""
    return float(known.flat[0]) if known is not None and known.size and (known == known.flat[0]).all() else None


def _unbroadcast(node: int, operations: Sequence[Operation]) -> int:
    while operations[node].name == "broadcast":
        node = operations[node].inputs[0]
    return node


def _is_elementwise(doubt: int, x: Value, operations: Sequence[Operation], doubts: Sequence[frozenset[int]]) -> bool:
    """Returns whether an entry of x depends on only one entry of an operation's result."""
    waiting, seen = [x.node], set[int]()
    while waiting:
        node = waiting.pop()
        assert node is not None
        if node == doubt or node in seen or doubt not in doubts[node]:
            continue
        seen.add(node)
        if operations[node].name not in ELEMENTWISE:
            return False
        waiting += operations[node].inputs
    return True


# --- whole programs


class Sets:
    """A domain of `evaluating`: an element is the number of the set of its value's requirements. 0 is the empty set."""

    dtype: type[Any] = np.int64

    def __init__(self) -> None:
        self.sets: list[frozenset[Any]] = [frozenset()]
        self._numbers: dict[frozenset[Any], int] = {frozenset(): 0}
        self._unions: dict[tuple[int, int], int] = {}

    def number(self, found: frozenset[Any]) -> int:
        if found not in self._numbers:
            self._numbers[found] = len(self.sets)
            self.sets.append(found)
        return self._numbers[found]

    def union(self, one: int, other: int) -> int:
        if one == other or not other:
            return one
        if not one:
            return other
        pair = min(one, other), max(one, other)
        if pair not in self._unions:
            self._unions[pair] = self.number(self.sets[one] | self.sets[other])
        return self._unions[pair]

    def constant(
        self, array: np.ndarray, unit: float = 0.0, radius: np.ndarray | None = None, is_rounded: bool = False
    ) -> np.ndarray:
        return np.zeros(array.shape, np.int64)

    def apply(self, name: str, inputs: list[np.ndarray], attributes: Mapping[str, Any]) -> np.ndarray:
        if name == "matmul":
            left, right = self._reduced(inputs[0], (2,)), self._reduced(inputs[1], (1,))
            return self._both(left[:, :, None], right[:, None, :])
        if name in ("sum", "largest"):
            return self._reduced(inputs[0], attributes["axes"])
        if name == "cumulative_sum":
            return self._accumulated(inputs[0], attributes["axis"])
        if name == "row_mean":
            axis = attributes["axis"]
            return np.expand_dims(self._reduced(self._counted(inputs[0], attributes), (axis,)), axis)
        if name == "row_exp":
            return self._counted(self._both(*inputs), attributes)
        if name == "places":
            whole = self._reduced(inputs[0], (inputs[0].ndim - 1,))[..., None, None]
            return np.broadcast_to(whole, (*inputs[0].shape[:-1], len(attributes["ranks"]), inputs[0].shape[-1]))
        if name == "chosen":
            return inputs[1]
        found = inputs[0]
        for each in inputs[1:]:
            found = self._both(found, each)
        return found

    def _counted(self, x: np.ndarray, attributes: Mapping[str, Any]) -> np.ndarray:
        return np.where(attributes["counts"], x, 0) if "counts" in attributes else x

    def _both(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x, y = np.broadcast_arrays(x, y)
        if not y.any():
            return np.asarray(x)
        pairs, places = np.unique(np.stack([x.ravel(), y.ravel()]), axis=1, return_inverse=True)
        unions = np.array([self.union(int(a), int(b)) for a, b in pairs.T], np.int64)
        return unions[places.ravel()].reshape(x.shape)

    def _reduced(self, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        shape = tuple(x.shape[axis] for axis in kept)
        found = np.zeros(shape, np.int64)
        for part in x.transpose([*axes, *kept]).reshape(-1, *shape):
            found = self._both(found, part)
        return found

    def _accumulated(self, x: np.ndarray, axis: int) -> np.ndarray:
        found = [np.zeros_like(x.take(0, axis))]
        for place in range(x.shape[axis]):
            found.append(self._both(found[-1], x.take(place, axis)))
        return np.stack(found[1:], axis)


def requirements_of(program: Program, of: Kept, shown: Mapping[str, set[int]], sets: Sets) -> dict[str, np.ndarray]:
    """Returns the requirements of each element of the outputs, as numbers of sets of (kind, residue).

    Args:
      of: the residues on which operations that may be undefined have requirements.
      shown: kinds → residues proven to be of it.
    """
    doubtful, held = program.doubtful, dict[int, np.ndarray]()
    for node, one in enumerate(program.operations):
        inputs = [held[each] for each in one.inputs]
        if node in doubtful or any(each.any() for each in inputs):
            held[node] = compute(one, inputs, sets, {})
        else:
            held[node] = np.broadcast_to(np.int64(0), one.shape)
        if node in doubtful:
            kind, residues = doubtful[node].kind, of[doubtful[node].of]
            own = [
                sets.number(frozenset() if int(each) in shown[kind] else frozenset({(kind, int(each))}))
                for each in residues.flat
            ]
            held[node] = sets.apply("add", [held[node], np.reshape(own, one.shape)], {})
    return {
        name: np.broadcast_to(np.int64(0), value.shape) if value.node is None else held[value.node]
        for name, value in program.outputs.items()
    }


def shown_by(programs: Sequence[Program], of: Sequence[Kept]) -> dict[str, set[int]]:
    """Returns kinds → residues of arguments that are of the kind, as one of the programs computes them."""
    shown: dict[str, set[int]] = {kind: set() for kind in WORDS}
    for program, residues in zip(programs, of, strict=True):
        for required in program.requirements.values():
            if required.is_shown:
                for kind in IMPLIED[required.kind]:
                    shown[kind].update(residues[required.of].ravel().tolist())
    return shown


def keeping(program: Program) -> tuple[dict[int, np.ndarray], Callable[[int, np.ndarray], None]]:
    """Returns a store for the values with requirements, and a callback that fills it during evaluation."""
    kept: dict[int, np.ndarray] = {}
    wanted = {required.of for required in program.requirements.values()}

    def watch(node: int, array: np.ndarray) -> None:
        if node in wanted:
            kept[node] = array

    return kept, watch
