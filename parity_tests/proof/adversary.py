"""Asks `prove` for some 2,000 pairs of small programs whose truth is known, and counts what is false.

    python parity_tests/proof/adversary.py [--names softmax …] [--seed 0] [--json FILE] [--write docs/proof_tables.md]

Takes some ten minutes of one core. Most pairs are written by rules (`adversary_rules.py`) and checked with 60 digits;
the others by hand (`adversary_written.py`, `adversary_newest.py`, `adversary_layers.py`; with weights of their own,
`adversary_mapped.py`). A verdict is false if different functions are proven, equal ones refuted, or anything is said of
programs that are defined for no weights. Exit code 1 if there is one.

The truth is that of the programs as they run: float32, without `jax_enable_x64` unless a pair
says so, with constants that are meant to be equal if they are equal up to their rounding. Programs that are equal where
both are defined, and not defined for the same weights, mustn't be proven.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest has it

import jax
import numpy as np
import torch

from jax_transformer.parity import prove
from proof.adversary_expressions import WEIGHTS, source, weights_in
from proof.adversary_layers import written_pairs
from proof.adversary_mapped import mapped_pairs
from proof.adversary_pairs import DIFFERENT, NEITHER, NOWHERE, OTHER, SAME, TIED, Pair, jax_program, torch_program
from proof.adversary_rules import made_pairs
from proof.tables import Table, by, markdown

SECONDS_PER_PAIR = 20
"""Of a processor. A pair that takes longer is unknown."""
FRAMEWORKS = (("jax", "jax"), ("torch", "torch"), ("jax", "torch"), ("torch", "jax"))
FALSE: Mapping[str, frozenset[str]] = {
    SAME: frozenset({"refuted"}),
    DIFFERENT: frozenset({"proven"}),
    OTHER: frozenset({"proven"}),
    TIED: frozenset({"proven"}),
    NOWHERE: frozenset({"proven", "refuted"}),
    NEITHER: frozenset(),
}


@dataclass(frozen=True)
class Outcome:
    area: str
    name: str
    frameworks: str
    defined: str
    stage: str
    truth: str
    verdict: str
    reason: str
    axioms: tuple[str, ...]
    seconds: float
    candidate: str
    reference: str
    has_conditions: bool = False
    """Whether the verdict says that it holds where weights are equal."""

    @property
    def is_false(self) -> bool:
        is_said = self.truth == TIED and self.has_conditions
        return self.verdict in FALSE[self.truth] and not is_said


def pairs_of_rules(seed: int) -> Iterator[Pair]:
    """Yields the pairs of all rules, in one combination of frameworks after another."""
    for number, made in enumerate(made_pairs(seed)):
        used = sorted(weights_in(made.candidate) | weights_in(made.reference))
        shapes = {name: WEIGHTS[name] for name in used}
        sides = []
        for expr, framework in zip((made.candidate, made.reference), FRAMEWORKS[number % 4], strict=True):
            text = source(expr, framework)
            sides.append(
                jax_program(_plain(text, used), used)
                if framework == "jax"
                else torch_program(_plain(text, used), shapes)
            )
        nowhere = made.truth.defined == "nowhere"
        forward, gradients = (
            NOWHERE if nowhere else DIFFERENT if not is_same else SAME if made.truth.same_domain else OTHER
            for is_same in (made.truth.same, made.truth.same_gradients)
        )
        truth = {"forward": forward, "gradients": NEITHER if made.has_traps else gradients}
        yield Pair(made.area, f"{made.name} ({number})", *sides, truth, made.truth.defined, shapes)


def _plain(text: str, names: Sequence[str]) -> str:
    for name in names:
        text = text.replace(f'p["{name}"]', name).replace(f"self.{name}", name)
    return text


def all_pairs(seed: int) -> Iterator[Pair]:
    yield from written_pairs()
    yield from mapped_pairs()
    yield from pairs_of_rules(seed)


class _OutOfTime(BaseException):
    pass


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def outcomes_of(pair: Pair) -> list[Outcome]:
    """Asks for the verdicts of a pair, one for each stage."""
    start = time.process_time()
    dtype = np.float64 if pair.is_wide else np.float32
    found: dict[str, tuple[str, str]] = {}
    axioms, has_conditions = set[str](), False
    asked = [stage for stage in ("forward", "gradients") if stage in pair.truth or "step" in pair.truth]
    try:
        with _limited(SECONDS_PER_PAIR), jax.enable_x64(pair.is_wide), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sides = [program.make() for program in (pair.candidate, pair.reference)]
            if pair.is_wide:
                sides = [side.double() if isinstance(side, torch.nn.Module) else side for side in sides]
            given = {name: np.ones(shape, dtype) for name, shape in pair.weights.items()}
            is_given = bool(given) and not any(isinstance(side, torch.nn.Module) for side in sides)
            inputs = {
                name: array.astype(dtype) if array.dtype.kind == "f" else array
                for name, array in ((name, np.asarray(value)) for name, value in pair.inputs.items())
            }
            stages = ("forward",) if "step" in pair.truth else asked
            more = {"weights": given} if is_given else {}
            more |= {} if pair.names is None else {"names": eval(pair.names, {"np": np})}
            certificate = prove(*sides, inputs=inputs, stages=stages, **more)
        found = {stage.name: _judged(stage) for stage in certificate.stages}
        has_conditions = bool(certificate.conditions)
        axioms = {axiom for task in certificate.tasks for axiom in task.axioms}
    except _OutOfTime:
        reason = f"more than {SECONDS_PER_PAIR} seconds"
    except Exception as error:
        reason = f"raised {type(error).__name__}: {error}"
    else:
        reason = "no such stage"
    seconds = time.process_time() - start
    outcomes = []
    for stage, truth in pair.truth.items():
        verdict, why = found.get("forward" if stage == "step" else stage, ("unknown", reason))
        outcomes.append(
            Outcome(
                pair.area,
                pair.name,
                pair.frameworks,
                pair.defined,
                stage,
                truth,
                verdict,
                why,
                tuple(sorted(axioms)),
                seconds,
                pair.candidate.code,
                pair.reference.code,
                has_conditions,
            )
        )
    return outcomes


def _judged(stage: Any) -> tuple[str, str]:
    """Returns a stage's verdict on the outputs and their gradients; activations inside may differ."""
    if stage.verdict == "refuted" and all("@" in name for name in stage.different):
        return INSIDE, f"{', '.join(stage.different)}: inside alone"
    return stage.verdict, stage.reason


