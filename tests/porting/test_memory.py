"""What importing and exporting a checkpoint takes of memory, beside what is there already: measured in a fresh process.

In Python, a model's own; by the command, little of it, since each tensor is read, turned and written by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model.functional import abstract_params
from jax_transformer.porting.state_dicts import state_dict_from_params
from jax_transformer.storage.tensor_files import write_tensors

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="/proc/self/status, which tells the peak, is Linux's"
)

WHOLE, PIECES = (0.8, 1.3), (0.0, 0.4)
"""The least and most times the checkpoint's size, on top of what the process had before, or had with the model: of what
holds all of it, and of what goes through piece by piece."""

HINTS = {
    "num_heads": 8,
    "source_pad_id": 1,
    "target_pad_id": 1,
    "norm_placement": "post",
    "activation": "relu",
    "share_embeddings": False,
    "tie_head": False,
}

MEASURED = """
import json, sys
from pathlib import Path

def measured(field):
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])
"""
FUNCTIONS = """
from jax_transformer.porting import export_checkpoint, import_checkpoint

small, large, back, hints = *sys.argv[1:4], json.loads(sys.argv[4])
# load everything that is loaded when it is first needed
export_checkpoint(import_checkpoint(small, "pytorch", **hints), back)
figures = {"before": measured("VmRSS")}
model = import_checkpoint(large, "pytorch", **hints)
figures |= {"import": measured("VmHWM") - figures["before"], "with_model": measured("VmRSS")}
export_checkpoint(model, back)
print(json.dumps(figures | {"export": measured("VmHWM") - figures["with_model"]}))
"""
COMMAND = """
from jax_transformer.cli import main

(small_from, small_to), (large_from, large_to), options = json.loads(sys.argv[1])
assert main(["port", small_from, small_to, *options]) == 0  # everything that is loaded when it is first needed
before = measured("VmRSS")
assert main(["port", large_from, large_to, *options]) == 0
Path(sys.argv[2]).write_text(json.dumps(measured("VmHWM") - before))
"""


def write_checkpoint(path: Path, **sizes: int) -> None:
    config = TransformerConfig(num_heads=8, max_length=256, final_norm=True, **sizes)
    params = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.5, np.float32), abstract_params(config))
    write_tensors(path, state_dict_from_params(config, params, "pytorch"))


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_peak_memory(suffix: str, tmp_path: Path) -> None:
    if suffix == ".pt":
        pytest.importorskip("torch")
    small, large, back = (tmp_path / f"{name}{suffix}" for name in ("small", "large", "back"))
    write_checkpoint(
        small, source_vocab_size=9, target_vocab_size=7, d_model=16, d_ff=8, num_encoder_layers=1, num_decoder_layers=1
    )
    write_checkpoint(large, source_vocab_size=7000, target_vocab_size=6000)
    size = large.stat().st_size
    assert size > 200e6
    command = [sys.executable, "-c", MEASURED + FUNCTIONS, *map(str, (small, large, back)), json.dumps(HINTS)]
    figures = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    for what, (least, most) in {"import": WHOLE, "export": PIECES if suffix == ".safetensors" else WHOLE}.items():
        assert least <= figures[what] / size <= most, (what, figures[what] / size)
    assert back.stat().st_size == pytest.approx(size, rel=0.01)


def test_peak_memory_of_the_command(tmp_path: Path) -> None:
    """From a file to a model directory and back; converting what has the dtype already costs nothing."""
    small, large = tmp_path / "small.safetensors", tmp_path / "large.safetensors"
    write_checkpoint(
        small, source_vocab_size=9, target_vocab_size=7, d_model=16, d_ff=8, num_encoder_layers=1, num_decoder_layers=1
    )
    write_checkpoint(large, source_vocab_size=7000, target_vocab_size=6000)
    output = [word for name, value in HINTS.items() for word in ("--set", f"{name}={value}")]
    there = [(str(file), str(file.with_suffix(""))) for file in (small, large)]
    back = [(directory, f"{directory}-back.safetensors") for _, directory in there]
    for places, options, (least, most) in (
        (there, [*output, "--dtype", "float32"], PIECES),
        (back, [], WHOLE),
    ):  # mapped: it is all touched
        command = [sys.executable, "-c", MEASURED + COMMAND, json.dumps([*places, options]), str(tmp_path / "peak")]
        subprocess.run(command, check=True, capture_output=True, text=True)
        share = json.loads((tmp_path / "peak").read_text()) / large.stat().st_size
        assert least <= share <= most, share
    assert values(Path(back[1][1])) == values(large)


def values(file: Path) -> bytes:
    """All of a .safetensors but its header, which holds settings once it was exported here."""
    content = file.read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]
