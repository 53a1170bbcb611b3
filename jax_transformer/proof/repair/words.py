"""Describe edits by the lines of both programs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from jax_transformer.programs.sites import Frame, Site, is_of_framework, own_frames
from jax_transformer.proof.constants import unit_of
from jax_transformer.proof.programs import Ref, Value
from jax_transformer.proof.repair.bench import Bench
from jax_transformer.proof.repair.causes import Cause, Kind
from jax_transformer.proof.repair.edits import Edit, ordered
from jax_transformer.proof.repair.gaps import Gap
from jax_transformer.proof.repair.kinds import has_same_elements, is_whole_weight, kind_of
from jax_transformer.proof.repair.sides import is_one_number
from jax_transformer.proof.tape import Operand

MOST_LINES = 10
"""Lines that make a table, and that a cause lists."""
MOST_NAMES = 6
"""Names of operations that a cause lists."""


class Words:
    """Describes edits by the lines of both programs."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.candidate, self.reference = bench, bench.candidate, bench.reference

    def _number(self, value: Value) -> str | None:
        """Returns the number that fills an array, in the shortest form for its type; None if there are several."""
        known, node = value.known, value.node
        if known is None or not known.size or not is_one_number(known):
            return None
        while node is not None and self.bench.at.builder.operations[node].inputs:
            node = self.bench.at.builder.operations[node].inputs[0]
        attributes = {} if node is None else self.bench.at.builder.operations[node].attributes
        is_float32 = attributes.get("unit") == unit_of(np.dtype(np.float32))
        number = float(known.flat[0])
        return str(np.float32(number)) if is_float32 and np.float32(number) == number else repr(number)

    def described(self, edit: Edit) -> Cause:
        """Describes an edit with the lines of both programs."""
        kind, place = kind_of(self.bench, edit), edit.place
        ours = self._site(edit, kind)
        theirs = self.reference.entry(edit.source.entry).site
        if edit.site is not None:
            theirs = edit.site
        here, there = _line(ours), _line(theirs)
        value, source = self.bench.value_at(place), self.reference.replay.values[edit.source]
        applied = [self._lost_names(number, entry) for number, entry in enumerate((place.entry, edit.source.entry))]
        text, cure = f"{here} computes {applied[0]}, {there} computes {applied[1]}", "with the latter"
        numbers = self._number(value), self._number(source)
        if kind == "constant" and numbers[0] is None:
            differ = self._difference_of_tables(edit, value, source)
            ref = self.candidate.results.get(value.node if value.node is not None else -1)
            made = self._made_in([] if ref is None else [ref], here)
            text, cure = f"{here} reads another table {list(value.shape)} than {there}{differ}{made}", "with that"
        elif kind == "constant":
            text, cure = f"{here} has {numbers[0]}, {there} has {numbers[1]}", f"with {numbers[1]}"
        elif kind == "weight":
            names = self.candidate.weight(value), self.reference.weight(source)
            text, cure = f"{here} reads {names[0]}, {there} reads {names[1]}", f"with {names[1]}"
        elif kind == "order":
            what = f"elements of {self.candidate.weight(value)}".removesuffix(" of ")
            text, cure = f"{here} reads {what} in another order than {there}", "in that order"
            if not has_same_elements(self.bench, edit):
                made = self._made_in(self._moves(place), here)
                text, cure = f"{here} reads other {what} than {there}{made and f', at places{made[1:]}'}", "with those"
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

    def _gap(self, edit: Edit) -> Gap | None:
        """Returns the lines between which a candidate lacks operations: those of the function that runs the module in
        which the reference has them, or else of the innermost function that both makes and reads the value. None if
        these lines aren't known."""
        made, read = self._ends_of_value(edit)
        home = self._home(edit, made, read)
        behind = [] if read is None else self.candidate.makers_below([read])  # a move may split heads before them
        ends = made, min(behind, default=read)
        sites = [Site() if entry is None else self.candidate.entry(entry).site for entry in ends]
        start, end = map(own_frames, sites)
        if home is None:
            return Gap.between(start, end)
        functions = self._functions(home)

        def inside(site: Site, stack: Sequence[Frame]) -> Frame | None:
            frames = (frame for frame in reversed(stack) if frame[::2] in functions)
            return next(frames, None) if _is_inside(site.where, home) else None

        return Gap.of(inside(sites[0], start), inside(sites[1], end), home)

    def _functions(self, home: str) -> set[tuple[Any, ...]]:
        """Returns the functions of a module's own operations; without any, the innermost that is in all calls of its
        parts."""
        sites = [self.candidate.entry(number).site for number in sorted(self.candidate.needed)]
        stacks = [(site.where == home, own_frames(site)) for site in sites if _is_inside(site.where, home)]
        own = {stack[-1][::2] for is_own, stack in stacks if is_own and stack}
        if own or not stacks:
            return own
        calls = zip(*([frame[::2] for frame in stack] for _, stack in stacks), strict=False)
        same = [*itertools.takewhile(lambda call: len(call) == 1, map(set, calls))]
        return same[-1] if same else set()

    def _ends_of_value(self, edit: Edit) -> tuple[int, int | None]:
        """Returns the entry that makes the value behind which operations are missing, and the first entry that reads
        it. A value that the reference moves behind them, such as heads that it splits, may be moved here before."""
        if isinstance(edit.place, Ref):
            made, read, line = edit.place.entry, self._first_reader(edit.place), ""
        else:
            made = self.candidate.entry(edit.place.entry).operands[edit.place.number].entry
            read, line = min(place.entry for place in edit.places), self.candidate.entry(edit.place.entry).site.line
        is_moved = not any(map(self.reference.is_maker, self.reference.readers.get(edit.source.entry, ())))
        while not self.candidate.is_maker(made) and (is_moved or self.candidate.entry(made).site.line == line):
            before = self.candidate.entry(made).operands
            if len(before) != 1:
                break
            made = before[0].entry
        return made, read

    def _first_reader(self, ref: Ref) -> int | None:
        return min(self.candidate.readers.get(ref.entry, ()), default=None)

    def _home(self, edit: Edit, made: int, read: int | None) -> str | None:
        """Returns the candidate's module that corresponds to the one in which the reference has operations; None if
        there is no such module. Both are as many levels above those that make the value before, or compute with
        the one behind."""
        reference, found = self.reference, [(0, "")]
        current = self.bench.at.array(self.bench.value_at(edit.place))
        keys = [] if current is None else reference.index.equal(current)
        before = [reference.maker_above(reference.results[int(key)].entry) for key in keys]
        behind = reference.makers_below(reference.readers.get(edit.source.entry, ()))
        own = reference.entry(edit.source.entry).site.where
        after = [] if read is None else self.candidate.makers_below([read])
        for ours, theirs in ((self.candidate.maker_above(made), before), (min(after, default=None), behind)):
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
        if kind == "order" and isinstance(place, Operand) and not is_whole_weight(self.bench, edit):
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
            if any(self.candidate.weight(values[operand]) for operand in self.candidate.entry(number).operands)
        }

    def _moves(self, place: Ref | Operand) -> list[Ref]:
        """Returns what the moves above a place depend on and no weight does, such as the places of rows in a table."""
        ref = place if isinstance(place, Ref) else self.candidate.entry(place.entry).operands[place.number]
        found, waiting = list[Ref](), [ref.entry]
        while waiting:
            number = waiting.pop()
            if not self.candidate.is_maker(number):
                found += self.candidate.entry(number).origins
                waiting += [each.entry for each in self.candidate.entry(number).operands]
        return found

    def _made_in(self, refs: Iterable[Ref], here: str) -> str:
        """Returns the lines that make values which depend on no weight, as text."""
        file, made, waiting = here.rpartition(":")[0], set[int](), [ref.entry for ref in refs]
        while waiting:
            number = waiting.pop()
            if number not in made:
                made.add(number)
                entry = self.candidate.entry(number)
                waiting += [each.entry for each in (*entry.operands, *entry.origins)]
        lines = (self.candidate.entry(number).site.line for number in sorted(made))
        own = (line for line in dict.fromkeys(lines) if line and not is_of_framework(line.rpartition(":")[0]))
        shown = [line.removeprefix(f"{file}:") for line in own if line != here]
        several = "lines" if len(shown) > 1 else "line"
        return f", made in {several} {', '.join(shown)}" if 0 < len(shown) <= MOST_LINES else ""

    def _difference_of_tables(self, edit: Edit, value: Value, source: Value) -> str:
        """Returns how many numbers of two tables differ by more than rounding, and the first, as text; "" if the tables
        can't be compared number by number."""
        ours, theirs = self.bench.at.array(value), self.reference.array(edit.source)
        if ours is None or theirs is None or value.known is None or source.known is None:
            return ""
        theirs, known = ordered(theirs, edit.order), ordered(source.known, edit.order)
        if ours.shape != theirs.shape or not (places := np.argwhere(ours != theirs)).size:
            return ""
        first = tuple(map(int, places[0]))
        here, there = float(value.known[first]), float(known[first])
        return f" ({len(places)} of {ours.size} numbers differ; at {list(first)}, {here:.6g} for {there:.6g})"

    def _lost_names(self, side: int, entry: int) -> str:
        """Returns the framework's operations among the lost ones that an entry follows from."""
        bits, numbers = self.bench.lost[side].get(entry, 0), sorted(self.bench.lost[side])
        makers = [number for place, number in enumerate(numbers) if bits >> place & 1] or [entry]
        sites = [self.bench.sides[side].entry(number).site for number in makers]
        names = [*dict.fromkeys(site.operation for site in sites if site.operation)]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        return f"{', '.join(names[:MOST_NAMES])}{more}" or "an operation"


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
