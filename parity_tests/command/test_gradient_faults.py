"""`jax-transformer parity` on modules whose gradients alone are wrong: the side whose gradients aren't the slope of its
loss is at fault, whichever it is."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from parity_command import Run
from user_marian import marian
from user_models import config, pytorch

from jax_transformer import compare
from jax_transformer.model import functional

pytestmark = pytest.mark.usefixtures("quick_compilation")

CUT_OFF = "gets no gradient: frozen, or detached from the loss"
FAULTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "detached_memory": (1, (CUT_OFF, "gradient of a shared table without the share of the source, at 1 node")),
    "detached_attention": (4, ("unexplained, at 1 node",)),
    "frozen_embedding": (1, (f"{CUT_OFF}, at 1 node",)),
    "gradient_hook": (1, ("gradient 2 times as large as the candidate's, at 1 node",)),
    "wrong_backward": (4, ("unexplained, at 1 node",)),
    "tied_counted_once": (1, ("gradient of a shared table without the share of the head, at 1 node",)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_reference_is_the_references(name: str, run: Run) -> None:
    code, causes = FAULTS[name]
    outcome = run("--reference", f"user_marian:{name}", stages="forward,gradients")
    assert outcome.code == code, outcome.output
    assert "of the candidate" not in outcome.output
    for cause in causes:
        assert cause in outcome.output
    assert outcome.output.count("of the reference node") == len(causes), outcome.output


def test_a_fault_of_the_candidate_is_the_candidates() -> None:
    @jax.custom_vjp
    def doubled(x: Any) -> Any:
        return x

    doubled.defvjp(lambda x: (x, None), lambda kept, gradient: (2 * gradient,))

    def function(params: Any, inputs: Any) -> Any:
        changed = {**params, "head": {**params["head"], "bias": doubled(params["head"]["bias"])}}
        logits = functional.apply(config(), changed, inputs["source_ids"], inputs["decoder_input_ids"])
        return logits, {}

    report = compare(function, pytorch(), **HINTS, stages=["forward", "gradients"], dtypes=["float64"])
    assert [(fault.side, fault.finding.cause) for fault in report.faults] == [
        ("candidate", "gradient 2 times as large as the reference's")
    ]


def test_right_gradients_need_no_slopes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("jax_transformer.parity.stages.training.wrong_sides")
    assert compare(marian(), stages=["gradients"], dtypes=["float64"]).verdict == "passed"


HINTS = {
    "dialect": "pytorch", "num_heads": 3, "source_pad_id": 1, "target_pad_id": 2, "norm_placement": "post",
    "activation": "relu",
}  # fmt: skip
