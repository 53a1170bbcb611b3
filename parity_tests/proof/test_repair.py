"""Two programs that differ by a fault are proven to be one with the edit that mends it, and the edit is named."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jax_transformer.parity import Certificate, prove
from jax_transformer.proof import Task, decide
from jax_transformer.proof.repair import Repair, bench, find_repair
from proof.pairs import Pair, in_jax, in_torch
from proof.repaired_decoders import EQUAL, FAULTS, SHAPES, Written, decoder, pair, reference, rms_norm


def repaired(task: Task) -> Repair | None:
    result = decide(task)
    assert result.verdict == "refuted"
    assert result.difference is not None
    assert result.difference.task is not None
    return find_repair(result.difference.task)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_decoder_is_mended_and_named(name: str) -> None:
    written, kind = FAULTS[name]
    with jax.enable_x64(True):
        found = repaired(pair(written).task())
    assert found is not None
    assert {cause.kind for cause in found.causes} == {kind}, str(found)
    assert found.log2_error < -80
    assert all("repaired_decoders.py:" in line for cause in found.causes for line in (cause.candidate, cause.reference))


@pytest.mark.parametrize("name", EQUAL)
def test_what_is_equal_is_never_repaired(name: str) -> None:
    with jax.enable_x64(True):
        task = pair(EQUAL[name]).task()
        result = decide(task)
        assert result.verdict == "proven"
        assert result.difference is None
        assert find_repair(task) is None


class Windowed(torch.nn.Module):
    """Rotates weights by angles that PyTorch computes in float32, and lets each row see two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(6, 6))

    def forward(self) -> torch.Tensor:
        angles = torch.arange(6).float()[:, None] * 100.0 ** -(torch.arange(6).float() / 6)
        return torch.softmax(self.w * torch.cos(angles) + torch.from_numpy(window(2)), -1)


def window(width: int) -> np.ndarray:
    """Returns a mask [6, 6] of the positions that are less than `width` back."""
    back = np.arange(6)[:, None] - np.arange(6)
    return np.where((back >= 0) & (back < width), 0, np.finfo(np.float32).min).astype(np.float32)


def test_tables_are_compared_number_by_number_behind_tables_that_round_otherwise() -> None:
    def ported(params: Any, inputs: Any) -> Any:
        cosines = np.cos(np.arange(6)[:, None] * 100.0 ** -(np.arange(6) / 6)).astype(np.float32).reshape(1, 36)
        rotated = (params["w"].reshape(1, 36) * cosines).reshape(6, 6)
        return jax.nn.softmax(rotated + window(3))

    certificate = prove(ported, Windowed().eval(), inputs={}, stages=["forward"])
    assert "(4 of 36 numbers differ; at [2, 0], 0 for -3.40282e+38)" in str(certificate.repair)


def test_several_faults_are_mended_one_after_another() -> None:
    written = Written(
        norm=lambda x, w, layer: rms_norm(x, 1e-5 if layer == 0 else 1e-6) * w,
        activation=jax.nn.relu,
        last=lambda x, w: jnp.tanh(x @ w["head"]),
    )
    with jax.enable_x64(True):
        found = repaired(pair(written).task())
    assert found is not None
    assert {cause.kind for cause in found.causes} == {"constant", "operation", "left out"}
    assert "in all of these places" in str(found)


def test_a_fault_of_pytorch_is_mended_too() -> None:
    def scaled(w: Any) -> Any:
        return reference({**w, "1.down": w["1.down"].T.reshape(12, 16)})

    shapes = Pair("", SHAPES, in_torch(scaled), in_jax(lambda w: decoder(w, Written())))
    with jax.enable_x64(True):
        found = repaired(shapes.task())
    assert found is not None
    assert [cause.kind for cause in found.causes] == ["order"]
    assert "elements of 1.down" in str(found)


def test_no_repair_is_told_without_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    with jax.enable_x64(True):
        task = pair(FAULTS["no residual"][0]).task()
        unknown = decide(task)
        monkeypatch.setattr(bench, "decide", lambda task: unknown)
        assert find_repair(task) is None


def test_programs_of_other_weights_are_not_searched() -> None:
    with jax.enable_x64(True):
        task = pair(FAULTS["no residual"][0]).task()

    def apart(draw: Any) -> Any:
        return task.draw(draw)[0], {name: 1 + array for name, array in task.draw(draw)[1].items()}

    assert find_repair(Task(task.candidate, task.reference, apart)) is None


def test_an_edit_that_puts_in_most_of_the_reference_is_none() -> None:
    def ours(w: Any) -> Any:
        return jnp.sin(jnp.cos(jnp.tanh(w["x"] + 1) * 3) - w["x"])

    def theirs(w: Any) -> Any:
        return torch.exp(torch.erf(torch.cos(w["x"] * 2) + 4) * w["x"])

    with jax.enable_x64(True):
        assert repaired(Pair("", {"x": (2, 3)}, in_jax(ours), in_torch(theirs)).task()) is None


def test_numbers_of_float32_are_told_as_they_are_written() -> None:
    def ours(p: Any, i: Any) -> Any:
        x = i["x"] @ p["w"]
        return (x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)) @ p["w"]

    class Theirs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x @ self.w
            return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)) @ self.w

    inputs = {"x": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)}
    found = prove(ours, Theirs().eval(), inputs=inputs, stages=["forward"]).repair
    assert found is not None
    assert [(cause.kind, cause.cure) for cause in found.causes] == [("constant", "with 1e-06")]
    assert "has 1e-05" in str(found)


# --- certificates


class Norm(torch.nn.Module):
    def __init__(self, epsilon: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.weight


def model(epsilon: float) -> torch.nn.Module:
    torch.manual_seed(0)
    parts = torch.nn.Linear(4, 4), Norm(1e-6), torch.nn.Linear(4, 4), Norm(epsilon), torch.nn.Linear(4, 4)
    return torch.nn.Sequential(*parts).double().eval()


def certificate() -> Certificate:
    inputs = {"input": np.random.default_rng(0).standard_normal((3, 4))}
    return prove(model(1e-5), model(1e-6), inputs=inputs)


def test_a_certificate_has_the_repair_and_prints_it() -> None:
    found = certificate()
    assert found.verdict == "refuted"
    assert found.repair is not None
    (cause,) = found.repair.causes
    assert (cause.kind, cause.cure, cause.modules) == ("constant", "with 1e-06", ("3",))
    line = next(line for line in str(found).splitlines() if line.startswith("  repair "))
    assert "has 1e-05" in line
    assert line.endswith("(in 3); with 1e-06, the two are proven the same")
    again = Certificate.from_json(found.to_json())
    assert again.repair == found.repair
    assert again.changes(certificate()) == []


@pytest.mark.parametrize("field", ["kind", "candidate", "text", "cure"])
def test_an_edited_repair_does_not_hold(field: str) -> None:
    found = certificate()
    held = json.loads(found.to_json())
    cause = held["difference"]["repair"]["causes"][0]
    cause[field] = "weight" if field == "kind" else cause[field] + "0"
    assert Certificate.from_json(json.dumps(held)).changes(found)


def test_a_certificate_without_a_repair_says_nothing_of_one() -> None:
    inputs = {"x": np.ones(3)}
    found = prove(lambda p, i: p["w"] * i["x"], lambda p, i: p["w"] * i["x"], inputs=inputs, weights={"w": np.ones(3)})
    assert found.verdict == "proven"
    assert found.repair is None
    assert "repair  " not in str(found)
