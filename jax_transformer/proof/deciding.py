"""Decide whether two programs are one function of their weights, or find where they diverge."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import Any, Literal

import numpy as np

from jax_transformer.proof import tables
from jax_transformer.proof.constants import radicands
from jax_transformer.proof.degrees import SERIES, Bounds, bound
from jax_transformer.proof.differences import written_out
from jax_transformer.proof.digits import MOST_WORK, PRECISION, SAME, Digits, as_decimals, distance, largest, work
from jax_transformer.proof.distinct import distinct
from jax_transformer.proof.domains import Arrays, Disagreement, Floats, Residues, Undefined, pattern
from jax_transformer.proof.enclosures import MOST_ENCLOSED, Enclosures, as_enclosures, digits_for
from jax_transformer.proof.evaluating import evaluate
from jax_transformer.proof.fields import NoInverse, draw_field
from jax_transformer.proof.locating import Place, Seen, locate
from jax_transformer.proof.logarithms import refuse_log_of_zero
from jax_transformer.proof.masks import FILL, hidden
from jax_transformer.proof.needs import needed
from jax_transformer.proof.programs import Program
from jax_transformer.proof.undefined import Kept, Sets, described, keeping, requirements_of, shown_by

SCALES = (0, 1, 2, 3, -6)
"""Powers of ten by which random weights are multiplied until a difference shows in 60 digits."""
UNSHOWN = (
    "{} differs in a field, and by less than 40 digits show at random weights: by little, for few weights, or not at "
    "all, which no axiom here says"
)
OTHER_DOMAINS = "{} is the same wherever both are defined, but not shown to be defined for the same weights: {}"
UNDEFINED = "no weights were found for which both programs are defined: {}"
SHOWN = 1e-6
"""A larger relative difference in float64 can't be rounding."""
TABLES = (
    "{} differs by no more than the rounding of constants and tables explains, and which of one program is which of "
    "the other isn't known"
)
DRAWN = 2**40
"""Weights for 60 digits are drawn as integers below this, which floats hold, and divided by it."""
SECURITY = 82
"""A pair of programs is wrongly proven with a probability below 2⁻⁸², and a certificate of up to four below 2⁻⁸⁰."""

Both = tuple[np.ndarray, np.ndarray]
Fills = Mapping[str, Both]
Draw = Callable[[Callable[[tuple[int, ...]], np.ndarray]], tuple[Arrays, Arrays]]
"""(draw an array of a shape) → the weights of both programs, by the names of their inputs."""


@dataclass(frozen=True)
class Task:
    """Holds two programs and the relation of their weights and outputs."""

    candidate: Program
    reference: Program
    draw: Draw
    align: Callable[[Arrays], Arrays] = lambda outputs: outputs
    """Names and shapes the reference's outputs as the candidate's are."""
    is_masked: Callable[[str], bool] = lambda name: False
    """Whether an output of this name has rows that a softmax reads, so that how their masked entries are filled doesn't
    matter."""
    own: tuple[Arrays, Arrays] | None = None
    """Weights in float64 for both programs, on which a difference is measured."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Outputs that no rule computes on one side, by the candidate's names → reason."""
    reads_rounded: bool = True
    """Whether axiom "rounded constants" may be used."""
    is_written_out: bool = False
    """Whether differences and turns are written out as `differences` does."""
    only_defined: frozenset[str] = frozenset()
    """Outputs that are compared only where they are defined: a loss, if its gradients are outputs."""
    counts: Mapping[str, np.ndarray] = field(default_factory=dict)
    """For some outputs, masks, broadcastable to them, of the values that are compared; without one, all are."""


@dataclass(frozen=True)
class Point:
    """Holds a field, and the seed of the weights and hashes in it."""

    prime: int
    seed: int
    draws: int = 1
    """How many series of points it took: more than 1 if a divisor was zero before, or arguments that differ were
    equal. By chance, arguments are in one of some 2¹⁰ points."""


@dataclass(frozen=True)
class Difference:
    """The first output that differs, and the operations that first compute something else."""

    name: str
    candidate: Place | None
    reference: Place | None
    point: Point
    float64: float | None = None
    """The relative RMS of the difference in float64, on the model's own weights; None: not measured, or not finite."""
    digits: float | None = None
    """The largest relative difference of any output in 60 digits, at random weights; None: not measured."""
    task: Task | None = field(default=None, repr=False, compare=False)
    """The programs, if they are refuted: a repair is searched for them."""


