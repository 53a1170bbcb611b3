"""Record the calls that build a program, so that it can be edited and built again without tracing.

A program is built by calls of a `Builder`: its methods, and the functions that choose places. Each outermost call is an
entry of the builder's tape, with its site in the user's program. An argument that an earlier call returned is a
reference to that call, which keeps equal values distinct, though they are one operation.

`Tape.replay` repeats the calls on another builder. An edit replaces a result or an argument; dependent calls are
repeated, simplified by the same rules.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jax_transformer.programs.sites import Site
from jax_transformer.proof.programs import Program, Ref, UnknownOperation, Value


@dataclass(frozen=True)
class Operand:
    """An argument of a call that is a value, by the entry's number and the index among such arguments."""

    entry: int
    number: int


Source = Callable[[Any, Callable[[Ref], Value]], Value]
"""(builder, reads earlier results) → the replacement of a value."""
Edits = Mapping[Ref | Operand, Source]
"""Results or operands → their replacements."""


IDLE = ("as_float", "broadcast", "reshape", "transpose")
"""Calls that aren't recorded if they change nothing."""


class Stale(Exception):
    """Raised by a replay if an edit affects something that was decided, or computed, outside the tape's calls."""


class Signature(NamedTuple):
    """The properties of a value that lowering may have read."""

    shape: tuple[int, ...]
    kind: str
    is_known: bool
    is_choice: bool

    @classmethod
    def of(cls, value: Value) -> Signature:
        return cls(value.shape, value.kind, value.known is not None, value.table is not None)


@dataclass(frozen=True, eq=False, slots=True)
class Entry:
    """A call that helped to build a program."""

    call: Callable[..., Any]
    """The method or function; its first argument is the builder."""
    args: tuple[Any, ...]
    """Its further arguments, with references in place of values."""
    options: Mapping[str, Any]
    line: str
    """The builder's line then."""
    site: Site
    origins: tuple[Ref, ...] = ()
    """Operands of the framework's operation that depend on no weight: arrays among the arguments may be computed from
    them."""
    results: tuple[Signature, ...] = ()
    """The values that it returned."""
    answer: Any = None
    """Its result, if that isn't a value."""
    fails: bool = False
    """Whether it raised UnknownOperation."""
    numbers: tuple[np.ndarray | None, ...] = ()
    """Its known integers and booleans, by which lowering may have decided; None for other results."""

    @property
    def name(self) -> str:
        return self.call.__name__

    @property
    def operands(self) -> list[Ref]:
        """Returns the arguments that earlier calls returned, in order."""
        return [*_refs((self.args, self.options))]


