"""The model here as a side of a parity run: what it does beforehand is what it would do later."""

from __future__ import annotations

import numpy as np
import pytest
from fake_sides import CONFIG, GENERATION, make_params
from selftest.subjects import make_model

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.parity.backends.jax_sides import QUICKLY, JaxSide, understood
from jax_transformer.parity.backends.side import Plan
from jax_transformer.parity.diagnosis.training import Step, explain_steps
from jax_transformer.parity.oracle.updates import initial_state
from jax_transformer.parity.problems import nudged_problem, own_problem
from jax_transformer.parity.stages.training import update_rule
from jax_transformer.storage.model_directory import Model

pytestmark = pytest.mark.usefixtures("quick_compilation")
MODEL = make_model("stepwise_core")


def test_decoding_in_advance_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_step_returns_the_gradients_that_its_update_reads() -> None:
    """Where keys are all the same, gradients of queries are zero but for rounding, and Adam makes whole steps of it:
    gradients of another program explain none of them."""
    params = make_params(CONFIG)
    keys = params["decoder"]["layers"]["cross_attention"]["key"]
    keys["kernel"] = np.zeros_like(keys["kernel"])
    side = JaxSide("jax", Model(CONFIG, params, None, None, GENERATION))
    done = side.train(own_problem(CONFIG, params), 3, keep_all=True)
    of_queries = done.gradients[0]["decoder/layers/cross_attention/query/kernel[0]"]
    assert 0.0 < np.abs(of_queries).max() < 1e-15
    steps = [Step(gradients, after) for gradients, after in zip(done.gradients, done.parameters[1:], strict=True)]
    assert explain_steps(update_rule(CONFIG), initial_state(done.parameters[0]), steps) == []
