"""Compares two programs in the dtypes in which they run, and in float64, as a whole and layer by layer.

Every layer of the candidate also runs on the reference's own input of that layer, so that its error is its own. Numbers
of a lower precision are judged by a wide replay: the same operations in float64, whatever types the program pins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np

from jax_transformer.comparison import run as comparison
from jax_transformer.comparison.capture import OWN
from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.compare import relative_rms
from jax_transformer.comparison.gates.rounding import allow_for_last_bits, excuse_rounding
from jax_transformer.comparison.gates.stages import Stage, compare_stage
from jax_transformer.comparison.report.report import Report
from jax_transformer.comparison.run import FORWARD, Order, Results, Work
from jax_transformer.comparison.sides import Arrays, CannotRun
from jax_transformer.parity.layerwise import costs
from jax_transformer.parity.layerwise.calls import Computed, LayerCall, RunnableSide, as_float32
from jax_transformer.parity.layerwise.gates import STAGE, Gates
from jax_transformer.parity.layerwise.pairing import Pairs
from jax_transformer.parity.layerwise.weights import Nudge

LAYERS = "layers"
COARSEST = ("float64", "float32", "bfloat16", "float16")
NARROW = "float32"
"""The type of tables and constants that programs compute, unlike weights."""


@dataclass(frozen=True)
class Task:
    """Defines a comparison."""

    candidate: RunnableSide
    reference: RunnableSide
    inputs: Arrays
    pairs: Pairs
    gates: Gates = Gates()
    memory_limit: float | None = None
    time_limit: float | None = None
    remarks: tuple[str, ...] = ()
    progress: Callable[[str], None] = lambda work: None


@dataclass
class Seen:
    """Holds what one side computed, by the reference's names of layers."""

    output: np.ndarray | None = None
    wide_output: np.ndarray | None = None
    given: dict[str, np.ndarray | None] = field(default_factory=dict)
    own: dict[str, np.ndarray] = field(default_factory=dict)
    wide: dict[str, np.ndarray] = field(default_factory=dict)
    """As part of the whole program in float64, where that can be seen."""
    local: dict[str, np.ndarray] = field(default_factory=dict)
    """Alone, on the reference's input."""
    local_wide: dict[str, np.ndarray] = field(default_factory=dict)
    reasons: dict[str, None] = field(default_factory=dict)
    """Why something couldn't be computed."""

    @property
    def all_own(self) -> dict[str, np.ndarray]:
        return {**self.own, **({} if self.output is None else {OWN: self.output})}


def compare_layerwise(task: Task) -> Report:
    """Compares two programs.

    Raises:
      ParityError: it would take more memory or time than the limits.
    """
    cost = costs.estimated((task.candidate, task.reference), task.inputs)
    costs.check(cost, task.memory_limit, task.time_limit)
    task.progress(f"comparison, {cost}")
    results = Results(task.progress)
    results.remarks += [*task.remarks, task.pairs.remark]
    pair = _Pair(task, results)
    names = (task.candidate.name, task.reference.name)
    dtype = pair.dtype
    stages = [LAYERS, FORWARD] if dtype == "float64" else [LAYERS, FORWARD, f"{LAYERS} {dtype}", f"{FORWARD} {dtype}"]
    order = Order((*stages, STAGE))
    report = comparison.run(
        names, pair.works(), results, order, (LAYERS, FORWARD, STAGE), inputs=lambda: dict(task.inputs)
    )
    return report