@dataclass(frozen=True)
class Result:
    """Holds the result of a comparison."""

    verdict: Literal["proven", "refuted", "unknown"]
    equal: tuple[str, ...] = ()
    """Outputs that are the same function, by name."""
    different: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    """Outputs that one program alone has: they aren't compared."""
    difference: Difference | None = None
    reason: str = ""
    """Reason why the result is unknown."""
    points: tuple[Point, ...] = ()
    bounds: Bounds | None = None
    axioms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Axioms used → the constants, or lines, that used them."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Outputs that no rule computes → reason."""
    task: Task | None = field(default=None, repr=False, compare=False)
    """The programs of the last comparison: the original ones, or as an axiom reads them."""

    @property
    def log2_error(self) -> float:
        """Returns the logarithm of a bound on the probability that the proof is wrong; 0 without a proof."""
        return 0.0 if self.bounds is None or self.verdict != "proven" else _log2_error(self.bounds, self.points)


def decide(task: Task, *, seed: int = 0) -> Result:
    """Compares all common outputs of two programs, at as many points as the bound needs. Outputs that no rule computes
    are listed, the rest are compared.

    A difference in a field is confirmed with 60 digits, unless the programs are too large: if these show none, the
    result is unknown. It is also unknown for programs that aren't shown to be defined for the same weights, and for
    some.
    """
    found = _decide(task, seed)
    return replace(found, unknown=task.unknown, task=found.task or task)


def _decide(task: Task, seed: int) -> Result:
    named, alone = _shared(task)
    if not named:
        return Result("unknown", reason="the programs have no output in common: nothing was compared")
    programs = task.candidate, task.reference
    bounds = bound(programs)
    axioms: dict[str, dict[str, None]] = {}
    for program in programs:
        _merge(axioms, program.axioms)
    if not bounds.can_decide:
        return Result("unknown", reason=f"the degrees are too high for a proof: 2^{math.log2(bounds.degree):.0f}")
    seeds, fills = [seed, *_digests(programs)], fills_of(task, named)
    reason = ""
    for series in range(SERIES):
        points: list[Point] = []
        patterns, other_domains = set[str](), set[str]()
        try:
            while len(patterns) < 2 and _log2_error(bounds, points) > -SECURITY:
                found = _compare_at(task, named, fills, [*seeds, series, len(points)], axioms)
                points.append(found.point)
                patterns.add(found.pattern)
                other_domains.update(found.other_domains)
                other = _without_differences(task) if found.different else None
                if other is not None and not _compare_at(other, named, fills, found.seeds, {}).different:
                    return _with_task(other, seed)
                other = _with_tables(task) if found.different else None
                if other is not None:
                    return _with_task(other, seed)
                if found.different:
                    if _is_rounding(task, found):
                        return Result("unknown", found.equal, (), alone, reason=TABLES.format(found.different[0]))
                    difference = _difference(task, found)
                    if _is_doubtful(task) and difference.digits is None and (difference.float64 or 0.0) < SHOWN:
                        reason = UNDEFINED.format(_doubts(task))
                        return Result("unknown", found.equal, (), alone, difference, reason)
                    if difference.digits is not None and difference.digits < SAME:
                        return Result("unknown", found.equal, (), alone, difference, UNSHOWN.format(difference.name))
                    difference = replace(difference, task=task)
                    seen = tuple(points), bounds, _listed(axioms)
                    return Result("refuted", found.equal, found.different, alone, difference, "", *seen)
        except NoInverse as zero:
            reason = str(zero)
            continue
        except Disagreement as disagreement:  # which may be one of the writing, too
            other = _without_differences(task) or _with_tables(task)
            return _with_task(other, seed) if other else Result("unknown", reason=str(disagreement))
        except Undefined as undefined:
            return Result("unknown", reason=str(undefined))
        if len(patterns) == 1 and other_domains:
            reason = OTHER_DOMAINS.format(min(other_domains), _doubts(task))
            return Result("unknown", alone=alone, reason=reason)
        if len(patterns) == 1 and _is_doubtful(task):
            if not is_defined_somewhere(task, [*named, *task.only_defined], seeds):
                return Result("unknown", alone=alone, reason=UNDEFINED.format(_doubts(task)))
            axioms["domains"] = dict.fromkeys(_doubtful_lines(task))
        if len(patterns) == 1:
            return Result("proven", tuple(named), (), alone, None, "", tuple(points), bounds, _listed(axioms))
        reason = "functions had equal arguments at one point only"
    return Result("unknown", reason=reason)


