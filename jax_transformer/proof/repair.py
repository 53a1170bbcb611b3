"""Search for the smallest edit that makes a candidate provably the same function as its reference.

Both tapes are replayed on one builder and evaluated at one point. A value is *shared* if the other program has all of
its elements. The calls that lead from shared values to a differing output are *lost*: a few of them are wrong, and the
rest depend on them. An edit replaces a result or an operand of the candidate by a value of the reference. Its cost is
the number of lost operations that come with it. Edits are tried in order of cost and distance from shared values:
dependent values are recomputed as long as they agree with the reference. A successful edit is narrowed down to a
constant, a weight or another operand, if possible. Then the candidate's tape is replayed with it, and the proof
decides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from jax_transformer.programs.sites import Frame, Site, is_of_framework
from jax_transformer.proof.building import Builder
from jax_transformer.proof.constants import unit_of
from jax_transformer.proof.deciding import Task, decide, drawn
from jax_transformer.proof.domains import Arrays, Residues, Undefined
from jax_transformer.proof.evaluating import compute
from jax_transformer.proof.fields import NoInverse
from jax_transformer.proof.index import Index, fingerprint
from jax_transformer.proof.programs import Ref, Table, UnknownOperation, Value
from jax_transformer.proof.tables import Named, partner
from jax_transformer.proof.tape import Edits, Entry, Operand, Replay, Source, Stale, Tape

MOST_OPERATIONS = 12_000
"""Programs of more operations aren't searched."""
MOST_PROBES = 6000
"""Edits that are tried for all causes."""
MOST_OF_CAUSE = 2000
"""The same for one cause."""
MOST_COST, MOST_DEPTH = 8, 8
"""Lost operations that come with an edit, and that are before it."""
MOST_INSERTED, MOST_RIGHT = 24, 4
"""Lost operations that come with an edit that puts them behind a value of the candidate, such as those of a norm; and
right ones that may be between that value and the first lost one, such as those of another norm."""
MOST_MISSES = 12
"""Maximum number of consecutive operations after an edit that disagree with the reference."""
MOST_PROOFS = 16
"""Edits with which a proof is tried."""
MOST_EDITS, MOST_LAYERS = 8, 64
"""Edits that are made one after another, and how often each is made again in further layers."""
MOST_NARROWED = 800
"""Maximum number of operands to try in place of those that an edit's value is computed from."""
MOST_WIDE = 4
"""Edits that are narrowed."""
MOST_AXES, MOST_ORDERS = 5, 2
"""Axes of values whose axes may be permuted, and such orders that are tried for two shapes."""
MOST_BEHIND = 2
"""Operations behind a value that the reference has, of which the operands are tried."""
MOST_WEIGHTS = 3
"""Weights that are wrong together, such as the kernel and the bias of a layer."""
MOST_TABLES, MOST_ASSIGNMENTS = 3, 60
"""Maximum number of tables to replace together, and of assignments to try."""
MOST_LINES = 10
"""Lines that make a table, and that a cause lists."""
MOST_NAMES = 6
"""Names of operations that a cause lists."""
MOVES = frozenset((
    "input", "constant", "computed", "reshape", "transpose", "broadcast", "take", "concatenate", "put", "rounded",
    "in_range", "widened", "as_float", "moved_choices",
))  # fmt: skip
"""Calls that only move elements."""
JOINS = ("concatenate", "put")
"""Calls that join values, each of which may be wrong."""

