"""Prints faults as text: each cause once, with its nodes and its certainty."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jax_transformer.comparison.findings import Fault, Match

MOST_NODES = 3
"""The most nodes named for a cause, before "and 11 more"."""

Fact = tuple[str, str]
"""A label and a text."""
BLIND = "only fully masked rows, where a query sees no key; --allow fully-masked accepts that"
REPLAY = "replay"
"""The label of a command, which is never wrapped."""


def grouped(faults: Sequence[Fault]) -> list[list[Fault]]:
    """Groups the faults of one side that have one cause, in execution order."""
    groups: dict[tuple[str, str, str], list[Fault]] = {}
    for fault in faults:
        groups.setdefault((fault.side, fault.finding.cause, fault.finding.effect), []).append(fault)
    return list(groups.values())


def fault_facts(faults: Sequence[Fault]) -> list[Fact]:
    """Lists the facts of faults with one cause: the first in detail, and the least certainty of all."""
    first, many = faults[0], len(faults) > 1
    names = [fault.finding.node for fault in faults]
    more = f" and {len(names) - MOST_NODES} more" if len(names) > MOST_NODES else ""
    seen = f"{first.stage}, {first.case}" if first.case else first.stage
    rows = [
        ("cause", f"{first.finding.cause}, at {len(names)} node{'s' if many else ''}{_faulty_side(first)}"),
        ("nodes" if many else "node", f"{', '.join(names[:MOST_NODES])}{more} ({seen})"),
        ("error", f"{_errors(first)}{', at the first' if many else ''}"),
        *_certainty(faults),
    ]
    if first.finding.effect == "fully masked rows":
        rows.append(("changes", BLIND))
    if first.finding.told_apart_by:
        rows.append(("told apart", f"by {first.finding.told_apart_by}"))
    return [*rows, *([(REPLAY, first.command)] if first.command else [])]


def _errors(fault: Fault) -> str:
    """Describes a fault's errors; the local one if there is a right value for the side's own inputs."""
    local = "" if math.isnan(fault.finding.local_error) else f"local {fault.finding.local_error:.2e}, "
    return f"{local}propagated {fault.propagated_error:.2e}"


def _faulty_side(fault: Fault) -> str:
    """Names the faulty side."""
    return ": nothing shows which side is wrong" if fault.side == "unknown" else f" of the {fault.side}"


def _certainty(faults: Sequence[Fault]) -> list[Fact]:
    """Returns the residual of the cause, and how many times larger the next best one is."""
    rivals = [(_margin(fault), fault.finding.runner_up) for fault in faults if fault.finding.runner_up is not None]
    margin, rival = min(rivals, key=lambda pair: pair[0], default=(math.nan, None))
    if not faults[0].finding.matches:
        return [] if rival is None else [("nearest", f"{_leaves(rival)}, which is too much")]
    residual = max(match.residual for fault in faults for match in fault.finding.matches)
    text = f"{residual:.2e}{' at most' if len(faults) > 1 else ''}"
    if rival is None:
        return [("residual", f"{text}; no other variant can be distinguished from it")]
    times = "more than nothing" if math.isinf(margin) else f"{margin:.1e} times as much"
    return [("residual", text), ("runner-up", f"{_leaves(rival)}: {times}")]


def _margin(fault: Fault) -> float:
    """Returns the ratio of the runner-up's residual to the cause's; without a cause, the runner-up's residual."""
    assert fault.finding.runner_up is not None
    residual, other = (
        max((match.residual for match in fault.finding.matches), default=1.0),
        fault.finding.runner_up.residual,
    )
    return other / residual if residual > 0 else math.inf


def _leaves(match: Match) -> str:
    return f"{match.variant} leaves {match.residual:.2e}"