def _with_task(task: Task, seed: int) -> Result:
    found = _decide(task, seed)
    return replace(found, task=found.task or task)


def _without_differences(task: Task) -> Task | None:
    """Writes exponentials of differences as products, and sines of sums with π/2 as cosines; returns None if there are
    none left."""
    if task.is_written_out:
        return None
    candidate, reference = map(written_out, (task.candidate, task.reference))
    if (candidate.axioms, reference.axioms) == (task.candidate.axioms, task.reference.axioms):
        return None
    return replace(task, candidate=candidate, reference=reference, is_written_out=True)


def _with_tables(task: Task) -> Task | None:
    """Replaces values that depend on no weight by tables, and identifies tables that agree up to rounding; returns None
    if there are none left."""
    found = tables.unified(task.candidate, task.reference) if task.reads_rounded else None
    return None if found is None else replace(task, candidate=found[0], reference=found[1])


def _is_rounding(task: Task, found: _Comparison) -> bool:
    """Returns whether rounding of constants and tables explains how far outputs differ, while a program has tables
    without a partner in the other."""
    programs = task.candidate, task.reference
    if not task.reads_rounded or sum(map(work, programs)) > MOST_WORK:
        return False
    others = [tables.moved(one, other, found.seeds[0]) for one, other in (programs, programs[::-1])]
    if others == [None, None]:
        return False
    candidate, reference = (other or one for one, other in zip(programs, others, strict=True))
    weights = _random(task, found.seeds, 0, (-1, 1))
    try:
        apart = _both_in(Digits(), task, found.different, weights)
        moved = _both_in(Digits(), replace(task, candidate=candidate, reference=reference), found.different, weights)
        return all(
            distance(*pair, Decimal(1)) <= sum(distance(*each, Decimal(1)) for each in zip(pair, other, strict=True))
            for pair, other in zip(apart, moved, strict=True)
        )
    except (ArithmeticError, ValueError):
        return False


def _digests(programs: Sequence[Program]) -> list[int]:
    """Returns seeds that depend on both programs: none can be written for the points at which it is compared."""
    return [int(program.sha256()[:16], 16) for program in programs]


@dataclass
class _Comparison:
    point: Point
    seeds: list[int]
    equal: tuple[str, ...]
    different: tuple[str, ...]
    pattern: str
    """Which arguments of functions are equal."""
    other_domains: tuple[str, ...]
    """Outputs that aren't shown to be defined for the same weights."""


def _compare_at(
    task: Task, named: Sequence[str], fills: Fills, seeds: list[int], axioms: dict[str, dict[str, None]]
) -> _Comparison:
    """Evaluates both programs at one point."""
    domains, (left, right) = drawn(task, seeds)
    (our_kept, our_watch), (their_kept, their_watch) = map(keeping, (task.candidate, task.reference))
    ours = evaluate(task.candidate, domains[0], left, our_watch)
    del left  # weights are as large as their gradients
    theirs = evaluate(task.reference, domains[1], right, their_watch)
    del right
    theirs = dict(task.align(theirs))
    for domain in domains:
        _merge(axioms, domain.axioms)
    equal = [name for name in named if _agree(task, name, (ours[name], theirs[name]), fills.get(name), axioms)]
    different = [name for name in named if name not in equal]
    if not different and any(domain.has_log_of_zero for domain in domains):
        (our_domain, their_domain), (left, right) = drawn(task, seeds)
        refuse_log_of_zero(task.candidate, our_domain, left)
        refuse_log_of_zero(task.reference, their_domain, right)
    point = Point(domains[0].field.p, seeds[0], seeds[-2] + 1)
    other_domains = _other_domains(task, named, (our_kept, their_kept)) if _is_doubtful(task) else ()
    return _Comparison(point, seeds, tuple(equal), tuple(different), pattern(domains), other_domains)


