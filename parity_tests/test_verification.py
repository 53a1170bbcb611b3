"""A small self-test: faults are found and located, and named if the catalogue has them.

`run_selftest.py` runs every system, every fault and twenty seeds. test_systems.py has systems without a fault.
"""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from selftest.injections import Injection, known_faults, unknown_faults
from selftest.matrix import Kill, Prepared, false_alarms, try_injection
from selftest.other_stages import later_kills
from selftest.page import FAULTS, KINDS, SYSTEMS, files, page
from selftest.real_pairs import REAL_PAIRS, RealPair, judge
from selftest.run import Counts, Result
from selftest.subjects import SUBJECTS

pytestmark = pytest.mark.usefixtures("quick_compilation")

SUBJECT = "harvard"


@cache
def prepared(name: str) -> Prepared:
    return Prepared.of(name)


def test_no_false_alarm_with_other_weights() -> None:
    alarms: list[str] = []
    assert false_alarms("stepwise_core", [1], alarms.append) == 0
    assert alarms == []


def test_an_alarm_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a program that is taken for right isn't."""
    wrong = next(one for one in injections(known=True) if one.name == "norm: ε = 0.001")
    system = prepared(SUBJECT)
    right = system.program.forward

    def of(name: str, seed: int = 0) -> Prepared:
        faulty = {**right(system.problems[0], "float64")}
        faulty[wrong.node.name] = faulty[wrong.node.name] * (1 + 1e-9)
        monkeypatch.setattr(system.program, "forward", lambda problem, dtype: faulty)
        return system

    monkeypatch.setattr(Prepared, "of", of)
    alarms: list[str] = []
    assert false_alarms(SUBJECT, [5], alarms.append) == 1
    assert alarms == [f"{SUBJECT}, seed 5, own weights"]


# --- kills


def injections(*, known: bool) -> Iterator[Injection]:
    config, rng = prepared(SUBJECT).model.config, np.random.default_rng(0)
    return known_faults(config, rng) if known else unknown_faults(config, rng)


def some(names: list[str], *, known: bool) -> list[Injection]:
    """The first of each of these names."""
    found: dict[str, Injection] = {}
    for injection in injections(known=known):
        found.setdefault(injection.name, injection)
    assert not {*names} - found.keys(), sorted(found)
    return [found[name] for name in names]


KNOWN = [
    "norm: ε inside the root",
    "norm: variance over D",
    "norm: scale dropped",
    "√d_model missing",
    "kernel transposed",
]
FILL = "masked logits are -10000"


def test_known_faults_are_named() -> None:
    for injection in some(KNOWN, known=True):
        kill = try_injection(prepared(SUBJECT), injection)
        assert (kill.fate, kill.located, kill.named) == ("found", True, True), kill
        assert kill.shortcomings == []


def test_unknown_faults_are_found_and_not_named() -> None:
    by_name = {injection.name: injection for injection in injections(known=False)}
    tried = 0
    for injection in list(by_name.values())[::7]:
        kill = try_injection(prepared(SUBJECT), injection)
        if kill.fate in ("equivalent", "not applicable"):
            continue
        tried += 1
        assert (kill.fate, kill.located, kill.causes) == ("found", True, ()), kill
    assert tried >= 3


OF_MECHANISMS = {
    "mechanisms: all at once": [
        "rotary: pairs of neighbours",
        "rotary: base 500,000 instead of 10,000",
        "rotary: positions 1 too far",
        "heads of keys tiled, not repeated",
        "heads of values tiled, not repeated",
        "factors of heads missing",
    ],
    "mechanisms: ALiBi": ["ALiBi: sign reversed", "ALiBi: slopes 2^(−8i / N) though N is no power of two"],
    "mechanisms: relative vectors": [
        "relative vectors of keys are those of values",
        "relative vectors of values: clipped one too near",
    ],
}


@pytest.mark.parametrize("name", OF_MECHANISMS)
def test_faults_of_mechanisms_are_named(name: str) -> None:
    system = prepared(name)
    found = {}
    for injection in known_faults(system.model.config, np.random.default_rng(0)):
        if injection.name in OF_MECHANISMS[name] and injection.name not in found:
            kill = try_injection(system, injection)
            if kill.fate != "not applicable":
                found[injection.name] = kill
    assert found.keys() == {*OF_MECHANISMS[name]}
    for kill in found.values():
        assert (kill.fate, kill.located, kill.named) == ("found", True, True), kill


