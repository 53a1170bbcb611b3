"""Find weights on which two programs that are two functions differ in float64, by more than rounding explains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.rounding import moved
from jax_transformer.comparison.gates.tolerances import (
    FACTOR_ROUNDING,
    FLOAT64_RELATIVE_RMS,
    MOST_FOR_ROUNDING,
)
from jax_transformer.comparison.lowering import GRADIENT
from jax_transformer.parity.proofs.witness_weights import OWN
from jax_transformer.proof import Program, Result, Task
from jax_transformer.proof.deciding import fills_of, masking_of
from jax_transformer.proof.digits import Digits, as_decimals, work
from jax_transformer.proof.domains import Floats
from jax_transformer.proof.evaluating import evaluate
from jax_transformer.proof.programs import Operation
from jax_transformer.proof.witness import Arrays, Witness

FINAL = ("logits", "output")
"""Names of the outputs of models and of any two programs."""
MOST_WORK = 4 * 10**9
"""The multiplications in float64 that a search may take: some ten seconds, with drawing weights. Of large models, only
the first kinds of weights are tried."""
MOST_IN_DIGITS = 12 * 10**6
"""The multiplications up to which 60 digits judge a difference: some four seconds. Beyond it, rounding is measured."""
MOST_JUDGED = 2
"""Maximum number of differences of an output to judge with 60 digits."""


FEWEST_RUNS, MOST_RUNS, WORK_OF_RUNS = 2, 8, 10**8
"""Minimum and maximum number of runs that measure rounding, and the multiplications of all runs that limit it."""
FLOATS = Floats()
EXACT = frozenset(("negate", "step", "equal", "largest", "row_mean", "cut"))
"""Operations that don't round. (In floats, a row's mean is computed as its largest entry.)"""


class Shaken(Floats):
    """Moves the last bit of all numbers that an operation reads, at random, as other ways of rounding would.

    That of weights alone may be lost at once, as where a large number is added.
    """

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def apply(self, name: str, inputs: list[np.ndarray], attributes: Mapping[str, Any]) -> np.ndarray:
        shaken = inputs if name in EXACT else [moved(each, self.rng) for each in inputs]
        return super().apply(name, shaken, attributes)


@dataclass(frozen=True)
class Subject:
    """Holds what a search needs to know of a pair of programs."""

    kinds: Callable[[], Iterator[tuple[str, Arrays]]]
    """Yields kinds of weights, by the candidate's names; own ones first."""
    carried: Callable[[Arrays], tuple[Arrays, Arrays]]
    """Returns weights as both lowered programs read them, by the names of their inputs."""
    written: Callable[[Arrays], tuple[Arrays, Arrays, Arrays]]
    """Returns weights as users load them: of the candidate, of the reference, and the inputs."""


def find_witness(task: Task, result: Result, subject: Subject, seed: int) -> tuple[dict[str, Any], Witness | None]:
    """Searches for weights on which outputs that are two functions differ in float64.

    Both programs are evaluated on each kind of weights. A difference counts if it is beyond the gate of comparisons,
    and far beyond what rounding does to either program. In small programs, 60 digits must confirm it.

    Args:
      task, result: a pair of programs, and a verdict that names a difference.

    Returns:
      The certificate's facts, and the weights. The facts are: whether there are such weights; the output, the kind of
      weights and the seed; the difference (the largest one, if there are no such weights); the gate; the effect of
      rounding.
    """
    search = _Search(task, _outputs(task, result), subject)
    measured = [one for kind, weights in search.kinds() for one in search.measured(kind, weights)]
    measured.sort(key=lambda one: (one.output not in FINAL, -one.distance))
    beyond = (one for one in measured if one.distance > FLOAT64_RELATIVE_RMS)
    found = next((judged for one in beyond if (judged := search.judged(one)) is not None), None)
    shown = found or max(measured, key=lambda one: one.distance, default=None)
    facts = {
        "found": found is not None,
        "output": shown.output if shown is not None else search.outputs[-1],
        "weights": shown.kind if shown is not None else "",
        "seed": seed,
        "difference": shown.distance if shown is not None else None,
        "gate": FLOAT64_RELATIVE_RMS,
        "rounding": found.rounding if found is not None else None,
        "kinds": search.tried,
    }
    return facts, None if found is None else Witness(*search.written(found.kind), facts)