def _is_doubtful(task: Task) -> bool:
    return bool(task.candidate.doubtful or task.reference.doubtful)


def _doubts(task: Task) -> str:
    """Describes an operation of either program that may be undefined."""
    for program in (task.candidate, task.reference):
        for node, required in program.doubtful.items():
            return described(program.operations[node], required)
    return ""


def _doubtful_lines(task: Task) -> list[str]:
    programs = task.candidate, task.reference
    return [program.operations[node].line for program in programs for node in program.doubtful]


def _other_domains(task: Task, named: Sequence[str], kept: tuple[Kept, Kept]) -> tuple[str, ...]:
    """Returns the outputs that require something else of the weights, as residues at a point have it."""
    programs, sets = (task.candidate, task.reference), Sets()
    shown = shown_by(programs, kept)
    ours, theirs = (requirements_of(program, of, shown, sets) for program, of in zip(programs, kept, strict=True))
    aligned = task.align(theirs)
    return tuple(
        name for name in (*named, *task.only_defined) if not np.array_equal(ours[name], np.asarray(aligned[name]))
    )


def drawn(task: Task, seeds: list[int]) -> tuple[tuple[Residues, Residues], tuple[Arrays, Arrays]]:
    """Draws a field, hashes and weights, reproducibly for a seed."""
    generator = np.random.default_rng(seeds)
    prime_field = draw_field(generator, radicands(task.candidate) | radicands(task.reference))
    key = int(generator.integers(2**63))
    domains = Residues(prime_field, key), Residues(prime_field, key)
    return domains, task.draw(partial(prime_field.draw, generator))


def _seen(task: Task, seeds: list[int]) -> tuple[Seen, Seen]:
    """Evaluates both programs again, and returns their values."""
    domains, weights = drawn(task, seeds)
    both = Seen(task.candidate), Seen(task.reference)
    for seen, domain, own in zip(both, domains, weights, strict=True):
        evaluate(seen.program, domain, own, seen.watch)
    return both


def _agree(task: Task, name: str, both: Both, fills: Both | None, axioms: dict[str, dict[str, None]]) -> bool:
    """Returns whether two outputs are equal. Entries that both sides mask by a constant are, in rows that a softmax
    reads (axiom "masks")."""
    ours, theirs = both
    if ours.shape != theirs.shape:
        return False
    same = (ours == theirs) | ~task.counts.get(name, np.True_)
    if fills is not None:
        infinite = [np.where(np.isinf(each), each, 0.0) for each in fills]
        same = np.where((infinite[0] != 0) | (infinite[1] != 0), infinite[0] == infinite[1], same)
    if fills is None or same.all():
        return bool(same.all())
    if not task.is_masked(name):
        return False
    masked = hidden(fills[0], (-1,)) & hidden(fills[1], (-1,))
    if not (same | masked).all():
        return False
    axioms.setdefault("masks", {})[name] = None
    return True


def fills_of(task: Task, named: Sequence[str]) -> Fills:
    """Returns the constants that mask entries of outputs on both sides, 0 elsewhere, for outputs that have any."""
    ours, theirs = (
        {
            name: np.broadcast_to(0.0, value.shape)
            if value.fills is None
            else np.where(np.isnan(value.fills), 0.0, value.fills)
            for name, value in program.outputs.items()
        }
        for program in (task.candidate, task.reference)
    )
    aligned = task.align(theirs)
    both = ((name, (ours[name], np.asarray(aligned[name]))) for name in named)
    return {name: pair for name, pair in both if any(each.any() for each in pair)}


def _difference(task: Task, found: _Comparison) -> Difference:
    """Describes the first difference. A mask that depends on no weight is computed by no operation: the first output
    that reads it is looked at then."""
    name = found.different[0]
    programs = task.candidate, task.reference
    computed = (each for each in found.different if all(_nodes_of(program, [each]) for program in programs))
    first = next(computed, name)
    outputs = _nodes_of(task.candidate, [first]), _nodes_of(task.reference, [first])
    different = _nodes_of(task.candidate, found.different), _nodes_of(task.reference, found.different)
    places = locate(_seen(task, found.seeds), outputs, different)
    return Difference(name, *places, found.point, _in_float64(task, name), _in_digits(task, found))


