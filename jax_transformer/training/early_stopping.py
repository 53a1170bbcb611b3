"""When training no longer helps: told from the run's own metrics, so that a resumed run decides as an unbroken one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal


def evaluations_since_best(records: Iterable[Mapping[str, Any]], metric: Literal["loss", "bleu"]) -> int:
    """How many evaluations were made after the best one (of equals the first), of the lines of metrics.jsonl."""
    name, sign = {"loss": ("valid_loss", -1.0), "bleu": ("valid_bleu", 1.0)}[metric]
    scores = [sign * record[name] for record in records if record.get(name) is not None]
    return len(scores) - 1 - scores.index(max(scores)) if scores else 0
