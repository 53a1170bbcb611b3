"""On meshes of eight CPU devices, training and decoding give the numbers of one device.

`JAX_NUM_CPU_DEVICES=8 python tests/parallel/mesh_cases.py --all` computes all of them, in six minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("mesh_cases.py")
FLOAT64 = 1e-12
"""Relative: sums over devices round in another order."""
FLOAT32 = 1e-6


def run(case: str) -> dict[str, Any]:
    """Returns what a case of mesh_cases.py finds, in a process with eight devices."""
    environment = os.environ | {"JAX_NUM_CPU_DEVICES": "8", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    result = subprocess.run([sys.executable, str(PROGRAM), case], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr[-4000:]
    assert "Involuntary full rematerialization" not in result.stderr, result.stderr[:2000]
    received: dict[str, dict[str, Any]] = json.loads(result.stdout.splitlines()[-1])
    return received[case]


def beyond(rows: dict[str, dict[str, float]], most: float) -> dict[str, dict[str, float]]:
    return {
        name: row
        for name, row in rows.items()
        if not max(row[key] for key in ("losses", "parameters", "averages")) <= most
    }


def test_twenty_steps_with_dropout_are_those_of_one_device() -> None:
    rows = run("twenty_steps")
    assert len(rows) == 6
    assert beyond(rows, FLOAT64) == {}
    assert all(row["learned"] > 0 for row in rows.values())


def test_published_families_train_the_same() -> None:
    assert beyond(run("families"), FLOAT64) == {}


def test_nothing_as_long_as_the_vocabulary_crosses_devices() -> None:
    """Neither logits nor the vocabulary's matrix are gathered."""
    for found in run("vocabulary").values():
        assert found["collectives"] > 5
        assert found["of the vocabulary"] == []


def test_tensor_parallelism_sends_what_it_must() -> None:
    """A sum of the residual stream for each sublayer forwards and backwards (two in the encoder's layer, three in each
    of the decoder's two), one for the encoder's output, two for the embeddings, one for the loss. Queries, keys and
    values share one, and so do the gate and the hidden layer."""
    sublayers = 2 + 2 * 3
    assert run("width")["sums"] <= 1.1 * (2 * sublayers + 1 + 2 + 1)


def test_packed_batches_train_the_same() -> None:
    assert beyond(run("packing"), FLOAT64) == {}


def test_one_step_in_float32() -> None:
    assert beyond(run("in_float32"), FLOAT32) == {}


def test_drawn_weights_are_the_same_bits() -> None:
    assert run("initial") == {"equal": True}


def test_evaluation() -> None:
    found = run("evaluation")
    assert found["loss"] <= FLOAT64
    assert found["tokens"] == 0


def test_decoding_and_scores() -> None:
    assert {name: row for name, row in run("decoding").items() if not all(row.values())} == {}


def test_a_checkpoint_is_restored_onto_any_mesh_bit_for_bit() -> None:
    rows = run("restoring")
    assert len(rows) == 9
    assert all(rows.values()), rows


def test_virtual_shards_give_the_same_bits_on_any_number_of_devices() -> None:
    """In float32 with dropout; and they are the plain step's function."""
    rows = run("virtual_shards")
    assert rows.pop("of the plain step") <= FLOAT32
    assert rows == {"2": True, "8": True, "8 to 2": True}
