"""The certificate of a proof: the claims, the programs, the axioms, and a bound on the probability of an error."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jax_transformer.proof.axioms import AXIOMS
from jax_transformer.proof.deciding import Difference, Result, Task
from jax_transformer.proof.programs import Program
from jax_transformer.proof.repair import Cause, Repair, find_repair
from jax_transformer.proof.witness import Witness
from jax_transformer.runtime.extras import require
from jax_transformer.runtime.json_schema import first_problem
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.runtime.limits import CERTIFICATE_ELEMENTS

SCHEMA = 3
"""The version of the JSON; raised when a field changes its meaning or is removed."""
Verdict = Literal["proven", "refuted", "unknown"]
Kind = Literal["models", "programs"]
FLOATS = "fc"
"""Kinds of dtypes all of whose values a proof covers."""
MOST_AXES = 32
"""The most axes of an input."""
PROVEN, LOCATED, UNKNOWN, UNLOCATED = 0, 1, 3, 4
"""Exit codes. (2 is a user's mistake.)"""
VERIFY = (
    "jax-transformer parity --verify FILE with the programs once more, named as for --prove: MODEL and --reference, or "
    "--candidate and --reference. Nothing that this file names is imported or run."
)
"""Instructions for verifying a certificate, printed in each."""
MOST_NAMES = 3
"""Names of different outputs that a line lists."""
NOT_COMPARED = "versions, the command, stacks of calls, and what was measured in floats"
"""Fields of a certificate that aren't reproducible bit by bit on another machine."""
LONGEST = 80
"""The most characters of a value of a certificate that a line shows."""


@dataclass(frozen=True)
class StageProof:
    """Holds the result of one stage: forward, loss, gradients, a number of optimizer steps."""

    name: str
    verdict: Verdict
    equal: tuple[str, ...] = ()
    """Arrays that are the same function of the weights."""
    different: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    """The arrays that one side alone shows: they aren't compared."""
    reason: str = ""
    """Reason why the result is unknown."""


@dataclass(frozen=True)
class SideProgram:
    """Describes a program that was compared."""

    sha256: str
    operations: int
    lowered: Mapping[str, int]
    """The framework's operations → how often they occur."""
    inputs: Mapping[str, tuple[int, ...]]
    """Name of a weight or another input → shape."""
    narrowing: tuple[str, ...]
    """Casts to a narrower float type. The proof covers the program without them."""

    @classmethod
    def of(cls, program: Program) -> SideProgram:
        return cls(
            program.sha256(),
            len(program.operations),
            dict(sorted(program.read.items())),
            {name: tuple(shape) for name, shape in program.inputs.items()},
            program.narrowing,
        )


@dataclass(frozen=True)
class TaskProof:
    """Describes the comparison of one pair of programs, which may serve several stages."""

    stages: tuple[str, ...]
    candidate: SideProgram
    reference: SideProgram
    points: tuple[Mapping[str, int], ...]
    """The prime and the seed of each point, and after how many draws no divisor was zero."""
    degree: int
    values: int
    log2_error: float
    """Logarithm of a bound on the probability that a proof of these stages is wrong."""
    axioms: Mapping[str, tuple[str, ...]]
    """The axioms that were used → the constants or lines on which."""

    @classmethod
    def of(cls, stages: tuple[str, ...], task: Task, result: Result) -> TaskProof:
        bounds = result.bounds
        return cls(
            stages,
            SideProgram.of(task.candidate),
            SideProgram.of(task.reference),
            tuple(asdict(point) for point in result.points),
            0 if bounds is None else bounds.degree,
            0 if bounds is None else bounds.values,
            result.log2_error,
            result.axioms,
        )


@dataclass(frozen=True)
class Certificate:
    """Holds the verdict on two programs, and all that is needed to compare them again.

    `print(certificate)` shows it as text.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.parity import Certificate, prove
      >>> certificate = prove(lambda p, i: 2 * p["w"] + 0 * i["x"], lambda p, i: p["w"] + p["w"] + 0 * i["x"],
      ...                     inputs={"x": np.ones(3)}, weights={"w": np.ones(3)}, stages=["forward"])
      >>> again = Certificate.from_json(certificate.to_json())
      >>> again.verdict, again.exit_code
      ('proven', 0)
    """

    candidate: str
    reference: str
    stages: tuple[StageProof, ...]
    tasks: tuple[TaskProof, ...] = ()
    difference: Mapping[str, Any] | None = None
    """The first output that differs, the operations at which the sides diverge, the difference in float64 on the
    model's own weights, "witness": the result of the search for weights that show it, and "repair"."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """The inputs for which the proof holds: dtypes, shapes, and the values of ids and masks as lists (None: floats,
    for all values of which it holds)."""
    kind: Kind = "models"
    """"programs": any two programs, on inputs passed by the caller."""
    allowed: tuple[str, ...] = ()
    """Allowed differences that the ids can't show."""
    conditions: tuple[str, ...] = ()
    """Conditions on the weights under which the verdict holds, one text each: weights that one program holds
    separately, and the other ties."""
    map: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Facts about the map of weights that was found: the number of weights with a partner, those without one, those
    mapped unlike their siblings ("irregular") or only by their names, and those that the inputs read in part. {}: both
    programs read the same weights."""
    seed: int = 0
    command: tuple[str, ...] = ()
    """The arguments of the command that made it; () if none did. Nothing runs them."""
    environment: Mapping[str, str] = field(default_factory=dict)
    schema: int = SCHEMA
    witness: Witness | None = field(default=None, repr=False, compare=False)
    """Weights on which a refutation shows in float64, if any were found. The JSON omits them."""

    @property
    def verdict(self) -> Verdict:
        """Returns "proven" if every stage is, and there is at least one."""
        verdicts = {stage.verdict for stage in self.stages}
        if "refuted" in verdicts:
            return "refuted"
        return "proven" if verdicts == {"proven"} else "unknown"

    @property
    def exit_code(self) -> int:
        if self.verdict == "refuted":
            located = self.difference is not None and (self.difference["candidate"] or self.difference["reference"])
            return LOCATED if located else UNLOCATED
        return PROVEN if self.verdict == "proven" else UNKNOWN

    @property
    def log2_error(self) -> float:
        """Returns the logarithm of the bound for all stages together; 0 unless all are proven."""
        total = sum(2.0**task.log2_error for task in self.tasks)
        return min(0.0, math.log2(total)) if total > 0 else 0.0

    @property
    def repair(self) -> Repair | None:
        """Returns the edits with which the candidate is proven to equal the reference; None if none were found, or none
        were searched. `prove_programs` searches them for programs that differ.

        Example:
          >>> import numpy as np
          >>> from jax_transformer.parity import prove
          >>> certificate = prove(lambda p, i: i["x"] / (p["w"]**2 + 1e-5), lambda p, i: i["x"] / (p["w"]**2 + 1e-6),
          ...                     inputs={"x": np.ones(3)}, weights={"w": np.ones(3)}, stages=["forward"])
          >>> [(cause.kind, cause.cure) for cause in certificate.repair.causes]
          [('constant', 'with 1e-06')]
        """
        held = None if self.difference is None else self.difference["repair"]
        if held is None:
            return None
        causes = tuple(Cause(**_tuples(cause)) for cause in held["causes"])
        return Repair(causes, held["log2_error"])

    @property
    def narrowing(self) -> tuple[str, ...]:
        """Returns the casts that the proof leaves out, of both sides."""
        casts = (cast for task in self.tasks for side in (task.candidate, task.reference) for cast in side.narrowing)
        return tuple(dict.fromkeys(casts))

    @property
    def axioms(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, dict[str, None]] = {}
        for task in self.tasks:
            for name, where in task.axioms.items():
                found.setdefault(name, {}).update(dict.fromkeys(where))
        return {name: tuple(where) for name, where in found.items()}

    def to_json(self) -> str:
        held = asdict(replace(self, witness=None))
        del held["witness"]
        whole = {"verdict": self.verdict, "verify": VERIFY, **held}
        return json.dumps(whole, indent=2, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, path: str = "certificate") -> Certificate:
        """Reads a certificate, whose claims `changes` compares with a new proof.

        Raises:
          ValueError: the text isn't a certificate, has another schema, or contradicts itself.
        """
        held: Any = None
        try:
            held = parse_json(text)
            problem = _problem(held)
        except ValueError as error:
            problem = f"received text that isn't JSON ({error})"
        except RecursionError:
            problem = "it is nested too deeply"
        if problem is not None:
            problem = "".join(each if each.isprintable() else "\ufffd" for each in problem)
            raise ValueError(f"{path}: expected a certificate that jax-transformer parity --prove wrote; {problem}")
        stated = held.pop("verdict")
        del held["verify"]
        stages = tuple(StageProof(**_tuples(stage)) for stage in held.pop("stages"))
        tasks = tuple(_task(task) for task in held.pop("tasks"))
        facts = {what: tuple(lines) for what, lines in held.pop("map").items()}
        read = cls(**{**_tuples(held), "stages": stages, "tasks": tasks, "map": facts})
        if stated != read.verdict:
            raise ValueError(f"{path}: verdict: expected {read.verdict}, as its stages say; received {stated}")
        return read

    def changes(self, again: Certificate) -> list[str]:
        """Returns the differences from a new certificate of the same programs, a line each; [] if this one holds.

        Versions, the command, folders of source files, call stacks, and floating-point measurements differ between
        machines, so they aren't compared.

        Example:
          >>> import numpy as np
          >>> from jax_transformer.parity import Certificate, prove
          >>> programs = lambda p, i: 2 * p["w"] * i["x"], lambda p, i: (p["w"] + p["w"]) * i["x"]
          >>> arrays = {"inputs": {"x": np.ones(3)}, "weights": {"w": np.ones(3)}}
          >>> text = prove(*programs, **arrays).to_json()
          >>> Certificate.from_json(text).changes(prove(*programs, **arrays))
          []
        """
        return [
            *_changes_of_whole(self, again),
            *_changes_of_stages(self, again),
            *_changes_of_tasks(self, again),
            *_changes_of_difference(self, again),
        ]

    def arrays(self, path: str = "certificate") -> dict[str, np.ndarray]:
        """Returns inputs as arrays: ids and masks with their values, floats as ones.

        Raises:
          ValueError: they have too many elements, or values that don't match their shape and dtype.
        """
        return {name: _array(held, f"{path}: inputs: {_shown(name)}") for name, held in self._limited(path)}

    def _limited(self, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        total = 0
        for name, held in self.inputs.items():
            total += math.prod(held["shape"])
            CERTIFICATE_ELEMENTS.check(total, f"{path}: inputs: {_shown(name)}")
            yield name, held

    def lines(self, *, verbose: bool = False) -> Iterator[str]:
        """Yields the certificate as text.

        Args:
          verbose: with the names of all arrays, the digests of the programs, and versions.
        """
        for line in _lines(self, verbose):  # of a stranger's file, too
            yield "".join(each if each.isprintable() else "\ufffd" for each in line)

    def summary(self) -> list[str]:
        """Returns the verdict in one line, followed by the place where a difference begins, for a comparison's
        report."""
        proven = ", ".join(stage.name for stage in self.stages if stage.verdict == "proven")
        unknown = [f"{stage.name}: {stage.reason}" for stage in self.stages if stage.verdict == "unknown"]
        found = self.difference
        if found is not None and self.verdict == "refuted":
            first, *places = (*_difference_lines(found), *_witness_lines(found["witness"]))
            return [f"two functions, {first}", *(f"  {place}" for place in places)]
        if not proven:
            return ["unknown", *(f"    {reason}" for reason in unknown)]
        error = math.ceil(self.log2_error)
        which = ("the weights" if self.conditions else "all weights") + _domain(self)
        text = f"one function for {which}: {proven} (wrong with a probability below 2^{error})"
        limits = [f"    {stage.name}: {stage.reason}" for stage in self.stages if _is_limited(stage)]
        return [text, *limits, *_condition_lines(self), *(f"    unknown of {reason}" for reason in unknown)]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def difference_of(found: Difference, witness: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns a difference in the form of a certificate, with the repair if one was found.

    Args:
      witness: the result of the search for weights that show it; None: there was no search.
    """
    repair = None if found.task is None else find_repair(found.task)
    facts = asdict(replace(found, task=None))
    del facts["task"]
    held = json.loads(json.dumps({**facts, "witness": witness, "repair": None if repair is None else asdict(repair)}))
    for side in ("candidate", "reference"):
        if held[side] is not None:
            held[side]["constants"] = [one if math.isfinite(one) else str(one) for one in held[side]["constants"]]
    digits = held["digits"]
    return {**held, "digits": digits if digits is not None and math.isfinite(digits) else None}


def described(arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Returns inputs as a certificate holds them."""
    return {
        name: {
            "dtype": array.dtype.name,
            "shape": list(array.shape),
            "values": None if array.dtype.kind in FLOATS else array.tolist(),
        }
        for name, array in arrays.items()
    }


def _array(held: Mapping[str, Any], where: str) -> np.ndarray:
    """Returns one input. Raises ValueError for values that aren't of its shape and dtype."""
    shape, dtype, values = tuple(held["shape"]), np.dtype(held["dtype"]), held["values"]
    if len(shape) > MOST_AXES:
        raise ValueError(f"{where}: expected at most {MOST_AXES} axes; received {len(shape)}")
    if (dtype.kind in FLOATS) != (values is None):
        raise ValueError(f"{where}: expected values for integers and booleans only; received values for {dtype}")
    if values is None:
        return np.ones(shape, dtype)
    try:
        array = np.array(values, object if math.prod(shape) else None)
        array = array.reshape(shape) if not array.size and not math.prod(shape) else array
        found = array.astype(dtype)
    except (ValueError, TypeError, OverflowError):
        array = found = np.empty(0)
    has_dtype = all(_is_bool(each) == (dtype.kind == "b") for each in array.flat)
    if found.shape != shape or not has_dtype or not (found == array).all():
        raise ValueError(f"{where}: expected values of {dtype} in the shape {list(shape)}; the values don't match")
    return found


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def _problem(held: Any) -> str | None:
    """Returns the first problem of a certificate's JSON; None if it follows the schema."""
    version = held.get("schema") if isinstance(held, dict) else None
    if type(version) is int and version != SCHEMA:
        return (
            f"schema: expected {SCHEMA}; received {version}, which another version of jax-transformer writes: prove "
            "the programs again, or install that version"
        )
    require("jsonschema", "certificate")
    return first_problem(held, _schema())


@cache
def _schema() -> dict[str, Any]:
    return parse_json(Path(__file__).with_name("certificate.schema.json").read_text(encoding="utf-8"))


def _task(held: dict[str, Any]) -> TaskProof:
    sides: dict[str, Any] = {}
    for side in ("candidate", "reference"):
        one = held.pop(side)
        inputs = {name: tuple(shape) for name, shape in one.pop("inputs").items()}
        sides[side] = SideProgram(**{**one, "inputs": inputs, "narrowing": tuple(one["narrowing"])})
    axioms = {name: tuple(where) for name, where in held.pop("axioms").items()}
    return TaskProof(**_tuples(held), axioms=axioms, **sides)


def _tuples(held: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in held.items()}


# --- text


def _lines(certificate: Certificate, verbose: bool) -> Iterator[str]:
    yield f"{certificate.verdict}: {certificate.candidate} against {certificate.reference}"
    if certificate.verdict == "proven":
        which = "the weights" if certificate.conditions else "all weights"
        floats = [name for name, held in certificate.inputs.items() if held["values"] is None]
        if certificate.kind == "models" and floats:
            which += f" and all {' and '.join(map(_shown, floats))}"
        domain = _domain(certificate)
        yield f"the same function of the weights at these shapes, ids and masks, for {which}{domain}"
    if certificate.verdict == "refuted" and "found" in certificate.map:
        yield "two functions of the weights with the map that was found; another order of their elements isn't excluded"
    yield from _condition_lines(certificate)
    yield from (f"  map        {what}: {line}" for what, lines in certificate.map.items() for line in lines)
    if certificate.difference is not None:
        yield from _difference_lines(certificate.difference)
        yield from _witness_lines(certificate.difference["witness"], bool(certificate.command))
        if certificate.repair is not None:
            yield f"  repair     {certificate.repair}"
        if (output := _same_output(certificate)) is not None:
            yield f"  {output:10s} is the same at this point: what differs is inside"
    yield ""
    for stage in certificate.stages:
        yield from _stage_lines(stage, verbose)
    if certificate.tasks:
        yield ""
        points = sum(len(task.points) for task in certificate.tasks)
        if certificate.verdict == "proven":
            yield f"error    wrong with a probability below 2^{math.ceil(certificate.log2_error)}, at {points} points"
        for name, where in certificate.axioms.items():
            yield f"axiom    {name}: {AXIOMS[name].split('. ')[0].rstrip('.')}{_used(where)}"
    for cast in certificate.narrowing:
        yield f"without  a cast to {cast}, which rounds: the proof is of the program without it"
    for name in certificate.allowed:
        yield f"allowed  {name}: the ids show no such difference, and nothing is claimed of it"
    yield f"verify   {VERIFY}"
    if verbose:
        yield from _origin_lines(certificate)


def _condition_lines(certificate: Certificate) -> Iterator[str]:
    """Yields for which weights alone the verdict holds."""
    for condition in certificate.conditions:
        yield f"  where {condition}: gradients are summed, and an optimizer that has them apart makes them differ"


def _origin_lines(certificate: Certificate) -> Iterator[str]:
    """Yields the programs that were compared, and the versions that compared them."""
    for task in certificate.tasks:
        for side in ("candidate", "reference"):
            program = getattr(task, side)
            yield f"program  {program.sha256}, {program.operations} operations: {side}, {', '.join(task.stages)}"
    yield from (f"version  {name} {version}" for name, version in certificate.environment.items())


def _difference_lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"first at {found['name']}"
    for side in ("candidate", "reference"):
        place = found[side]
        if place is not None:
            numbers = f" with {', '.join(map(str, place['constants']))}" if place["constants"] else ""
            module = f", in {place['module']}" if place["module"] else ""
            yield f"  {side:10s} {place['line'] or place['operation']}{numbers}{module}"
    if found["float64"] is not None:
        yield f"  float64    differs by a relative RMS of {found['float64']:.2e} on the model's own weights"
    if found["digits"] is not None:
        yield f"  60 digits  differ by {found['digits']:.2e} at random weights"


def _same_output(certificate: Certificate) -> str | None:
    """Returns the output's name if programs diverge inside, and return the same at that point."""
    forward = next((stage for stage in certificate.stages if stage.name == "forward" and stage.different), None)
    if forward is None:
        return None
    name = "output" if "output" in (*forward.equal, *forward.different) else "logits"
    return name if name in forward.equal else None


def _is_limited(stage: StageProof) -> bool:
    """Returns whether a stage is proven without some of the outputs that both sides compute."""
    return stage.verdict == "proven" and bool(stage.reason)


def _stage_lines(stage: StageProof, verbose: bool) -> Iterator[str]:
    marks = {"proven": "✓", "refuted": "✗", "unknown": "?"}
    count = f"{len(stage.equal):4d} of {len(stage.equal) + len(stage.different):4d} arrays are the same"
    alone = f", {len(stage.alone)} on one side alone" if stage.alone else ""
    text = f"{count}; {stage.reason}" if _is_limited(stage) else stage.reason or count
    yield f"{marks[stage.verdict]} {stage.name + ':':18s} {text}{alone}"
    if verbose:
        for mark, names in (("✓", stage.equal), ("✗", stage.different), ("on one side alone:", stage.alone)):
            yield from (f"    {mark} {name}" for name in names)
    elif stage.different:
        more = len(stage.different) - MOST_NAMES
        yield f"    {', '.join(stage.different[:MOST_NAMES])}{f' and {more} more' if more > 0 else ''}"


def _witness_lines(found: Mapping[str, Any] | None, is_of_command: bool | None = None) -> Iterator[str]:
    """Yields the result of a search for weights that show a difference.

    Args:
      is_of_command: whether to explain how the command writes the weights, or how a program gets them; None: neither.
    """
    if found is None:
        return
    if found["found"]:
        way = {True: "; --witness FILE writes them", False: "; the certificate's witness has them", None: ""}[
            is_of_command
        ]
        shown = f"{found['output']}, by a relative RMS of {found['difference']:.1e} (gate {found['gate']:.0e})"
        yield f"  witness    {found['weights']} show it in float64: {shown}{way}"
    elif found["difference"] is not None:
        rounding = ", which may be rounding" if found["difference"] > found["gate"] else ""
        largest = f"the largest relative RMS is {found['difference']:.1e}{rounding}"
        yield f"  witness    none of {found['kinds']} kinds of weights shows it in float64: {largest}"
    else:
        yield f"  witness    none: both sides are finite on none of {found['kinds']} kinds of weights"


def _domain(certificate: Certificate) -> str:
    """States that weights are left out for which the programs aren't defined, if there may be any."""
    return " for which both are defined" if "domains" in certificate.axioms else ""


def _used(where: tuple[str, ...]) -> str:
    shown = [one for one in where if one]
    if not shown:
        return ""
    more = len(shown) - MOST_NAMES
    return f" ({'; '.join(shown[:MOST_NAMES])}{f'; and {more} more' if more > 0 else ''})"


# --- changes since a certificate was made, which may come from a stranger


def _shown(value: Any) -> str:
    """Returns a value of a certificate in one line of printable characters."""
    text = value if isinstance(value, str) else repr(value)
    text = "".join(each if each.isprintable() else "\ufffd" for each in text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _changes_of_whole(before: Certificate, now: Certificate) -> Iterator[str]:
    names = [tuple(stage.name for stage in one.stages) for one in (before, now)]
    if names[0] != names[1]:
        yield f"stages: {_shown(', '.join(names[0]))} then, {', '.join(names[1])} now"
    for what in ("kind", "candidate", "reference", "allowed", "conditions", "seed"):
        then, now_is = getattr(before, what), getattr(now, what)
        if then != now_is:
            yield f"{what}: {_shown(then)} then, {_shown(now_is)} now"
    for what in dict.fromkeys((*before.map, *now.map)):
        then, now_is = (list(map(_without_folders, one.map.get(what, ()))) for one in (before, now))
        if then != now_is:
            yield f"map, {_shown(what)}: {len(then)} lines then, {len(now_is)} now; they differ"
    if before.inputs != now.inputs:
        yield from _changes_of_inputs(before, now)
    if len(before.tasks) != len(now.tasks):
        yield f"{len(before.tasks)} pairs of programs then, {len(now.tasks)} now"


def _changes_of_inputs(before: Certificate, now: Certificate) -> Iterator[str]:
    for name in dict.fromkeys((*before.inputs, *now.inputs)):
        then, now_is = ({"shape": "none", "dtype": "none", **one.inputs.get(name, {})} for one in (before, now))
        if then == now_is:
            continue
        if [then[what] for what in ("shape", "dtype")] == [now_is[what] for what in ("shape", "dtype")]:
            yield f"the ids differ: {_shown(name)}"
        else:
            was, is_now = (f"{_shown(list(one['shape']))} {_shown(one['dtype'])}" for one in (then, now_is))
            yield f"inputs: {_shown(name)} was {was}, and is {is_now}"


def _changes_of_stages(before: Certificate, now: Certificate) -> Iterator[str]:
    for old, new in zip(before.stages, now.stages, strict=False):
        if sorted(old.alone) != sorted(new.alone):
            yield f"{new.name}: {len(old.alone)} arrays of one side then, {len(new.alone)} now"
        if _decided(old) != _decided(new):
            yield f"{new.name}: {old.verdict}, {len(old.equal)} arrays then; {new.verdict}, {len(new.equal)} now"
        elif _without_folders(old.reason) != _without_folders(new.reason):
            yield f"{new.name}: {_shown(old.reason or 'no reason')} then; {_shown(new.reason or 'no reason')} now"


def _decided(stage: StageProof) -> tuple[Any, ...]:
    return stage.verdict, sorted(stage.equal), sorted(stage.different)


def _changes_of_tasks(before: Certificate, now: Certificate) -> Iterator[str]:
    for old, new in zip(before.tasks, now.tasks, strict=False):
        of = ", ".join(new.stages)
        if old.stages != new.stages:
            yield f"{of}: programs of {_shown(', '.join(old.stages))} then"
        for side in ("candidate", "reference"):
            then, now_is = getattr(old, side), getattr(new, side)
            if then.sha256 != now_is.sha256:
                yield f"{of}: the {side}'s program was {then.sha256[:12]}…, and is {now_is.sha256[:12]}…"
            for what in ("operations", "lowered", "inputs"):
                if getattr(then, what) != getattr(now_is, what):
                    yield f"{of}: the {side}'s {what} are others"
        if old.points != new.points:
            yield f"{of}: evaluated at other points"
        if (old.degree, old.values) != (new.degree, new.values):
            yield f"{of}: {_counted(old)} then, {_counted(new)} now"
        if _granted(old) != _granted(new):
            yield f"{of}: granted {_granted_text(old)} then; {_granted_text(new)} now"


def _counted(task: TaskProof) -> str:
    return f"degree {_shown(task.degree)} and {_shown(task.values)} values"


def _granted(task: TaskProof) -> tuple[Any, ...]:
    """Returns the assumptions of a proof: axioms, casts that it leaves out, and the bound on its error."""
    axioms = {name: [*map(_without_folders, where)] for name, where in task.axioms.items()}
    casts = [[*map(_without_folders, side.narrowing)] for side in (task.candidate, task.reference)]
    return axioms, casts, _rounded(task.log2_error)


def _granted_text(task: TaskProof) -> str:
    casts = sum(len(side.narrowing) for side in (task.candidate, task.reference))
    places = sum(map(len, task.axioms.values()))
    axioms = f"{', '.join(sorted(task.axioms))} in {places} places" if task.axioms else "no axiom"
    return f"{axioms}, {casts} casts, an error of 2^{task.log2_error:.2f}"


def _changes_of_difference(before: Certificate, now: Certificate) -> Iterator[str]:
    then, now_is = before.difference, now.difference
    if (then is None) != (now_is is None):
        yield f"a difference {'was claimed, and there is none' if now_is is None else 'is found that was not claimed'}"
    elif then is not None and now_is is not None and _facts_of(then) != _facts_of(now_is):
        yield f"the difference was claimed at {_shown(then['name'])}, or with other facts; it is at {now_is['name']}"


def _facts_of(difference: Any) -> Any:
    """Returns the facts about a difference, without floating-point measurements."""
    places = [
        None
        if (place := difference[side]) is None
        else {
            **{name: _without_folders(place[name]) for name in ("operation", "line", "masks")},
            **{name: place[name] for name in ("constants", "module")},
        }
        for side in ("candidate", "reference")
    ]
    facts = difference["name"], places, difference["point"], _rounded(difference["digits"])
    repair = difference["repair"]
    if repair is None:
        return facts
    return *facts, [*map(_facts_of_cause, repair["causes"])], _rounded(repair["log2_error"])


def _facts_of_cause(cause: Mapping[str, Any]) -> Any:
    """Returns the facts about a cause, its lines without folders."""
    lines = cause["candidate"], cause["reference"]
    text = cause["text"].replace(lines[0], "").replace(lines[1], "")
    return cause["kind"], *map(_without_folders, lines), text, cause["cure"], *cause["modules"]


def _rounded(number: float | None) -> str:
    return "none" if number is None or not math.isfinite(number) else f"{number:.9e}"


def _without_folders(text: str) -> str:
    """Removes the folders of source files, which differ between machines, from text."""
    return re.sub(r"/.*/", "", text)