@dataclass(eq=False)
class Tape:
    """The calls that built a program, in order."""

    entries: list[Entry] = field(default_factory=list)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    """The program's outputs by name: references, values that no call returned, or the reason why one is unknown."""
    read: Mapping[str, int] = field(default_factory=dict)
    """How often each of the framework's operations was lowered."""
    origins: tuple[Ref, ...] = ()
    """The origins of calls that come now."""
    is_inside: bool = False
    """Whether a call is running, so that further calls are nested."""

    def call(self, builder: Any, call: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Makes and records an outermost call."""
        held = _with_refs(args), _with_refs(options) if options else options
        entry = partial(Entry, call, *held, builder.line, builder.site, self.origins)
        self.is_inside = True
        try:
            found = call(builder, *args, **options)
        except UnknownOperation:
            self.entries.append(entry(fails=True))
            raise
        finally:
            self.is_inside = False
        if isinstance(found, Value):
            if call.__name__ in IDLE and args and found is args[0] and found.ref is not None:
                return found
            self.entries.append(entry((Signature.of(found),), numbers=(_numbers(found),)))
            return self._named(builder, found, 0)
        if isinstance(found, tuple):
            self.entries.append(entry(tuple(map(Signature.of, found)), numbers=tuple(map(_numbers, found))))
            return tuple(self._named(builder, each, place) for place, each in enumerate(found))
        self.entries.append(entry(answer=found))
        return found

    def _named(self, builder: Any, x: Value, place: int) -> Value:
        """Returns a result of the newest entry with a reference to it."""
        ref = Ref(len(self.entries) - 1, place)
        if x.node is not None:
            builder.operations[x.node].refs.append(ref)
        return Value(x.shape, x.kind, x.known, x.node, x.fills, x.table, ref)

    @property
    def weights(self) -> dict[str, Ref]:
        """Returns the program's inputs by name, including unused ones."""
        return {entry.args[0]: Ref(number, 0) for number, entry in enumerate(self.entries) if entry.name == "input"}

    def sites(self, refs: Sequence[Ref]) -> list[Site]:
        """Returns the sites of results, without duplicates."""
        found = (self.entries[ref.entry].site for ref in refs)
        return [*{(site.operation, site.line, site.module, site.steps): site for site in found}.values()]

    def replay(self, builder: Any, edits: Edits | None = None) -> Program:
        """Builds the program again.

        Args:
          builder: a new one.
          edits: results or operands → their replacements.

        Raises:
          Stale: an edit affects something that a rule read, or that was computed elsewhere.
          UnknownOperation: the edited program has an operation without a rule.
        """
        found = Replay(self, builder, edits or {})
        for number in range(len(self.entries)):
            found.run(number)
        outputs = {name: found.value(each) if isinstance(each, Ref) else each for name, each in self.outputs.items()}
        builder.read.update(self.read)
        return builder.program(outputs)


class Replay:
    """Repeats the calls of a tape on a builder, each when it is needed."""

    def __init__(self, tape: Tape, builder: Any, edits: Edits) -> None:
        self.tape, self.builder, self.edits = tape, builder, edits
        self.touched: set[int] = set()
        """The entries that are edited, or follow from one."""
        self._values: dict[Ref, Value] = {}
        self._run: set[int] = set()
        self._waiting: set[int] = set()

    @property
    def values(self) -> Mapping[Ref, Value]:
        """Returns the results of the calls made so far."""
        return self._values

    def edited(self, edits: Edits, entries: Collection[int]) -> Replay:
        """Returns a replay on the same builder of some entries, the consequences of edits. All other entries keep their
        results."""
        found = Replay(self.tape, self.builder, edits)
        found._values = {ref: value for ref, value in self._values.items() if ref.entry not in entries}
        found._run = self._run.difference(entries)
        return found

    def value(self, ref: Ref) -> Value:
        """Returns a call's current result."""
        for number in self._needed(ref.entry):
            self.run(number)
        return self._values[ref]

    def _needed(self, number: int) -> list[int]:
        """Returns a call and the unmade calls that it needs, in order."""
        found, waiting = set[int](), [number]
        while waiting:
            number = waiting.pop()
            if number not in found and number not in self._run:
                found.add(number)
                waiting += [ref.entry for ref in self.tape.entries[number].operands]
        return sorted(found)

    def run(self, number: int) -> None:
        """Makes a call, unless it was made."""
        if number in self._run:
            return
        if number in self._waiting:
            raise Stale("an edit reads what follows from it")
        self._waiting.add(number)
        self._make(number)
        self._waiting.remove(number)
        self._run.add(number)

    def _make(self, number: int) -> None:
        entry, places = self.tape.entries[number], iter(range(len(self.tape.entries) + 1))
        before = self.builder.line, self.builder.site

        def operand(ref: Ref) -> Value:
            place = Operand(number, next(places))
            if place in self.edits:
                self.touched.add(number)
                return self._edited(place, self.tape.entries[ref.entry].results[ref.number], entry)
            value = self.value(ref)
            if ref.entry in self.touched:
                self.touched.add(number)
            return value

        args, options = _with_values((entry.args, entry.options), operand)
        self._check_origins(number, entry)
        self.builder.line, self.builder.site, self.builder.tape.origins = entry.line, entry.site, ()
        try:
            found = args[0] if self._is_rounding(number, entry) else entry.call(self.builder, *args, **options)
        except UnknownOperation:
            if not entry.fails:
                raise
            return
        finally:
            self.builder.line, self.builder.site = before
        self._keep(number, entry, found)

    def _keep(self, number: int, entry: Entry, found: Any) -> None:
        """Stores a call's result, or its replacement."""
        if entry.fails:
            return  # nothing reads it
        if not entry.results:
            if entry.answer is not found and entry.answer != found:
                raise Stale(f"{entry.name} ({entry.line}) says {found} of the edited program")
            return
        values = found if isinstance(found, tuple) else (found,)
        numbers = entry.numbers or (None,) * len(values)
        if not any(Ref(number, place) in self.edits for place in range(len(values))) and all(
            own is not None and value.known is not None and np.array_equal(own, value.known)
            for own, value in zip(numbers, values, strict=True)
        ):
            self.touched.discard(number)  # whatever follows from an edit, it decides as before
        for place, (value, before) in enumerate(zip(values, entry.results, strict=True)):
            ref = Ref(number, place)
            if ref in self.edits:
                self.touched.add(number)
                value = self._edited(ref, before, entry)
            is_number = before.is_known and before.kind in ("int", "bool")
            if Signature.of(value) != before or (is_number and number in self.touched):
                raise Stale(f"{entry.name} ({entry.line}) returns another kind of value")
            self._values[ref] = value

    def _edited(self, place: Ref | Operand, before: Signature, entry: Entry) -> Value:
        """Returns the replacement at a place."""
        self.builder.line, self.builder.site = entry.line, entry.site
        found = self.edits[place](self.builder, self.value)
        if found.shape != before.shape:
            raise Stale(f"an edit puts {list(found.shape)} in place of {list(before.shape)}")
        return found

    def _check_origins(self, number: int, entry: Entry) -> None:
        """Raises Stale if the arrays of a call were computed from an edited value."""
        direct = entry.operands
        stale = [ref for ref in entry.origins if ref.entry in self.touched and ref not in direct]
        has_arrays = next(_arrays((entry.args, entry.options)), None) is not None
        if stale and has_arrays and not self._is_rounding(number, entry):
            raise Stale(f"{entry.name} ({entry.line}) was computed from what is edited")

    def _is_rounding(self, number: int, entry: Entry) -> bool:
        """Returns whether a call notes how a framework rounds a number that is edited."""
        return entry.name == "rounded" and number in self.touched


Call = TypeVar("Call", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)


def recorded(call: Call) -> Call:
    """Records the calls of a function, whose first argument is the builder, on the builder's tape."""

    @functools.wraps(call)
    def record(builder: Any, *args: Any, **options: Any) -> Any:
        tape: Tape = builder.tape
        if tape.is_inside:
            return call(builder, *args, **options)
        return tape.call(builder, record, args, options)

    return record  # type: ignore[return-value]


def records_values(cls: Class) -> Class:
    """Records calls of a class's own public methods that return values."""
    for name, method in list(vars(cls).items()):
        if not name.startswith("_") and getattr(method, "__annotations__", {}).get("return") == "Value":
            setattr(cls, name, recorded(method))
    return cls


def origins_of(inputs: Sequence[Any]) -> tuple[Ref, ...]:
    """Returns the operands of an operation that depend on no weight, from which its rule may compute arrays."""
    found = []
    for each in inputs:
        is_complex = getattr(each, "kind", None) == "complex"
        for part in (each.real, each.imag) if is_complex else (each,):
            if isinstance(part, Value) and part.ref is not None and part.known is not None:
                found.append(part.ref)
    return tuple(found)


def _numbers(x: Value) -> np.ndarray | None:
    """Returns the array of known integers or booleans; None for other values."""
    return x.known if x.kind in ("int", "bool") else None


# --- arguments


def _with_refs(each: Any) -> Any:
    """Replaces values in arguments by references."""
    kind = type(each)
    if kind is Value:
        return each if each.ref is None else each.ref
    if kind is list or kind is tuple:
        return kind([one if type(one) is int else _with_refs(one) for one in each])
    return {name: _with_refs(one) for name, one in each.items()} if kind is dict else each


def _with_values(each: Any, value: Callable[[Ref], Value]) -> Any:
    if isinstance(each, Ref):
        return value(each)
    if type(each) in (list, tuple):
        return type(each)(_with_values(one, value) for one in each)
    return {name: _with_values(one, value) for name, one in each.items()} if type(each) is dict else each


def _refs(each: Any) -> Iterator[Ref]:
    if isinstance(each, Ref):
        yield each
    elif type(each) in (list, tuple, dict):
        for one in each.values() if type(each) is dict else each:
            yield from _refs(one)


def _arrays(each: Any) -> Iterator[Any]:
    if isinstance(each, np.ndarray):
        yield each
    elif type(each) in (list, tuple, dict):
        for one in each.values() if type(each) is dict else each:
            yield from _arrays(one)
