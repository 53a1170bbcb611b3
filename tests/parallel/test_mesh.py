"""On meshes of eight CPU devices, training and decoding give the numbers of one device.

`JAX_NUM_CPU_DEVICES=8 python tests/parallel/mesh_cases.py --all` computes all of them and more meshes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("mesh_cases.py")
FLOAT64 = 1e-12
"""Relative: sums over devices round in another order."""
FLOAT32 = 1e-6


def run(*cases: str) -> dict[str, dict[str, Any]]:
    """Runs cases of mesh_cases.py in a process with eight devices, and returns their results."""
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "8", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    result = subprocess.run([sys.executable, str(PROGRAM), *cases], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr[-4000:]
    assert "Involuntary full rematerialization" not in result.stderr, result.stderr[:2000]
    received: dict[str, dict[str, Any]] = json.loads(result.stdout.splitlines()[-1])
    return received


@pytest.fixture(scope="module")
def short() -> dict[str, dict[str, Any]]:
    """Finds of the cases that take no longer than starting a process."""
    return run("packing", "adapters", "in_float32", "initial", "evaluation", "restoring", "continuing")


def beyond(rows: dict[str, dict[str, float]], most: float) -> dict[str, dict[str, float]]:
    return {
        name: row
        for name, row in rows.items()
        if not max(row[key] for key in ("losses", "parameters", "averages")) <= most
    }


@pytest.fixture(scope="module")
def training() -> dict[str, dict[str, Any]]:
    """Finds of the cases that compile several steps, in one process for both."""
    return run("twenty_steps", "families")


def test_twenty_steps_with_dropout_equal_one_device(training: dict[str, Any]) -> None:
    rows = training["twenty_steps"]
    assert len(rows) == 1
    assert beyond(rows, FLOAT64) == {}
    assert all(row["learned"] > 0 for row in rows.values())


def test_published_families_train_the_same(training: dict[str, Any]) -> None:
    assert len(training["families"]) == 2
    assert beyond(training["families"], FLOAT64) == {}


@pytest.mark.nightly
def test_all_meshes_and_families_train_the_same() -> None:
    found = run("twenty_steps", "families", "--all")
    assert (len(found["twenty_steps"]), len(found["families"])) == (10, 5)
    for rows in found.values():
        assert beyond(rows, FLOAT64) == {}


def test_communication_between_devices() -> None:
    """Nothing as long as the vocabulary: neither logits nor the vocabulary's matrix are gathered. Tensor parallelism
    sends a sum of the residual stream for each sublayer forwards and backwards (two in the encoder's layer, three in
    each of the decoder's two), one for the encoder's output, two for the embeddings, one for the loss. Queries, keys
    and values share one, and so do the gate and the hidden layer."""
    rows = run("communication")["communication"]
    for found in rows.values():
        assert found["collectives"] > 5
        assert found["of the vocabulary"] == []
    sublayers = 2 + 2 * 3
    assert rows["(1, 1, 8)"]["sums"] <= 1.1 * (2 * sublayers + 1 + 2 + 1)


def test_packed_batches_train_the_same(short: dict[str, Any]) -> None:
    assert beyond(short["packing"], FLOAT64) == {}


def test_adapters_train_the_same(short: dict[str, Any]) -> None:
    found = short["adapters"]
    assert beyond({"adapters": found}, FLOAT64) == {}
    assert found["merged"] <= FLOAT64
    assert found["changed"] > 1


def test_one_step_in_float32(short: dict[str, Any]) -> None:
    assert beyond(short["in_float32"], FLOAT32) == {}


def test_drawn_weights_are_the_same_bits(short: dict[str, Any]) -> None:
    assert short["initial"] == {"equal": True}


def test_evaluation(short: dict[str, Any]) -> None:
    assert short["evaluation"]["loss"] <= FLOAT64
    assert short["evaluation"]["tokens"] == 0


def test_decoding_and_scores() -> None:
    found = run("decoding")["decoding"]
    assert {name: row for name, row in found.items() if not all(row.values())} == {}


def test_a_checkpoint_is_restored_onto_any_mesh_bit_for_bit(short: dict[str, Any]) -> None:
    rows = short["restoring"]
    assert len(rows) == 9
    assert all(rows.values()), rows


def test_a_training_state_is_continued_on_any_mesh_bit_for_bit(short: dict[str, Any]) -> None:
    assert short["continuing"] == {"(2, 2, 2)": True, "(1, 8, 1)": True}


@pytest.mark.nightly
def test_virtual_shards_give_the_same_bits_on_any_number_of_devices() -> None:
    """In float32 with dropout; and they are the plain step's function."""
    rows = run("virtual_shards")["virtual_shards"]
    assert rows.pop("of the plain step") <= FLOAT32
    assert rows == {"2": True, "4": True, "4 to 2": True}
