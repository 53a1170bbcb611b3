"""Modules whose softmax saturates: rounding there is no divergence, in bfloat16 and of gradients. Faults still are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import user_models
from torch import nn

from jax_transformer import TrainConfig
from jax_transformer.comparison.gates.rounding import AMPLIFIES, TOO_MUCH
from jax_transformer.comparison.report.report import Report
from jax_transformer.parity import Side, compare
from torch_reference.harvard import HarvardTransformer
from torch_reference.pytorch import PytorchTransformer

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


def test_a_difference_that_rounding_explains_is_inconclusive() -> None:
    report = report_of(80.0)
    forward, single, stage = report.stages
    assert forward.verdict == "passed"
    assert single.verdict in ("passed", "inconclusive")  # by the processor's rounding in float32
    assert (report.verdict, report.exit_code, report.faults) == ("inconclusive", 3, ())
    (row,) = stage.rows
    assert row.reason.startswith(f"{TOO_MUCH}: weights moved in their last bit move output by ")
    assert "in the candidate and" in row.reason
    assert "in the reference" in row.reason


@pytest.mark.parametrize("factor", [1.0, 80.0])
def test_a_fault_in_bfloat16_is_found(factor: float) -> None:
    report = report_of(factor, lambda value: (1.25 if factor == 1.0 else 8.0) * value)
    verdicts = {stage.name: stage.verdict for stage in report.stages}
    single = verdicts.pop("forward float32")
    assert single == "passed" or (factor > 1 and single == "inconclusive")  # by the processor's rounding
    assert verdicts == {"forward": "passed", "forward bfloat16": "diverged"}
    assert report.exit_code == 4


def test_gradients_that_cancel_on_both_sides_are_inconclusive() -> None:
    """Those of a bias of keys are zero but for rounding."""
    torch.manual_seed(10)
    module = Stack(80.0).eval()
    inputs = {"inputs": {"x": X}, "stages": ["gradients"], "dtypes": ["float64"]}
    report = compare(in_jax(80.0, lambda value: value), module, **inputs)
    left = [row for stage in report.stages for row in stage.rows if row.verdict != "passed"]
    assert report.verdict == "inconclusive"
    assert {row.name for row in left} <= {f"layers.{number}.key.bias" for number in range(LAYERS)}
    assert any(row.reason.endswith("on both sides it is at most 1e-12 of the largest gradient") for row in left)


@pytest.mark.parametrize("seed", [1, 3, 4, 5])
def test_gradients_through_a_softmax_that_is_nearly_one_hot(seed: int) -> None:
    """They are what is left of x − (x − c), whose rounding stays the same when weights move in their last bit."""
    torch.manual_seed(seed)
    report = compare(
        in_jax(640.0, lambda value: value),
        Stack(640.0).eval(),
        inputs={"x": X},
        stages=["gradients"],
        dtypes=["float64"],
    )
    assert report.verdict == "inconclusive"
    left = [row for stage in report.stages for row in stage.rows if row.reason]
    assert all(row.reason == AMPLIFIES or row.reason.startswith(TOO_MUCH) for row in left)
    assert any(".query." in row.name for row in left)


@pytest.mark.parametrize(("factor", "name"), [(80.0, "value.bias"), (640.0, "value.bias"), (640.0, "query.weight")])
def test_another_wrong_gradient_is_still_found(factor: float, name: str) -> None:
    right, name = in_jax(factor, lambda value: value), f"layers.2.{name}"

    def wrong(params: Mapping[str, jax.Array], inputs: Mapping[str, jax.Array]) -> Any:
        kept = 0.999 * params[name]  # in sum, the right weight
        return right({**params, name: kept + jax.lax.stop_gradient(params[name] - kept)}, inputs)

    torch.manual_seed(4)
    report = compare(wrong, Stack(factor).eval(), inputs={"x": X}, stages=["gradients"], dtypes=["float64"])
    assert report.verdict == "diverged"
    assert [row.name for row in report.stages[0].rows if row.verdict == "diverged"] == [name]


# --- whole models


def sharp_model(factor: float, seed: int) -> PytorchTransformer:
    """Returns a model whose queries and keys are multiplied by a factor, with biases of zero, as they begin."""
    torch.manual_seed(seed)
    sizes = {"d_model": 32, "num_heads": 2, "d_ff": 48, "num_encoder_layers": 1}
    module = PytorchTransformer(**{**user_models.SIZES, **sizes})
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("in_proj_weight"):
                parameter[:64] *= factor
    return module.eval()


def trained(sides: list[Any], stages: list[str], **options: Any) -> Report:
    hints: dict[str, Any] = {**user_models.HINTS, "num_heads": 2}
    return compare(*sides, dialect="pytorch", **hints, stages=stages, dtypes=["float64"], seed=0, **options)


@pytest.mark.parametrize(("factor", "seed"), [(4.0, 2), (16.0, 0), (64.0, 1)])
def test_training_of_a_sharp_model_doesnt_diverge(factor: float, seed: int) -> None:
    report = trained([sharp_model(factor, seed)], ["gradients", "step"])
    assert report.verdict in ("passed", "inconclusive")
    assert report.faults == ()
    judged = [row for stage in report.stages for row in stage.rows if row.reason.startswith((AMPLIFIES, TOO_MUCH))]
    assert any("query/bias" in row.name for row in judged)


def test_a_wrong_optimizer_of_a_sharp_model_is_named(tmp_path: Path) -> None:
    rule: dict[str, Any] = {"optimizer": "adam", "learning_rate": 1e-3, "schedule": "constant", "warmup_steps": 0}
    train = TrainConfig(**rule, adam_b1=0.9, adam_b2=0.99, adam_eps=1e-8, clip_norm=1e9)
    torch.save(sharp_model(4.0, 2).state_dict(), tmp_path / "sharp.pt")
    verdicts = {}
    for eps in (1e-8, 1e-6):
        optimizer = partial(torch.optim.Adam, lr=1e-3, betas=(0.9, 0.99), eps=eps)
        side = Side(sharp_model(4.0, 2), optimizer=lambda module, make=optimizer: make(module.parameters()))
        report = trained([tmp_path / "sharp.pt", side], ["step"], train=train)
        verdicts[eps] = report.verdict, [match.variant for fault in report.faults for match in fault.finding.matches]
    assert verdicts == {1e-8: ("passed", []), 1e-6: ("diverged", ["ε = 1e-06"])}


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
