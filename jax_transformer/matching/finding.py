"""Finds the map between the weights of two programs of any architecture, and proves it right."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from jax_transformer.mapping.maps import NameMap
from jax_transformer.matching.pieces import Piece, completed, pieces_of
from jax_transformer.matching.search import Search, State
from jax_transformer.matching.sides import LoweredSide, lowered, without_others
from jax_transformer.matching.splitting import one_weight_at_a_time
from jax_transformer.matching.values import Reference
from jax_transformer.matching.weights import NONE, Elements
from jax_transformer.matching.writing import Unwritten, check, form_of, written
from jax_transformer.proof import tables
from jax_transformer.proof.constants import radicands
from jax_transformer.proof.deciding import Result, Task, decide
from jax_transformer.proof.distinct import distinct
from jax_transformer.proof.domains import Arrays, Residues
from jax_transformer.proof.fields import NoInverse, draw_field
from jax_transformer.proof.programs import UnknownOperation
from jax_transformer.runtime.memory import check_fits
from jax_transformer.storage.tensors import PortingError

SERIES = 8
"""Points that are drawn until no divisor is zero."""
LEAST_BYTES = 32
"""Memory that the search takes for each number that the reference computes, weights included: 37 to 53 bytes were
measured for GPT-2 with 0.1 to 15 million weights."""
FEWEST_SIBLINGS = 3
"""Layers alike from which on another name of one is worth a note."""
Verdict = Literal["proven", "refuted", "unknown", "not proven"]


@dataclass(frozen=True)
class FoundMap:
    """Says which weights of two programs correspond, and how that was checked.

    `str(found)` is a report; `found.map.write("map.yaml")` saves the map.
    """

    map: NameMap | None
    """The reference's names → the candidate's; None if it can't be written so, and `unwritten` says why."""
    partners: Mapping[str, np.ndarray]
    """For each leaf of the candidate, in its shape, the reference's element that each of its elements is; −1 where that
    isn't known. Elements are counted through all of the reference's tensors in `tensors`' order."""
    tensors: Mapping[str, tuple[int, ...]]
    """The reference's tensors, each once → their shapes."""
    verdict: Verdict
    """What a proof says of both programs with weights that the map carries over. "not proven": it was not asked for."""
    reason: str = ""
    """Why there is no proof, or where the programs part."""
    unmapped: tuple[str, ...] = ()
    """Leaves of the candidate, and tensors of the reference that it reads, without a partner."""
    unused: tuple[str, ...] = ()
    """Tensors that the reference reads, some elements of which no leaf has."""
    missing: tuple[str, ...] = ()
    """Leaves that the candidate reads and that have elements without a partner. Nothing is proven then."""
    irregular: tuple[str, ...] = ()
    """Layers that are mapped unlike their siblings, such as one transposed kernel among others."""
    renamed: tuple[str, ...] = ()
    """Single layers whose tensor has another name than those of all their siblings, such as swapped norms."""
    by_name: tuple[str, ...] = ()
    """Without a proof, leaves for which names and order alone were compared, since they meet what the reference doesn't
    compute, or since as much is lost with another partner."""
    completed: tuple[str, ...] = ()
    """Leaves of which these inputs read only some elements; the others follow from those."""
    disordered: tuple[str, ...] = ()
    """Leaves that have a tensor's elements in an order that no axes give, such as reversed."""
    alternatives: tuple[str, ...] = ()
    """Leaves for which two tensors compute the same, such as two biases that are added: the one that was taken, by name
    and order, and the other."""
    unwritten: str = ""
    unread: tuple[str, ...] = ()
    """Tensors of the reference that it doesn't read; the map ignores them."""
    copies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The reference's tensors → other names of the same tensor."""
    seconds: float = 0.0
    """Those of reading both programs, of the search and of the proof."""
    search_seconds: float = 0.0
    operations: tuple[int, int] = (0, 0)
    """How many the candidate and the reference have."""
    log2_error: float = 0.0
    """The logarithm of a bound on the probability that the proof is wrong."""

    @property
    def is_right(self) -> bool:
        """Returns whether the map is whole, alike in all layers, and proven: both programs are one function with it."""
        return self.verdict == "proven" and not self.unmapped and not self.irregular

    def to_candidate(self, weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns the candidate's leaves with the reference's weights, bit for bit. Leaves without a partner are left
        out.

        Raises:
          KeyError: a tensor is missing.
        """
        row = np.concatenate([np.ravel(np.asarray(weights[name])) for name in self.tensors])
        return {name: row[each] for name, each in self.partners.items() if (each >= 0).all()}

    def to_reference(self, leaves: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns the reference's tensors with the candidate's weights, bit for bit: under all names of each. Tensors
        of which no leaf has all elements are left out.

        Raises:
          ValueError: two leaves that are one tensor of the reference differ.
        """
        total = sum(int(np.prod(shape)) for shape in self.tensors.values())
        given = {name: np.asarray(leaves[name]) for name in self.partners if name in leaves}
        row = np.zeros(total, np.result_type(*given.values()) if given else np.float32)
        is_given = np.zeros(total, bool)
        for name, array in given.items():
            places = self.partners[name]
            known = places >= 0
            again = known & is_given[np.where(known, places, 0)]
            if not np.array_equal(row[places[again]], array[again]):
                raise ValueError(
                    f"{name}: expected the numbers of another leaf that is the same tensor of the reference"
                )
            row[places[known]], is_given[places[known]] = array[known], True
        found: dict[str, np.ndarray] = {}
        start = 0
        for name, shape in self.tensors.items():
            part = slice(start, start := start + int(np.prod(shape)))
            if is_given[part].all():
                found |= dict.fromkeys((name, *self.copies.get(name, ())), row[part].reshape(shape))
        return found

    def __str__(self) -> str:
        whole = sum(1 for each in self.partners.values() if (each >= 0).all())
        said = {"proven": "proven right", "refuted": "refuted", "unknown": "not proven", "not proven": "not proven"}
        head = f"a map of {whole} of {len(self.partners)} leaves, {said[self.verdict]}"
        if self.verdict == "proven" and not self.is_right:
            head += ", but not regular" if self.irregular else ", but not whole"
        lines = [f"{head} ({self.seconds:.1f} s)"]
        lines += [f"  {self.reason}"] if self.reason else []
        for title, several in (
            ("unmapped", self.unmapped),
            ("irregular", self.irregular),
            ("another name than its siblings", self.renamed),
            ("by name alone", self.by_name),
            ("either of two", self.alternatives),
        ):
            lines += [f"  {title}: {each}" for each in several]
        if self.completed:
            lines.append(f"  read in part by these inputs: {', '.join(self.completed)}")
        if self.disordered:
            lines.append(f"  in an order that no axes give: {', '.join(self.disordered)}")
        lines += [f"  not written as a map of names: {self.unwritten}"] if self.unwritten else []
        return "\n".join([*lines, *([self.map.text()] if self.map else [])])


def find_map(
    candidate: Any,
    reference: Any,
    inputs: Mapping[str, np.ndarray],
    *,
    candidate_params: Any = None,
    reference_params: Any = None,
    constants: Collection[str] = (),
    proves: bool = True,
    seed: int = 0,
) -> FoundMap:
    """Finds which weights of two programs correspond, by where they enter the computation.

    Both programs are lowered to exact operations, as for a proof, and the reference is evaluated with random weights in
    a prime field. The candidate's operations are then taken in order, and each weight is what the reference reads in an
    operation on the same values: up to permuted axes, reshapes, splits, fused and stacked kernels, tied tensors, and
    orders of rotary features. Names and order only decide between what computes the same. No weight of either
    program is read: its numbers don't matter.

    The map is then proven right: for random weights of the reference, carried over by the map, both programs compute
    the same outputs in a field, with the proof's own rules, bound and axioms. A layout that differs everywhere, such as
    transposed kernels, is absorbed by a map; one that differs in one layer alone is listed as irregular.

    Args:
      candidate: a function of a tree of weights and of the inputs by name, or a `torch.nn.Module`.
      reference: the same; both may be of one framework.
      inputs: by argument, ids of some tokens that differ.
      candidate_params: a tree of the function's weights, of whatever numbers; None for a module.
      reference_params: the same for the reference.
      constants: tensors of the reference, a module, that are no weights: a table of positions, say, which the candidate
        computes. They have their own numbers.
      proves: whether to prove the map right.
      seed: seeds the random weights.

    Raises:
      UnknownOperation: an operation of a program has no rule.
      PortingError: a function without weights, or a module with further ones; the search needs more memory than there
        is, which is estimated before it.

    Example:
      >>> import jax.numpy as jnp, numpy as np, torch
      >>> from jax_transformer.matching import find_map
      >>> def candidate(params, inputs):
      ...     return jnp.tanh(inputs["input"] @ params["kernel"] + params["offset"])
      >>> reference = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh())
      >>> params = {"kernel": np.zeros((3, 2), np.float32), "offset": np.zeros(2, np.float32)}
      >>> found = find_map(candidate, reference, {"input": np.ones((1, 3), np.float32)}, candidate_params=params)
      >>> found.is_right
      True
      >>> print(found.map.text(), end="")
      activations: {}
      parameters:
        0.weight: {name: "kernel", axes: "A B -> B A"}
        0.bias: offset
    """
    start = time.perf_counter()
    sides = (lowered(candidate, candidate_params, inputs), lowered(reference, reference_params, inputs, constants))
    return map_between(*map(without_others, sides), proves=proves, seed=seed, start=start)


def map_between(
    candidate: LoweredSide, reference: LoweredSide, *, proves: bool = True, seed: int = 0, start: float | None = None
) -> FoundMap:
    """Finds the map between two programs that are lowered; as `find_map`."""
    start = time.perf_counter() if start is None else start
    numbers = sum(map(reference.program.size, range(len(reference.program.operations))))
    check_fits(LEAST_BYTES * numbers, f"the search of a map to {reference.name}'s weights", PortingError)
    programs = tables.unified(candidate.program, reference.program) or (candidate.program, reference.program)
    split = one_weight_at_a_time(programs[0], candidate.shapes)
    leaves, tensors = Elements(split, candidate.shapes), Elements(programs[1], reference.shapes)
    begin = time.perf_counter()
    search = _search(leaves, tensors, seed)
    state = search.run()
    search_seconds = time.perf_counter() - begin
    pieces, partners = _completed(state, leaves, tensors)
    grafts = _grafts(state, leaves, tensors)
    grafts += [f"{name}: with another partner, as much is the reference's" for name in search.undecided(state)]
    needed = [name for name in candidate.program.inputs if name in leaves.shapes]
    missing = tuple(name for name in needed if (partners[leaves.numbers(name)] < 0).any())
    result = _proof(candidate, reference, leaves, tensors, partners, missing) if proves else None
    unread, unmapped, unused = _unmapped(partners, leaves, tensors)
    names, unwritten = None, ""
    try:
        without_axes = [name for name in leaves.shapes if name not in pieces]
        if without_axes:
            raise Unwritten(f"{without_axes[0]} has no partner along its axes")
        ignored = [name for unused in unread for name in (unused, *reference.copies.get(unused, ()))]
        names = written(pieces, leaves, tensors, reference.copies, ignored)
        check(names, leaves, tensors, partners, reference.copies)
    except Unwritten as reason:
        names, unwritten = None, str(reason)
    verdict: Verdict = "not proven" if result is None else result.verdict
    irregular, renamed = _irregular(pieces, leaves, tensors)
    return FoundMap(
        map=names,
        partners={name: partners[leaves.numbers(name)] for name in leaves.shapes},
        tensors=tensors.shapes,
        verdict=verdict,
        reason=_reason(result),
        unmapped=unmapped,
        missing=missing,
        unused=unused,
        irregular=irregular,
        renamed=renamed,
        by_name=tuple(grafts) if verdict != "proven" else (),
        completed=tuple(
            name
            for name in pieces
            if (state.partners[leaves.numbers(name)] < 0).any() and (partners[leaves.numbers(name)] >= 0).all()
        ),
        disordered=tuple(
            name
            for name in leaves.shapes
            if (partners[leaves.numbers(name)] >= 0).any() and not _has_axes(pieces.get(name, ()))
        ),
        alternatives=_alternatives(state, leaves, tensors),
        unwritten=unwritten,
        unread=unread,
        copies=reference.copies,
        seconds=time.perf_counter() - start,
        search_seconds=search_seconds,
        operations=(len(candidate.program.operations), len(reference.program.operations)),
        log2_error=0.0 if result is None else result.log2_error,
    )


def _search(leaves: Elements, tensors: Elements, seed: int) -> Search:
    """Returns the search, with the reference evaluated at a point."""
    generator = np.random.default_rng(seed)
    data = {program: _data(each) for program, each in (("candidate", leaves), ("reference", tensors))}
    reason: Exception = NoInverse()
    for _ in range(SERIES):
        prime_field = draw_field(generator, radicands(leaves.program) | radicands(tensors.program))
        domain = Residues(prime_field, int(generator.integers(2**63)))
        shapes = {**data["candidate"], **data["reference"], **tensors.shapes}
        drawn = {name: prime_field.draw(generator, shape) for name, shape in shapes.items()}
        try:
            return Search(leaves, Reference(tensors, domain, drawn), drawn)
        except NoInverse as zero:
            reason = zero
    raise UnknownOperation("inverse", "", str(reason))


def _data(elements: Elements) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in elements.program.inputs.items() if name not in elements.shapes}


