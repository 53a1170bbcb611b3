"""Sums up a report or a certificate for machines: verdict, first difference, repair, and what is unknown."""

from __future__ import annotations

import os
from typing import Any

from jax_transformer.proof.certificate import Certificate

SUMMARY = 1
"""The version of a summary; raised when a field changes its meaning or is removed."""
MOST_UNKNOWN = 3
"""How many things that are unknown the head of a failure lists."""


def summary_of(found: Any) -> dict[str, Any]:
    """Returns the summary of a comparison or a proof, a `Report` or a `Certificate`, as JSON.

    `verdict` is "passed", "diverged" or "inconclusive"; of a proof "proven", "refuted" or "unknown".
    """
    first, repair, unknown = _certificate_parts(found) if isinstance(found, Certificate) else _report_parts(found)
    return {
        "summary": SUMMARY,
        "verdict": found.verdict,
        "exit_code": found.exit_code,
        "candidate": found.candidate,
        "reference": found.reference,
        "first_difference": first,
        "repair": repair,
        "unknown": unknown,
    }


def failure_text(found: Any) -> str:
    """Returns what a failed test says: verdict, places, repair and what is unknown in a few lines, then the whole text.

    Paths in the current directory are shortened.
    """
    summary = summary_of(found)
    first = summary["first_difference"]
    lines = [f"{summary['verdict']}: {summary['candidate']} against {summary['reference']}"]
    if first is not None:
        lines.append(f"  first difference: {first['place']} ({first['stage']})")
        for side in ("candidate", "reference"):
            if first[side] is not None:
                where = f" in {first[side]['module']}" if first[side]["module"] else ""
                lines.append(f"    {side}: {first[side]['line'] or first[side]['operation']}{where}")
    lines.append(f"  repair: {summary['repair'] or 'none was found'}")
    unknown = summary["unknown"]
    lines += [f"  unknown: {each}" for each in unknown[:MOST_UNKNOWN]] or ["  unknown: nothing"]
    if len(unknown) > MOST_UNKNOWN:
        lines.append(f"  unknown: {len(unknown) - MOST_UNKNOWN} more, below")
    return "\n".join([*lines, "", str(found)]).replace(os.getcwd() + os.sep, "")


def _report_parts(report: Any) -> tuple[dict[str, Any] | None, str | None, list[str]]:
    unknown = [*report.doubts, *(f"{stage.name}: {reason}" for stage in report.stages for reason in stage.reasons)]
    unknown += [
        f"{stage.name}: {row.name}: {row.reason}"
        for stage in report.stages
        for row in stage.rows
        if row.verdict == "inconclusive"
    ]
    repair = None
    first: dict[str, Any] | None = None
    if report.proof is not None:
        first, repair, more = _certificate_parts(report.proof)
        unknown += more
    for stage in report.stages:
        row = stage.first_divergence
        if row is None:
            continue
        fault = next((one for one in report.faults if one.stage == stage.name), None)
        place = row.name if fault is None else fault.finding.node
        causes = [match.variant for match in fault.finding.matches] if fault is not None else []
        error = None if row.error is None else row.error.relative_rms
        is_number = error is not None and error == error and abs(error) != float("inf")
        first = {
            "stage": stage.name,
            "place": place,
            "candidate": None,
            "reference": None,
            "causes": causes,
            "relative_rms": error if is_number else None,
        }
        break
    return first, repair, unknown


def _certificate_parts(certificate: Certificate) -> tuple[dict[str, Any] | None, str | None, list[str]]:
    unknown = [f"{stage.name}: {stage.reason}" for stage in certificate.stages if stage.reason]
    for what in ("without a partner", "irregular", "by name alone"):
        unknown += [f"map of the weights: {what}: {each}" for each in certificate.map.get(what, ())]
    found, repair = certificate.difference, certificate.repair
    if found is None or certificate.verdict != "refuted":
        return None, None, unknown
    sides = {
        side: None if found[side] is None else {name: found[side][name] for name in ("line", "operation", "module")}
        for side in ("candidate", "reference")
    }
    causes = [] if repair is None else [str(cause) for cause in repair.causes]
    stage = next((one.name for one in certificate.stages if found["name"] in one.different), "")
    first = {"stage": stage, "place": found["name"], **sides, "causes": causes, "relative_rms": found["float64"]}
    return first, None if repair is None else str(repair), unknown
