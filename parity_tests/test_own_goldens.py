"""Numbers that our references once gave, at tiny sizes: they give them still. (make_goldens.py makes them.)

The other parity tests compare the two sides; a mistake that is made in both at once shows here only.
"""

from __future__ import annotations

import json
import math
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from make_goldens import FOLDER
from systems import SYSTEMS

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from torch_reference.trace import Trace


@cache
def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def meta(name: str) -> dict[str, Any]:
    return json.loads(str(golden(name)["meta"]))


def state_dict(name: str) -> dict[str, torch.Tensor]:
    """In float64."""
    tensors = {}
    for kind in ("parameters", "buffers"):
        shapes = meta(name)[kind]
        ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
        parts = np.split(golden(name)[kind].astype(np.float64), ends[:-1])
        tensors |= {
            path: torch.from_numpy(part.reshape(shape))
            for (path, shape), part in zip(shapes.items(), parts, strict=False)
        }
    return tensors


def position_table(name: str) -> dict[str, np.ndarray]:
    return {key: array for key, array in golden(name).items() if key == "position_table"}


def reference_arrays(name: str) -> dict[str, np.ndarray]:
    module, _, reference = meta(name)["reference"].rpartition(".")
    table = {key: torch.from_numpy(array) for key, array in position_table(name).items()}
    model = getattr(import_module(module), reference)(**meta(name)["arguments"], **table, dtype=torch.float64).eval()
    model.load_state_dict(state_dict(name), strict=True)
    trace = Trace()
    with torch.no_grad():
        model(*(torch.from_numpy(golden(name)[ids]) for ids in ("source_ids", "decoder_input_ids")), trace=trace)
    return {key: value.numpy() for key, value in trace.items()}


def test_every_system_has_one_and_all_are_small() -> None:
    files = {path.stem: path.stat().st_size for path in FOLDER.iterdir()}
    assert files.keys() == SYSTEMS.keys()
    assert sum(files.values()) < 300_000


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_golden_is_reproduced(name: str) -> None:
    """By the reference, whose every activation test_systems.py compares with the JAX model's."""
    expected, found = golden(name), reference_arrays(name)
    masks = {key for key in found if key.startswith("mask.")}
    assert {key for key in expected if key.startswith("mask.")} == masks
    for key in masks:
        assert expected[key].dtype == bool
        np.testing.assert_array_equal(found[key], expected[key])
    for key in ("encoder.output", "logits"):
        assert (found[key].dtype, expected[key].dtype) == (np.float64, np.float64)
        assert compare(found[key], expected[key]).within(FLOAT64_RELATIVE_RMS), (
            f"{key}: {compare(found[key], expected[key])}"
        )


def test_a_wrong_golden_is_seen() -> None:
    """A part in 10^10 is enough."""
    logits = golden("stepwise")["logits"]
    assert not compare(logits * (1 + 1e-10), logits).within(FLOAT64_RELATIVE_RMS)
