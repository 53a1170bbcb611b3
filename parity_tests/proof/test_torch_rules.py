"""Each rule computes what PyTorch computes, and a wrong one is caught."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from rule_checks import Case, Framework, differs, is_caught, mutations

from jax_transformer.proof import torch_programs
from jax_transformer.proof.programs import Program
from jax_transformer.proof.torch_rules import MOVES, RULES
from proof.torch_cases import AS_RUN, CASES, COMMUTATIVE, UNIFORM


def lower(function: Any, arrays: list[np.ndarray]) -> Program:
    tensors = {str(number): torch.from_numpy(array.copy()) for number, array in enumerate(arrays)}
    return torch_programs.lower(lambda: dict(enumerate_outputs(function(*tensors.values()))), tensors)


def compute(function: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    found = function(*(torch.from_numpy(array.copy()) for array in arrays))
    return [each.numpy() for _, each in enumerate_outputs(found)]


def enumerate_outputs(found: Any) -> list[tuple[str, Any]]:
    found = found if isinstance(found, list | tuple) else [found]
    return [(f"output {number}", each) for number, each in enumerate(found)]


VIEWS = {"reshape", "view", "view_copy", "_reshape_copy", "_unsafe_view", "isfinite"}
"""Rules that are read where a tensor isn't contiguous, or in inference mode."""
VIEWS_OF_PARTS = {"unfold", "slice", "diagonal", "select"}
TORCH = Framework(lower, compute, RULES)


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, cases in CASES.items() for case in cases])
def test_computes_what_pytorch_computes(name: str, case: Case) -> None:
    assert not differs(TORCH, case)


def test_every_rule_has_a_case_that_reads_it() -> None:
    for name, cases in CASES.items():
        for case in cases:
            assert lower(case.function, case.weights(whole=False)).read.get(name), name
    functions = {RULES[name] for name in CASES if name in RULES}
    assert {name for name, rule in RULES.items() if rule not in functions} == VIEWS
    assert MOVES - set(CASES) == VIEWS_OF_PARTS


@pytest.mark.parametrize("name", [name for name in CASES if name in RULES and name not in AS_RUN])
def test_a_wrong_rule_is_caught(name: str) -> None:
    for change, wrong in mutations(RULES[name], name, COMMUTATIVE):
        if name not in UNIFORM or change == "raised by 1":
            assert is_caught(TORCH, name, wrong, CASES[name]), change