def _completed(state: State, leaves: Elements, tensors: Elements) -> tuple[dict[str, list[Piece]], np.ndarray]:
    """Returns the leaves in pieces, those that have axes, and the partners of all elements."""
    pieces = {}
    for name in leaves.shapes:
        found = pieces_of(name, state.partners[leaves.numbers(name)], tensors)
        if found is not None:
            pieces[name] = found
    return pieces, completed(pieces, leaves, tensors, state.partners.joined())


def _proof(
    candidate: LoweredSide,
    reference: LoweredSide,
    leaves: Elements,
    tensors: Elements,
    partners: np.ndarray,
    missing: Sequence[str],
) -> Result:
    """Returns what a proof says of both programs with weights that the map carries over."""
    if missing:
        return Result("unknown", reason=f"{missing[0]} has no partner")
    shapes = {**candidate.data, **reference.data, **tensors.shapes}

    def draw(draw: Callable[[tuple[int, ...]], np.ndarray]) -> tuple[Arrays, Arrays]:
        theirs = {name: draw(shape) for name, shape in shapes.items()}
        row = tensors.row(theirs).astype(np.int64)
        ours = {name: row[np.maximum(partners[leaves.numbers(name)], 0)] for name in leaves.shapes}
        return {**{name: theirs[name] for name in candidate.data}, **ours}, theirs

    return decide(Task(candidate.program, reference.program, draw))


