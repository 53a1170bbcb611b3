"""Modules in bfloat16 whose softmax saturates: rounding is no divergence there, and faults still are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jax_transformer.comparison.gates.rounding import TOO_MUCH
from jax_transformer.comparison.report.report import Report
from jax_transformer.parity import compare
from torch_reference.harvard import HarvardTransformer

LAYERS = 4
X = np.random.default_rng(0).standard_normal((3, 7, 16)).astype(np.float32)


class Attention(nn.Module):
    """One head whose scores are multiplied by a factor, with a residual."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.factor * (self.query(x) @ self.key(x).transpose(-1, -2)) / 4
        return x + torch.softmax(scores, -1) @ self.value(x)


class Stack(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention(factor) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def in_jax(factor: float, fault: Callable[[jax.Array], jax.Array]) -> Callable[..., Any]:
    """Returns the same stack, with a fault in the values of the last layer if it runs in bfloat16."""

    def run(params: Mapping[str, jax.Array], inputs: Mapping[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
        x = inputs["x"]
        for number in range(LAYERS):
            query, key, value = (
                x @ params[f"layers.{number}.{name}.weight"].T + params[f"layers.{number}.{name}.bias"]
                for name in ("query", "key", "value")
            )
            if x.dtype == jnp.bfloat16 and number == LAYERS - 1:
                value = fault(value)
            x = x + jax.nn.softmax(factor * ((query @ key.mT) / 4), -1) @ value
        return x, {}

    return run


def report_of(factor: float, fault: Callable[[jax.Array], jax.Array] = lambda value: value, seed: int = 0) -> Report:
    torch.manual_seed(seed)
    module = Stack(factor).eval()
    return compare(
        in_jax(factor, fault), module, inputs={"x": X}, stages=["forward"], dtypes=["float64", "float32", "bfloat16"]
    )


def test_what_rounding_explains_is_inconclusive() -> None:
    report = report_of(80.0)
    *others, stage = report.stages
    assert [other.verdict for other in others] == ["passed", "passed"]
    assert (report.verdict, report.exit_code, report.faults) == ("inconclusive", 3, ())
    (row,) = stage.rows
    assert row.reason.startswith(f"{TOO_MUCH}: weights moved in their last bit move output by ")
    assert "in the candidate and" in row.reason
    assert "in the reference" in row.reason


@pytest.mark.parametrize("factor", [1.0, 80.0])
def test_a_fault_in_bfloat16_is_found(factor: float) -> None:
    report = report_of(factor, lambda value: (1.25 if factor == 1.0 else 8.0) * value)
    assert [(stage.name, stage.verdict) for stage in report.stages] == [
        ("forward", "passed"),
        ("forward float32", "passed"),
        ("forward bfloat16", "diverged"),
    ]
    assert report.exit_code == 4


def test_gradients_that_cancel_on_both_sides_are_inconclusive() -> None:
    """Those of a bias of keys are zero but for rounding."""
    torch.manual_seed(4)
    module = Stack(80.0).eval()
    inputs = {"inputs": {"x": X}, "stages": ["gradients"], "dtypes": ["float64"]}
    report = compare(in_jax(80.0, lambda value: value), module, **inputs)
    left = [row for stage in report.stages for row in stage.rows if row.verdict != "passed"]
    assert report.verdict == "inconclusive"
    assert {row.name for row in left} <= {f"layers.{number}.key.bias" for number in range(LAYERS)}
    assert any(row.reason.endswith("on both sides it is at most 1e-12 of the largest gradient") for row in left)


def test_a_wrong_gradient_beside_them_is_found() -> None:
    right = in_jax(80.0, lambda value: value)

    def wrong(params: Mapping[str, jax.Array], inputs: Mapping[str, jax.Array]) -> Any:
        name = "layers.2.value.bias"
        return right({**params, name: jax.lax.stop_gradient(params[name])}, inputs)

    torch.manual_seed(4)
    report = compare(wrong, Stack(80.0).eval(), inputs={"x": X}, stages=["gradients"], dtypes=["float64"])
    assert report.verdict == "diverged"
    assert [row.name for row in report.stages[0].rows if row.verdict == "diverged"] == ["layers.2.value.bias"]


def test_a_model_with_such_an_attention_is_inconclusive() -> None:
    torch.manual_seed(1)
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    module = HarvardTransformer(
        source_vocab_size=50, target_vocab_size=60, max_length=64, d_model=32, num_heads=2, d_ff=64, **layers
    )
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("linears.0.weight"):  # of queries
                parameter *= 1000.0
    ids: dict[str, Any] = {"source_pad_id": 2, "target_pad_id": 2, "decoder_start_id": 0, "eos_id": 1}
    report = compare(
        module.eval(), dialect="harvard", num_heads=2, **ids, stages=["forward"], dtypes=["bfloat16"], seed=0
    )
    assert (report.verdict, report.exit_code) == ("inconclusive", 3)
    (reason,) = {row.reason for stage in report.stages for row in stage.rows if row.reason}
    assert reason.startswith(f"{TOO_MUCH}: weights moved in their last bit move encoder.layers.1.self_attention")
