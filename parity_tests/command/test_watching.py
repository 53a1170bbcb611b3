"""`jax-transformer parity` on modules and functions of many styles: what runs is compared, and nothing ends in a
traceback."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from parity_command import PYTORCH, SIZES, Run
from torch import nn

from jax_transformer.parity import ParityError, compare

pytestmark = pytest.mark.usefixtures("quick_compilation")

HARVARD = ["harvard.pt", "--dialect", "harvard", *SIZES]


def style(name: str) -> list[str]:
    return ["--reference", f"user_styles:{name}"]


def test_a_module_that_is_right_in_all_it_does(run: Run) -> None:
    """In place, [T, B], its arguments the other way round, log-probabilities of another shape."""
    outcome = run("pytorch.pt", *PYTORCH, *style("unusual"), dtypes="float64,bfloat16")
    assert outcome.code == 0, outcome.output


def test_the_output_of_a_module_is_compared_not_that_of_its_head(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *style("doubled_logits"))
    assert outcome.code == 4, outcome.output
    assert "first at logits (forward" in outcome.output


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("flipped_norms", "norms before its sublayers (pre-norm)"),
        ("swapped_queries", "fused kernel read in the order key, query, value"),
    ],
)
def test_a_subclass_whose_layers_compute_something_else(name: str, cause: str, run: Run) -> None:
    """Its base's traced walk through the submodules doesn't see that."""
    outcome = run("pytorch.pt", *PYTORCH, *style(name), "--verbose")
    assert outcome.code == 1, outcome.output
    assert cause in outcome.output
    assert "first at encoder.layers.0.self_attention.logits" in outcome.output
    assert "by hooks: with a trace its logits are others, off by a relative RMS of" in outcome.output


def test_a_module_that_sees_hooks_on_some_inputs(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *style("sees_hooks_of_long_targets"))
    assert outcome.code == 3, outcome.output
    assert (
        "the reference computes something else when it is watched: its logits (own weights, long sentences, float64, "
        "source_ids [1, 12] and decoder_input_ids [1, 12]) are off by a relative RMS of 1.0e-03"
    ) in outcome.output
    assert outcome.output.count("doubt") == 1


def test_a_residual_that_is_doubled(run: Run) -> None:
    outcome = run(*HARVARD, *style("harvard_doubled"))
    assert outcome.code == 4, outcome.output
    assert "first at encoder.layers.0.self_attention_residual" in outcome.output


def test_a_stage_that_fails_leaves_the_others(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *style("bfloat16fails"), dtypes="float64,bfloat16")
    assert outcome.code == 3, outcome.output
    assert "✓ forward: 37 of 37" in outcome.output
    assert "? forward bfloat16: not compared the reference user_styles:bfloat16fails can't be run on" in outcome.output
    outcome = run("pytorch.pt", *PYTORCH, *style("fixed_mask"))
    assert outcome.code == 3, outcome.output
    assert "can't be run on source_ids [1, 12] and decoder_input_ids [1, 12] in float64" in outcome.output
    outcome = run("pytorch.pt", *PYTORCH, *style("no_copies"))
    assert (outcome.code, "cannot pickle" in outcome.output) == (3, True), outcome.output


@pytest.mark.parametrize("name", ["masked", "raises_inside", "exits"])
def test_a_module_that_needs_an_adapter(name: str, run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, *style(name))
    assert outcome.is_one_clear_message, outcome.output
    assert len(outcome.err.splitlines()) == 1
    assert f"reference user_styles:{name}: " in outcome.err


def test_adapters_that_hold_a_module(run: Run) -> None:
    """Their names have a prefix."""
    for arguments in (["pytorch.pt"], []):
        outcome = run(*arguments, *PYTORCH, *style("held"))
        assert outcome.code == 0, outcome.output
    assert run(*PYTORCH, *style("tied_twice")).code == 0


def test_a_position_table_that_the_state_dict_lacks(run: Run) -> None:
    """Of 12 rows, where the dialect has 256, and rounded to float64, not float32."""
    outcome = run("--dialect", "hyunwoongko", *SIZES, *style("hyunwoongko_float64"), "--verbose")
    assert outcome.code == 0, outcome.output
    assert "position table the reference's own, [12, 12] in float64" in outcome.output
    outcome = run("--dialect", "hyunwoongko", *SIZES, *style("hyunwoongko_float64_eps"), stages="forward")
    assert outcome.code == 1, outcome.output
    assert "cause norm: ε = 1e-06, at 1 node of the reference" in outcome.output
    assert "embedding (" not in outcome.output


# --- any module


class Small(nn.Module):
    """Fails in bfloat16, and doubles its output when it isn't watched, if it is told to."""

    def __init__(self, *, sees_hooks: bool = False, fails: bool = False, several: bool = False) -> None:
        super().__init__()
        self.linear, self.sees_hooks, self.fails, self.several = nn.Linear(3, 2), sees_hooks, fails, several

    def forward(self, x: torch.Tensor) -> Any:
        if self.fails and x.dtype == torch.bfloat16:
            raise RuntimeError("not in bfloat16")
        y = self.linear(x)
        y = y if self.linear._forward_hooks or not self.sees_hooks else 2 * y
        return (y, y + 1) if self.several else y


def linear(params: Any, inputs: Any) -> tuple[Any, dict[str, Any]]:
    return inputs["x"] @ params["linear.weight"].T + params["linear.bias"], {}


X = {"x": np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3)}


def test_any_module_that_computes_something_else_when_it_is_watched() -> None:
    report = compare(linear, Small(sees_hooks=True).eval(), inputs=X, dtypes=["float64"])
    assert report.verdict == "inconclusive"
    assert any("its output (x [4, 3]) is off by a relative RMS of 5.0e-01" in doubt for doubt in report.doubts)
    assert any("while gradients are computed" in doubt for doubt in report.doubts)
    assert compare(linear, Small().eval(), inputs=X, dtypes=["float64"]).verdict == "passed"


def test_any_module_that_fails_in_one_precision() -> None:
    report = compare(linear, Small(fails=True).eval(), inputs=X)
    assert {stage.name: stage.verdict for stage in report.stages} == {
        "inputs": "passed",
        "forward": "passed",
        "forward float32": "passed",
        "forward bfloat16": "inconclusive",
        "gradients": "passed",
    }
    (stage,) = (stage for stage in report.stages if stage.name == "forward bfloat16")
    assert "can't be run on x [4, 3] in bfloat16: its forward raised RuntimeError: not in bfloat16" in stage.not_run


def test_any_module_that_returns_several_tensors() -> None:
    report = compare(linear, Small(several=True).eval(), inputs=X, dtypes=["float64"])
    assert report.verdict == "inconclusive"
    assert "expected one tensor that depends on the parameters; it returns tuple" in report.stages[-1].not_run


def test_any_function_that_shows_another_output() -> None:
    def other(params: Any, inputs: Any) -> tuple[Any, dict[str, Any]]:
        output, _ = linear(params, inputs)
        return output, {"output": 1.001 * output}

    report = compare(other, Small().eval(), inputs=X, dtypes=["float64"])
    assert report.doubts == ("the candidate's trace shows another output than it returns, in float64",)
    with pytest.raises(ParityError, match="note is a str"):
        compare(lambda params, inputs: (1.0, {"note": "text"}), Small().eval(), inputs=X)