def _reason(result: Result | None) -> str:
    if result is None or result.verdict == "proven":
        return ""
    place = None if result.difference is None else result.difference.candidate
    other = None if result.difference is None else result.difference.reference
    where = f"the programs part at {place}, and {other} of the reference" if place or other else ""
    return where or result.reason


def _unmapped(
    partners: np.ndarray, leaves: Elements, tensors: Elements
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Returns the tensors that the reference doesn't read, the leaves and tensors without a partner, as text, and the
    names of the tensors among these."""
    used = np.zeros(tensors.total, bool)
    used[partners[partners >= 0]] = True
    unread = tuple(name for name in tensors.shapes if name not in tensors.program.inputs)
    found, unused = list[str](), list[str]()
    for name in leaves.shapes:
        count = int((partners[leaves.numbers(name)] < 0).sum())
        if count:
            is_read = "" if name in leaves.program.inputs else ", which the candidate doesn't read"
            part = "" if count == leaves.numbers(name).size else f" in {count} of its elements"
            found.append(f"the candidate's {name}{part}{is_read}")
    for name in tensors.shapes:
        count = int((~used[tensors.numbers(name)]).sum())
        if count and name not in unread:
            part = "" if count == tensors.numbers(name).size else f" in {count} of its elements"
            found.append(f"the reference's {name}{part}")
            unused.append(name)
    return unread, tuple(found), tuple(unused)


def _alternatives(state: State, leaves: Elements, tensors: Elements) -> tuple[str, ...]:
    """Describes the leaves for which two tensors compute the same."""
    found = dict[str, None]()
    for place, other in state.alternatives:
        taken = int(state.partners[np.array([place])][0])
        names = tensors.name_of(taken), tensors.name_of(other)
        if taken >= 0 and names[0] != names[1]:
            found[f"{leaves.name_of(place)}: {names[0]}, or {names[1]}"] = None
    return tuple(found)


def _grafts(state: State, leaves: Elements, tensors: Elements) -> list[str]:
    """Describes the places behind which the programs compute different values, so that names and order counted."""
    found = []
    for choice in state.choices:
        if choice.is_graft:
            ours, theirs = leaves.program.operations[choice.node], tensors.program.operations[choice.guess.node]
            name = leaves.name_of(int(choice.guess.ours[choice.guess.ours >= 0].flat[0]))
            found.append(
                f"{name}: {ours.line or ours.name} reads what the reference doesn't compute; it is taken for what "
                f"{theirs.line or theirs.name} of the reference reads"
            )
    return found


def _irregular(
    pieces: Mapping[str, list[Piece]], leaves: Elements, tensors: Elements
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Describes the layers whose axes are unlike those of their siblings that have tensors of the same name, and the
    single ones that have a tensor of another name than three or more siblings."""
    kinds: dict[tuple[str, ...], list[tuple[str, tuple[str, str]]]] = {}
    for leaf, several in pieces.items():
        for piece in several:
            place = leaf + "".join(f"[{each}]" for each in piece.index if isinstance(each, int))
            parts = tuple(map(str, piece.index if _alike(leaf) != leaf else piece.index[1:]))
            axes = form_of(piece, tensors)
            if sum(other.tensor == piece.tensor for other in several) > 1:  # which have different parts, in any order
                axes = axes.partition(", part")[0]
            form = _alike(piece.tensor), axes
            kinds.setdefault((_alike(leaf), *parts), []).append((place, form))
    irregular, renamed = list[str](), list[str]()
    for siblings in kinds.values():
        names = [name for _, (name, _) in siblings]
        for kind in dict.fromkeys(names):
            forms = [form for _, form in siblings if form[0] == kind]
            usual = max(forms, key=forms.count)
            alike = [(place, form) for place, form in siblings if form[0] == kind and form != usual]
            irregular += [f"{place}: {_said(form)}; its siblings: {_said(usual)}" for place, form in alike]
        usual_name = max(names, key=names.count)
        if names.count(usual_name) >= FEWEST_SIBLINGS:
            single = [(place, name) for place, (name, _) in siblings if names.count(name) == 1]
            renamed += [f"{place}: {name}; its siblings: {usual_name}" for place, name in single]
    return tuple(irregular), tuple(renamed)


def tied(partners: Mapping[str, np.ndarray]) -> list[tuple[str, ...]]:
    """Returns leaves that have elements in common, which the other program has once, and leaves that have one twice."""
    owners = np.full(1 + max((int(each.max(initial=NONE)) for each in partners.values()), default=NONE), NONE)
    groups: list[set[str]] = []
    names = list(partners)
    for number, name in enumerate(names):
        known = partners[name][partners[name] >= 0]
        different = distinct(known)
        before = {names[owner] for owner in distinct(owners[different]) if owner >= 0}
        if before or different.size < known.size:
            alike = [group for group in groups if group & before]
            groups = [*(group for group in groups if not group & before), {name, *before}.union(*alike)]
        owners[different] = number
    return [tuple(name for name in names if name in group) for group in groups]


def _has_axes(pieces: Sequence[Piece]) -> bool:
    """Returns whether a leaf is made of pieces, none of which is reversed."""
    return bool(pieces) and all(stride >= 0 for piece in pieces for digits in piece.axes for _, stride in digits)


def _said(form: tuple[str, str]) -> str:
    return f"{form[0]}, {form[1]}"


def _alike(name: str) -> str:
    """Returns a name with a sign for its first number, if that is a layer's: a part of its path, or the end of one that
    isn't the last module's."""
    return re.sub(r"(?<=[./])\d+(?=[./])|(?<=_)\d+(?=[./].+[./])|^\d+(?=[./])", "#", name, count=1)
