"""Early stopping, decided from the run's metrics file so that a resumed run stops at the same step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal


def evaluations_since_best(records: Iterable[Mapping[str, Any]], metric: Literal["loss", "bleu"]) -> int:
    """Returns the number of evaluations since the best one, the first of equals, in the lines of metrics.jsonl."""
    name, sign = {"loss": ("valid_loss", -1.0), "bleu": ("valid_bleu", 1.0)}[metric]
    scores = [sign * record[name] for record in records if record.get(name) is not None]
    return len(scores) - 1 - scores.index(max(scores)) if scores else 0
