"""Prove that two programs are one function of their weights, or find where they part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np

from jax_transformer.proof.constants import radicands
from jax_transformer.proof.degrees import Bounds, bound
from jax_transformer.proof.domains import Reals, Residues, Undefined
from jax_transformer.proof.evaluating import evaluate
from jax_transformer.proof.fields import BITS, NoInverse, PrimeField, draw_field
from jax_transformer.proof.locating import Place, fingerprint, locate
from jax_transformer.proof.programs import Program, Value

SECURITY = 80
"""A proof is wrong with a probability below 2⁻⁸⁰."""
LEAST = 4
"""A point has to lower the probability of an error by 2⁻⁴ at least."""
MOST_DRAWS = 8
"""How often weights are drawn again after a divisor was zero. By chance this happens once in 2³⁰ points."""

Arrays = Mapping[str, np.ndarray]
Draw = Callable[[Callable[[tuple[int, ...]], np.ndarray]], tuple[Arrays, Arrays]]
"""(draw an array of a shape) → the weights of both programs, by the names of their inputs."""


@dataclass(frozen=True)
class Task:
    """Two programs and what relates them."""

    candidate: Program
    reference: Program
    draw: Draw
    align: Callable[[Arrays], Arrays] = lambda outputs: outputs
    """Names and shapes the reference's outputs as the candidate's are."""


@dataclass(frozen=True)
class Point:
    """A field and what seeds the weights and hashes in it."""

    prime: int
    seed: int
    draws: int = 1
    """How many draws it took: more than 1 if a divisor was zero before."""


@dataclass(frozen=True)
class Difference:
    """The first output that differs, and the operations that first compute something else."""

    name: str
    candidate: Place | None
    reference: Place | None
    point: Point
    witness: float | None = None
    """The relative RMS of the difference in float64, on the model's own weights."""


