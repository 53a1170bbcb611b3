"""Compares a Llama of 1.2 billion weights on disk, in JAX and in transformers, and measures time and memory.

    python parity_tests/llama/run.py --folder /tmp/llama --json benchmarks/results/layerwise.json

Each dtype runs in a process of its own, whose largest resident memory is reported.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch
from flax import nnx
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import jax_transformer as jt
from jax_transformer.comparison.report.report import Report
from jax_transformer.parity import Side
from jax_transformer.storage.tensor_files import read_tensors

sys.path.insert(0, str(Path(__file__).parent))

from port import Llama, Sizes, tensor_of

SMALL = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
DTYPES = {"bfloat16": jnp.bfloat16, "float32": jnp.float32}
LAYERS = {
    "model.embed_tokens": "words",
    "model.layers.{}": "blocks.{}",
    "model.norm": "norm",
}


def original(sizes: Sizes) -> LlamaForCausalLM:
    """Returns the model without weights: its parameters are on the meta device, its tables aren't."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    names += ("num_key_value_heads", "rms_norm_eps")
    config = LlamaConfig(
        **{name: getattr(sizes, name) for name in names},
        rope_parameters={"rope_type": "default", "rope_theta": sizes.rope_theta},
        tie_word_embeddings=True,
        attn_implementation="eager",
        use_cache=False,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(getattr(torch, jnp.dtype(sizes.dtype).name)).eval()
    model.model.rotary_emb = LlamaRotaryEmbedding(config).eval()
    return model


def write_weights(path: Path, sizes: Sizes) -> None:
    """Writes random weights, one tensor at a time, as a file of safetensors."""
    dtype = np.dtype(ml_dtypes.bfloat16 if sizes.dtype == jnp.bfloat16 else np.float32)
    tensors = {
        name: tuple(parameter.shape)
        for name, parameter in original(sizes).named_parameters()
        if name != "lm_head.weight"
    }
    header, start = dict[str, Any](), 0
    for name, shape in tensors.items():
        end = start + int(np.prod(shape)) * dtype.itemsize
        kind = "BF16" if dtype.itemsize == 2 else "F32"
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in tensors.values():
            rows = shape[0] if len(shape) > 1 else 1
            for begin in range(0, rows, 4096):
                part = (min(4096, rows - begin), *shape[1:]) if len(shape) > 1 else shape
                scale = shape[-1] ** -0.5 if len(shape) > 1 else 0.1
                numbers = rng.standard_normal(part, np.float32) * np.float32(scale) + np.float32(len(shape) == 1)
                file.write(numbers.astype(dtype).tobytes())


def compare(path: Path, sizes: Sizes, length: int, **options: Any) -> Report:
    """Compares both programs, whose weights stay on the disk."""
    tensors = read_tensors(path)

    def read(leaf: str) -> np.ndarray:
        name, is_turned = tensor_of(leaf)
        return tensors[name].T if is_turned else tensors[name]

    ours = nnx.eval_shape(lambda: Llama(sizes))
    ids = np.random.default_rng(1).integers(0, sizes.vocab_size, (1, length))
    return jt.compare(
        Side(ours, name="Llama in NNX", checkpoint=read),
        Side(original(sizes), name="LlamaForCausalLM", checkpoint=path),
        inputs={"input_ids": ids},
        layers=LAYERS,
        kl=1e-3,
        top_k="5:0.9",
        **options,
    )


def measured(dtype: str, folder: Path, is_small: bool, length: int, blocks: int) -> dict[str, Any]:
    sizes = Sizes(**(SMALL if is_small else {"num_hidden_layers": blocks}), dtype=DTYPES[dtype])
    path = folder / f"{dtype}.safetensors"
    write_weights(path, sizes)
    start = time.perf_counter()
    report = compare(path, sizes, length, progress=lambda work: print(work, file=sys.stderr, flush=True))
    seconds = time.perf_counter() - start
    path.unlink()
    print(report)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    worst = {
        stage.name: max((row.error.relative_rms for row in stage.rows if row.error), default=None)
        for stage in report.stages
    }
    figures = {row.name: row.reason for stage in report.stages if stage.name == "gates" for row in stage.rows}
    return {
        "dtype": dtype,
        "layers": sizes.num_hidden_layers,
        "verdict": report.verdict,
        "seconds": round(seconds, 1),
        "peak_gib": round(peak, 2),
        "worst_relative_rms": worst,
        "gates": figures,
        "remarks": list(report.remarks),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where the weights are written; 5 GB (default: a temporary one)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true", help="3 layers of width 32")
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=16, help="layers of the full width")
    parser.add_argument("--dtype", choices=sorted(DTYPES), help="this one alone, in this process")
    options = parser.parse_args()
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if options.dtype:
            print(json.dumps(measured(options.dtype, folder, options.small, options.length, options.blocks)))
            return
        results = []
        for dtype in ("bfloat16", "float32"):
            words = [sys.executable, __file__, "--folder", str(folder), "--dtype", dtype]
            words += [
                "--length",
                str(options.length),
                "--blocks",
                str(options.blocks),
                *(["--small"] if options.small else []),
            ]
            done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
            *report, last = done.stdout.splitlines()
            print("\n".join(report))
            results.append(json.loads(last))
    text = json.dumps({"jax": jax.__version__, "torch": torch.__version__, "runs": results}, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
