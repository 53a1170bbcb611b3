"""What a repair has to say to name the cause that the catalogue names, and the table of both."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from selftest.by_repair import Trial

EXPECTED: tuple[tuple[str, frozenset[str]], ...] = tuple(
    (pattern, frozenset(kinds.split(", ")))
    for pattern, kinds in (
        (r"in (b?float\d+)|rounded to|computed in|E\[x²\]|dropout", "none of them"),
        (r"dropped|missing|not applied|no activation|not rotated|not scaled", "missing, constant"),
        (r"twice|doubled|scaled by|besides|, too|_model applied$", "constant"),
        (r"ε = |D( − 1)?$|base |capped at|masked logits are|slope of|factor", "constant"),
        (r"parameters of|scale and bias swapped|kernel of|two sides swapped|of layer|are those of|tied to", "weight"),
        (r"transposed|sliced|split|merged|in the order|tiled|gate and hidden", "order, weight"),
        (r"taken already|one token at each", "left out"),
        (r"^(\w+ )*(GELU|ReLU|SiLU|ELU|SELU|Mish|tanh|sigmoid|softplus|GELU by .*)$", "operation"),
    )
)  # fmt: skip
"""Part of an entry's name → kinds of edits that say the same; the first that is found counts. Entries without one,
such as another table of positions, another mask or another input, have no kind of edit that says more than where it
is."""
TABLE = "reads another table"
"""How a repair begins that says which table is wrong, and not why."""
PARAMETERS = r"(scale|bias) (dropped|missing)"
"""Entries whose repair has to name the sum or product that is missing, rather than a whole norm."""
COLUMNS = (
    "entry", "fault", "system", "activation", "verdict", "same place", "same cause", "seconds",
    "named by the catalogue", "seconds of the catalogue", "the repair, or why there is none",
)  # fmt: skip


def entry_of(fault: str) -> str:
    """Returns the entry of the catalogue that a fault is of: its name with n for each number; pairs of wrong options of
    a norm are one."""
    if re.match(r"norm: .*, and ", fault):
        return "norm: two of these"
    return re.sub(r"-?\b\d[\d,]*\.?\d*(e[-+]\d+)?", "n", fault)


def is_same_cause(trial: Trial) -> bool:
    """Returns whether a repair names the cause that the catalogue's entry has: at the faulty activation, one edit for
    each of its changes, or several of weights, of a kind that says the same, with the same number if the entry has
    one."""
    parts = trial.fault.split(", and ")
    has_more = len(trial.kinds) > len(parts) and {*trial.kinds} != {"weight"}
    if not trial.same_place or len(trial.kinds) < len(parts) or has_more or TABLE in trial.repair:
        return False
    if re.search(PARAMETERS, trial.fault) and not re.search("applies (add|mul), and ", trial.repair):
        return False
    wanted = [kinds_of(part) for part in parts]
    fits = all(kind in set().union(*wanted) for kind in trial.kinds) and all(each & {*trial.kinds} for each in wanted)
    return fits and all(_has_number(part, trial.repair) for part in parts)


def kinds_of(fault: str) -> frozenset[str]:
    """Returns the kinds of edits that say the same as a fault's name."""
    return next((kinds for pattern, kinds in EXPECTED if re.search(pattern, fault)), frozenset())


def _has_number(fault: str, text: str) -> bool:
    found = re.search(r"(?:ε = |capped at |masked logits are )(\S+)", fault)
    if found is None:
        return True
    numbers = re.findall(r"has (-?[\d.]+(?:e[-+]?\d+)?)", text)
    return any(float(each) == float(found[1]) for each in numbers)


def cells_of(trial: Trial) -> list[str]:
    return [
        entry_of(trial.fault),
        trial.fault,
        trial.system,
        trial.node,
        trial.fate,
        "yes" if trial.same_place else "no",
        "yes" if is_same_cause(trial) else "no",
        f"{trial.seconds:.1f}",
        "yes" if trial.named else "no",
        f"{trial.seconds_of_catalogue:.2f}",
        re.sub(r"\S*/(?=(?:jax_transformer|torch_reference)/)", "", trial.repair or trial.reason),
    ]


def summarize(rows: Sequence[Mapping[str, str]]) -> Iterable[str]:
    """Returns the lines of the summary."""
    entries: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        entries.setdefault(row["entry"], []).append(row)
    refuted = [row for row in rows if row["verdict"] == "refuted"]
    all_same = [entry for entry, own in entries.items() if all(row["same cause"] == "yes" for row in own)]
    yield "| | faults | entries, all of whose faults are so |"
    yield "|---|---|---|"
    for title, is_so in (
        ("tried", lambda row: True),
        ("refuted", lambda row: row["verdict"] == "refuted"),
        ("a proven repair", lambda row: "the two are proven the same" in row[COLUMNS[-1]]),
        ("at the same place", lambda row: row["same place"] == "yes"),
        ("the same cause", lambda row: row["same cause"] == "yes"),
        ("named by the catalogue", lambda row: row["named by the catalogue"] == "yes"),
    ):
        count = sum(all(map(is_so, own)) for own in entries.values())
        yield f"| {title} | {sum(map(is_so, rows))} | {count} |"
    yield ""
    yield (
        f"Processor seconds of one fault, the median of those refuted: {_median(refuted, 'seconds')} for the proof and "
        f"the repair, {_median(refuted, 'seconds of the catalogue')} for the comparison with the catalogue."
    )
    yield ""
    yield f"The same cause in all faults tried: {'; '.join(sorted(all_same)) or 'none'}."


def _median(rows: Sequence[Mapping[str, str]], column: str) -> str:
    return f"{median(float(row[column]) for row in rows):.2g}" if rows else "–"