class _Pair:
    """Runs both sides, and compares."""

    def __init__(self, task: Task, results: Results) -> None:
        self.task, self.results = task, results
        self._to_theirs = {ours: theirs for theirs, ours in task.pairs.paths.items()}
        self.theirs = self._reference()
        self.ours = self._candidate()
        kinds = [each.output.dtype.name for each in (self.ours, self.theirs) if each.output is not None]
        known = [kind for kind in kinds if kind in COARSEST]
        self.dtype = max(known, key=COARSEST.index) if known else "float64"
        results.facts |= {"dtypes": " and ".join(dict.fromkeys(kinds)), "execution": "operation by operation"}

    # --- runs

    def _reference(self) -> Seen:
        """Runs the reference, in float64, too, and again."""
        seen, side, paths = Seen(), self.task.reference, list(self.task.pairs.paths)
        self.task.progress(f"{side.name}, layer by layer")

        def at(call: LayerCall) -> None:
            path = call.path
            if path in seen.own:
                return  # a layer that is used again
            seen.given[path], seen.own[path] = call.given, call.computed.own
            seen.local[path] = call.computed.own
            if call.computed.wide is not None:
                seen.wide[path] = call.computed.wide
            with _noting(seen, f"{path} of the reference"):
                seen.local_wide[path] = _wide(call.again(None, None, True))

        try:
            computed = side.run(at, paths, wide=True)
        except CannotRun as reason:
            seen = Seen(reasons={str(reason): None})
            computed = side.run(at, paths)
        seen.output, seen.wide_output = computed
        self._check_again(seen, side.run().own, "reference")
        return seen

    def _candidate(self) -> Seen:
        """Runs the candidate, each layer on the reference's input, too; and again, in float64."""
        seen, side = Seen(), self.task.candidate
        self.task.progress(f"{side.name}, layer by layer")

        def at(call: LayerCall) -> None:
            path = self._to_theirs[call.path]
            if path in seen.own:
                return
            seen.own[path] = call.computed.own
            given = self._given(path, call, seen)
            if given is not None or self.theirs.given.get(path) is None:
                computed = Computed(call.again(given, None, False).own, None)
                with _noting(seen, f"{call.path} of the candidate"):
                    computed = call.again(given, None, True)
                seen.local[path] = computed.own
                if computed.wide is not None:
                    seen.local_wide[path] = computed.wide

        seen.output = side.run(at, list(self.task.pairs.paths.values())).own
        again = None
        with _noting(seen, "the candidate"):
            again = side.run(wide=True)
        again = side.run() if again is None else again
        seen.wide_output = again.wide
        self._check_again(seen, again.own, "candidate")
        return seen

    def _given(self, path: str, call: LayerCall, seen: Seen) -> np.ndarray | None:
        """Returns the reference's input of a layer, if the candidate's layer takes one of its size."""
        given = self.theirs.given.get(path)
        if given is None or call.given is None:
            return None
        if given.size != call.given.size:
            shapes = f"{list(call.given.shape)} and {list(given.shape)}"
            seen.reasons[f"{path} takes {shapes}: it was compared as part of the whole alone"] = None
            return None
        return given

    def _check_again(self, seen: Seen, again: np.ndarray, side: str) -> None:
        if seen.output is not None and not np.array_equal(seen.output, again, equal_nan=True):
            self.results.doubts[
                f"the {side} differs from itself when it is run again: does it draw random numbers, or change itself?"
            ] = None

    # --- stages

    def works(self) -> Iterator[Work]:
        """Yields the comparisons in order."""
        if self.task.pairs.paths:
            yield Work("", LAYERS, "", self._layers_in_float64)
        yield Work("", FORWARD, "", self._forward_in_float64)
        if self.dtype != "float64":
            if self.task.pairs.paths:
                yield Work("", f"{LAYERS} {self.dtype}", "", partial(self._narrow, LAYERS))
            yield Work("", f"{FORWARD} {self.dtype}", "", partial(self._narrow, FORWARD))
            self.results.remarks.append(self._moves())
        if self.task.gates != Gates():
            yield Work("", STAGE, "", self._gates)

    def _layers_in_float64(self) -> Stage:
        ours, theirs = self.ours.local_wide, self.theirs.local_wide
        stage = self._checked(compare_stage(LAYERS, self._shaped(ours, theirs), theirs), theirs)
        return self._judged(stage, LAYERS)

    def _forward_in_float64(self) -> Stage:
        both = [{} if seen.wide_output is None else {OWN: seen.wide_output} for seen in (self.ours, self.theirs)]
        if not all(both):
            raise CannotRun(_first_and_count([*self.theirs.reasons, *self.ours.reasons]))
        stage = compare_stage(FORWARD, self._shaped(*both), both[1])
        return self._judged(stage, FORWARD)

    def _judged(self, stage: Stage, kind: str) -> Stage:
        """Judges what differs in float64 by the last bits of the weights."""

        def moves(dtype: str) -> dict[str, float]:
            both = [self._wide_moves(side, kind, dtype) for side in ("candidate", "reference")]
            return {name: min(one[name] for one in both) for name in both[0] if name in both[1]}

        found = allow_for_last_bits(stage, self.dtype, moves)
        narrow = [row for row in found.rows if self.dtype in row.reason]
        if narrow and self.dtype not in ("float64", NARROW):
            row = narrow[0]
            assert row.error is not None
            self.results.remarks.append(
                f"{row.name} differs by {row.error.relative_rms:.1e} in float64: tables and constants rounded to "
                f"{self.dtype} do that, but so may another ε; a comparison in float32 tells"
            )
        return found

    def _checked(self, stage: Stage, theirs: Arrays) -> Stage:
        reasons = [*self.theirs.reasons, *self.ours.reasons]
        if stage.rows or not reasons:
            return stage
        raise CannotRun(_first_and_count(reasons))

    def _narrow(self, kind: str) -> Stage:
        """Compares what both computed in their own dtypes."""
        name = f"{kind} {self.dtype}"
        if kind == LAYERS:
            ours, theirs, truth = self.ours.local, self.theirs.local, self.theirs.local_wide
        else:
            truth = {**self.theirs.wide}
            if self.theirs.wide_output is not None:
                truth[OWN] = self.theirs.wide_output
            ours = {each: array for each, array in self.ours.all_own.items() if each in truth or each == OWN}
            theirs = {each: array for each, array in self.theirs.all_own.items() if each in truth or each == OWN}
        ours, theirs = (_comparable(each) for each in (self._shaped(ours, theirs), theirs))
        truth = {each: array.astype(np.float64) for each, array in truth.items()}
        stage = compare_stage(name, ours, theirs, truth=truth, dtypes=dict.fromkeys(theirs, self.dtype))
        if self.results.have_diverged or self.dtype not in tolerances.UNIT_ROUNDOFF:
            return stage

        def from_itself(side: str, own: Arrays, draw: int) -> Stage:
            moved = _comparable(self._shaped(self._moved(side, Nudge(draw), kind), theirs))
            return compare_stage(name, moved, own, tolerance=tolerances.MOST_FOR_ROUNDING)

        sides = {"candidate": partial(from_itself, "candidate", ours)}
        return excuse_rounding(stage, self.dtype, {**sides, "reference": partial(from_itself, "reference", theirs)})

    def _gates(self) -> Stage:
        assert self.ours.output is not None
        assert self.theirs.output is not None
        return self.task.gates.stage(*(as_float32(each) for each in (self.ours.output, self.theirs.output)))

    def _moves(self) -> str:
        """Says how far each side moves when it rounds otherwise."""
        far = []
        for name, seen in (("candidate", self.ours), ("reference", self.theirs)):
            moved = self._moved(name, Nudge(0)).get(OWN)
            if moved is not None and seen.output is not None:
                far.append(f"the {name}'s by {relative_rms(as_float32(moved), as_float32(seen.output)):.1e}")
        return f"weights moved in their last bit move the output: {' and '.join(far)} (relative RMS)"

    @cache  # noqa: B019
    def _moved(self, side: str, nudge: Nudge, kind: str = FORWARD) -> dict[str, np.ndarray]:
        """Returns what a side computes with weights moved in their last bit: as a whole, or layer by layer."""
        found = dict[str, np.ndarray]()

        def at(call: LayerCall) -> None:
            path = self._to_theirs[call.path] if side == "candidate" else call.path
            if path not in found and kind == FORWARD:
                found[path] = call.computed.own
            elif path not in found:
                found[path] = call.again(self._again_given(side, path, call), nudge, False).own

        runner = self.task.candidate if side == "candidate" else self.task.reference
        paths = self.task.pairs.paths
        own = runner.run(at, [*(paths.values() if side == "candidate" else paths)], nudge=nudge).own
        return {**found, OWN: own} if kind == FORWARD else found

    def _again_given(self, side: str, path: str, call: LayerCall) -> np.ndarray | None:
        given = self.theirs.given.get(path)
        is_taken = given is not None and call.given is not None and given.size == call.given.size
        return given if is_taken else None

    def _wide_moves(self, side: str, kind: str, dtype: str) -> dict[str, float]:
        """Measures how far a side's wide replay moves when its weights move in the last bit of a dtype."""
        seen = self.ours if side == "candidate" else self.theirs
        runner = self.task.candidate if side == "candidate" else self.task.reference
        nudge, found = Nudge(0, dtype), dict[str, np.ndarray]()

        def at(call: LayerCall) -> None:
            path = self._to_theirs[call.path] if side == "candidate" else call.path
            if path in seen.local_wide and path not in found:
                found[path] = _wide(call.again(self._again_given(side, path, call), nudge, True))

        paths = self.task.pairs.paths
        if kind == LAYERS:
            runner.run(at, [*(paths.values() if side == "candidate" else paths)])
            return {name: relative_rms(array, seen.local_wide[name]) for name, array in found.items()}
        assert seen.wide_output is not None
        return {OWN: relative_rms(_wide(runner.run(nudge=nudge, wide=True)), seen.wide_output)}

    def _shaped(self, ours: Arrays, theirs: Arrays) -> dict[str, np.ndarray]:
        """Returns the candidate's arrays without axes of length 1 that the reference's don't have, and the reverse."""

        def shaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
            lengths = [[each for each in one if each != 1] for one in (array.shape, shape)]
            return array.reshape(shape) if lengths[0] == lengths[1] else array

        return {name: shaped(array, theirs[name].shape) if name in theirs else array for name, array in ours.items()}


class _noting:
    """Notes why something can't be computed, and goes on."""

    def __init__(self, seen: Seen, what: str) -> None:
        self._seen, self._what = seen, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, CannotRun):
            self._seen.reasons[f"{self._what}: {error}"] = None
            return True
        return False


def _first_and_count(reasons: list[str]) -> str:
    if not reasons:
        return "there is no replay in float64"
    return f"{reasons[0]}{f' (and {len(reasons) - 1} more)' if len(reasons) > 1 else ''}"


def _wide(computed: Computed) -> np.ndarray:
    assert computed.wide is not None
    return computed.wide


def _comparable(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns arrays of both sides in one type: that of narrower floats is float32, in which NumPy has all of them."""
    return {name: array.astype(np.float32) if _is_narrow(array) else array for name, array in arrays.items()}


def _is_narrow(array: np.ndarray) -> bool:
    return array.dtype.name in COARSEST and array.dtype.name != "float64"
