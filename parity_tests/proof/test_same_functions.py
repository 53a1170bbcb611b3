"""Every pair of programs that are the same function is proven so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jax_transformer.proof import Task, decide
from jax_transformer.proof.domains import Reals
from jax_transformer.proof.evaluating import evaluate
from proof.pairs import Pair
from proof.same_functions import PAIRS


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_is_proven(pair: Pair) -> None:
    task = pair.task()
    result = decide(task)
    assert result.verdict == "proven", (result.reason, result.difference)
    assert result.log2_error < -80
    assert set(result.equal) == set(task.candidate.outputs) & set(task.reference.outputs)
    assert_alike(pair, task)


def assert_alike(pair: Pair, task: Task) -> None:
    """Checks without any axiom that the pair is the same function: in float64, on random weights."""
    ours, theirs = (evaluate(program, Reals(), pair.weights()) for program in (task.candidate, task.reference))
    for name, array in ours.items():
        if name in theirs:
            assert_close(np.asarray(array), np.asarray(theirs[name]))


def assert_close(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9 * float(np.abs(theirs).max()))


def test_pairs_have_different_names() -> None:
    assert len({pair.name for pair in PAIRS}) == len(PAIRS)