@dataclass(frozen=True)
class Result:
    """What came of a comparison."""

    verdict: Literal["proven", "refuted", "unknown"]
    equal: tuple[str, ...] = ()
    """The outputs that are the same function, by name."""
    different: tuple[str, ...] = ()
    difference: Difference | None = None
    reason: str = ""
    """Why nothing is known."""
    points: tuple[Point, ...] = ()
    bounds: Bounds | None = None
    axioms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Those that were used → on which constants, or at which lines."""

    @property
    def log2_error(self) -> float:
        """Returns the logarithm of a bound on the probability that the proof is wrong."""
        return -math.inf if self.bounds is None else sum(_log2_error(self.bounds, point.prime) for point in self.points)


def decide(task: Task, *, seed: int = 0, own: tuple[Arrays, Arrays] | None = None) -> Result:
    """Compares all outputs that both programs have, at as many points as the bound needs.

    Args:
      own: weights in float64 for both programs, on which a difference is measured.
    """
    named = _shared(task)
    if not named:
        return Result("unknown", reason="the programs have no output in common: nothing was compared")
    bounds = _bounds(task, named)
    squares = radicands(task.candidate) | radicands(task.reference)
    axioms: dict[str, dict[str, None]] = {}
    for program in (task.candidate, task.reference):
        _merge(axioms, program.axioms)
    points: list[Point] = []
    error = 0.0
    if _log2_error(bounds, 2**BITS // 2) > -LEAST:
        return Result("unknown", reason=f"the degrees are too high for a proof: {bounds}", bounds=bounds)
    while error > -SECURITY:
        try:
            found = _compare_at(task, named, squares, [seed, len(points)], axioms)
        except (NoInverse, Undefined) as reason:
            return Result("unknown", reason=str(reason), points=tuple(points))
        points.append(found.point)
        if found.different:
            difference = _difference(task, named, found, own)
            return Result(
                "refuted", found.equal, found.different, difference, "", tuple(points), bounds, _listed(axioms)
            )
        error += _log2_error(bounds, found.point.prime)
    return Result("proven", tuple(named), (), None, "", tuple(points), bounds, _listed(axioms))


@dataclass
class _Comparison:
    point: Point
    equal: tuple[str, ...]
    different: tuple[str, ...]
    prints: tuple[dict[int, int], dict[int, int]]


def _compare_at(
    task: Task, named: Sequence[str], squares: frozenset[int], seeds: list[int], axioms: dict[str, dict[str, None]]
) -> _Comparison:
    """Evaluates both programs at one point, and draws again where a divisor is zero."""
    for attempt in range(MOST_DRAWS):
        generator = np.random.default_rng([*seeds, attempt])
        prime_field = draw_field(generator, squares)
        key = int(generator.integers(2**63))
        weights = task.draw(partial(prime_field.draw, generator))
        try:
            both = [
                _evaluate(program, prime_field, key, of_side, axioms)
                for program, of_side in zip((task.candidate, task.reference), weights, strict=True)
            ]
        except NoInverse:
            if attempt == MOST_DRAWS - 1:
                raise
            continue
        (ours, our_prints), (theirs, their_prints) = both
        theirs = dict(task.align(theirs))
        equal = [name for name in named if _agree(task, name, ours[name], theirs[name], axioms)]
        different = [name for name in named if name not in equal]
        point = Point(prime_field.p, seeds[0], attempt + 1)
        return _Comparison(point, tuple(equal), tuple(different), (our_prints, their_prints))
    raise AssertionError


def _evaluate(
    program: Program, prime_field: PrimeField, key: int, weights: Arrays, axioms: dict[str, dict[str, None]]
) -> tuple[dict[str, np.ndarray], dict[int, int]]:
    prints: dict[int, int] = {}
    residues = Residues(prime_field, key)
    outputs = evaluate(program, residues, weights, lambda node, array: prints.__setitem__(node, fingerprint(array)))
    _merge(axioms, residues.axioms)
    return outputs, prints


def _agree(task: Task, name: str, ours: np.ndarray, theirs: np.ndarray, axioms: dict[str, dict[str, None]]) -> bool:
    """Returns whether two outputs are equal. Entries that both sides mask by a constant are (axiom "masks")."""
    if ours.shape != theirs.shape:
        return False
    same = ours == theirs
    if same.all():
        return True
    fills = [_fills_of(program.outputs.get(name)) for program in (task.candidate, task.reference)]
    if fills[0] is None or fills[1] is None or fills[0].shape != fills[1].shape:
        return False
    masked = fills[0] & fills[1] & ~(fills[0].all(axis=-1, keepdims=True))
    if not (same | masked).all():
        return False
    axioms.setdefault("masks", {})
    return True


def _fills_of(value: Value | None) -> np.ndarray | None:
    return None if value is None else value.fills


def _difference(task: Task, named: Sequence[str], found: _Comparison, own: tuple[Arrays, Arrays] | None) -> Difference:
    name = found.different[0]
    programs = task.candidate, task.reference
    outputs = _nodes_of(task.candidate, name), _nodes_of(task.reference, name)
    places = locate(programs, found.prints, outputs)
    witness = None if own is None else _witness(task, name, own)
    return Difference(name, places[0], places[1], found.point, witness)


def _nodes_of(program: Program, name: str) -> list[int]:
    """Returns the operation of an output; those of all outputs if its parts have other names there."""
    values = [program.outputs[name]] if name in program.outputs else program.outputs.values()
    return [value.node for value in values if value.node is not None]


def _witness(task: Task, name: str, own: tuple[Arrays, Arrays]) -> float | None:
    ours, theirs = (
        evaluate(program, Reals(), weights)
        for program, weights in zip((task.candidate, task.reference), own, strict=True)
    )
    left, right = ours[name].astype(np.float64), np.asarray(task.align(theirs)[name], np.float64)
    if left.shape != right.shape:
        return None
    with np.errstate(all="ignore"):
        return float(np.sqrt(np.mean(np.square(left - right)) / np.mean(np.square(right))))


def _shared(task: Task) -> list[str]:
    """Returns the outputs that both programs have, in the candidate's order."""
    shapes = {name: np.zeros(value.shape) for name, value in task.reference.outputs.items()}
    theirs = task.align(shapes)
    return [name for name in task.candidate.outputs if name in theirs]


def _bounds(task: Task, named: Sequence[str]) -> Bounds:
    both = [
        bound(program, [value.node for value in program.outputs.values() if value.node is not None])
        for program in (task.candidate, task.reference)
    ]
    return Bounds(sum(each.degree for each in both), sum(each.values for each in both))


def _log2_error(bounds: Bounds, prime: int) -> float:
    """Returns log₂ of N · (D + 1)/p, a bound on the probability that one point shows no difference where there is
    one."""
    return math.log2(bounds.values) + math.log2(bounds.degree + 1) - math.log2(prime)


def _merge(axioms: dict[str, dict[str, None]], more: Mapping[str, Mapping[str, None]]) -> None:
    for name, where in more.items():
        axioms.setdefault(name, {}).update(where)


def _listed(axioms: Mapping[str, Mapping[str, None]]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(where) for name, where in sorted(axioms.items())}
