"""Searches which element of the reference's weights each element of the candidate's is.

The candidate's operations are taken in order. Each that reads weights without a partner, next to values that the
reference computes too, is compared with the reference's operations of its kind that read the same values: what they
read there is a guess. A guess is kept if the operation, and what follows, computes what the reference does. Several
guesses are followed at once, those that lose fewest of the reference's values, and then the simplest; guesses after
which the same values are left to be read are one.

Rows of weights that hidden features are numbered by may be in another order. That shows later, where features meet:
then the search goes back, and tries other orders, with the factors of the number of features.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from jax_transformer.matching.pieces import pieces_of
from jax_transformer.matching.rows import Row
from jax_transformer.matching.values import Meeting, Product, Reference, key_of, matrices
from jax_transformer.matching.weights import NONE, OF_PAIRS, Elements
from jax_transformer.proof.distinct import distinct
from jax_transformer.proof.domains import Undefined
from jax_transformer.proof.evaluating import compute
from jax_transformer.proof.fields import NoInverse
from jax_transformer.proof.programs import MOVES

WIDTH, WIDTH_OF_ORDERS = 12, 48
"""Guesses that are followed at once; the same while orders of features are tried."""
MOST_LOST = 6
"""Values of the reference that a guess may lose beyond the best one."""
WINDOW = 80
"""Operations that wait for weights, beyond which none is computed ahead."""
MOST_ORDERS = 60
MOST_GUESSES = 40
MOST_ROOTS = 4
"""Lost values for which other orders are tried at a time."""
LEAST_SHARE = 0.3
"""The part of the values that meet weights that have to be the reference's."""
MOST_FAILURES = 6
"""Lost values that no order brought back, after which none is tried."""
MOST_BACK = 3
"""Products with weights whose orders of features are tried together."""
MOST_HELD = 20_000_000
"""Numbers that are kept in case several guesses compute them. Beyond that, only the best guesses are kept."""
MOST_NUMBERS = 300_000_000
"""Numbers that the guesses may have together while orders of features are tried."""
ELEMENTWISE = frozenset(("add", "subtract", "multiply", "negate", "inverse", "power", "root", "step"))
ELEMENTWISE |= {"exp", "log", "erf", "tanh", "sin", "cos"}
"""Operations that compute each element of their results from one of each operand."""

Order = tuple[int, int, int] | None
"""(a, b, c): features a · b · c with the last two axes swapped; None: as they are."""


@dataclass(frozen=True)
class Guess:
    """A part of the map: elements of the candidate's weights and of the reference's."""

    ours: np.ndarray
    theirs: np.ndarray
    cost: float
    node: int
    """The reference's operation that reads these."""
    order: Order = None
    is_part: bool = False
    """Whether more elements are read there: they follow from these."""


@dataclass(frozen=True)
class Choice:
    """A guess that was made."""

    node: int
    """The candidate's operation."""
    guess: Guess
    is_graft: bool = False


@dataclass
class State:
    """Guesses so far, and what the candidate computes with them."""

    partners: Row
    """The reference's element of each of the candidate's; NONE: not known."""
    used: Row
    """Which of the reference's elements have a partner."""
    pending: tuple[int, ...]
    """Operations that aren't computed."""
    values: dict[int, np.ndarray] = field(default_factory=dict)
    lost: frozenset[int] = frozenset()
    """Operations that compute what the reference doesn't."""
    cost: float = 0.0
    choices: tuple[Choice, ...] = ()
    skipped: frozenset[int] = frozenset()
    """Operations for whose weights no guess was found."""
    undefined: bool = False
    rivals: tuple[tuple[int, frozenset[int]], ...] = ()
    """Elements that have another partner in a state that loses the same values, and what was lost then."""
    alternatives: tuple[tuple[int, int], ...] = ()
    """Elements, and the other partner that each may as well have: nothing is lost, and the same is left to be read."""

    @property
    def rank(self) -> tuple[int, float]:
        return len(self.lost), self.cost