def _nodes_of(program: Program, names: Sequence[str]) -> list[int]:
    """Returns the operations of outputs; of all outputs, if their parts have different names in this program."""
    named = [program.outputs[name] for name in names if name in program.outputs]
    return [value.node for value in named or program.outputs.values() if value.node is not None]


def _in_float64(task: Task, name: str) -> float | None:
    if task.own is None:
        return None
    ours = evaluate(task.candidate, Floats(), task.own[0])[name].astype(np.float64)
    try:
        theirs = np.asarray(task.align(evaluate(task.reference, Floats(), task.own[1]))[name], np.float64)
    except ValueError:  # a gradient that isn't finite belongs to no tensor
        return None
    if ours.shape != theirs.shape:
        return None
    with np.errstate(all="ignore"):
        distance = float(np.sqrt(np.mean(np.square(ours - theirs)) / np.mean(np.square(theirs))))
    return distance if math.isfinite(distance) else None


def is_defined_somewhere(task: Task, named: Sequence[str], seeds: Sequence[int]) -> bool:
    """Returns whether both programs are defined for some weights, and so for weights near them: random ones, or the
    programs' own."""
    is_small = sum(map(work, (task.candidate, task.reference))) <= MOST_WORK
    weights = (_random(task, seeds, exponent, signs) for exponent in SCALES[:3] for signs in ((-1, 1), (1,)))
    own = [] if task.own is None else [tuple(_as_decimals(each) for each in task.own)]
    for both in (*weights, *own):
        if all(
            _is_defined(program, [name for name in named if name in program.outputs], point, is_small=is_small)
            for program, point in zip((task.candidate, task.reference), both, strict=True)
        ):
            return True
    return False


def _is_defined(program: Program, named: Sequence[str], weights: Arrays, *, is_small: bool) -> bool:
    """Returns whether a program is defined at some weights, with all that its outputs need away from the border."""
    domain: Digits | Floats = Digits() if is_small else Floats()
    least = 1e-30 if is_small else 1e-8
    zeros = {node: np.broadcast_to(False, one.shape) for node, one in enumerate(program.operations)}
    needs = needed(program, _nodes_of(program, named), zeros, of_choices=False)
    doubtful, is_inside = program.doubtful, True

    def watch(node: int, array: np.ndarray) -> None:
        nonlocal is_inside
        for doubt in of_nodes.get(node, ()):
            floats = array.astype(np.float64)
            floats = np.abs(floats) if doubtful[doubt].kind == "not zero" else floats
            is_inside &= bool((floats.ravel() > least)[needs[doubt].ravel()].all())

    of_nodes: dict[int, list[int]] = {}
    for doubt, required in doubtful.items():
        if doubt in needs:
            of_nodes.setdefault(required.of, []).append(doubt)
    try:
        exact = {name: array if is_small else array.astype(np.float64) for name, array in weights.items()}
        found = evaluate(program, domain, exact, watch)
    except ArithmeticError:
        return False
    return is_inside and all(np.isfinite(found[name].astype(np.float64)).all() for name in named)


def _in_digits(task: Task, found: _Comparison) -> float | None:
    """Measures the distance of differing outputs in 60 digits at random weights; returns None if that would take long,
    or is undefined. If weights below 1 show nothing, larger and smaller ones may, such as for a clip at 65504.
    Undefined outputs, such as √w, may be defined at positive weights."""
    if sum(map(work, (task.candidate, task.reference))) > MOST_WORK:
        return None
    distances = []
    for exponent in SCALES if masking_of(task.candidate) == masking_of(task.reference) else SCALES[:1]:
        apart = _apart(task, found, exponent, (-1, 1))
        distances.append(_apart(task, found, exponent, (1,)) if apart is None else apart)
        if distances[-1] is not None and distances[-1] >= SAME:
            break
    if task.own is not None and all(each is None for each in distances):
        distances.append(_distance(task, found, (_as_decimals(task.own[0]), _as_decimals(task.own[1]))))
    return max((each for each in distances if each is not None), default=None)