Kind = Literal["constant", "weight", "order", "left out", "operand", "missing", "operation"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Kinds of edits in order of preference."""


@dataclass(frozen=True)
class Cause:
    """An edit without which two programs differ."""

    kind: Kind
    candidate: str
    """The candidate's line."""
    reference: str
    """The reference's line."""
    text: str
    cure: str
    """The change that makes the two equal."""
    modules: tuple[str, ...] = ()
    """The candidate's modules, and steps of loops, in which it is."""

    def __str__(self) -> str:
        modules = ", ".join(self.modules)
        return f"{self.text}{f' (in {modules})' if modules else ''}"


@dataclass(frozen=True)
class Repair:
    """Holds the edits with which a candidate is proven to be the same function as its reference."""

    causes: tuple[Cause, ...]
    log2_error: float
    """The logarithm of a bound on the probability that the proof is wrong."""

    def __str__(self) -> str:
        cure = self.causes[0].cure if len(self.causes) == 1 else "with the reference's in all of these places"
        return f"{'; '.join(map(str, self.causes))}; {cure}, the two are proven the same"


class Moved(NamedTuple):
    """Holds a value of the candidate, and the place of each element in it."""

    ref: Ref
    order: np.ndarray | None

    def put(self, own: Callable[[Ref], Value], builder: Any, read: Callable[[Ref], Value]) -> Value:
        """Returns it as a replacement of another program's value.

        Args:
          own: reads results of the candidate.
        """
        return own(self.ref) if self.order is None else builder.take(own(self.ref), self.order)


@dataclass(frozen=True, eq=False)
class Edit:
    """Replaces a value in places of the candidate by a value of the reference."""

    places: tuple[Ref | Operand, ...]
    source: Ref
    """The reference's."""
    order: np.ndarray | None = None
    """Place of each element in the source; None: unchanged."""
    cost: int = 0
    own: Mapping[Ref, Moved] = field(default_factory=dict)
    """The source or its operands, if the candidate has them earlier → its own values, so that the rest of the candidate
    stays unchanged."""
    site: Site | None = None
    """Place where the reference reads the source; None: where it computes it."""
    is_closed: bool = True
    """Whether all that the source is computed from, and the candidate has, is its own."""

    @property
    def place(self) -> Ref | Operand:
        return self.places[0]


class _Gap(NamedTuple):
    """The lines of a function between which operations are missing."""

    start: Frame | None
    """The one that makes the value before; None: a caller does."""
    end: Frame | None
    """The one that reads it; None: a caller does."""
    module: str

    @classmethod
    def of(cls, start: Frame | None, end: Frame | None, module: str) -> _Gap | None:
        """Returns a gap; None if both lines are unknown, or not in order."""
        is_known = start is not None or end is not None
        is_in_order = start is None or end is None or (start[::2] == end[::2] and start.line <= end.line)
        return cls(start, end, module) if is_known and is_in_order else None

    @classmethod
    def between(cls, made: Sequence[Frame], read: Sequence[Frame]) -> _Gap | None:
        """Returns the gap between two stacks, in the innermost function that is in both."""
        pairs = zip(made, read, strict=False)
        both = [*itertools.takewhile(lambda pair: pair[0][::2] == pair[1][::2], pairs)]
        differing = [place for place, (one, other) in enumerate(both) if one != other]
        level = differing[0] if differing else len(both) - 1
        return cls.of(*both[level], "") if both else None

    @property
    def line(self) -> str:
        frame = self.end or self.start
        return "" if frame is None else f"{frame.file}:{frame.line}"

    def __str__(self) -> str:
        function = (self.end or self.start or Frame("", 0, "")).function
        if self.start is None:
            return f"no line of {function} above {self.line} does so to its input"
        first = f"{self.start.file}:{self.start.line}"
        if self.end is None:
            return f"no line of {function} below {first} does so to its result"
        between = f"no line of {function} from {first} to :{self.end.line} does so to the value between"
        return f"{first} doesn't" if first == self.line else between


class _Outcome(NamedTuple):
    recovered: int
    """How many of the reference's lost values come out after an edit."""
    is_same: bool
    """Whether all outputs are the reference's."""


def find_repair(task: Task) -> Repair | None:
    """Returns the smallest edits with which a candidate is proven to equal its reference; None if none are found.

    Args:
      task: two programs that differ. There is no search unless both read the same weights by the same names.
    """
    if not _is_searched(task):
        return None
    made: list[tuple[Edit, Cause]] = []
    try:
        bench, edits_left = _Bench(task), MOST_EDITS
        while edits_left and len(made) < MOST_EDITS * MOST_LAYERS:
            bench.edit([edit for edit, _ in made])
            if not bench.different:
                return None
            found = bench.search()
            for edits in found.whole:
                needed = bench.without_idle([*made, *((edit, bench.described(edit)) for edit in edits)])
                log2_error = bench.proof([each for each, _ in needed])
                if log2_error is not None:
                    return Repair(_merged(bench.at_callers(needed)), log2_error)
            if not found.part:
                return None
            edits_left -= not found.is_again
            made += [(edit, bench.described(edit)) for edit in found.part]
    except (Stale, UnknownOperation, ArithmeticError):
        return None
    return None


def _merged(causes: Sequence[Cause]) -> tuple[Cause, ...]:
    """Merges edits of one line into one cause."""
    found: dict[str, Cause] = {}
    for cause in causes:
        before = found.get(cause.text, replace(cause, modules=()))
        found[cause.text] = replace(before, modules=tuple(dict.fromkeys((*before.modules, *cause.modules))))
    return tuple(found.values())


def _is_searched(task: Task) -> bool:
    """Returns whether both programs read the same weights, and are small enough."""
    programs = task.candidate, task.reference
    if any(program.tape is None for program in programs):
        return False
    if sum(len(program.operations) for program in programs) > MOST_OPERATIONS:
        return False
    if task.candidate.inputs.keys().isdisjoint(task.reference.inputs):
        return False
    ours, theirs = drawn(task, [0])[1]
    inputs = {**task.candidate.tape.weights, **task.reference.tape.weights}
    return all(name in ours and name in theirs and np.array_equal(ours[name], theirs[name]) for name in inputs)


# --- both programs at one point


class _Values:
    """Holds a builder, and the values of its operations at a point."""

    def __init__(self, domain: Residues, weights: Arrays) -> None:
        self.builder, self.domain, self.weights = Builder(), domain, weights
        self._arrays: dict[int, np.ndarray | None] = {}
        self._tables: list[tuple[Named, np.ndarray]] = []

    def array(self, value: Value) -> np.ndarray | None:
        """Returns a value's array; None if it isn't defined at this point, or isn't a float."""
        if value.node is None:
            return None
        waiting = [value.node]
        while waiting:
            node = waiting[-1]
            inputs = self.builder.operations[node].inputs
            missing = [each for each in inputs if each not in self._arrays]
            if node in self._arrays or not missing:
                waiting.pop()
                if node not in self._arrays:
                    self._arrays[node] = self._computed(node)
            else:
                waiting += missing
        return self._arrays[value.node]

    def _computed(self, node: int) -> np.ndarray | None:
        one = self.builder.operations[node]
        inputs = [self._arrays[each] for each in one.inputs]
        defined = [each for each in inputs if each is not None]
        if len(defined) < len(inputs):
            return None
        if one.name == "constant" and one.attributes.keys() & {"unit", "radius"}:
            one = replace(one, attributes={**one.attributes, "is_rounded": True})
        try:
            found = compute(one, defined, self.domain, self.weights)
        except (NoInverse, Undefined):
            return None
        return self._as_before(node, found)

    def _as_before(self, node: int, found: np.ndarray) -> np.ndarray:
        """Returns the numbers of earlier tables, where a new one consists of theirs but for rounding."""
        value = self.builder._values[node]
        if value.known is None or value.known.dtype.kind != "f" or not np.isfinite(value.known).all():
            return found
        table = Table(value.known, self.builder.radius(value))
        match = partner(Named(len(self._tables), node, table), [each for each, _ in self._tables])
        if match is not None:
            arrays = np.concatenate([self._tables[source][1].ravel() for source in match.sources])
            both = np.concatenate([arrays, self.domain.field.negate(arrays)])
            return np.asarray(both[match.places])
        self._tables.append((Named(len(self._tables), node, table), found))
        return found


class _Side:
    """Holds the calls of one program, and their results."""

    def __init__(self, values: _Values, tape: Tape, edits: Edits | None = None) -> None:
        self.at, self.tape = values, tape
        self.replay = Replay(tape, values.builder, edits or {})
        for number in range(len(tape.entries)):
            self.replay.run(number)
        self.outputs = {name: each for name, each in tape.outputs.items() if isinstance(each, Ref)}
        self.needed = self.above([ref.entry for ref in self.outputs.values()])
        self.readers: dict[int, list[int]] = {}
        for number in sorted(self.needed):
            for ref in self.entry(number).operands:
                self.readers.setdefault(ref.entry, []).append(number)

    def entry(self, number: int) -> Entry:
        return self.tape.entries[number]

    def array(self, ref: Ref) -> np.ndarray | None:
        return self.at.array(self.replay.values[ref])

    def node(self, ref: Ref) -> int | None:
        return self.replay.values[ref].node

    def is_maker(self, number: int) -> bool:
        entry = self.entry(number)
        is_known = all(each.is_known for each in entry.results)
        return entry.name not in MOVES and not is_known

    def above(self, entries: Sequence[int]) -> set[int]:
        """Returns entries and all that they follow from."""
        found, waiting = set[int](), [*entries]
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                waiting += [ref.entry for ref in self.entry(number).operands]
        return found

    def below(self, entries: Iterable[int]) -> list[int]:
        """Returns entries and their needed consequences, in order."""
        found, waiting = set[int](), [*entries]
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                waiting += self.readers.get(number, ())
        return sorted(found)

    @cached_property
    def results(self) -> dict[int, Ref]:
        """Returns the operations that outputs need and calls returned → the first of those calls."""
        found: dict[int, Ref] = {}
        for number in sorted(self.needed):
            for place, signature in enumerate(self.entry(number).results):
                node = self.node(Ref(number, place))
                if node is not None and signature.kind == "float" and self.array(Ref(number, place)) is not None:
                    found.setdefault(node, Ref(number, place))
        return found

    @cached_property
    def index(self) -> Index:
        arrays = {node: self.array(ref) for node, ref in self.results.items()}
        return Index({node: array for node, array in arrays.items() if array is not None})

    @cached_property
    def numbers(self) -> set[int]:
        """Returns the numbers that fill whole arrays."""
        return {int(array.flat[0]) for array in self.index.arrays.values() if array.size and _is_one_number(array)}


def _is_one_number(array: np.ndarray) -> bool:
    return bool((array == array.flat[0]).all()) if array.size else True


class _Found(NamedTuple):
    whole: list[list[Edit]]
    """Edits after which the outputs are the reference's, from the simplest on."""
    part: list[Edit]
    """The edits of one cause that recover the most, if they recover more than comes with them."""
    is_again: bool = False
    """Whether they are those that were made before, in a further layer."""


class _Bench:
    """A candidate, with edits, and its reference, on which more edits are probed."""

    def __init__(self, task: Task) -> None:
        self.task = task
        domains, (ours, theirs) = drawn(task, [0])
        self.at = _Values(domains[0], {**theirs, **ours})
        self.reference = _Side(self.at, task.reference.tape)
        self.wanted = self._aligned(self.reference.outputs)
        self.probes = 0
        """Edits that were tried."""
        self._follow: dict[int, set[int]] = {}
        """Values → the reference's entries that follow from their elements."""
        self._axes: dict[tuple[tuple[int, ...], tuple[int, ...]], list[np.ndarray]] = {}
        self.edit([])

    def edit(self, edits: Sequence[Edit]) -> None:
        """Edits the original candidate."""
        self.candidate = self._edited(edits)
        self.edits = edits
        self.sides = self.candidate, self.reference
        self._shared: dict[tuple[bool, int], bool] = {}
        outputs = self.candidate.outputs
        self.named = [name for name in self.task.candidate.outputs if name in outputs and name in self.wanted]
        self.different = [name for name in self.named if not self._is_right(self.candidate, name)]
        self._learn_orders()
        for name in ("lost", "_lost_prints", "_sources", "_readers_of_weights"):
            self.__dict__.pop(name, None)

    def _edited(self, edits: Sequence[Edit]) -> _Side:
        return _Side(self.at, self.task.candidate.tape, self._sources_of(edits))

    def _sources_of(self, edits: Sequence[Edit]) -> dict[Ref | Operand, Source]:
        """Returns the sources of edits."""
        return {place: partial(self._put, edit) for edit in edits for place in edit.places}

    def _put(self, edit: Edit, builder: Any, read: Callable[[Ref], Value]) -> Value:
        """Returns the source of an edit, computed as the reference does from values of the candidate."""
        own: dict[Ref | Operand, Source] = {ref: partial(moved.put, read) for ref, moved in edit.own.items()}
        value = Replay(self.reference.tape, builder, own).value(edit.source)
        return value if edit.order is None else builder.take(value, edit.order)

    def _probed(self, edit: Edit, builder: Any, read: Callable[[Ref], Value]) -> Value:
        """Returns the source of an edit as the reference has it."""
        value = self.reference.replay.values[edit.source]
        return value if edit.order is None else builder.take(value, edit.order)

    def _settled(self, edit: Edit) -> Edit:
        """Rewrites an edit to compute its source from earlier values of the candidate."""
        own, waiting, seen = dict[Ref, Moved](), [edit.source], set[Ref]()
        first, is_closed = min(place.entry for place in edit.places), True
        while waiting:
            ref = waiting.pop()
            if ref in seen:
                continue
            seen.add(ref)
            moved = self._own_value(self.reference.array(ref), first) if self.is_shared(self.reference, ref) else None
            if moved is not None:
                own[ref] = moved
            else:
                waiting += self.reference.entry(ref.entry).operands
                is_known = self.reference.replay.values[ref].known is not None
                is_closed &= is_known or not self.is_shared(self.reference, ref)
        return replace(edit, own=own, is_closed=is_closed)

    def _own_value(self, array: np.ndarray | None, first: int) -> Moved | None:
        """Returns the candidate's value before an entry that is an array, in an order; None if it has none."""
        if array is None:
            return None
        for key in self.candidate.index.equal(array):
            ref = self.candidate.results[int(key)]
            if ref.entry < first:
                if _same(self.candidate.index.arrays[key], array):
                    return Moved(ref, None)
                order = self.candidate.index.order(array, key)
                if order is not None:
                    return Moved(ref, order)
        return None

    def _is_right(self, side: _Side, name: str) -> bool:
        return _same(side.array(side.outputs[name]), self.wanted[name])

    def without_idle(self, made: Sequence[tuple[Edit, Cause]]) -> list[tuple[Edit, Cause]]:
        """Removes the edits that the reference's outputs don't need."""
        kept = list(made)
        for each in made:
            others = [other for other in kept if other is not each]
            is_closed = all(edit.is_closed for edit, _ in others)
            if is_closed and self._are_right(self._edited([edit for edit, _ in others])):
                kept = others
        return kept

    def _are_right(self, side: _Side) -> bool:
        return all(self._is_right(side, name) for name in self.named)

    def _aligned(self, outputs: Mapping[str, Ref]) -> Mapping[str, Any]:
        arrays = {name: self.reference.array(ref) for name, ref in outputs.items()}
        return self.task.align({name: array for name, array in arrays.items() if array is not None})

    def _learn_orders(self) -> None:
        """Notes in which orders the programs have the values that they share."""
        for node in self.reference.results:
            array = self.reference.index.arrays[node]
            for key in self.candidate.index.equal(array):
                if self.candidate.index.arrays[key].shape != array.shape or key != node:
                    self.reference.index.order(self.candidate.index.arrays[key], node)

    def is_shared(self, side: _Side, ref: Ref) -> bool:
        """Returns whether the other program has all elements of a value, or it isn't a float."""
        node = side.node(ref)
        if node is None:
            return True
        key = side is self.candidate, node
        if key not in self._shared:
            self._shared[key] = self._has(self.sides[side is self.candidate], side.array(ref))
        return self._shared[key]

    def _has(self, other: _Side, array: np.ndarray | None) -> bool:
        if array is None:
            return False
        if _is_one_number(array):
            return not array.size or int(array.flat[0]) in other.numbers
        return bool(other.index.equal(array) or other.index.holding(array))

    # --- lost operations

    @cached_property
    def lost(self) -> tuple[dict[int, int], dict[int, int]]:
        """Returns the lost entries of both programs → which makers among them they follow from, themselves included, as
        bits."""
        names = self.different
        theirs = [ref for name, ref in self.reference.outputs.items() if name in names]
        theirs = theirs or [*self.reference.outputs.values()]
        ours = [self.candidate.outputs[name] for name in names]
        return self._lost(self.candidate, ours), self._lost(self.reference, theirs)

    def _lost(self, side: _Side, outputs: Sequence[Ref]) -> dict[int, int]:
        found, waiting = set[int](), [*outputs]
        while waiting:
            ref = waiting.pop()
            if ref.entry not in found and (ref in outputs or not self.is_shared(side, ref)):
                found.add(ref.entry)
                waiting += side.entry(ref.entry).operands
        bits: dict[int, int] = {}
        for place, number in enumerate(sorted(found)):
            own = 1 << place if side.is_maker(number) else 0
            for ref in side.entry(number).operands:
                own |= bits.get(ref.entry, 0)
            bits[number] = own
        return bits

    @cached_property
    def _lost_prints(self) -> set[int]:
        """Returns the fingerprints of the reference's lost values."""
        return {found for found in map(self._lost_print, self.lost[1]) if found is not None}

    def cost(self, ref: Ref) -> int:
        """Counts the lost operations that a value of the reference depends on."""
        return self._lost_bits(ref.entry).bit_count()

    def _lost_bits(self, number: int) -> int:
        """Returns the lost operations that an entry of the reference follows from, as bits: what is only moved from
        their results, and read elsewhere, isn't lost itself."""
        lost, found, waiting, seen = self.lost[1], 0, [number], set[int]()
        while waiting:
            each = waiting.pop()
            if each in lost:
                found |= lost[each]
            elif each not in seen:
                seen.add(each)
                operands = self.reference.entry(each).operands
                waiting += [] if self.reference.is_maker(each) else [ref.entry for ref in operands]
        return found

    # --- edits

    def search(self) -> _Found:
        """Probes edits, from the cheapest on."""
        together = [edits for edits in self._table_edits() if self._is_whole(edits)]
        if together:
            return _Found([[*map(self._settled, edits)] for edits in together], [])
        again = self._again()
        if again:
            settled = [*map(self._settled, again)]
            return _Found([settled] if self.probe(*again).is_same else [], settled, True)
        whole: list[Edit] = []
        part: tuple[int, Edit | None] = (0, None)
        most: int | None = None
        for level, edit in itertools.islice(self._edits(), max(0, min(MOST_OF_CAUSE, MOST_PROBES - self.probes))):
            self.probes += 1
            if most is not None and level > most:
                break
            outcome = self.probe(edit)
            if outcome.is_same:
                whole.append(edit)
                most = level if most is None else most
            elif outcome.recovered - edit.cost > part[0]:
                part = outcome.recovered - edit.cost, edit
        if not whole and part[1] is not None:
            narrowest = [*map(self._settled, self._narrowest(part[1], part[0]))]
            return _Found([narrowest] if self.probe(*narrowest).is_same else [], narrowest)
        whole.sort(key=self._rank)
        narrowed = [each for edit in whole[:MOST_WIDE] for each in self._narrowed(edit, self._mends)]
        found = [[edit] for edit in whole] + [edits for edits in narrowed if self._mends(edits)]
        found.sort(key=self._rank_of)
        return _Found([[*map(self._settled, edits)] for edits in found[:MOST_PROOFS]], [])

    def _mends(self, edits: Sequence[Edit]) -> bool:
        return self.probe(*edits).is_same

    def _is_whole(self, edits: Sequence[Edit]) -> bool:
        """Returns whether the outputs are the reference's after more edits."""
        try:
            return self._are_right(self._edited([*self.edits, *edits]))
        except (Stale, UnknownOperation, ArithmeticError, ValueError):
            return False

    def _again(self) -> list[Edit]:
        """Returns the edit that was made before, in the next layer that runs its line; [] if there is none."""
        if not self.edits:
            return []
        before, read = self.edits[-1], self._read_by(self.reference, self.lost[1])
        for places in self._places_again(before):
            value = self._value_at(places[0])
            if before.order is not None and before.order.shape != value.shape:
                continue
            best: tuple[int, list[Edit]] = (0, [])
            for source in self._sources.get(value.size, ()):
                is_alike = self._called_at(self.reference, source) == self._called_at(self.reference, before.source)
                cost, own = self.cost(source), self.reference.replay.values[source]
                site = None if before.site is None else read.get(own.node)
                if not is_alike or cost > before.cost or (before.site is None) != (site is None):
                    continue
                if before.order is None and own.shape != value.shape:
                    continue
                edit = replace(before, places=places, source=source, cost=cost, site=site, own={})
                score = self.probe(edit).recovered - cost
                best = (score, [edit]) if score > best[0] else best
            if best[1]:
                return best[1]
        return []

    def _places_again(self, before: Edit) -> Iterator[tuple[Ref | Operand, ...]]:
        """Yields the places of an edit's line, first those that the same calls lead to; of an operand behind right
        values, these alone."""

        def alike(groups: Iterable[tuple[Ref | Operand, ...]], read: Callable[[Any], Any]) -> list[Any]:
            return [each for each in groups if [*map(read, each)] == [*map(read, before.places[: len(each)])]]

        places = [places for places, *_ in self._places()]
        of_line = alike(places, partial(self._called_at, self.candidate))
        yield from alike([*of_line, *self._operands_again(before)], self._calls_of)
        yield from of_line

    def _operands_again(self, before: Edit) -> list[tuple[Ref | Operand, ...]]:
        """Returns the operands like that of an edit behind right values."""
        if not isinstance(before.place, Operand) or before.site is None:
            return []
        operands = (Operand(number, before.place.number) for number in sorted(self.candidate.needed))
        made = {*self._made}
        call = self._called_at(self.candidate, before.place)
        return [(each,) for each in operands if self._called_at(self.candidate, each) == call and each not in made]

    def _calls_of(self, place: Ref | Operand) -> list[Frame]:
        return _own_frames(self.candidate.entry(place.entry).site)

    @property
    def _made(self) -> Iterator[Ref | Operand]:
        """Yields the places of the edits that were made."""
        return (place for edit in self.edits for place in edit.places)

    def _called_at(self, side: _Side, place: Ref | Operand) -> tuple[Any, ...]:
        """Returns what tells a place from those of other lines: its call, and the framework's operation."""
        entry = side.entry(place.entry)
        is_operand, site = isinstance(place, Operand), entry.site
        return is_operand, place.number, entry.name, site.operation, site.line

    def _table_edits(self) -> Iterator[list[Edit]]:
        """Yields edits that replace all tables of the candidate alone by tables of the reference alone: cosines and
        sines of positions are wrong together. The first of the tables are replaced; else those that operations read."""
        ours, theirs = (self._own_tables(side) for side in self.sides)
        entries = {node: self.candidate.results[node].entry for node in ours}
        above = {node: self.candidate.above([entry]) for node, entry in entries.items()}
        first = [node for node in ours if not any(entries[other] in above[node] for other in ours if other != node)]
        last = [node for node in ours if not any(entries[node] in above[other] for other in ours if other != node)]
        yield from self._tables_replaced(first, theirs)
        if last != first:
            yield from self._tables_replaced(last, theirs)

    def _tables_replaced(self, ours: Sequence[int], theirs: Sequence[int]) -> Iterator[list[Edit]]:
        if not 0 < len(ours) <= MOST_TABLES:
            return
        places = {
            node: tuple(
                Operand(number, place)
                for number in sorted(self.candidate.needed)
                for place, operand in enumerate(self.candidate.entry(number).operands)
                if self.candidate.node(operand) == node
            )
            for node in ours
        }
        for chosen in itertools.islice(itertools.permutations(theirs, len(ours)), MOST_ASSIGNMENTS):
            sources = [self.reference.results[other] for other in chosen]
            shapes = [self.candidate.index.arrays[node].shape for node in ours]
            by_node = [
                [Edit(places[node], source, order) for order in self._table_orders(source, shape)]
                for node, source, shape in zip(ours, sources, shapes, strict=True)
            ]
            yield from map(list, zip(*by_node, strict=False))  # the same layout for all tables of an edit

    def _table_orders(self, source: Ref, shape: tuple[int, ...]) -> list[np.ndarray | None]:
        """Returns possible orders of a table's elements in a shape: one table may have each column once, another
        twice."""
        own = self.reference.replay.values[source].shape
        if not shape or not own or math.prod(own[:-1]) != math.prod(shape[:-1]):
            return self._orders(source, shape)[:1]
        places, ours, theirs = np.arange(math.prod(own)).reshape(*shape[:-1], own[-1]), shape[-1], own[-1]
        if theirs > ours and theirs % ours == 0:
            return [places[..., :ours], places[..., :: theirs // ours]]
        if ours > theirs and ours % theirs == 0:
            return [np.concatenate([places] * (ours // theirs), -1), np.repeat(places, ours // theirs, -1)]
        return self._orders(source, shape)[:1]

    def _own_tables(self, side: _Side) -> list[int]:
        """Returns the constants that lost operations read and the other program lacks, without single numbers."""
        read = self._read_by(side, self.lost[side is self.reference])
        return [
            node
            for node, ref in side.results.items()
            if node in read and side.replay.values[ref].known is not None
            if not _is_one_number(side.index.arrays[node]) and not self.is_shared(side, ref)
        ]

    def _narrowest(self, edit: Edit, score: int) -> list[Edit]:
        """Returns the simplest narrowing of one of these edits that recovers as much; a replaced number is replaced at
        all its places in the line."""

        def is_enough(edits: Sequence[Edit]) -> bool:
            outcome = self.probe(*edits)
            return outcome.is_same or outcome.recovered - sum(each.cost for each in edits) >= score

        found = [[edit]]
        for edits in self._narrowed(edit, is_enough):
            wides = ([self._at_line(edits[0])], edits) if len(edits) == 1 else (edits,)
            found += [*itertools.islice(filter(is_enough, wides), 1)]
        return min(found, key=self._rank_of)

    def _at_line(self, edit: Edit) -> Edit:
        """Returns an edit of a number at all places of its line that read it."""
        if self._kind(edit) != "constant" or not isinstance(edit.place, Operand):
            return edit
        side, node = self.candidate, self._value_at(edit.place).node
        entry = side.entry(edit.place.entry)
        more = [
            Operand(number, edit.place.number)
            for number in sorted(side.needed)
            if (side.entry(number).name, side.entry(number).line) == (entry.name, entry.line)
            and side.node(side.entry(number).operands[edit.place.number]) == node
        ]
        return replace(edit, places=(edit.place, *(each for each in more if each != edit.place)))

    def _edits(self) -> Iterator[tuple[int, Edit]]:
        """Yields edits, and how many lost operations come with each and are before it."""
        found: list[tuple[int, Edit]] = []
        behind = {ref for ref, _ in self._right_before()}
        for places, depth, is_shared in self._places():
            value = self._value_at(places[0])
            current = self.at.array(value)
            for source in self._sources.get(value.size, ()):
                cost, array = self.cost(source), self.reference.array(source)
                if array is None or (cost == 0 and (is_shared or isinstance(places[0], Operand))):
                    continue  # shared values have other readers too, so only operands are replaced by narrowing
                is_far = cost > self._most_cost or places[0] in behind
                if is_far and not (is_shared and self._is_above(value, source)):
                    continue
                for order in self._orders(source, value.shape):
                    if not _same(current, _ordered(array, order)):
                        found.append((depth + cost, Edit(places, source, order, cost)))
        yield from sorted(found, key=lambda each: each[0])

    def _places(self) -> list[tuple[tuple[Ref | Operand, ...], int, bool]]:
        """Returns the places where a value may be wrong, with the number of lost operations before each, and whether it
        is shared: results and operands of lost makers, and outputs; and together, the places where the first lost
        makers read one value, which others may read rightly."""
        found: dict[Ref | Operand, tuple[int, bool]] = {}
        ends = {self.candidate.outputs[name] for name in self.different}
        values, made = self.candidate.replay.values, {*self._made}
        for number, bits in self.lost[0].items():
            entry, ref, is_maker = self.candidate.entry(number), Ref(number, 0), self.candidate.is_maker(number)
            depth = bits.bit_count() - is_maker
            is_place = is_maker or entry.name in JOINS or ref in ends
            if depth > MOST_DEPTH or not is_place or [each.kind for each in entry.results] != ["float"]:
                continue
            found[ref] = depth, False
            for place, operand in enumerate(entry.operands):
                if values[operand].kind == "float":
                    is_shared = self.is_shared(self.candidate, operand)
                    found[Operand(number, place)] = depth, is_shared
                    for each in self._moved(operand) if is_shared else ():
                        found.setdefault(each, (depth, True))
        for ref, depth in self._right_before():
            found.setdefault(ref, (depth, True))
        kept: list[tuple[tuple[Ref | Operand, ...], int, bool]]
        kept = [((place,), *rest) for place, rest in found.items() if place not in made]
        kept += [(places, 0, True) for places in self._read_first() if made.isdisjoint(places)]
        return sorted(kept, key=lambda each: (each[1], -len(each[0])))

    @property
    def _first(self) -> set[int]:
        """Returns the lost makers of the candidate whose operands are right."""
        first = (number for number, bits in self.lost[0].items() if bits.bit_count() == 1)
        return {number for number in first if self.candidate.is_maker(number)}

    def _read_first(self) -> list[tuple[Ref | Operand, ...]]:
        """Returns the places where several of the first lost makers read one value, by value."""
        first, leads = self._first, dict[int, bool]()  # whether all that reads a value are first makers, through moves
        for number in sorted(self.candidate.needed, reverse=True):
            readers = self.candidate.readers.get(number, ())
            is_move = not self.candidate.is_maker(number)
            leads[number] = bool(readers) and all(leads[each] for each in readers) if is_move else number in first
        found: dict[Ref, list[Ref | Operand]] = {}
        for number in sorted(number for number, is_first in leads.items() if is_first):
            for place, ref in enumerate(self.candidate.entry(number).operands):
                if self.candidate.is_maker(ref.entry) or not leads[ref.entry]:
                    found.setdefault(ref, []).append(Operand(number, place))
        return [tuple(places) for places in found.values() if len(places) > 1]

    def _right_before(self) -> Iterator[tuple[Ref, int]]:
        """Yields results of right makers before lost ones, and how many right ones are between."""
        level, seen = [*self._first], {*self.lost[0]}
        for depth in range(MOST_RIGHT + 1):
            below, level = level, []
            while below:
                for ref in self.candidate.entry(below.pop()).operands:
                    if ref.entry not in seen and self.candidate.replay.values[ref].known is None:
                        seen.add(ref.entry)
                        (level if self.candidate.is_maker(ref.entry) else below).append(ref.entry)
            if depth:
                yield from ((Ref(number, 0), depth) for number in level if self.candidate.readers.get(number))

    def _moved(self, ref: Ref) -> Iterator[Ref]:
        """Yields a value, and the values that it is moved from, up to the operation that makes it."""
        waiting = [ref]
        while waiting:
            ref = waiting.pop()
            value = self.candidate.replay.values[ref]
            if value.kind == "float" and value.known is None:
                yield ref
                waiting += [] if self.candidate.is_maker(ref.entry) else self.candidate.entry(ref.entry).operands

    @cached_property
    def _sources(self) -> dict[int, list[Ref]]:
        """Returns the reference's values by size, from the cheapest on, each once."""
        found: dict[int, list[Ref]] = {}
        for ref in sorted(self.reference.results.values(), key=self.cost):
            if self.cost(ref) <= max(self._most_cost, min(MOST_INSERTED, self._half)):
                found.setdefault(self.reference.replay.values[ref].size, []).append(ref)
        return found

    @cached_property
    def _half(self) -> int:
        """Returns half of the reference's operations: an edit that puts in more is none."""
        return sum(map(self.reference.is_maker, self.reference.needed)) // 2

    @property
    def _most_cost(self) -> int:
        return min(MOST_COST, max(2, self._half))

    def _orders(self, source: Ref, shape: tuple[int, ...]) -> list[np.ndarray | None]:
        """Returns possible orders of a value's elements in a shape."""
        own = self.reference.replay.values[source]
        found: list[np.ndarray | None] = [None] if own.shape == shape else []
        found += self.reference.index.orders(shape, own.shape)
        if own.shape != shape and own.size == math.prod(shape):
            more = [np.arange(own.size).reshape(shape), *self._permuted(own.shape, shape)]
            found += [each for each in more if not any(_same(each, other) for other in found)]
        if own.size < math.prod(shape) and _fills(own.shape, shape):
            found.append(np.broadcast_to(np.arange(own.size).reshape(own.shape), shape))
        return found

    def _permuted(self, own: tuple[int, ...], shape: tuple[int, ...]) -> list[np.ndarray]:
        """Returns the orders of elements in which axes are permuted: none can be learned from values whose elements
        aren't distinct, such as those of repeated tokens."""
        if (own, shape) not in self._axes:
            places = np.arange(math.prod(own)).reshape(own)
            is_long = len(own) > MOST_AXES or sorted(own) != sorted(shape)
            permutations = [] if is_long else itertools.permutations(range(len(own)))
            orders = (places.transpose(each) for each in permutations if tuple(own[axis] for axis in each) == shape)
            self._axes[own, shape] = [*itertools.islice(orders, MOST_ORDERS)]
        return self._axes[own, shape]

    def _value_at(self, place: Ref | Operand) -> Value:
        if isinstance(place, Operand):
            place = self.candidate.entry(place.entry).operands[place.number]
        return self.candidate.replay.values[place]

    def _with(self, edits: Iterable[Edit], entries: Collection[int]) -> Replay:
        """Returns a replay of these entries with more edits."""
        more = {place: partial(self._probed, edit) for edit in edits for place in edit.places}
        return self.candidate.replay.edited(self._sources_of(self.edits) | more, entries)

    def probe(self, *edits: Edit) -> _Outcome:
        """Recomputes the consequences of edits, as long as they agree with the reference."""
        places = {place for edit in edits for place in edit.places}
        below = self.candidate.below(place.entry for place in places)
        replay, recovered, misses = self._with(edits, {*below}), set[int](), 0
        try:
            for number in below:
                replay.run(number)
                ref = Ref(number, 0)
                if ref in places or not self.candidate.is_maker(number) or ref not in replay.values:
                    continue
                array = self.at.array(replay.values[ref])
                found = None if array is None else fingerprint(array)
                if found in self._lost_prints:
                    recovered.add(found or 0)
                    misses = 0
                elif replay.values[ref].node != self.candidate.node(ref):
                    misses += 1
                    if misses > MOST_MISSES:
                        return _Outcome(len(recovered), False)
            arrays = {name: self.at.array(replay.value(self.candidate.outputs[name])) for name in self.named}
        except (Stale, UnknownOperation, ArithmeticError, ValueError):
            return _Outcome(0, False)
        return _Outcome(len(recovered), all(_same(arrays[name], self.wanted[name]) for name in self.named))

    def _narrowed(self, edit: Edit, is_enough: Callable[[Sequence[Edit]], bool]) -> Iterator[list[Edit]]:
        """Yields edits of operands that make the candidate compute an edit's value itself: of one operand, or of
        several that read other weights. Of a weight, it is enough that what follows is right: outputs may not depend on
        all of the value, such as the bias of keys.

        Args:
          is_enough: whether edits do as much as the edit.
        """
        array, target = self.reference.array(edit.source), edit.place
        if isinstance(target, Operand):
            target = self.candidate.entry(target.entry).operands[target.number]
        if array is None:
            return
        wanted, read = _ordered(array, edit.order), self._reading(array)
        above, tried = self.candidate.above([target.entry]), 0
        places = [*self._computed_from(target)]
        for place in places:
            entries = above.intersection(self.candidate.below([place.entry]))
            for found in self._operands(place, read):
                tried += 1
                if tried > MOST_NARROWED:
                    break
                is_done = self._computes([found], target, entries, wanted)
                if is_done or (self._reads_other_weight(found) and is_enough([found])):
                    yield [found]
                    break
        for several in self._weights_replaced(places, read):
            entries = above.intersection(self.candidate.below(each.place.entry for each in several))
            if self._computes(several, target, entries, wanted):
                yield several
                break

    def _reads_other_weight(self, edit: Edit) -> bool:
        ours = self._weight(self.candidate, self._value_at(edit.place))
        theirs = self._weight(self.reference, self.reference.replay.values[edit.source])
        return bool(ours and theirs) and ours != theirs

    def _computes(self, edits: Iterable[Edit], target: Ref, entries: Collection[int], wanted: np.ndarray) -> bool:
        try:
            return _same(self.at.array(self._with(edits, entries).value(target)), wanted)
        except (Stale, UnknownOperation, ArithmeticError, ValueError):
            return False

    def _computed_from(self, target: Ref) -> Iterator[Operand]:
        """Yields the operands that a value is computed from, from the nearest on: back to values that the reference
        has, and behind these a few operations more, which may be right for another reader."""
        waiting, seen = [(target, MOST_BEHIND)], {target.entry}
        while waiting:
            ref, rest = waiting.pop(0)
            for number, operand in enumerate(self.candidate.entry(ref.entry).operands):
                if self.candidate.replay.values[operand].kind != "float":
                    continue
                yield Operand(ref.entry, number)
                is_maker = self.candidate.is_maker(operand.entry)
                left = rest - (is_maker and self.is_shared(self.candidate, operand))
                if left >= 0 and operand.entry not in seen:
                    seen.add(operand.entry)
                    waiting.append((operand, left))

    def _operands(self, place: Operand, read: Mapping[int | None, Site]) -> Iterator[Edit]:
        """Yields the reference's values that may be in place of an operand: those that it reads there, and of a value
        that is only moved, the same elements in another order."""
        value = self._value_at(place)
        current = self.at.array(value)
        if current is None:
            return
        is_moved = not self.candidate.is_maker(place.entry)
        same = {*self.reference.index.equal(current)} if is_moved else set()
        for source in self._fitting(value):
            site = read.get(self.reference.node(source))
            is_small = self.cost(source) <= self._most_cost
            if is_small and (site is not None or self.reference.node(source) in same):
                for order in self._orders(source, value.shape):
                    if not _same(current, _ordered_as(self.reference.array(source), order)):
                        yield Edit((place,), source, order, self.cost(source), site=site)

    def _fitting(self, value: Value) -> Iterator[Ref]:
        """Yields the reference's values as large as another one, and then those that fill its shape if they are
        repeated, such as rows that are the same for all of a batch."""
        yield from self._sources.get(value.size, ())
        for size in self._sources:
            if 1 < size < value.size and value.size % size == 0:
                yield from (ref for ref in self._sources[size] if self._orders(ref, value.shape))

    def _weights_replaced(self, places: Sequence[Operand], read: Mapping[int | None, Site]) -> Iterator[list[Edit]]:
        """Yields edits of several operands that read other weights than the reference, such as the scale and the offset
        of another norm."""
        ours = {place: self._weight(self.candidate, self._value_at(place)) for place in places}
        ours = {place: name for place, name in ours.items() if name and self.candidate.is_maker(place.entry)}
        theirs = [source for group in self._sources.values() for source in group if self.reference.node(source) in read]
        named = {source: self._weight(self.reference, self.reference.replay.values[source]) for source in theirs}
        right = {*named.values()} - {*ours.values(), ""}
        wrong = [name for name in dict.fromkeys(ours.values()) if name not in named.values()][: len(right)]
        if not 1 < len(wrong) == len(right) <= MOST_WEIGHTS:
            return
        for names in itertools.permutations(sorted(right)):
            chosen = dict(zip(wrong, names, strict=True))
            options = [
                [
                    Edit((place,), source, order, self.cost(source), site=read[self.reference.node(source)])
                    for source in theirs
                    if named[source] == chosen[name] and self.reference.replay.values[source].size == size
                    for order in self._orders(source, self._value_at(place).shape)
                ]
                for place, name in ours.items()
                if name in wrong
                for size in [self._value_at(place).size]
            ]
            yield from map(list, itertools.islice(itertools.product(*options), MOST_ASSIGNMENTS))

    def _reading(self, wanted: np.ndarray) -> dict[int | None, Site]:
        """Returns the operands of the reference's lost operations that an array is computed by → sites."""
        prints, bits = fingerprint(wanted), 0
        for number in self.lost[1]:
            if self._lost_print(number) == prints:
                bits |= self.lost[1][number]
        numbers = [number for place, number in enumerate(sorted(self.lost[1])) if bits >> place & 1]
        return self._read_by(self.reference, numbers)

    def _lost_print(self, number: int) -> int | None:
        array = self.reference.array(Ref(number, 0)) if self.reference.is_maker(number) else None
        return None if array is None else fingerprint(array)

    def _read_by(self, side: _Side, numbers: Iterable[int]) -> dict[int | None, Site]:
        """Returns the operands of operations, through moves → site of the first reader."""
        found = dict[int | None, Site]()
        for number in sorted(numbers):
            waiting = [*side.entry(number).operands] if side.is_maker(number) else []
            while waiting:
                ref = waiting.pop()
                found.setdefault(side.node(ref), side.entry(number).site)
                if not side.is_maker(ref.entry):
                    waiting += side.entry(ref.entry).operands
        return found

    # --- the proof

    def proof(self, edits: Sequence[Edit]) -> float | None:
        """Returns the bound on the error of a proof that the edited candidate equals the reference; None without a
        proof. The candidate is lowered again, so that it is simplified as if it had been written so."""
        try:
            edited = self.task.candidate.tape.replay(Builder(), self._sources_of(edits))
        except (Stale, UnknownOperation):
            return None
        original = self.reference.tape.replay(Builder())  # before any axiom was used on it
        programs = {
            "candidate": edited.restricted([*self.task.candidate.outputs]),
            "reference": original.restricted([*self.task.reference.outputs]),
        }
        result = decide(replace(self.task, **programs, is_written_out=False))
        is_whole = {*result.equal} >= {*self.named}
        return result.log2_error if result.verdict == "proven" and is_whole else None

    # --- words

    def _rank(self, edit: Edit) -> tuple[int, int, int]:
        """Returns how complex an edit is. Elements are in a wrong order where they are moved, not where they are
        read."""
        kind = self._kind(edit)
        is_moved = kind == "order" and not self._is_whole_weight(edit)
        return edit.cost, KINDS.index(kind), edit.place.entry if is_moved else 0

    def _is_whole_weight(self, edit: Edit) -> bool:
        """Returns whether an edit reads all elements of the weight that is read now."""
        return bool(self._weight(self.candidate, self._value_at(edit.place))) and self._has_same_elements(edit)

    def _rank_of(self, edits: Sequence[Edit]) -> tuple[int, int, int, int]:
        cost, kind, place = max(map(self._rank, edits))
        return cost, kind, len(edits), place

    def _kind(self, edit: Edit) -> Kind:
        value, source = self._value_at(edit.place), self.reference.replay.values[edit.source]
        if value.known is not None and source.known is not None:
            return "constant"
        if self._weight(self.candidate, value) and self._weight(self.reference, source):
            same = self._weight(self.candidate, value) == self._weight(self.reference, source)
            return "order" if same else "weight"
        if self._has_same_elements(edit):
            return "order"
        if edit.cost:
            return "missing" if self._is_missing(edit) else "operation"
        if isinstance(edit.place, Operand):
            return "operand"
        own = self._own_value(self.reference.array(edit.source), edit.place.entry)
        is_left_out = own is not None and own.ref.entry in self.candidate.above([edit.place.entry])
        return "left out" if is_left_out else "operation"

    def _has_same_elements(self, edit: Edit) -> bool:
        array, current = self.reference.array(edit.source), self.at.array(self._value_at(edit.place))
        return array is not None and current is not None and fingerprint(array) == fingerprint(current)

    def _is_missing(self, edit: Edit) -> bool:
        """Returns whether the reference computes a source from a value that the candidate has in its place."""
        return self._is_above(self._value_at(edit.place), edit.source)

    def _is_above(self, value: Value, source: Ref) -> bool:
        """Returns whether the reference computes a source from a value."""
        node, array = value.node or -1, self.at.array(value)
        if node not in self._follow:
            keys = [] if array is None else self.reference.index.equal(array)
            self._follow[node] = {*self.reference.below(self.reference.results[int(key)].entry for key in keys)}
        return source.entry in self._follow[node]

    def _weight(self, side: _Side, value: Value) -> str:
        """Returns the weight that a value is, or takes elements of."""
        node = value.node
        while node is not None:
            one = self.at.builder.operations[node]
            if one.name == "input":
                return str(one.attributes["name"])
            node = one.inputs[0] if one.name in ("reshape", "transpose", "take", "broadcast") else None
        return ""

    def _number(self, value: Value) -> str | None:
        """Returns the number that fills an array, in the shortest form for its type; None if there are several."""
        known, node = value.known, value.node
        if known is None or not known.size or not _is_one_number(known):
            return None
        while node is not None and self.at.builder.operations[node].inputs:
            node = self.at.builder.operations[node].inputs[0]
        attributes = {} if node is None else self.at.builder.operations[node].attributes
        is_float32 = attributes.get("unit") == unit_of(np.dtype(np.float32))
        number = float(known.flat[0])
        return str(np.float32(number)) if is_float32 and np.float32(number) == number else repr(number)

    def described(self, edit: Edit) -> Cause:
        """Describes an edit with the lines of both programs."""
        kind, place = self._kind(edit), edit.place
        ours = self._site(edit, kind)
        theirs = self.reference.entry(edit.source.entry).site
        if edit.site is not None:
            theirs = edit.site
        here, there = _line(ours), _line(theirs)
        value, source = self._value_at(place), self.reference.replay.values[edit.source]
        applied = [self._lost_names(number, entry) for number, entry in enumerate((place.entry, edit.source.entry))]
        text, cure = f"{here} computes {applied[0]}, {there} computes {applied[1]}", "with the latter"
        numbers = self._number(value), self._number(source)
        if kind == "constant" and numbers[0] is None:
            differ = self._difference_of_tables(edit, value, source)
            made = self._made_in(value, here)
            text, cure = f"{here} reads another table {list(value.shape)} than {there}{differ}{made}", "with that"
        elif kind == "constant":
            text, cure = f"{here} has {numbers[0]}, {there} has {numbers[1]}", f"with {numbers[1]}"
        elif kind == "weight":
            names = self._weight(self.candidate, value), self._weight(self.reference, source)
            text, cure = f"{here} reads {names[0]}, {there} reads {names[1]}", f"with {names[1]}"
        elif kind == "order":
            what = f"elements of {self._weight(self.candidate, value)}".removesuffix(" of ")
            text, cure = f"{here} reads {what} in another order than {there}", "in that order"
            if not self._has_same_elements(edit):
                text, cure = f"{here} reads other {what} than {there}", "with those"
        elif kind == "operand":
            text, cure = f"{here} reads another value than {there}", "with that"
        elif kind == "left out":
            text, cure = f"{here} applies {applied[0]}, and the reference doesn't", "without it"
        elif kind == "missing":
            gap = self._gap(edit)
            if gap is not None:
                here = gap.line
            lacking = f"{here} doesn't" if gap is None else str(gap)
            text, cure = f"{there} applies {applied[1]}, and {lacking}", "with it"
            if gap is not None and gap.module:
                return Cause(kind, here, there, text, cure, (gap.module,))
        sites = [ours.where, *(self.candidate.entry(each.entry).site.where for each in edit.places[1:])]
        return Cause(kind, here, there, text, cure, tuple(dict.fromkeys(filter(None, sites))))

    def _gap(self, edit: Edit) -> _Gap | None:
        """Returns the lines between which a candidate lacks operations: those of the function that runs the module in
        which the reference has them, or else of the innermost function that both makes and reads the value. None if
        these lines aren't known."""
        made, read = self._ends_of_value(edit)
        home = self._home(edit, made, read)
        sites = [Site() if entry is None else self.candidate.entry(entry).site for entry in (made, read)]
        start, end = map(_own_frames, sites)
        if home is None:
            return _Gap.between(start, end)
        functions = self._functions(home)

        def inside(site: Site, stack: Sequence[Frame]) -> Frame | None:
            frames = (frame for frame in reversed(stack) if frame[::2] in functions)
            return next(frames, None) if _is_inside(site.where, home) else None

        return _Gap.of(inside(sites[0], start), inside(sites[1], end), home)

    def _functions(self, home: str) -> set[tuple[Any, ...]]:
        """Returns the functions of a module's own operations; without any, the innermost that is in all calls of its
        parts."""
        sites = [self.candidate.entry(number).site for number in sorted(self.candidate.needed)]
        stacks = [(site.where == home, _own_frames(site)) for site in sites if _is_inside(site.where, home)]
        own = {stack[-1][::2] for is_own, stack in stacks if is_own and stack}
        if own or not stacks:
            return own
        calls = zip(*([frame[::2] for frame in stack] for _, stack in stacks), strict=False)
        same = [*itertools.takewhile(lambda call: len(call) == 1, map(set, calls))]
        return same[-1] if same else set()

    def _ends_of_value(self, edit: Edit) -> tuple[int, int | None]:
        """Returns the entry that makes the value behind which operations are missing, and the first entry that reads
        it."""
        if isinstance(edit.place, Ref):
            return edit.place.entry, min(self.candidate.readers.get(edit.place.entry, ()), default=None)
        line = self.candidate.entry(edit.place.entry).site.line
        made = self.candidate.entry(edit.place.entry).operands[edit.place.number].entry
        while not self.candidate.is_maker(made) and self.candidate.entry(made).site.line == line:
            before = self.candidate.entry(made).operands
            if len(before) != 1:
                break
            made = before[0].entry
        return made, min(place.entry for place in edit.places)

    def _home(self, edit: Edit, made: int, read: int | None) -> str | None:
        """Returns the candidate's module that corresponds to the one in which the reference has operations; None if
        there is no such module. Both are as many levels above those that make the value before, or read the one
        behind."""
        reference, found = self.reference, [(0, "")]
        current = self.at.array(self._value_at(edit.place))
        keys = [] if current is None else reference.index.equal(current)
        before = [reference.results[int(key)].entry for key in keys]
        behind = reference.readers.get(edit.source.entry, ())
        own = reference.entry(edit.source.entry).site.where
        for ours, theirs in ((made, before), (read, behind)):
            for entry in theirs if ours is not None else ():
                there, here = reference.entry(entry).site.where, self.candidate.entry(ours or 0).site.where
                common = _common(own, there)
                levels = len(there.split(".")) - len(common)
                parts = here.split(".")
                if common and there and 0 <= levels < len(parts):
                    found.append((len(common), ".".join(parts[: len(parts) - levels])))
        return max(found, key=lambda each: each[0])[1] or None

    def _site(self, edit: Edit, kind: Kind) -> Site:
        """Returns the candidate's site of an edit; of an order, that of the last move before, unless all of a weight is
        read."""
        place = edit.place
        if kind == "order" and isinstance(place, Operand) and not self._is_whole_weight(edit):
            before = self.candidate.entry(place.entry).operands[place.number].entry
            if not self.candidate.is_maker(before) and self.candidate.entry(before).site.line:
                return self.candidate.entry(before).site
        return self.candidate.entry(place.entry).site

    def at_callers(self, made: Sequence[tuple[Edit, Cause]]) -> list[Cause]:
        """Returns causes. A caller decides which weight a line reads, if that line also reads right ones in a module of
        the same name: then the cause is at the innermost call that leads to no right one."""
        edited = {place.entry for edit, _ in made for place in edit.places}
        found = []
        for edit, cause in made:
            site = self.candidate.entry(edit.place.entry).site
            sites = (self.candidate.entry(number).site for number in self._readers_of_weights - edited)
            kind = _kind_of_site(site)
            alike = (each for each in sites if _kind_of_site(each) == kind)
            right = {(frame.file, frame.line) for each in alike for frame in each.frames()}
            frames = [frame for frame in site.frames() if not is_of_framework(frame.file)]
            caller = next((frame for frame in frames if (frame.file, frame.line) not in right), None)
            if cause.kind == "weight" and right and caller is not None:
                line = f"{caller.file}:{caller.line}"
                cause = replace(cause, candidate=line, text=cause.text.replace(cause.candidate, line, 1))
            found.append(cause)
        return found

    @cached_property
    def _readers_of_weights(self) -> set[int]:
        """Returns the candidate's operations that read a weight."""
        values, numbers = self.candidate.replay.values, filter(self.candidate.is_maker, self.candidate.needed)
        return {
            number
            for number in numbers
            if any(self._weight(self.candidate, values[operand]) for operand in self.candidate.entry(number).operands)
        }

    def _made_in(self, value: Value, here: str) -> str:
        """Returns the lines that make a table, as text."""
        ref = self.candidate.results.get(value.node if value.node is not None else -1)
        if ref is None:
            return ""
        file, made, waiting = here.rpartition(":")[0], set[int](), [ref.entry]
        while waiting:
            number = waiting.pop()
            if number not in made:
                made.add(number)
                entry = self.candidate.entry(number)
                waiting += [each.entry for each in (*entry.operands, *entry.origins)]
        lines = (self.candidate.entry(number).site.line for number in sorted(made))
        shown = [line.removeprefix(f"{file}:") for line in dict.fromkeys(lines) if line not in ("", here)]
        several = "lines" if len(shown) > 1 else "line"
        return f", made in {several} {', '.join(shown)}" if 0 < len(shown) <= MOST_LINES else ""

    def _difference_of_tables(self, edit: Edit, value: Value, source: Value) -> str:
        """Returns how many numbers of two tables differ by more than rounding, and the first, as text; "" if the tables
        can't be compared number by number."""
        ours, theirs = self.at.array(value), self.reference.array(edit.source)
        if ours is None or theirs is None or value.known is None or source.known is None:
            return ""
        theirs, known = _ordered(theirs, edit.order), _ordered(source.known, edit.order)
        if ours.shape != theirs.shape or not (places := np.argwhere(ours != theirs)).size:
            return ""
        first = tuple(map(int, places[0]))
        here, there = float(value.known[first]), float(known[first])
        return f" ({len(places)} of {ours.size} numbers differ; at {list(first)}, {here:.6g} for {there:.6g})"

    def _lost_names(self, side: int, entry: int) -> str:
        """Returns the framework's operations among the lost ones that an entry follows from."""
        bits, numbers = self.lost[side].get(entry, 0), sorted(self.lost[side])
        makers = [number for place, number in enumerate(numbers) if bits >> place & 1] or [entry]
        sites = [self.sides[side].entry(number).site for number in makers]
        names = [*dict.fromkeys(site.operation for site in sites if site.operation)]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        return f"{', '.join(names[:MOST_NAMES])}{more}" or "an operation"


def _fills(own: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Returns whether an array that is repeated along axes fills a shape."""
    try:
        return np.broadcast_shapes(own, shape) == shape
    except ValueError:
        return False


def _same(ours: np.ndarray | None, theirs: Any) -> bool:
    return ours is not None and theirs is not None and np.array_equal(ours, theirs)


def _ordered(array: np.ndarray, order: np.ndarray | None) -> np.ndarray:
    return array if order is None else np.ravel(array)[order]


def _ordered_as(array: np.ndarray | None, order: np.ndarray | None) -> np.ndarray | None:
    return None if array is None else _ordered(array, order)


def _own_frames(site: Site) -> list[Frame]:
    """Returns the program's own calls that lead to a site, from the outermost on."""
    return [frame for frame in reversed(site.frames()) if not is_of_framework(frame.file)]


def _common(path: str, other: str) -> list[str]:
    """Returns the names with which two paths begin."""
    both = zip(path.split("."), other.split("."), strict=False)
    return [one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both)]


def _is_inside(path: str, home: str) -> bool:
    return f"{path}.".startswith(f"{home}.")


def _kind_of_site(site: Site) -> tuple[str, str, str]:
    """Returns the line, the operation, and the module's name in its parent."""
    return site.line, site.operation, site.module.rpartition(".")[2]


def _line(site: Site) -> str:
    return site.line or site.operation or "?"