@dataclass
class Search:
    """Searches the map of a candidate's weights.

    Args:
      elements: the candidate's weights.
      reference: the reference's values.
      data: the candidate's inputs that are no weights, drawn.
    """

    elements: Elements
    reference: Reference
    data: Mapping[str, np.ndarray]
    liked: list[Order] = field(default_factory=list)
    """Orders of features that were found."""
    failures: int = 0
    """How often no other order helped."""
    _memo: dict[tuple[int, ...], np.ndarray] = field(default_factory=dict)
    _held: int = 0
    """Numbers in that."""
    _moved: dict[tuple[int, ...], np.ndarray | None] = field(default_factory=dict)
    _owned: dict[int, list[int]] = field(default_factory=dict)
    _without_partners: dict[int, np.ndarray] = field(default_factory=dict)
    """Sizes of weights → the part of a row in which none of the elements has a partner."""
    _kept: dict[int, np.ndarray] = field(default_factory=dict)
    _has: dict[int, bool] = field(default_factory=dict)
    _digests: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        operations = self.elements.program.operations
        names = self.elements
        numbers = sum(map(self.elements.program.size, range(len(operations))))
        self._width_of_orders = min(WIDTH_OF_ORDERS, max(WIDTH, MOST_NUMBERS // max(numbers, 1)))
        self._is_computed = [not (names.is_moved[node] and not names.is_known[node]) for node in range(len(operations))]

    def run(self) -> State:
        """Returns the best guesses."""
        pending = tuple(node for node, is_computed in enumerate(self._is_computed) if is_computed)
        self._without_partners = {size: np.full(size, NONE) for size in self.elements.sizes}
        partners = Row([self._without_partners[size] for size in self.elements.sizes])
        used = Row([np.zeros(size, bool) for size in self.reference.elements.sizes])
        first = State(partners, used, pending)
        self.advance(first)
        beam, history = [first], list[tuple[list[State], int]]()
        tried = set[int]()
        while True:
            node, is_seen = self.next_slot(beam[0])
            if node is None or not is_seen:
                again = self._again(beam[0], node, history, tried)
                if again is not None:
                    beam, history = again
                    continue
            if node is None:
                for other in beam[1:]:
                    if len(other.lost) == len(beam[0].lost):
                        self._note_rival(beam[0], other)
                return beam[0]
            if not is_seen:
                beam = [self.grafted(beam[0], node)]
                history.append((beam, node))
                continue
            history.append((beam, node))
            beam = self.step(beam, node, frozenset(), WIDTH)

    # --- computing

    def value(self, state: State, node: int) -> np.ndarray | None:
        """Returns what an operation of the candidate computes; None if weights that it reads aren't known."""
        if node in state.values:
            return state.values[node]
        if self._is_computed[node]:
            return None
        parts = [state.partners.parts[number] for number in self._owners(node)]
        if any(part is self._without_partners.get(part.size) for part in parts):
            return None
        key = (node, *map(id, parts))
        if key not in self._moved:
            self._kept |= {id(part): part for part in parts}
            self._moved[key] = self._of_partners(state.partners, node)
        found = self._moved[key]
        if found is not None:
            state.values[node] = found
        return found

    def _of_partners(self, partners: Row, node: int) -> np.ndarray | None:
        """Returns the numbers of the weights that an operation moves; None if some have no partner."""
        places = self.elements.places[node]
        assert places is not None
        theirs = np.where(places >= 0, partners[np.maximum(places, 0)], 0)
        if (theirs < 0).any():
            return None
        key = (node, hash(theirs.tobytes()))
        if key not in self._memo:
            self._memo[key] = np.where(places >= 0, self.reference.row[theirs], 0)
            self._held += self._memo[key].size
        return self._memo[key]

    def _owners(self, node: int) -> list[int]:
        """Returns the numbers of the weights whose elements an operation moves."""
        if node not in self._owned:
            places = self.elements.places[node]
            assert places is not None
            starts = list(self.elements.starts.values())
            owners = distinct(np.searchsorted(starts, distinct(places[places >= 0]), side="right") - 1)
            self._owned[node] = owners.tolist()
        return self._owned[node]

    def advance(self, state: State) -> None:
        """Computes all that can be."""
        operations, waiting, left = self.elements.program.operations, 0, list[int]()
        for number, node in enumerate(state.pending):
            if waiting > WINDOW:
                left += state.pending[number:]
                break
            if node in state.values:
                continue
            found = self._computed(state, node)
            if found is None:
                left.append(node)
                waiting += 1
                continue
            state.values[node] = found
            one = operations[node]
            if one.name not in MOVES and not self.elements.is_known[node] and not self._is_shared(found):
                state.lost |= {node}
        state.pending = tuple(left)

    def _computed(self, state: State, node: int) -> np.ndarray | None:
        one = self.elements.program.operations[node]
        if one.name == "input":
            return self.data.get(one.attributes["name"])
        inputs = [self.value(state, each) for each in one.inputs]
        given = [each for each in inputs if each is not None]
        if len(given) < len(inputs):
            is_zero = one.name in ("matmul", "multiply") and any(not each.any() for each in given)
            return np.zeros(one.shape, np.int64) if is_zero else None
        key = (node, *map(id, given))
        if key not in self._memo:
            try:
                found = compute(one, given, self.reference.domain, {})
            except (NoInverse, Undefined):
                found = np.zeros(one.shape, np.int64)
                state.undefined = True
            self._memo[key] = np.asarray(found)
            self._held += self._memo[key].size
            for each in (*given, self._memo[key]):
                self._kept[id(each)] = each
        return self._memo[key]

    def _is_shared(self, array: np.ndarray) -> bool:
        if id(array) not in self._has:
            self._kept[id(array)] = array
            self._has[id(array)] = self.reference.has(array)
        return self._has[id(array)]

    # --- the beam

    def next_slot(self, state: State) -> tuple[int | None, bool]:
        """Returns the next operation that reads weights without partners, and whether all else that it reads is known,
        and computed by the reference."""
        first: int | None = None
        for node in state.pending:
            slots, _, is_seen = self._slots(state, node)
            if not slots or node in state.skipped:
                continue
            if is_seen:
                return node, True
            first = node if first is None else first
        return first, False

    def _slots(self, state: State, node: int) -> tuple[list[int], list[np.ndarray], bool]:
        """Returns which inputs of an operation are weights without partners, the values of the others, and whether the
        reference computes those. No inputs if others aren't known."""
        if self.elements.places[node] is not None:
            return [], [], False
        slots, others, is_seen = list[int](), list[np.ndarray](), True
        for number, each in enumerate(self.elements.program.operations[node].inputs):
            value = self.value(state, each)
            if value is not None:
                others.append(value)
                is_seen = is_seen and (self.elements.is_known[each] or self._is_shared(value))
            elif self.elements.places[each] is not None:
                slots.append(number)
            else:
                return [], [], False
        return slots, others, is_seen

    def step(self, beam: Sequence[State], node: int, ordered: frozenset[int], width: int) -> list[State]:
        """Returns the best states after guesses at an operation.

        Args:
          ordered: the operations at which other orders of features are tried.
        """
        found: list[State] = []
        for state in beam:
            guesses = list(itertools.islice(self.guesses(state, node, node in ordered), 4 * MOST_GUESSES))
            for guess in guesses:
                after = self.after(state, node, guess)
                if after is not None:
                    found.append(after)
                if self._held > MOST_HELD:
                    found = sorted(found, key=lambda state: (node not in state.values, state.rank))[: 2 * width]
                    self._forget([*beam, *found])
        if not found:
            skipped = [replace(state, skipped=state.skipped | {node}) for state in beam]
            return skipped
        found = [state for state in found if node in state.values] or found  # else they have lost nothing yet
        found.sort(key=lambda state: state.rank)
        kept: dict[int, State] = {}
        for state in found:
            if len(state.lost) <= len(found[0].lost) + MOST_LOST:
                first = kept.setdefault(self._signature(state), state)
                if first.lost and first is not state:
                    self._note_rival(first, state)
                elif first is not state and (place := _first_apart(first, state)) is not None:
                    other = int(state.partners[np.array([place])][0])
                    first.alternatives = (*first.alternatives, (place, other))
        self._forget(kept.values())
        return list(kept.values())[:width]

    def _forget(self, states: Iterable[State]) -> None:
        """Forgets the arrays that none of these states has."""
        self._memo.clear()
        self._moved.clear()
        self._held = 0
        alive = {id(array) for state in states for array in (*state.values.values(), *state.used.parts)}
        for memory in (self._kept, self._has, self._digests):
            for key in [key for key in memory if key not in alive]:
                del memory[key]

    def after(self, state: State, node: int, guess: Guess) -> State | None:
        """Returns a state with a guess; None if it contradicts what is known."""
        kept = guess.ours >= 0
        ours, theirs = guess.ours[kept], guess.theirs[kept]
        if (theirs < 0).any():
            return None
        known = state.partners[ours]
        if ((known >= 0) & (known != theirs)).any():
            return None
        partners, used = state.partners.copy(), state.used.copy()
        partners[ours], new = theirs, known < 0
        if (partners[ours] != theirs).any():
            return None
        if not new.any():
            return None
        different = distinct(ours[new]).size
        again = float(used[theirs[new]].mean()) + (different - distinct(theirs[new]).size) / different
        used[theirs] = True
        if guess.is_part:
            self._complete(partners, ours)
        cost = state.cost + guess.cost + 2 * again
        choices = (*state.choices, Choice(node, guess))
        found = replace(
            state, partners=partners, used=used, values=dict(state.values), cost=cost, choices=choices, undefined=False
        )
        self.advance(found)
        return None if found.undefined else found

    def _note_rival(self, state: State, other: State) -> None:
        """Notes an element of which another state has another partner, unless that has fewer partners."""
        place = _first_apart(state, other)
        if place is not None and _more(other.used, state.used) >= 0:
            state.rivals = (*state.rivals, (place, state.lost))

    def undecided(self, state: State) -> list[str]:
        """Returns weights whose partners may be others: values that stay lost don't decide between them, nor does an
        output that is the reference's but for its sign."""
        roots = {*self._lost_roots(state, None)}
        rivals = (each for each, lost in state.rivals if lost & roots or not roots)
        return list(dict.fromkeys(map(self.elements.name_of, rivals)))

    def _complete(self, partners: Row, ours: np.ndarray) -> None:
        """Adds the partners of other elements of weights, as they follow from some."""
        for name in dict.fromkeys(self.elements.name_of(int(each)) for each in ours):
            numbers = self.elements.numbers(name)
            for piece in pieces_of(name, partners[numbers], self.reference.elements) or ():
                places = piece.places() + self.reference.elements.starts[piece.tensor]
                part = numbers[piece.index]
                partners[part] = np.where(partners[part] < 0, places, partners[part])

    def _signature(self, state: State) -> int:
        """Returns a number for what is left to be read: values, and partners of weights that are read again."""
        live = set[int]()
        for node in state.pending[: 2 * WINDOW]:
            live.update(self.elements.program.operations[node].inputs)
        found = hash(state.lost)
        for node in sorted(live & state.values.keys()):
            found = hash((found, node, self._digest(state.values[node])))
        return hash((found, *map(self._digest, state.used.parts)))

    def _digest(self, array: np.ndarray) -> int:
        if id(array) not in self._digests:
            self._kept[id(array)] = array
            self._digests[id(array)] = hash(array.tobytes())
        return self._digests[id(array)]

    # --- guesses

    def guesses(self, state: State, node: int, with_orders: bool) -> Iterator[Guess]:
        """Yields guesses for the weights without partners that an operation reads, the likeliest first."""
        one = self.elements.program.operations[node]
        slots, others, _ = self._slots(state, node)
        found = list[Guess]()
        if len(slots) == 1 and len(one.inputs) == 2 and others:
            ours = self.elements.places[one.inputs[slots[0]]]
            assert ours is not None
            if one.name == "matmul":
                found = list(itertools.islice(self._of_product(ours, others[0], slots[0], with_orders), 400))
            elif one.name in OF_PAIRS:
                found = list(self._of_meeting(one.name, slots[0], ours, others[0]))
        if not found:
            found = list(self._alike(state, node, slots))
        yield from sorted(
            (replace(guess, cost=guess.cost + self._unlike(guess)) for guess in found),
            key=lambda guess: guess.cost,
        )

    def _of_product(self, own: np.ndarray, values: np.ndarray, weighs: int, with_orders: bool) -> Iterator[Guess]:
        """Yields guesses for the weights of a product: columns of the reference's products of the same values."""
        per_batch: list[list[Guess]] = []
        for batch in range(values.shape[0]):
            rows, kernel = matrices(values[batch], own[batch], weighs)
            products = self.reference.products.get(key_of(rows), [])
            per_batch.append(list(self._of_matrix(rows, kernel, products, with_orders)))
        if len(per_batch) == 1:
            yield from per_batch[0]
            return
        for several in zip(*per_batch, strict=False):
            ours, theirs = (
                np.concatenate([np.ravel(getattr(each, side)) for each in several]) for side in ("ours", "theirs")
            )
            yield replace(several[0], ours=ours, theirs=theirs)

    def _of_matrix(
        self, rows: np.ndarray, own: np.ndarray, products: Sequence[Product], with_orders: bool
    ) -> Iterator[Guess]:
        count = own.shape[1]
        kernels = [
            (product.node, product.weights[_matched(rows, product.rows)][:, group])
            for product in products
            for group in _groups(product)
        ]
        orders: list[Order] = [None, *(order for order in self.liked if order and np.prod(order) == count)]
        orders += [order for order in orders_of(count) if order not in orders] if with_orders else []
        for place, (node, kernel) in enumerate(kernels):
            if kernel.shape[1] == count:
                for order in orders:
                    yield Guess(own, kernel[:, _ordered(count, order)], 0.01 * place + self._cost(order), node, order)
            elif kernel.shape[1] > count and kernel.shape[1] % count == 0:
                for number, part in enumerate(np.split(kernel, kernel.shape[1] // count, axis=1)):
                    for order in orders:
                        cost = 0.5 + 0.01 * (place + number) + self._cost(order)
                        yield Guess(own, part[:, _ordered(count, order)], cost, node, order)
        yield from self._of_fused(own, kernels)

    def _of_fused(self, own: np.ndarray, kernels: Sequence[tuple[int, np.ndarray]]) -> Iterator[Guess]:
        """Yields guesses for weights that the reference has in several: one after the other, or head by head."""
        count = own.shape[1]
        small = [each for each in kernels if each[1].shape[1] < count]
        for number in (2, 3, 4):
            for chosen in itertools.islice(itertools.permutations(range(len(small)), number), 120):
                parts = [small[each][1] for each in chosen]
                if sum(part.shape[1] for part in parts) != count:
                    continue
                cost = 0.2 + 0.05 * sum(a > b for a, b in itertools.pairwise(chosen)) + 0.01 * chosen[0]
                node = small[chosen[0]][0]
                yield Guess(own, np.concatenate(parts, axis=1), cost, node)
                if len({part.shape[1] for part in parts}) == 1 and chosen[0] == min(chosen):
                    size = parts[0].shape[1]
                    for inner in [each for each in range(1, size) if size % each == 0]:
                        split = np.stack([part.reshape(len(part), -1, inner) for part in parts], axis=2)
                        yield Guess(own, split.reshape(len(own), count), cost + 0.5, node)

    def _cost(self, order: Order) -> float:
        return 0.0 if order is None else 0.1 if order in self.liked else 1.0

    def _of_meeting(self, name: str, weighs: int, ours: np.ndarray, values: np.ndarray) -> Iterator[Guess]:
        """Yields guesses for weights that meet values element by element: those that the same values meet in the
        reference, in one operation, or in several together."""
        meetings = self.reference.meetings.get((name, weighs if name == "subtract" else -1), [])
        if values.size and (values == values.flat[0]).all():
            yield from self._of_constants(meetings, ours, int(values.flat[0]))
            return
        union = np.full(values.size, NONE)
        first: Meeting | None = None
        for place, meeting in enumerate(meetings):
            partners = meeting.partners(values)
            if (partners < 0).all():
                continue
            first = first or meeting
            union = np.where(union < 0, partners, union)
            share = float((partners >= 0).mean())
            if share > LEAST_SHARE:  # the reference may mask others
                found = _voted(ours.ravel(), partners)
                yield Guess(*found, 0.001 * place + 1 - share, meeting.node, is_part=share < 1)
        if first is not None and (union >= 0).all() and (first.partners(values) < 0).any():
            yield Guess(*_voted(ours.ravel(), union), 0.1, first.node)

    def _of_constants(self, meetings: Sequence[Meeting], ours: np.ndarray, value: int) -> Iterator[Guess]:
        """Yields guesses for weights that all meet one number, such as a state that is zero: parts of what meets it in
        the reference, in order."""
        own = _in_order(ours)
        for place, meeting in enumerate(meetings):
            if (meeting.values == value).all():
                theirs = _in_order(meeting.elements)
                if theirs.size % own.size == 0:
                    for number, part in enumerate(np.split(theirs, theirs.size // own.size)):
                        yield Guess(own, part, 0.01 * (place + number), meeting.node)

    def _alike(self, state: State, node: int, slots: Sequence[int]) -> Iterator[Guess]:
        """Yields guesses from the reference's operations of the same name that read as many elements of weights."""
        one = self.elements.program.operations[node]
        own = [each for each in (self.elements.places[one.inputs[slot]] for slot in slots) if each is not None]
        alike = self.reference.operands.get(one.name, [])
        is_whole = False
        for chosen in (own, *([each] for each in own if len(own) > 1)):
            for place, (other, elements) in enumerate(alike):
                for turn, theirs in enumerate(itertools.permutations(elements, len(chosen))):
                    if [each.size for each in theirs] != [each.size for each in chosen]:
                        continue
                    ours = np.concatenate([each.ravel() for each in chosen])
                    for number, turned in enumerate(_turned(theirs)):
                        cost = 0.05 * place + 0.2 * turn + 0.3 * number
                        yield Guess(ours, np.concatenate([each.ravel() for each in turned]), cost, other)
                    is_whole = True
            if is_whole:
                return

    def _unlike(self, guess: Guess) -> float:
        """Returns how little the names of the weights are alike."""
        ours, theirs = guess.ours[guess.ours >= 0], guess.theirs[guess.theirs >= 0]
        if not ours.size or not theirs.size:
            return 1.0
        names = self.elements.name_of(int(ours.flat[0])), self.reference.elements.name_of(int(theirs.flat[0]))
        return 0.05 * (1 - likeness(*names))

    # --- orders of features, and grafts

    def _again(
        self, state: State, node: int | None, history: list[tuple[list[State], int]], tried: set[int]
    ) -> tuple[list[State], list[tuple[list[State], int]]] | None:
        """Tries other orders of features for values that are lost."""
        for root in itertools.islice(self._lost_roots(state, node), MOST_ROOTS):
            if root not in tried and self.failures < MOST_FAILURES and not self._keeps_order(state, root):
                tried.add(root)
                again = self._with_orders(root, history)
                if again is not None:
                    return again
                self.failures += 1
        return None

    def _lost_roots(self, state: State, node: int | None) -> Iterator[int]:
        """Yields operations that compute what the reference doesn't from values that it does, among those that an
        operation, or the output, follows from."""
        operations, ancestors = self.elements.program.operations, self.elements.ancestors
        ends = [value.node for value in self.elements.program.outputs.values() if value.node is not None]
        bits = 0
        for end in ends if node is None else [node]:
            bits |= ancestors[end]
        known = {choice.node for choice in state.choices if choice.is_graft}
        cut = 0
        for graft in known:
            cut |= ancestors[graft]
        for each in sorted(state.lost):
            if not bits >> each & 1 or cut >> each & 1:
                continue
            sources = [source for source in operations[each].inputs if not self.elements.is_known[source]]
            inputs = [self.value(state, source) for source in sources]
            is_first = all(array is not None and self._is_shared(array) for array in inputs)
            if is_first and self._stays_lost(state, each, bits):
                yield each

    def _keeps_order(self, state: State, node: int) -> bool:
        """Returns whether an operation computes each element of its result from one element of a single value, and from
        numbers that are the same for all: in any order of its elements, the result has the same ones."""
        one, known = self.elements.program.operations[node], self.elements.is_known
        numbers = [self.value(state, each) for each in one.inputs if known[each]]
        is_alike = all(array is not None and (array == array.flat[0]).all() for array in numbers)
        return one.name in ELEMENTWISE and is_alike and len(numbers) == len(one.inputs) - 1

    def _stays_lost(self, state: State, node: int, bits: int) -> bool:
        """Returns whether the last values that follow from a lost one, as far as they are computed, are lost, with all
        on the way to them: behind a value that is the reference's, others are lost for another reason."""
        ancestors, operations = self.elements.ancestors, self.elements.program.operations
        later = [each for each in state.values if each > node and ancestors[each] >> node & 1 and bits >> each & 1]
        reached = {node}
        for each in sorted(later):
            is_lost = each in state.lost or operations[each].name in MOVES
            reached |= {each} if is_lost and not reached.isdisjoint(operations[each].inputs) else set()
        makers = [each for each in later if operations[each].name not in MOVES]
        return all(each in reached for each in makers[-3:])

    def _with_orders(
        self, root: int, history: list[tuple[list[State], int]]
    ) -> tuple[list[State], list[tuple[list[State], int]]] | None:
        """Goes back to the products that a lost value follows from, and tries other orders of their features. Returns
        the states from there on, and the history; None if no order helps."""
        operations, ancestors = self.elements.program.operations, self.elements.ancestors
        steps = [
            number
            for number, (_, node) in enumerate(history)
            if ancestors[root] >> node & 1 and operations[node].name == "matmul"
        ]
        for count in range(1, min(MOST_BACK, len(steps)) + 1):
            chosen = steps[-count:]
            ordered = frozenset(history[number][1] for number in chosen)
            beam, again = history[chosen[0]][0], history[: chosen[0]]
            while True:
                node, is_seen = self.next_slot(beam[0])
                if node is None or not is_seen or root in beam[0].values:
                    break
                again = [*again, (beam, node)]
                beam = self.step(beam, node, ordered, self._width_of_orders)
            if root in beam[0].values and root not in beam[0].lost:
                best = beam[0]
                for choice in best.choices:
                    if choice.guess.order is not None and choice.guess.order not in self.liked:
                        self.liked.append(choice.guess.order)
                return beam[:WIDTH], again
        return None

    def grafted(self, state: State, node: int) -> State:
        """Puts the reference's value in place of an operation's that reads lost values: that of its next operation of
        the same name that reads as many elements of weights, none of which has a partner. Next is the one behind the
        fewest weights without a partner; names decide among those."""
        slots, _, _ = self._slots(state, node)
        size = self.elements.program.operations[node].shape
        guesses = [
            guess
            for guess in self._alike(state, node, slots)
            if not state.used[guess.theirs[guess.theirs >= 0]].any()
            and np.prod(self.reference.program.operations[guess.node].shape) == np.prod(size)
        ]
        last = max((choice.guess.node for choice in state.choices[-1:]), default=-1)
        best = min(
            guesses,
            key=lambda each: (each.node <= last, self._ahead(state, each), round(self._unlike(each), 2), each.node),
            default=None,
        )
        if best is None:
            return replace(state, skipped=state.skipped | {node})
        kept = best.ours >= 0
        partners, used = state.partners.copy(), state.used.copy()
        new = partners[best.ours[kept]] < 0
        partners[best.ours[kept][new]] = best.theirs[kept][new]
        used[best.theirs[best.theirs >= 0]] = True
        values = {**state.values, node: self.reference.arrays[best.node].reshape(size)}
        choices = (*state.choices, Choice(node, best, is_graft=True))
        found = replace(state, partners=partners, used=used, values=values, choices=choices)
        self.advance(found)
        return found

    def _ahead(self, state: State, guess: Guess) -> int:
        """Counts the reference's weights without a partner that an operation follows from, besides its own."""
        elements, above = self.reference.elements, self.reference.elements.ancestors[guess.node]
        own = {elements.name_of(int(each)) for each in distinct(guess.theirs[guess.theirs >= 0])[:1]}
        return sum(
            1
            for node, one in enumerate(self.reference.program.operations[: guess.node])
            if one.name == "input" and above >> node & 1 and one.attributes["name"] in elements.shapes
            if one.attributes["name"] not in own and not state.used[elements.numbers(one.attributes["name"])].any()
        )


def _first_apart(one: State, other: State) -> int | None:
    """Returns the first element that has another partner in another state."""
    for start, ours, theirs in one.partners.apart(other.partners):
        apart = np.flatnonzero((ours != theirs) & (theirs >= 0))
        if apart.size:
            return start + int(apart[0])
    return None


def _more(one: Row, other: Row) -> int:
    """Returns how many more elements one row has than another."""
    return sum(int(ours.sum()) - int(theirs.sum()) for _, ours, theirs in one.apart(other))


def _groups(product: Product) -> list[np.ndarray]:
    whole = np.arange(product.weights.shape[1])
    return [whole] if len(product.groups) == 1 else [*product.groups, whole]


def _matched(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns where each row is among others: numbers that occur more than once in order."""
    order, other = np.argsort(rows, kind="stable"), np.argsort(others, kind="stable")
    found = np.empty(len(rows), np.int64)
    found[order] = other
    return found


def _voted(ours: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns each of our elements once, with the one of theirs that it meets most often."""
    kept = (ours >= 0) & (theirs >= 0)
    pairs, counts = np.unique(np.stack([ours[kept], theirs[kept]]), axis=1, return_counts=True)
    order = np.lexsort((-counts, pairs[0]))
    pairs = pairs[:, order]
    is_first = np.append(True, np.diff(pairs[0]) != 0)
    return pairs[0][is_first], pairs[1][is_first]


def _in_order(elements: np.ndarray) -> np.ndarray:
    """Returns elements, each once, in the order in which they are read."""
    different, first = np.unique(elements, return_index=True)
    return elements.ravel()[np.sort(first[different >= 0])]


def _turned(arrays: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Yields arrays as they are read, and with their axes in other orders."""
    yield list(arrays)
    dims = [[size for size in array.shape if size > 1] for array in arrays]
    if len(dims[0]) not in (2, 3, 4):
        return
    for order in itertools.permutations(range(len(dims[0]))):
        if order == tuple(range(len(order))):
            continue
        if any(len(sizes) != len(order) for sizes in dims):
            continue
        yield [array.reshape(sizes).transpose(order) for array, sizes in zip(arrays, dims, strict=True)]


def orders_of(count: int) -> list[Order]:
    """Returns orders of features: a · b · c with the last two swapped, for all factors. Rotary halves and pairs, and
    heads before or after their features, are among them."""
    found: list[Order] = []
    for last in range(2, count):
        if count % last == 0:
            rest = count // last
            found += [(rest // middle, middle, last) for middle in range(2, rest + 1) if rest % middle == 0]
    likely = sorted(found, key=lambda order: (2 not in order, order[0] != 1, order))  # type: ignore[operator, index]
    return likely[:MOST_ORDERS]


def _ordered(count: int, order: Order) -> np.ndarray:
    places = np.arange(count)
    return places if order is None else places.reshape(order).swapaxes(1, 2).ravel()


@lru_cache(maxsize=100_000)
def likeness(one: str, other: str) -> float:
    """Returns how alike two names are, from 0 to 1. Layers' numbers count."""
    both = [re.sub(r"[^a-z0-9]+", " ", name.lower()).split() for name in (one, other)]
    numbers = [[word for word in words if word.isdigit()] for words in both]
    same = 0.5 if numbers[0][:1] == numbers[1][:1] else 0.0
    texts = [" ".join(word for word in words if not word.isdigit()) for words in both]
    return 0.5 * difflib.SequenceMatcher(None, texts[0], texts[1]).ratio() + same
