"""Each rule computes what JAX computes, and a wrong one is caught."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax_cases import ALIASES, CASES, COMMUTATIVE, NEWER
from rule_checks import Case, Framework, differs, is_caught, mutations

from jax_transformer.proof import jax_programs
from jax_transformer.proof.jax_rules import MOVES, RULES
from jax_transformer.proof.programs import Program

WITHOUT_AN_ORDER = frozenset(("reshape", "is_finite"))


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def lower(function: Any, arrays: list[np.ndarray]) -> Program:
    def named(weights: Any) -> dict[str, Any]:
        found = function(*weights.values())
        found = found if isinstance(found, list | tuple) else [found]
        return {f"output {number}": each for number, each in enumerate(found)}

    return jax_programs.lower(named, {str(number): array for number, array in enumerate(arrays)})


def compute(function: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    found = function(*map(jax.numpy.asarray, arrays))
    return [np.asarray(each) for each in (found if isinstance(found, list | tuple) else [found])]


JAX = Framework(lower, compute, RULES)


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, cases in CASES.items() for case in cases])
def test_rules_equal_jax(name: str, case: Case) -> None:
    assert not differs(JAX, case)


def test_every_rule_has_a_case_that_reads_it() -> None:
    assert {ALIASES.get(name, name) for name in {*RULES, *MOVES} - NEWER} == set(CASES)
    for name, cases in CASES.items():
        for case in cases:
            assert lower(case.function, case.weights(whole=False)).read.get(name), name


@pytest.mark.parametrize("name", [name for name in CASES if name in RULES])
def test_a_wrong_rule_is_caught(name: str) -> None:
    for change, wrong in mutations(RULES[name], name, COMMUTATIVE):
        assert is_caught(JAX, name, wrong, CASES[name]), change