def test_a_fault_that_changes_nothing_is_equivalent() -> None:
    (injection,) = some(KNOWN[:1], known=True)
    same = dataclasses.replace(injection, value=lambda config, params, before: before[injection.node.name])
    system = prepared(SUBJECT)
    exact = dataclasses.replace(
        injection,
        value=lambda config, params, before: injection.node.compute(config, *_node_inputs(injection, params, before)),
    )
    assert try_injection(system, exact).fate == "equivalent"
    assert try_injection(system, same).fate in ("equivalent", "missed"), (
        "the program's own value, which rounds otherwise"
    )

    def senseless(*arguments: object) -> np.ndarray:
        raise LookupError("no such thing")

    assert try_injection(system, dataclasses.replace(injection, value=senseless)).fate == "not applicable"


def _node_inputs(
    injection: Injection, params: object, before: object
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    from selftest.injections import _of_node

    return _of_node(injection.node, params, before)  # type: ignore[arg-type]


def test_a_fill_that_changes_nothing_is_equivalent_and_noted() -> None:
    logits = [one for one in injections(known=True) if one.node.kind == "attention_logits"]
    (fill,) = (one for one in logits if one.node.name.startswith("encoder.layers.0") and one.name == FILL)
    kill = try_injection(prepared(SUBJECT), fill)
    assert (kill.fate, kill.located, kill.causes) == ("equivalent (noted)", True, (FILL,)), kill
    assert kill.shortcomings == []
    counts = Counts.of([kill])
    assert (counts.noted, counts.found, counts.named) == (1, 0, 0), "no fault that was found"
    assert Counts.of([dataclasses.replace(kill, causes=("another",), named=False)]).wrongly_named == 1


def test_faults_of_later_stages() -> None:
    kills = list(later_kills(prepared("stepwise_core")))
    assert {kill.node for kill in kills} == {"loss", "step", "decode"}
    assert {kill.fate for kill in kills} <= {"found", "equivalent"}
    assert [kill for kill in kills if kill.shortcomings] == []
    assert [kill.fault for kill in kills if not kill.known] == [
        "the loss is 1 % too large",
        "the learning rate is 1 % too high",
    ]


# --- what is made of them


def killed(**fields: object) -> Kill:
    whole = {
        "system": "one",
        "fault": "a fault",
        "known": True,
        "node": "logits",
        "kind": "logits",
        "fate": "found",
        "located": True,
        "named": True,
        "causes": ("a fault",),
        "problem": "own weights",
    }
    return Kill(**whole | fields)  # type: ignore[arg-type]


UNKNOWN = killed(known=False, named=False, causes=(), fault="another")


def unmet(*kills: Kill, alarms: int = 0) -> list[str]:
    result = Result(kills, {"one": alarms}, 20, 60.0)
    assert result.meets_all == all(result.requirements.values())
    return [name for name, met in result.requirements.items() if not met]


def test_requirements() -> None:
    assert unmet(killed(), UNKNOWN, killed(fate="equivalent", located=False, named=False, causes=())) == []
    assert unmet(killed(), killed(fate="missed", located=False, named=False, causes=()), UNKNOWN) == [
        "catalogue: every fault that makes a difference is detected"
    ]
    assert unmet(killed(located=False), UNKNOWN) == ["catalogue: at least 98% are located"]
    assert unmet(killed(named=False, causes=()), UNKNOWN) == ["catalogue: at least 95% are named"]
    assert unmet(killed(), dataclasses.replace(UNKNOWN, fate="missed", located=False)) == [
        "open world: every fault is detected"
    ]
    assert unmet(killed(), dataclasses.replace(UNKNOWN, located=False)) == ["open world: at least 98% are located"]
    assert unmet(killed(), dataclasses.replace(UNKNOWN, causes=("a fault",))) == [
        "open world: none is given a wrong name"
    ]
    assert unmet(killed(), UNKNOWN, alarms=1) == ["20 seeds of each system without a fault: no alarm"]
    assert unmet(*[killed()] * 98, *[killed(located=False)] * 2, UNKNOWN) == [], "98 % is enough"
    assert unmet(*[killed()] * 97, *[killed(located=False)] * 3, UNKNOWN) == ["catalogue: at least 98% are located"]


def test_a_wrong_name_in_the_catalogue() -> None:
    wrong = killed(named=False, causes=("another fault",))
    assert wrong.wrongly_named
    assert wrong.shortcomings == ["not named", "called another fault"]
    assert unmet(wrong, UNKNOWN) == ["catalogue: at least 95% are named"]
    assert not killed(causes=("another fault", "a fault")).wrongly_named, "they can't be told apart"
    assert Counts.of([wrong, killed(), UNKNOWN]).wrongly_named == 1


def test_nothing_was_tried() -> None:
    assert not Result([], {}, 20, 1.0).meets_all


def test_a_page() -> None:
    missed = killed(fate="missed", located=False, named=False, causes=(), fault="a missed one")
    text = page(Result([killed(), missed, UNKNOWN], {"one": 0, "two": 3}, 20, 90.0))
    headings = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert headings == [
        "What is required",
        "Totals",
        "Real pairs",
        "Without a fault",
        "What wasn't found, located or named",
    ]
    assert text.startswith("# The parity check, checked\n")
    assert "1.5 minutes" in text
    assert "- ✗ catalogue: every fault that makes a difference is detected" in text
    assert "- ✓ open world: every fault is detected" in text
    assert "| catalogue | 1 | 1 | 1 | 1 | 0 | 0 | 0 | 0 |" in text
    assert "20 seeds of each of 2 systems: 3 alarms, in two (3)." in text
    assert "- one: a missed one, at logits: missed" in text
    assert "Nothing." in page(Result([killed(), UNKNOWN], {"one": 0}, 20, 1.0))


def test_files_next_to_the_page_have_the_counts() -> None:
    missed = killed(fate="missed", located=False, named=False, causes=(), fault="a, missed one")
    result = Result([killed(), missed, UNKNOWN], {"one": 0}, 20, 90.0)

    def rows(file: str, column: str) -> list[tuple[str, ...]]:
        lines = csv.DictReader(files(result)[file].splitlines())
        return [(row["part"], row[column], row["found"], row["missed"]) for row in lines]

    assert rows(FAULTS, "fault") == [
        ("catalogue", killed().fault, "1", "0"),
        ("catalogue", "a, missed one", "0", "1"),
        ("open world", UNKNOWN.fault, "1", "0"),
    ]
    assert rows(SYSTEMS, "system") == [("catalogue", "one", "1", "1"), ("open world", "one", "1", "0")]
    assert rows(KINDS, "kind") == [("catalogue", "logits", "1", "1")]
    text = page(result)
    assert all(f"]({file})" in text for file in files(result))
    assert "a, missed one |" not in text


def test_totals_of_the_published_page_equal_its_files() -> None:
    docs = Path(__file__).parents[1] / "docs"
    text = (docs / "parity_selftest.md").read_text(encoding="utf-8")
    for file in (FAULTS, SYSTEMS, KINDS):
        totals: dict[str, list[int]] = {}
        for part, _, *counts in list(csv.reader((docs / file).read_text(encoding="utf-8").splitlines()))[1:]:
            totals[part] = [
                sum(pair) for pair in zip(totals.get(part, [0] * len(counts)), map(int, counts), strict=True)
            ]
        for part, counts in totals.items():
            assert f"| {part} | {' | '.join(map(str, counts))} |" in text, (file, part)


def test_every_published_system_is_a_subject() -> None:
    from jax_transformer.parity.backends.systems import knows
    from jax_transformer.porting.dialects import all_dialects

    assert {name for name in all_dialects() if knows(name)} <= {subject.dialect for subject in SUBJECTS.values()}


@pytest.mark.parametrize("pair", REAL_PAIRS, ids=lambda pair: f"{pair.weights} in {pair.program}")
def test_real_pairs_are_named(pair: RealPair) -> None:
    verdict = judge(pair)
    assert verdict.missing == []
    assert judge(RealPair(pair.weights, pair.program, ("tanh GELU",))).missing == ["tanh GELU"]
