"""The model here as a side of a parity run: what it does beforehand is what it would do later."""

from __future__ import annotations

import numpy as np
import pytest
from selftest.subjects import make_model

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.parity.backends.jax_model import QUICKLY, JaxSide, understood
from jax_transformer.parity.backends.side import Plan
from jax_transformer.parity.problems import nudged_problem, own_problem

pytestmark = pytest.mark.usefixtures("quick_compilation")
MODEL = make_model("stepwise_core")


def test_what_is_decoded_beforehand_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    side, problem = JaxSide("a", MODEL), own_problem(MODEL.config, MODEL.params)
    greedy = DecodingConfig(beam_size=1, max_new_tokens=5)
    later = side.decode(problem, greedy)
    side.get_ready(Plan((), problem, problem, greedy))
    other = nudged_problem(problem)
    with monkeypatch.context() as patch:
        patch.setattr(side, "_decode", lambda *work: pytest.fail("it was decoded before"))
        assert np.array_equal(side.decode(problem, greedy).ids, later.ids)
        others = (other, greedy), (problem, greedy.updated(beam_size=4)), (problem, greedy.updated(max_new_tokens=4))
        for work in others:
            with pytest.raises(pytest.fail.Exception):
                side.decode(*work)


def test_options_that_a_compiler_does_not_know_are_left_out() -> None:
    assert understood({"xla_cpu_no_such_option": True}) is None
    level = {"xla_backend_optimization_level": 0}
    assert understood({**level, "xla_cpu_no_such_option": True}) == level
    assert (understood(QUICKLY) or {}).items() >= level.items()