def _apart(task: Task, found: _Comparison, exponent: int, signs: tuple[int, ...]) -> float | None:
    """Measures the distance of differing outputs at random weights in (−1, 1), or (0, 1), times a power of ten."""
    return _distance(task, found, _random(task, found.seeds, exponent, signs))


def _random(task: Task, seeds: Sequence[int], exponent: int, signs: tuple[int, ...]) -> tuple[Arrays, Arrays]:
    generator = np.random.default_rng([*seeds, SCALES.index(exponent)])
    left, right = task.draw(lambda shape: generator.integers(1, DRAWN, shape) * generator.choice(signs, shape))
    return _scaled(left, exponent), _scaled(right, exponent)


def _distance(task: Task, found: _Comparison, weights: tuple[Arrays, Arrays]) -> float | None:
    """Measures the distance of differing outputs in 60 digits; returns None if they aren't defined.

    A difference that shrinks with twice the digits is rounding, of terms that cancel. So a difference is computed again
    with twice the digits, and measured relative to the size of the numbers. Smaller programs are evaluated with
    enclosures: their difference is the part that no rounding explains.
    """
    try:
        coarse = _both_in(Digits(), task, found.different, weights)
        apart = max(distance(*pair) for pair in coarse)
        if apart < SAME:
            return apart
        is_enclosed = sum(map(work, (task.candidate, task.reference))) <= MOST_ENCLOSED
        programs = task.candidate, task.reference
        domain = Enclosures(digits_for(programs)) if is_enclosed else Digits(2 * PRECISION)
        points = (as_enclosures(weights[0]), as_enclosures(weights[1])) if is_enclosed else weights
        fine = _both_in(domain, task, found.different, points)
        measure = domain.distance if isinstance(domain, Enclosures) else distance
        return max(measure(*pair, largest(*rough)) for pair, rough in zip(fine, coarse, strict=True))
    except (ArithmeticError, ValueError):
        return None


def _both_in(domain: Digits, task: Task, names: Sequence[str], weights: tuple[Arrays, Arrays]) -> list[Both]:
    """Evaluates these outputs of both programs."""
    ours = evaluate(task.candidate, domain, weights[0])
    theirs = task.align(evaluate(task.reference, domain, weights[1]))
    return [(np.asarray(ours[name]), np.asarray(theirs[name])) for name in names]


def masking_of(program: Program) -> set[float]:
    """Returns the constants that mask entries: any other is equivalent while logits are small (axiom "masks")."""
    constants = [one.attributes["array"] for one in program.operations if one.name == "constant"]
    return {float(value) for array in constants for value in distinct(array) if value <= FILL}


def _scaled(weights: Arrays, exponent: int) -> dict[str, np.ndarray]:
    """Returns drawn integers as decimals in (−1, 1), times a power of ten."""
    factor: Any = Decimal(10) ** exponent / DRAWN
    return {name: as_decimals(array) * factor for name, array in weights.items()}


def _as_decimals(weights: Arrays) -> dict[str, np.ndarray]:
    return {name: as_decimals(array) for name, array in weights.items()}


def _shared(task: Task) -> tuple[list[str], tuple[str, ...]]:
    """Returns the common outputs of both programs, in the candidate's order, and the outputs of one alone."""
    shapes = {name: np.broadcast_to(0.0, value.shape) for name, value in task.reference.outputs.items()}
    theirs = task.align(shapes)
    ours = task.candidate.outputs
    alone = (*(name for name in ours if name not in theirs), *(name for name in theirs if name not in ours))
    named = [name for name in ours if name in theirs and name not in task.only_defined]
    return named, tuple(name for name in alone if name not in task.unknown)


def _log2_error(bounds: Bounds, points: Sequence[Point]) -> float:
    return bounds.log2_error([point.prime for point in points])


def _merge(axioms: dict[str, dict[str, None]], more: Mapping[str, Mapping[str, None]]) -> None:
    for name, where in more.items():
        axioms.setdefault(name, {}).update(where)


def _listed(axioms: Mapping[str, Mapping[str, None]]) -> dict[str, tuple[str, ...]]:
    found = {name: tuple(where) for name, where in sorted(axioms.items())}
    if tables.AXIOM in found:
        found[tables.AXIOM] = tuple(sorted(found[tables.AXIOM], key=tables.size_of, reverse=True))
    return found