@dataclass(frozen=True, eq=False)
class _Measured:
    """Holds the difference of an output on one kind of weights."""

    output: str
    kind: str
    distance: float
    rounding: float = math.nan


class _Search:
    """Evaluates a task's programs on kinds of weights."""

    def __init__(self, task: Task, outputs: tuple[str, ...], subject: Subject) -> None:
        self.task, self.outputs, self.subject = _restricted(task, outputs), outputs, subject
        self.tried = 0
        """The number of kinds of weights on which the outputs are defined."""
        self.judged_in_digits = 0

    @property
    def programs(self) -> tuple[Program, Program]:
        return self.task.candidate, self.task.reference

    @cached_property
    def _with_tables(self) -> tuple[Program, ...]:
        """Returns both programs with tables as constants, which round in one way in every run. A moved bit in a mask of
        (1 − 1) · −3e38 would mask an entry."""
        return tuple(map(_with_tables, self.programs))

    @cached_property
    def work(self) -> int:
        return sum(map(work, self.programs))

    @cached_property
    def where(self) -> dict[str, np.ndarray]:
        """Returns masks of the outputs' entries that neither side masks."""
        return {name: (ours == 0) & (theirs == 0) for name, (ours, theirs) in fills_of(self.task, self.outputs).items()}

    @cached_property
    def largest_logit(self) -> float:
        """Returns up to which size logits are masked as the axiom says: a tenth of the constant that masks."""
        masking = {-fill for program in self.programs for fill in masking_of(program)}
        return min(masking, default=math.inf) / 10

    def kinds(self) -> Iterator[tuple[str, Arrays]]:
        """Yields as many kinds of weights as there is time for."""
        yield from islice(self.subject.kinds(), max(1, MOST_WORK // max(self.work, 1)))

    def measured(self, kind: str, weights: Arrays) -> Iterator[_Measured]:
        """Yields how far the outputs are apart, where that is defined."""
        both = self._outputs(weights)
        if both is None:
            return
        distances = {name: self._distance(name, both[0][name], both[1][name]) for name in self.outputs}
        found = {name: distance for name, distance in distances.items() if distance is not None}
        self.tried += bool(found)
        yield from (_Measured(name, kind, distance) for name, distance in found.items())

    def judged(self, one: _Measured) -> _Measured | None:
        """Returns a difference with what rounding does on either side; None if rounding may explain it."""
        weights = self._weights(one.kind)
        rounding = self._rounding(one.output, weights)
        allowed = FACTOR_ROUNDING * rounding
        if not (allowed <= MOST_FOR_ROUNDING and one.distance > allowed) or self._is_denied(one.output, weights):
            return None
        return replace(one, rounding=rounding)

    def written(self, kind: str) -> tuple[Arrays, Arrays, Arrays]:
        candidate, reference, inputs = self.subject.written(self._weights(kind))
        return _narrow(candidate), _narrow(reference), {**_narrow(inputs), **self._factors}

    # --- within

    def _weights(self, kind: str) -> Arrays:
        """Returns weights once more: all kinds together may be too large for memory."""
        return next(weights for name, weights in self.subject.kinds() if name == kind)

    def _outputs(self, weights: Arrays, domain: Floats = FLOATS) -> tuple[Arrays, Arrays] | None:
        """Returns both sides' outputs; None if no tensors hold them, or logits are too large for the axiom of masks."""
        logits: list[float] = []
        programs = self.programs if domain is FLOATS else self._with_tables
        try:
            found = tuple(
                evaluate(program, domain, given, _largest_logit(program, logits))
                for program, given in zip(programs, self._given(weights), strict=True)
            )
            aligned = self.task.align(found[1])
        except ValueError:  # of the porting table: a tensor that isn't finite, or is another one's copy and differs
            return None
        return None if max(logits, default=0.0) > self.largest_logit else (found[0], aligned)

    def _given(self, weights: Arrays) -> tuple[Arrays, Arrays]:
        ours, theirs = self.subject.carried(weights)
        return {**self._factors, **ours}, {**self._factors, **theirs}

    @cached_property
    def _factors(self) -> dict[str, np.ndarray]:
        """Returns inputs that are no weights: what outputs are multiplied by before they are differentiated."""
        known = {name for side in self.subject.carried(self._weights(OWN)) for name in side}
        shapes = {name: shape for program in self.programs for name, shape in program.inputs.items()}
        rng = np.random.default_rng(0)
        return {name: rng.standard_normal(shape) for name, shape in shapes.items() if name not in known}

    def _distance(self, name: str, ours: np.ndarray, theirs: np.ndarray) -> float | None:
        """Returns the relative RMS of a difference, relative to the candidate's RMS if the reference is zero; None
        where it isn't defined."""
        where = self.where.get(name)
        if ours.shape != theirs.shape or not ours.size or (where is not None and not where.any()):
            return None
        ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        distance = compare(ours, theirs, where).relative_rms
        distance = compare(theirs, ours, where).relative_rms if distance == math.inf else distance
        return distance if math.isfinite(distance) else None

    def _rounding(self, output: str, weights: Arrays) -> float:
        """Measures rounding: returns the largest difference of either side from itself when the last bit of every
        number is moved at random. Takes several runs, since one may give the same numbers by chance."""
        still, domain = self._outputs(weights), Shaken()
        largest = 0.0
        for _ in range(max(FEWEST_RUNS, min(MOST_RUNS, WORK_OF_RUNS // max(self.work, 1)))):
            shaken = self._outputs(weights, domain)
            if still is None or shaken is None:
                return math.inf
            for side in range(2):
                distance = self._distance(output, shaken[side][output], still[side][output])
                largest = max(largest, math.inf if distance is None else distance)
        return largest

    def _is_denied(self, output: str, weights: Arrays) -> bool:
        """Returns whether 60 digits show no difference beyond the gate on these weights."""
        if self.work > MOST_IN_DIGITS:
            return False
        if self.judged_in_digits == MOST_JUDGED:
            return True
        self.judged_in_digits += 1
        given = ({name: as_decimals(array) for name, array in side.items()} for side in self._given(weights))
        try:
            ours, theirs = (
                evaluate(program, Digits(), side) for program, side in zip(self.programs, given, strict=True)
            )
            both = ours[output], self.task.align(theirs)[output]
            distance = self._distance(output, *(np.asarray(each, np.float64) for each in both))
        except (ArithmeticError, ValueError):
            return False
        return distance is None or distance <= FLOAT64_RELATIVE_RMS


def _outputs(task: Task, result: Result) -> tuple[str, ...]:
    """Returns the outputs to look at: the first that differs, and what the programs return, if that does."""
    final = [name for name in result.different if name in FINAL]
    return tuple(dict.fromkeys([result.different[0], *final]))


def _with_tables(program: Program) -> Program:
    operations = list(program.operations)
    for node, table in program.tables.items():
        one = operations[node]
        operations[node] = Operation("constant", (), one.shape, {"array": table.array}, one.line)
    return replace(program, operations=tuple(operations))


def _restricted(task: Task, outputs: tuple[str, ...]) -> Task:
    """Returns the task without gradients, unless they are to be looked at: they may not be finite where outputs are."""
    if any(name.startswith(GRADIENT) for name in outputs):
        return task
    candidate, reference = (
        program.restricted([name for name in program.outputs if not name.startswith(GRADIENT)])
        for program in (task.candidate, task.reference)
    )
    return replace(task, candidate=candidate, reference=reference)


def _largest_logit(program: Program, found: list[float]) -> Callable[[int, np.ndarray], None]:
    """Returns a function that notes the magnitude of the largest unmasked number that a softmax reads."""
    counted: dict[int, np.ndarray] = {
        one.inputs[0]: one.attributes["counts"]
        for one in program.operations
        if one.name in ("row_exp", "largest") and "counts" in one.attributes
    }

    def note(node: int, array: np.ndarray) -> None:
        if node in counted and array.size:
            found.append(float(np.where(counted[node], np.abs(array), 0.0).max()))

    return note


def _narrow(arrays: Arrays) -> dict[str, np.ndarray]:
    """Returns arrays in float32 if that holds all their numbers."""
    found = {}
    for name, array in arrays.items():
        with np.errstate(over="ignore"):
            narrow = array.astype(np.float32) if array.dtype == np.float64 else array
        found[name] = narrow if np.array_equal(narrow, array, equal_nan=array.dtype.kind == "f") else array
    return found
