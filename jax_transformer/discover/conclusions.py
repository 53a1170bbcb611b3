"""Conclusions about a module, and the lines that list them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Conclusion:
    """Holds one conclusion: its value, the residual of the fit, and the runner-up."""

    what: str
    value: str
    residual: float
    runner_up: str = ""
    runner_up_residual: float = float("inf")


def conclusion_lines(conclusions: Iterable[Conclusion], *, every_layer: bool) -> list[str]:
    """Returns one line per conclusion; unless `every_layer`, merges those that all layers share."""
    lines: dict[tuple[str, str], list[Conclusion]] = {}
    for one in conclusions:
        what = one.what if every_layer else re.sub(r"\[\d+\]", "", one.what)
        lines.setdefault((what, one.value), []).append(one)
    return [_line(what, found) for (what, _), found in lines.items()]


def _line(what: str, found: list[Conclusion]) -> str:
    """Returns a conclusion's line: the worst residual of several, and the nearest runner-up."""
    worst = max(found, key=lambda one: one.residual)
    second = min(found, key=lambda one: one.runner_up_residual)
    after = f"; next {second.runner_up}: {second.runner_up_residual:.1e}" if second.runner_up else ""
    return f"{what}{f' (×{len(found)})' * (len(found) > 1)}: {worst.value} ({worst.residual:.1e}{after})"
