"""Determine the sign and the zeros of a program's values for all weights, from how they are computed.

[x > 0] and [x ≥ 0] are one function only if x is nonzero almost everywhere, or zero everywhere. For many weights, a
ReLU is zero, and a maximum equals another value; a sum with a bias that is read nowhere else isn't zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from jax_transformer.proof.distinct import distinct
from jax_transformer.proof.programs import Operation, Value

PIECEWISE = frozenset(("step", "equal", "largest", "places"))
"""Functions that aren't analytic."""
SHAPING = frozenset(("reshape", "transpose", "broadcast", "take", "concatenate", "put", "where"))
KEEPS_SIGN = frozenset((*SHAPING, "add", "multiply", "inverse", "root", "sum", "cumulative_sum", "matmul", "row_mean"))
"""Operations whose results aren't negative if none of their operands is."""
MOST_ROWS = 64
"""An input with more rows counts as one."""
SURE = 10
"""A float64 that differs from the float32 by more than a tenth of it may be a rounding error of zero."""
POINTS = 3
"""At how many points an analytic function is looked for that isn't zero."""
Pair = tuple[np.ndarray, np.ndarray]
"""Results in float64, and in float32."""


class Signs:
    """Answers for the operations of a builder, which may grow."""

    def __init__(
        self,
        operations: list[Operation],
        values: list[Value],
        chosen: Mapping[int, tuple[int, Value, Value]] = MappingProxyType({}),
    ) -> None:
        self.operations, self.values, self._chosen = operations, values, chosen
        self._rows: dict[int, tuple[int, int]] = {}
        """Inputs → their first bit in `_leaves`, and how many: one for each row of a stacked weight."""
        self._bits = 0
        self._leaves: list[int] = []
        """The rows of inputs that each operation depends on, as bits."""
        self._smooth: list[bool] = []
        self._whole: list[bool] = []
        """Whether an operation is defined for all weights, and so on a connected set."""
        self._memo: dict[tuple[str, int], bool] = {}
        self._seen: list[dict[int, Pair]] = [{} for _ in range(POINTS)]
        """Values at each point of operations that such a point was needed for."""

    def always_positive(self, node: int) -> bool:
        """Returns whether a value is positive wherever it is defined."""
        return self._once("positive", node, self._always_positive)

    def never_negative(self, node: int) -> bool:
        return self._once("never negative", node, self._never_negative)

    def nonzero(self, node: int) -> bool:
        """Returns whether every element is nonzero for almost all weights."""
        return self._once("nonzero", node, self._nonzero)

    def positive(self, node: int) -> bool:
        """Returns whether every element is positive for almost all weights."""
        return self.always_positive(node) or (self.never_negative(node) and self.nonzero(node))

    def has_one_zero_set(self, node: int) -> bool:
        """Returns whether every element is nonzero for almost all weights, or identically zero.

        An analytic function that isn't zero at one point is nonzero almost everywhere. sin² + cos² − 1 is identically
        zero; this analysis misses it.
        """
        self._extend()
        return self.nonzero(node) or (self._smooth[node] and self._is_nonzero_somewhere(node))

    def _is_nonzero_somewhere(self, node: int) -> bool:
        """Returns whether each element is nonzero at one of some random points."""
        found = np.zeros(self.operations[node].shape, bool)
        for point in range(POINTS):
            found |= _sure(*self._at(point, node))
            if found.all():
                return True
        return False

    def _is_sure(self, constant: int) -> bool:
        return bool(_sure(*self._at(0, constant)).all())

    def _at(self, point: int, node: int) -> Pair:
        """Returns an operation's value at a random point."""
        from jax_transformer.proof.domains import Reals
        from jax_transformer.proof.evaluating import compute

        seen, needed, waiting = self._seen[point], set[int](), [node]
        while waiting:
            each = waiting.pop()
            if each not in needed and each not in seen:
                needed.add(each)
                waiting += self.operations[each].inputs
        domain, key = Reals(), np.random.default_rng([node, point])
        for each in sorted(needed):
            one = self.operations[each]
            drawn = {one.attributes["name"]: key.uniform(0.5, 2.0, one.shape)} if one.name == "input" else {}
            exactly, roughly = (
                compute(one, [seen[read][side] for read in one.inputs], domain, drawn) for side in range(2)
            )
            seen[each] = exactly, _rounded(roughly)
        return seen[node]

    def leaves(self, node: int) -> int:
        """Returns the rows of inputs that a value depends on, as bits."""
        self._extend()
        return self._leaves[node]

    def is_fresh(self, node: int, other: int) -> bool:
        """Returns whether a value is a weight, without an element twice, that another value doesn't read."""
        self._extend()
        weight = self._unshaped(node)
        if self.operations[weight].name == "take":
            weight = self._unshaped(self.operations[weight].inputs[0])
        is_weight = self._is_leaf(self.operations[weight])
        return is_weight and not self._leaves[node] & self._leaves[other] and not self._repeats(node)

    # --- within

    def _once(self, question: str, node: int, answer: Callable[[Operation, int], bool]) -> bool:
        key = question, node
        if key not in self._memo:
            try:
                self._memo[key] = answer(self.operations[node], node)
            except RecursionError:  # a program too deep for recursion: unknown
                self._memo[key] = False
        return self._memo[key]

    def _extend(self) -> None:
        """Notes which inputs each operation depends on, and whether it is analytic."""
        for node in range(len(self._leaves), len(self.operations)):
            one = self.operations[node]
            own, smooth = self._own_leaves(one, node), one.name not in PIECEWISE
            smooth = smooth and all(self._smooth[each] for each in one.inputs)
            whole = all(self._whole[each] for each in one.inputs)
            if one.name in ("inverse", "root", "log") and self.values[node].known is None:
                whole = whole and self.always_positive(one.inputs[0])
            if one.name in ("root", "log"):  # √x² is |x|, and x · √(1 + 1/x²) is √(x² + 1) or its opposite
                smooth = smooth and whole
            self._leaves.append(own or self._leaves_of(one.inputs))
            self._smooth.append(smooth)
            self._whole.append(whole)

    def _own_leaves(self, one: Operation, node: int) -> int:
        """Returns the rows of an input, or rows taken from one."""
        if self._is_leaf(one):
            count = one.shape[0] if one.shape and 1 < one.shape[0] <= MOST_ROWS else 1
            self._rows[node] = self._bits, count
            self._bits += count
            return ((1 << count) - 1) << self._rows[node][0]
        if one.name != "take" or one.inputs[0] not in self._rows:
            return 0
        first, count = self._rows[one.inputs[0]]
        places = one.attributes["places"]
        size = max(1, int(np.prod(self.operations[one.inputs[0]].shape, dtype=np.int64)) // count)
        rows = distinct(places[places >= 0] // size)
        return sum(1 << (first + int(row)) for row in rows)

    def _always_positive(self, one: Operation, node: int) -> bool:
        known, inputs = self.values[node].known, one.inputs
        if known is not None:
            return bool((known > 0).all()) and self._is_sure(node)
        if one.name == "row_exp":
            return "counts" not in one.attributes
        if one.name == "exp":
            return True
        if one.name in ("power", "given"):
            return self.always_positive(inputs[0])
        if (cases := self._cases(one, node)) is not None:
            return all(map(self.always_positive, cases))
        if one.name in ("add", "subtract") and self._is_above_one(one):
            return True
        if one.name == "add":
            return any(map(self.always_positive, inputs)) and all(map(self.never_negative, inputs))
        if one.name == "sum" and (self._sums_exponentials(one) or self._counts_the_largest(one)):
            return True
        if one.name == "sum" and self._picks_a_positive_one(one):
            return True
        if one.name in ("sum", "matmul", "row_mean") and 0 in self.operations[inputs[0]].shape:
            return False
        if one.name == "put" or (one.name == "row_mean" and "counts" in one.attributes):
            return False
        if one.name == "take" and (one.attributes["places"] < 0).any():
            return False
        return one.name in KEEPS_SIGN and all(map(self.always_positive, inputs))

    def _never_negative(self, one: Operation, node: int) -> bool:
        known, inputs = self.values[node].known, one.inputs
        if known is not None:
            return bool((known >= 0).all())
        if one.name in ("exp", "row_exp", "step", "equal", "places", "root"):
            return True
        if one.name == "given" or (one.name == "cut" and not one.attributes["is_weight"]):
            return self.never_negative(inputs[0])
        if (cases := self._cases(one, node)) is not None and all(map(self.never_negative, cases)):
            return True
        if one.name == "power":
            return one.attributes["exponent"] % 2 == 0 or self.never_negative(inputs[0])
        if one.name == "multiply" and (self._is_relu(one) or self._odd(node) == (frozenset(), 1)):
            return True
        if one.name == "subtract":
            return self._variance_of(one) is not None
        return one.name in KEEPS_SIGN and all(map(self.never_negative, inputs))

    def _cases(self, one: Operation, node: int) -> list[int] | None:
        """Returns the values among which a step chooses; None for another value. x under the condition x > 0 is
        positive, and left out."""
        if one.name == "chosen":
            return [*one.inputs[2:]]
        if node not in self._chosen:
            return None
        step, at_one, at_zero = self._chosen[node]
        read = self._unshaped(self.operations[step].inputs[0])
        kept = [at_zero] if at_one.node is not None and self._unshaped(at_one.node) == read else [at_one, at_zero]
        return [each.node for each in kept if each.node is not None]

    def _odd(self, node: int) -> tuple[frozenset[int], int]:
        """Returns the factors of a product, and ±1, that determine its sign: squares, and factors that are never
        negative, are left out. 1/x has the sign of x."""
        waiting, odd, sign = [node], set[int](), 1
        while waiting:
            each = waiting.pop()
            one = self.operations[each]
            if one.name in ("multiply", "inverse", "negate") and self.values[each].known is None:
                waiting += one.inputs
                sign *= -1 if one.name == "negate" else 1
            elif one.name in ("broadcast", "reshape") and self.values[one.inputs[0]].size == 1:
                waiting += one.inputs
            elif (known := self.values[each].known) is not None and (known < 0).all():
                sign = -sign
            elif not self.never_negative(each):
                odd ^= {each}
        return frozenset(odd), sign

    def _have_one_sign(self, total: Operation) -> bool:
        """Returns whether the terms of a sum or a difference have one sign, whichever it is."""
        (ours, our_sign), (theirs, their_sign) = map(self._odd, total.inputs)
        return ours == theirs and our_sign == (their_sign if total.name == "add" else -their_sign)

    def _is_above_one(self, total: Operation) -> bool:
        """Returns whether a value between −1 and 1 is added to 1 or more, or subtracted from it."""
        for bound, rest in (total.inputs, total.inputs[::-1]):
            known = self.values[bound].known
            if known is not None and (known >= 1).all() and (total.name == "add" or bound == total.inputs[0]):
                return self.operations[self._unshaped(rest)].name in ("tanh", "erf")
        return False

    def _picks_a_positive_one(self, total: Operation) -> bool:
        """Returns whether entries are chosen from rows of positive ones."""
        product = self.operations[total.inputs[0]]
        if product.name != "multiply" or total.attributes["axes"] != (len(product.shape) - 1,):
            return False
        return any(
            self.operations[chosen].name == "places" and self.always_positive(other)
            for chosen, other in (product.inputs, product.inputs[::-1])
        )

    def _counts_the_largest(self, total: Operation) -> bool:
        """Returns whether rows count the entries equal to the row's largest: at least one."""
        equal = self.operations[total.inputs[0]]
        if equal.name != "equal":
            return False
        for row, other in (equal.inputs, equal.inputs[::-1]):
            largest = self.operations[self._unshaped(other)]
            if largest.name == "largest" and largest.inputs[0] == row and "counts" not in largest.attributes:
                return bool(largest.attributes["axes"] == total.attributes["axes"])
        return False

    def _is_relu(self, product: Operation) -> bool:
        return self.relu_of(product) is not None

    def relu_of(self, product: Operation) -> int | None:
        """Returns x if an operation is x · [x > 0]."""
        if product.name == "multiply":
            for x, flag in (product.inputs, product.inputs[::-1]):
                if self.operations[flag].name == "step" and self.operations[flag].inputs[0] == x:
                    return x
        return None

    def _nonzero(self, one: Operation, node: int) -> bool:
        known, inputs = self.values[node].known, one.inputs
        if known is not None:
            return bool((known != 0).all()) and self._is_sure(node)
        if self.always_positive(node) or one.name == "inverse":
            return True
        if one.name in ("negate", "power", "root", "reshape", "transpose", "broadcast", "erf", "tanh", "given"):
            return self.nonzero(inputs[0])
        if (cases := self._cases(one, node)) is not None and all(map(self.nonzero, cases)):
            return True
        if one.name in ("multiply", "concatenate", "where"):
            return all(map(self.nonzero, inputs))
        if one.name == "take":
            return not (one.attributes["places"] < 0).any() and self.nonzero(inputs[0])
        if one.name == "sum":
            found = 0 not in self.operations[inputs[0]].shape and self.never_negative(inputs[0])
            return (found and self.nonzero(inputs[0])) or self._moves_with_a_leaf(node)
        if one.name == "matmul":
            return self._meets_a_fresh_leaf(one, repeats=False) and all(map(self.nonzero, inputs))
        if one.name == "add" and all(map(self.never_negative, inputs)):
            return any(map(self.nonzero, inputs))
        if one.name in ("add", "subtract") and any(map(self.nonzero, inputs)) and self._have_one_sign(one):
            return True
        if one.name == "subtract" and (variance := self._variance_of(one)) is not None:
            return self._spreads(*variance)
        if one.name in ("add", "subtract") or self._is_leaf(one):
            return self._moves_with_a_leaf(node)
        return False

    def _is_leaf(self, one: Operation) -> bool:
        """Returns whether a value is a weight, or a weight after an optimizer step, which varies with the weight before
        it."""
        return one.name == "input" or (one.name == "cut" and one.attributes["is_weight"])

    def _moves_with_a_leaf(self, node: int) -> bool:
        part = self._linear_part(node)
        return part is not None and bool(_sure(*part).all())

    def _spreads(self, node: int, axes: tuple[int, ...]) -> bool:
        """Returns whether the elements of each row differ for almost all weights."""
        part = self._linear_part(node)
        if part is None:
            return False
        exactly, roughly = part
        return bool(_sure(np.ptp(exactly, axis=axes), np.ptp(roughly, axis=axes)).all())

    def _linear_part(self, node: int) -> Pair | None:
        """Returns Σ c · w at random w, if a value is this sum plus terms that don't depend on these w; else None.

        The c are constants, and the w inputs. If the sum isn't zero, the value isn't zero for almost all w. Products
        with a weight that is read nowhere else are left out: they are zero if that weight is.
        """
        self._extend()
        nodes, inputs, others = set[int](), set[int](), set[int]()
        waiting = [node]
        while waiting:
            each = waiting.pop()
            if each in nodes or each in others:
                continue
            one = self.operations[each]
            if self._is_leaf(one):
                inputs.add(each)
                nodes.add(each)
                continue
            if not self._is_linear(one):
                others.add(each)
                continue
            nodes.add(each)
            waiting += one.inputs
        leaves = self._leaves_of_inputs(nodes)
        for each in sorted(others, reverse=True):
            rest = leaves | self._leaves_of(others - {each})
            if self._meets_a_fresh_leaf(self.operations[each], rest):
                others.remove(each)
        free = {each: self._free_rows(each, self._leaves_of(others)) for each in inputs}
        is_free = any(rows.any() for rows in free.values())
        return self._value_of_part(sorted(nodes), free, node) if is_free else None

    def _leaves_of(self, nodes: Iterable[int]) -> int:
        found = 0
        for each in nodes:
            found |= self._leaves[each]
        return found

    def _leaves_of_inputs(self, nodes: set[int]) -> int:
        """Returns the rows of inputs that linear operations read."""
        taken = {each for each in nodes if self.operations[each].name == "take"}
        whole = {each for node in nodes - taken for each in self.operations[node].inputs if each in self._rows}
        return self._leaves_of({each for each in taken if self.operations[each].inputs[0] in self._rows} | whole)

    def _free_rows(self, node: int, others: int) -> np.ndarray:
        """Returns 1 for elements in rows with no other reader, 0 for the rest."""
        first, count = self._rows[node]
        shape = self.operations[node].shape
        rows = np.array([not others >> (first + row) & 1 for row in range(count)], np.float64)
        if count == 1:
            return np.broadcast_to(rows[0], shape)
        return np.broadcast_to(rows.reshape(-1, *[1] * (len(shape) - 1)), shape)

    def _is_linear(self, one: Operation) -> bool:
        if one.name in ("multiply", "matmul"):
            return any(self.values[each].known is not None for each in one.inputs)
        return one.name in (*SHAPING, "add", "subtract", "negate", "sum", "cumulative_sum", "row_mean")

    def _value_of_part(self, nodes: Sequence[int], free: Mapping[int, np.ndarray], wanted: int) -> Pair:
        from jax_transformer.proof.domains import Reals
        from jax_transformer.proof.evaluating import compute

        key, domain = np.random.default_rng(0), Reals()
        part: dict[int, Pair] = {}

        def read(one: Operation, each: int, side: int) -> np.ndarray:
            known = self.values[each].known
            if known is not None and one.name in ("multiply", "matmul"):
                return self._at(0, each)[1] if side else known
            return part[each][side] if known is None and each in part else np.zeros(self.operations[each].shape)

        for node in nodes:
            one = self.operations[node]
            if self._is_leaf(one):
                part[node] = (drawn := key.standard_normal(one.shape) * free[node]), _rounded(drawn)
            elif self.values[node].known is None:
                exactly, roughly = (
                    compute(one, [read(one, each, side) for each in one.inputs], domain, {}) for side in range(2)
                )
                part[node] = exactly, _rounded(roughly)
        return part.get(wanted, (np.zeros(self.operations[wanted].shape),) * 2)

    def _meets_a_fresh_leaf(self, product: Operation, also: int = 0, *, repeats: bool = True) -> bool:
        """Returns whether one factor is a weight that neither the other factor nor `also` reads.

        Args:
          repeats: whether elements of the weight may be repeated: w · x₁ + w · x₂ is zero for all w if x₁ is −x₂.
        """
        self._extend()
        if product.name not in ("multiply", "matmul"):
            return False
        for factor, other in (product.inputs, product.inputs[::-1]):
            node = self._unshaped(factor)
            one = self.operations[node]
            is_weight = self._is_leaf(one) or (one.name == "take" and one.inputs[0] in self._rows)
            is_fresh = is_weight and not (self._leaves[other] | also) & self._leaves[node]
            if is_fresh and (repeats or not self._repeats(factor)):
                return True
        return False

    def _repeats(self, node: int) -> bool:
        """Returns whether a weight that is shaped and taken from has an element twice."""
        one = self.operations[node]
        if one.name in ("reshape", "transpose"):
            return self._repeats(one.inputs[0])
        if one.name == "take":
            places = one.attributes["places"]
            return distinct(places).size < places.size
        return one.name == "broadcast"

    def _variance_of(self, difference: Operation) -> tuple[int, tuple[int, ...]] | None:
        """Returns x and axes if the mean of squares minus the square of the mean is computed, which is a variance."""
        squares, mean = self._mean_of(difference.inputs[0]), self._squared(difference.inputs[1])
        if squares is None or mean is None:
            return None
        own_mean = self._mean_of(mean[0])
        own_squares = self._squared(squares[0])
        if own_mean is None or own_squares is None or own_squares[1]:
            return None
        is_variance = (own_squares[0], *squares[1:]) == (*own_mean[:2], (*own_mean[2], *mean[1]))
        return own_mean[:2] if is_variance else None

    def _squared(self, node: int) -> tuple[int, tuple[object, ...]] | None:
        """Returns x, and how it was shaped, if a value is x²."""
        inner, shapes = self._shapes(node)
        one = self.operations[inner]
        is_square = one.name == "power" and one.attributes["exponent"] == 2
        is_square |= one.name == "multiply" and one.inputs[0] == one.inputs[1]
        return (one.inputs[0], shapes) if is_square else None

    def _mean_of(self, node: int) -> tuple[int, tuple[int, ...], tuple[object, ...]] | None:
        """Returns x, the axes, and how it was shaped, if a value is the mean of x over them."""
        inner, outer = self._shapes(node)
        product = self.operations[inner]
        if product.name == "multiply":
            for factor, total in (product.inputs, product.inputs[::-1]):
                of_total, shapes = self._shapes(total)
                known, one = self.values[factor].known, self.operations[of_total]
                if known is None or one.name != "sum":
                    continue
                x, axes = one.inputs[0], one.attributes["axes"]
                count = int(np.prod([self.operations[x].shape[axis] for axis in axes], dtype=np.int64))
                if count and (known == 1 / count).all():
                    return x, axes, (*shapes, *outer)
        return None

    def _shapes(self, node: int) -> tuple[int, tuple[object, ...]]:
        """Returns the values that a value is reshaped from, and the shapes in order."""
        shapes: list[object] = []
        while self.operations[node].name in ("reshape", "broadcast"):
            shapes.insert(0, (self.operations[node].name, self.operations[node].shape))
            node = self.operations[node].inputs[0]
        return node, tuple(shapes)

    def _unshaped(self, node: int) -> int:
        while self.operations[node].name in ("reshape", "broadcast", "transpose"):
            node = self.operations[node].inputs[0]
        return node

    def _sums_exponentials(self, total: Operation) -> bool:
        """Returns whether whole rows of exponentials are summed, each with an entry that counts."""
        product = self.operations[total.inputs[0]]
        if product.name == "row_exp":
            return product.attributes["axis"] in total.attributes["axes"]
        if product.name != "multiply":
            return False
        for row, other in (product.inputs, product.inputs[::-1]):
            one = self.operations[row]
            if one.name == "row_exp" and one.attributes["axis"] in total.attributes["axes"]:
                return self.always_positive(other)
        return False


def _rounded(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(array, np.float32).astype(np.float64)


def _sure(exactly: np.ndarray, roughly: np.ndarray) -> np.ndarray:
    """Returns a mask of the numbers that can't be rounding errors of zero, unlike 0.1 w + 0.7 w − 0.8 w times 10¹⁰."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(exactly) > SURE * np.abs(exactly - roughly))
