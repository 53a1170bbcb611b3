"""Standard output that can't be written ends a command with a line, whatever the command had to say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jax_transformer.storage.tensor_files import write_tensors

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")


@pytest.mark.parametrize("arguments", ["--help", "verify --help", "verify numbers.safetensors"])
def test_a_full_disk_is_reported(arguments: str, tmp_path: Path) -> None:
    write_tensors(tmp_path / "numbers.safetensors", {"numbers": np.ones(3)})
    command = [sys.executable, "-m", "jax_transformer.cli", *arguments.split()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "error: [Errno 28] No space left on device: 'standard output'\n")


def test_a_reader_that_stops_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "jax_transformer.cli", "presets"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")
