"""A certificate as text: whole, and in a line or two for the report of a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jax_transformer.proof.axioms import AXIOMS

if TYPE_CHECKING:
    from jax_transformer.proof.certificate import Certificate, StageProof

VERIFY = (
    "jax-transformer parity --verify FILE with the programs once more, named as for --prove: MODEL and --reference, or "
    "--candidate and --reference. Nothing that this file names is imported or run."
)
"""How a certificate is verified, as each says."""
MOST_NAMES = 3
"""Names of different outputs that a line lists."""


def certificate_lines(certificate: Certificate, verbose: bool) -> Iterator[str]:
    """Yields a certificate as text; see `Certificate.lines`."""
    for line in _lines(certificate, verbose):  # of a stranger's file, too
        yield "".join(each if each.isprintable() else "\ufffd" for each in line)


def _lines(certificate: Certificate, verbose: bool) -> Iterator[str]:
    yield f"{certificate.verdict}: {certificate.candidate} against {certificate.reference}"
    if certificate.verdict == "proven":
        which = "the weights" if certificate.conditions else "all weights"
        domain = _domain(certificate)
        yield f"the same function of the weights at these shapes, ids and masks, for {which}{domain}"
    yield from _condition_lines(certificate)
    if certificate.difference is not None:
        yield from _difference_lines(certificate.difference)
        yield from _witness_lines(certificate.difference["witness"], bool(certificate.command))
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


def certificate_summary(certificate: Certificate) -> list[str]:
    """Returns the verdict in a line, and below it where a difference begins, for the report of a comparison."""
    proven = ", ".join(stage.name for stage in certificate.stages if stage.verdict == "proven")
    unknown = [f"{stage.name}: {stage.reason}" for stage in certificate.stages if stage.verdict == "unknown"]
    found = certificate.difference
    if found is not None and certificate.verdict == "refuted":
        first, *places = (*_difference_lines(found), *_witness_lines(found["witness"]))
        return [f"two functions, {first}", *(f"  {place}" for place in places)]
    if not proven:
        return ["unknown", *(f"    {reason}" for reason in unknown)]
    error = math.ceil(certificate.log2_error)
    which = ("the weights" if certificate.conditions else "all weights") + _domain(certificate)
    text = f"one function for {which}: {proven} (wrong with a probability below 2^{error})"
    limits = [f"    {stage.name}: {stage.reason}" for stage in certificate.stages if _is_limited(stage)]
    return [text, *limits, *_condition_lines(certificate), *(f"    unknown of {reason}" for reason in unknown)]


def _is_limited(stage: StageProof) -> bool:
    """Returns whether a stage is proven without some of what both sides compute."""
    return stage.verdict == "proven" and bool(stage.reason)


def _condition_lines(certificate: Certificate) -> Iterator[str]:
    """Yields for which weights alone the verdict holds."""
    for condition in certificate.conditions:
        yield f"  where {condition}: gradients are summed, and an optimizer that has them apart makes them differ"


def _origin_lines(certificate: Certificate) -> Iterator[str]:
    """Yields which programs were compared, and by which versions."""
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
            yield f"  {side:10s} {place['line'] or place['operation']}{numbers}"
    if found["float64"] is not None:
        yield f"  float64    differs by a relative RMS of {found['float64']:.2e} on the model's own weights"
    if found["digits"] is not None:
        yield f"  60 digits  differ by {found['digits']:.2e} at random weights"


def _same_output(certificate: Certificate) -> str | None:
    """Returns the output's name if programs part inside, and return the same at that point."""
    forward = next((stage for stage in certificate.stages if stage.name == "forward" and stage.different), None)
    if forward is None:
        return None
    name = "output" if "output" in (*forward.equal, *forward.different) else "logits"
    return name if name in forward.equal else None


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
    """Yields what came of a search for weights on which a difference shows.

    Args:
      is_of_command: whether to say how the command writes the weights, or how a program gets them; None: neither.
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
        rounding = ", which rounding explains" if found["difference"] > found["gate"] else ""
        largest = f"the largest relative RMS is {found['difference']:.1e}{rounding}"
        yield f"  witness    none of {found['kinds']} kinds of weights shows it in float64: {largest}"
    else:
        yield f"  witness    none: both sides are finite on none of {found['kinds']} kinds of weights"


def _domain(certificate: Certificate) -> str:
    """Says that weights are left out for which the programs aren't defined, if there may be any."""
    return " for which both are defined" if "domains" in certificate.axioms else ""


def _used(where: tuple[str, ...]) -> str:
    shown = [one for one in where if one]
    if not shown:
        return ""
    more = len(shown) - MOST_NAMES
    return f" ({'; '.join(shown[:MOST_NAMES])}{f'; and {more} more' if more > 0 else ''})"