INSIDE = "inside"
"""Activations are refuted, and the outputs aren't."""
COUNTED = {"proven": "proven", "refuted": "refuted", "refuted inside": INSIDE, "unknown": "unknown", "false": "false"}
"""Columns of the table → verdicts. A false one counts twice."""


def rows_of(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """Counts the verdicts by truth, frameworks and stage."""
    kinds: dict[tuple[str, str, str], Counter[str]] = {}
    for outcome in outcomes:
        truth = outcome.truth if outcome.truth != NOWHERE else "neither"
        defined = NOWHERE if outcome.truth == NOWHERE else f"defined {outcome.defined}"
        kind = f"{truth}, {defined}", outcome.frameworks, outcome.stage
        kinds.setdefault(kind, Counter()).update([outcome.verdict, *(["false"] if outcome.is_false else [])])
    return [
        [*kind, *(str(kinds[kind][verdict]) for verdict in COUNTED.values())] for kind in sorted(kinds, reverse=True)
    ]


def summarize(rows: Sequence[dict[str, str]]) -> list[str]:
    """Adds up the verdicts on each truth."""

    def totals(listed: Sequence[dict[str, str]]) -> list[int]:
        return [sum(int(row[count]) for row in listed) for count in COUNTED]

    counts = ([truth, *totals(listed)] for truth, listed in by("truth", rows).items())
    *verdicts, false = totals(rows)
    return [
        *markdown(("truth", *COUNTED), counts),
        "",
        f"{sum(verdicts)} verdicts: {false} false, {verdicts[-1]} unknown.",
    ]


TABLE = Table(
    "proof_adversary.csv",
    ("<!-- adversary: written by parity_tests/proof/adversary.py -->", "<!-- end of adversary -->"),
    ("truth", "in", "of", *COUNTED),
    summarize,
)


def _known(path: Path | None) -> list[Outcome]:
    """Reads the verdicts of a run that ended early."""
    if path is None or not path.exists():
        return []
    records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Outcome(**record | {"axioms": tuple(record["axioms"])}) for record in records]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="*", default=[""], help="parts of the names of pairs; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the pairs that rules write")
    parser.add_argument("--json", type=Path, help="lists every verdict; pairs that it has aren't asked for again")
    parser.add_argument("--write", type=Path, help="the page; tables/ next to it gets every row")
    options = parser.parse_args()
    torch.set_num_threads(1)
    outcomes = _known(options.json)
    known = {outcome.name for outcome in outcomes}
    for pair in all_pairs(options.seed):
        if pair.name in known or not any(part in pair.name for part in options.names):
            continue
        found = outcomes_of(pair)
        outcomes += found
        if options.json:
            with options.json.open("a", encoding="utf-8") as file:
                file.write("".join(f"{json.dumps(asdict(outcome))}\n" for outcome in found))
        for outcome in found:
            if outcome.is_false:
                print(f"FALSE {outcome.verdict}, {outcome.truth}: {outcome.stage} of {outcome.name}", flush=True)
                print(textwrap.indent(f"{outcome.candidate}\n{outcome.reference}", "    "), flush=True)
    rows = rows_of(outcomes)
    pairs = len({outcome.name for outcome in outcomes})
    note = f"{pairs} pairs of programs."
    print("\n".join([*map(" | ".join, rows), "", *TABLE.on_page(TABLE.as_csv(rows), note)]))
    if options.write:
        TABLE.write(options.write, rows, note)
    return int(any(outcome.is_false for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
