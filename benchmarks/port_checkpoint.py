"""The time and memory of porting a large sharded transformers checkpoint, beside the speed of the disk.

    python benchmarks/port_checkpoint.py [--gigabytes 3] [--shard-megabytes 500] [--folder /tmp]

Generates a T5 of that size, in shards, and ports it with the command, there and back, each in a process of its own. In
the same run the shards are copied, and the copy forced to the disk: that is the disk's speed, reading and writing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from jax_transformer.config.model import TransformerConfig
from jax_transformer.porting.dialects import get_dialect
from jax_transformer.porting.hugging_face import family_file
from jax_transformer.storage.model_files import param_shapes

RESULTS = Path(__file__).parent / "results" / "port_checkpoint.json"


def make_config(gigabytes: float) -> TransformerConfig:
    """Returns a T5 config of about this size in float32, with layers of 68 MB (encoder) and 84 MB (decoder)."""
    table = get_dialect("t5")
    layers = max(1, round(gigabytes * 1e9 / 152e6))
    sizes = {
        "d_model": 1024,
        "head_dim": 64,
        "num_heads": 16,
        "d_ff": 6144,
        "source_vocab_size": 32128,
        "target_vocab_size": 32128,
    }
    fields = {**table.defaults, **table.fixed, **sizes, "tie_head": True, "scale_head": True, "activation": "relu"}
    return TransformerConfig(**fields, num_encoder_layers=layers, num_decoder_layers=layers)


def generate(folder: Path, config: TransformerConfig, shard_bytes: float) -> int:
    """Writes the directory, one shard after another, and returns the bytes of its tensors."""
    table, shapes, rng = get_dialect("t5"), param_shapes(config), np.random.default_rng(0)
    folder.mkdir()
    file = family_file(table)
    content = {
        "model_type": file.model_type,
        "architectures": [file.architectures[0]],
        "is_encoder_decoder": True,
        **file.write(config),
    }
    (folder / "config.json").write_text(json.dumps(content | {"decoder_start_token_id": 0, "eos_token_id": 1}))
    wanted = [
        (place.names[0], rule.torch_shape(shapes)) for rule in table.rules(config) for place in rule.places(shapes)
    ]
    places: dict[str, str] = {}
    shard: dict[str, np.ndarray] = {}
    number = total = size = 0
    for i, (name, shape) in enumerate(wanted):
        shard[name] = rng.standard_normal(shape, np.float32)
        size += shard[name].nbytes
        if size >= shard_bytes or i == len(wanted) - 1:
            number, total = number + 1, total + size
            path = folder / f"model-{number:05}.safetensors"
            save_file(shard, path, metadata={"format": "pt"})
            places |= dict.fromkeys(shard, path.name)
            shard, size = {}, 0
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": places})
    )
    return total


def copy(source: Path, target: Path) -> float:
    """Returns the seconds to copy the directory's files and flush them to disk."""
    target.mkdir()
    start = time.perf_counter()
    for file in sorted(source.iterdir()):
        shutil.copyfile(file, target / file.name)
        with (target / file.name).open("rb") as handle:
            os.fsync(handle.fileno())
    return time.perf_counter() - start


def port(source: Path, target: Path) -> tuple[float, int]:
    """Returns the seconds and peak memory in bytes of the command."""
    command = [sys.executable, "-c", "import sys; from jax_transformer.cli import main; sys.exit(main(sys.argv[1:]))"]
    start = time.perf_counter()
    process = subprocess.Popen([*command, "port", str(source), str(target)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"port {source} {target} failed with {status}")
    return seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--shard-megabytes", type=float, default=500.0)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; needs four times the size")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        size = generate(folder / "there", make_config(options.gigabytes), options.shard_megabytes * 1e6)
        shards = len(list((folder / "there").glob("*.safetensors")))
        rows = {"copy": (copy(folder / "there", folder / "copy"), 0)}
        rows["import"] = port(folder / "there", folder / "model")
        rows["export"] = port(folder / "model", folder / "back")
    print(f"{size / 1e9:.2f} GB in {shards} shards\n\n| | seconds | MB/s | peak memory / size |\n|---|---|---|---|")
    for what, (seconds, peak) in rows.items():
        print(f"| {what} | {seconds:.1f} | {size / seconds / 1e6:.0f} | {f'{peak / size:.2f}' if peak else ''} |")
    results = {what: {"seconds": seconds, "peak_bytes": peak} for what, (seconds, peak) in rows.items()}
    RESULTS.write_text(json.dumps({"bytes": size, "shards": shards, **results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
