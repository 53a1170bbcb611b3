"""Compare a certificate, which may come from a stranger, with one that was made again of the same programs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax_transformer.proof.certificate import Certificate, StageProof, TaskProof

NOT_COMPARED = "versions, the command, and what was measured in floats"
"""What a certificate tells and nothing makes again bit by bit on another machine."""
LONGEST = 80
"""The most characters of a value of a certificate that a line shows."""


def changes(before: Certificate, now: Certificate) -> list[str]:
    """Returns what differs between a certificate and one that was made again, a line each; nothing if it holds.

    All is compared but versions, the command, folders of source files, and what was measured in floats. Those differ
    between machines.
    """
    return [*_of_whole(before, now), *_of_stages(before, now), *_of_tasks(before, now), *_of_difference(before, now)]


def shown(value: Any) -> str:
    """Returns a value of a certificate in one line of printable characters."""
    text = value if isinstance(value, str) else repr(value)
    text = "".join(each if each.isprintable() else "\ufffd" for each in text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _of_whole(before: Certificate, now: Certificate) -> Iterator[str]:
    names = [tuple(stage.name for stage in one.stages) for one in (before, now)]
    if names[0] != names[1]:
        yield f"stages: {shown(', '.join(names[0]))} then, {', '.join(names[1])} now"
    for what in ("kind", "candidate", "reference", "allowed", "conditions", "seed"):
        then, now_is = getattr(before, what), getattr(now, what)
        if then != now_is:
            yield f"{what}: {shown(then)} then, {shown(now_is)} now"
    if before.inputs != now.inputs:
        yield from _of_inputs(before, now)
    if len(before.tasks) != len(now.tasks):
        yield f"{len(before.tasks)} pairs of programs then, {len(now.tasks)} now"


def _of_inputs(before: Certificate, now: Certificate) -> Iterator[str]:
    for name in dict.fromkeys((*before.inputs, *now.inputs)):
        then, now_is = ({"shape": "none", "dtype": "none", **one.inputs.get(name, {})} for one in (before, now))
        if then == now_is:
            continue
        if [then[what] for what in ("shape", "dtype")] == [now_is[what] for what in ("shape", "dtype")]:
            yield f"the ids are others: {shown(name)}"
        else:
            was, is_now = (f"{shown(list(one['shape']))} {shown(one['dtype'])}" for one in (then, now_is))
            yield f"inputs: {shown(name)} was {was}, and is {is_now}"


def _of_stages(before: Certificate, now: Certificate) -> Iterator[str]:
    for old, new in zip(before.stages, now.stages, strict=False):
        if sorted(old.alone) != sorted(new.alone):
            yield f"{new.name}: {len(old.alone)} arrays of one side then, {len(new.alone)} now"
        if _decided(old) != _decided(new):
            yield f"{new.name}: {old.verdict}, {len(old.equal)} arrays then; {new.verdict}, {len(new.equal)} now"
        elif _without_folders(old.reason) != _without_folders(new.reason):
            yield f"{new.name}: {shown(old.reason or 'no reason')} then; {shown(new.reason or 'no reason')} now"


def _decided(stage: StageProof) -> tuple[Any, ...]:
    return stage.verdict, sorted(stage.equal), sorted(stage.different)


def _of_tasks(before: Certificate, now: Certificate) -> Iterator[str]:
    for old, new in zip(before.tasks, now.tasks, strict=False):
        of = ", ".join(new.stages)
        if old.stages != new.stages:
            yield f"{of}: programs of {shown(', '.join(old.stages))} then"
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
    return f"degree {shown(task.degree)} and {shown(task.values)} values"


def _granted(task: TaskProof) -> tuple[Any, ...]:
    """Returns what a proof takes for granted: axioms, casts that it leaves out, and the bound on its error."""
    axioms = {name: [*map(_without_folders, where)] for name, where in task.axioms.items()}
    casts = [[*map(_without_folders, side.narrowing)] for side in (task.candidate, task.reference)]
    return axioms, casts, _rounded(task.log2_error)


def _granted_text(task: TaskProof) -> str:
    casts = sum(len(side.narrowing) for side in (task.candidate, task.reference))
    places = sum(map(len, task.axioms.values()))
    axioms = f"{', '.join(sorted(task.axioms))} in {places} places" if task.axioms else "no axiom"
    return f"{axioms}, {casts} casts, an error of 2^{task.log2_error:.2f}"


def _of_difference(before: Certificate, now: Certificate) -> Iterator[str]:
    then, now_is = before.difference, now.difference
    if (then is None) != (now_is is None):
        yield f"a difference {'was told, and there is none' if now_is is None else 'is found that was not told'}"
    elif then is not None and now_is is not None and _found(then) != _found(now_is):
        yield f"the difference was told at {shown(then['name'])}, or with other facts; it is at {now_is['name']}"


def _found(difference: Any) -> Any:
    """Returns what is told of a difference without what was measured in floats."""
    places = [
        None
        if (place := difference[side]) is None
        else {**place, "line": _without_folders(place["line"]), "masks": _without_folders(place["masks"])}
        for side in ("candidate", "reference")
    ]
    return difference["name"], places, difference["point"], _rounded(difference["digits"])


def _rounded(number: float | None) -> str:
    return "none" if number is None or not math.isfinite(number) else f"{number:.9e}"


def _without_folders(text: str) -> str:
    """Returns text whose source files have no folders, which differ between machines."""
    return re.sub(r"/.*/", "", text)
