"""References and JAX models reproduce the numbers of the original programs from the original checkpoints.

The files are not part of this project; without them the tests are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from systems import SYSTEMS

from jax_transformer.comparison.gates.compare import compare, float32_rule
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.parity.backends.jax_sides import JaxSide
from jax_transformer.parity.problems import Problem
from jax_transformer.porting import import_checkpoint
from torch_reference.trace import Trace

SHARED = os.environ.get("JAX_TRANSFORMER_SHARED")
GOLDENS = Path(SHARED) / "goldens" if SHARED else None
pytestmark = [
    pytest.mark.skipif(GOLDENS is None, reason="JAX_TRANSFORMER_SHARED names no folder with goldens"),
    pytest.mark.usefixtures("quick_compilation"),
]

NAMES = ("floydhub", "annotated_zh", "codersarts", "sayhello", "sayhello_bias", "stepwise", "harvard", "hyunwoongko")
DTYPES = {"f32": torch.float32, "f64": torch.float64}


class Golden(NamedTuple):
    """Holds the settings and results of one original program."""

    meta: dict[str, Any]
    expected: dict[str, np.ndarray]
    path: Path

    def pad_ids(self) -> dict[str, int]:
        return {name: self.meta.get(name, self.meta.get("pad_id")) for name in ("source_pad_id", "target_pad_id")}

    def of(self, suffix: str) -> dict[str, np.ndarray]:
        """Returns the activations of one dtype."""
        return {
            name.removesuffix(f".{suffix}"): array
            for name, array in self.expected.items()
            if name.endswith(f".{suffix}")
        }


@cache
def golden(name: str) -> Golden:
    assert GOLDENS is not None
    meta = json.loads((GOLDENS / name / "meta.json").read_text())
    with np.load(GOLDENS / name / "expected.npz") as file:
        return Golden(meta, dict(file), GOLDENS / name / "model.pt")


def reference_trace(name: str, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """Returns the trace of our reference with the original's state_dict."""
    known = golden(name)
    meta = known.meta
    arguments: dict[str, Any] = {
        field: meta[field] for field in ("source_vocab_size", "target_vocab_size", "d_model", "num_heads", "d_ff")
    } | known.pad_ids()
    layers = ("num_layers",) if name == "stepwise" else ("num_encoder_layers", "num_decoder_layers")
    arguments |= dict.fromkeys(layers, meta["num_layers"])
    if "attention_bias" in meta:
        arguments["attention_bias"] = meta["attention_bias"]
    if "positions" in known.expected:
        arguments["position_table"] = torch.from_numpy(known.expected["positions"])
    build = SYSTEMS[meta["system"]].build
    model = build(**arguments, dtype=dtype).eval()
    model.load_state_dict(torch.load(known.path, weights_only=True), strict=True)
    trace = Trace()
    with torch.no_grad():
        logits = model(
            *(torch.from_numpy(known.expected[ids]) for ids in ("source_ids", "decoder_input_ids")), trace=trace
        )
    arrays = {name: value.numpy() for name, value in trace.items()}
    return arrays | (
        {"log_probabilities": model.log_probabilities(logits).numpy()}
        if "log_probabilities.f64" in known.expected
        else {}
    )


def jax_trace(name: str, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """Returns the trace of the JAX model imported from the original's checkpoint."""
    known = golden(name)
    tensors = {key: tensor.to(dtype) for key, tensor in torch.load(known.path, weights_only=True).items()}
    table = {"position_table": known.expected["positions"]} if "positions" in known.expected else {}
    model = import_checkpoint(
        tensors, known.meta["system"], num_heads=known.meta["num_heads"], **known.pad_ids(), **table
    )
    ids = known.expected["source_ids"], known.expected["decoder_input_ids"]
    problem = Problem(name, model.params, *ids, labels=ids[1])
    arrays = dict(JaxSide("jax", model).forward(problem, "float64" if dtype == torch.float64 else "float32"))
    if "log_probabilities.f64" in known.expected:
        shifted = arrays["logits"]
        arrays["log_probabilities"] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return arrays


SIDES = {"reference": reference_trace, "jax": jax_trace}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", NAMES)
def test_both_sides_reproduce_the_original_programs(name: str, side: str) -> None:
    expected, found = golden(name).expected, {suffix: SIDES[side](name, dtype) for suffix, dtype in DTYPES.items()}
    masks: Mapping[str, np.ndarray] = {key: array for key, array in found["f64"].items() if key.startswith("mask.")}
    assert {f"{key}" for key in expected if key.startswith("mask.")} == set(masks)
    for key, mask in masks.items():
        np.testing.assert_array_equal(np.broadcast_to(mask, expected[key].shape), expected[key])
    truth = golden(name).of("f64")
    assert len(truth) == (9 if "log_probabilities" in truth else 8)
    for key, reference in truth.items():
        assert found["f64"][key].dtype == np.float64
        result = compare(found["f64"][key], reference)
        assert result.within(FLOAT64_RELATIVE_RMS), f"{key}: {result}"
    for key, reference in golden(name).of("f32").items():
        verdict = float32_rule(found["f32"][key], reference, truth[key])
        assert verdict.passed, f"{key}: {verdict}"
