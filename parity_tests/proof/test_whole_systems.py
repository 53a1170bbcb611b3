"""A published system is proven, and refuted at the line where one of its norms has another ε."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
from systems import make_case

from jax_transformer.parity.backends.lowering import lowered
from jax_transformer.parity.problems import with_keys_for_all
from jax_transformer.proof import Result, decide


def forward(case: Any) -> Result:
    problem = with_keys_for_all(case.config, case.problem)
    return decide(lowered(case.candidate, case.reference, problem).forward(gradients=False))


def test_harvard_is_proven_and_a_changed_norm_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case("harvard")
    assert forward(case).verdict == "proven"
    norm = case.reference._module("float64").decoder.layers[1].sublayer[1].norm
    monkeypatch.setattr(norm, "eps", norm.eps * (1 + 2**-50))
    result = forward(case)
    assert result.verdict == "refuted"
    assert result.different[0] == "decoder.layers.1.cross_attention_norm"
    assert result.difference is not None
    place = result.difference.reference
    assert place is not None
    operation, _, line = place.line.partition(", ")
    file, _, number = line.rpartition(":")
    assert operation == "add"
    assert "self.eps" in linecache.getline(file, int(number))
    assert place.constants == (norm.eps,)
