"""Proofs: how time, memory, operations and points grow with layers, width, vocabulary and batch.

    python benchmarks/proof.py [--only CASE …]

Harvard's program with random weights is proven equal to the JAX model that was imported from it: activations and loss,
then their gradients as well. One size at a time departs from 2+2 layers, d_model 128, d_ff 512, vocabularies of 4,000
tokens and 2 sentences of up to 5 and 4 tokens, one of them padded; the last case is the base model of the paper with
vocabularies of 32,000. Each case runs in a process of its own. Wall time depends on what else the machine does: CPU
seconds stand beside it. Both are for lowering and deciding, without imports and without making the model.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results" / "proof.json"
SOURCE_LENGTH, TARGET_LENGTH, PAD = 5, 4, 2
HEADS = 8


class Size(NamedTuple):
    """Describes a model, and a batch for it."""

    layers: int = 2
    d_model: int = 128
    vocabulary: int = 4000
    sentences: int = 2


CASES = {
    "tiny": [Size(2, 24, 43, 2)],
    "layers": [Size(layers=layers) for layers in (1, 2, 4, 8)],
    "d_model": [Size(d_model=width) for width in (256, 512)],
    "vocabulary": [Size(vocabulary=32_000)],
    "sentences": [Size(sentences=8)],
    "base": [Size(6, 512, 32_000, 2)],
}
"""What grows → the sizes."""


def pair(size: Size) -> tuple[Any, Any, Any]:
    """Returns the JAX model, the PyTorch program, and a problem for both."""
    import numpy as np
    import torch

    from jax_transformer.parity.backends.jax_sides import JaxSide
    from jax_transformer.parity.backends.systems import SystemReference
    from jax_transformer.parity.backends.torch_module import TorchSide
    from jax_transformer.parity.problems import Problem
    from jax_transformer.porting.importing import import_checkpoint
    from torch_reference.harvard import HarvardTransformer

    torch.manual_seed(0)
    program = HarvardTransformer(
        source_vocab_size=size.vocabulary,
        target_vocab_size=size.vocabulary,
        d_model=size.d_model,
        num_heads=HEADS,
        d_ff=4 * size.d_model,
        num_encoder_layers=size.layers,
        num_decoder_layers=size.layers,
        max_length=32,
        source_pad_id=PAD,
        target_pad_id=PAD,
    ).eval()
    hints: dict[str, Any] = {"num_heads": HEADS, "source_pad_id": PAD, "target_pad_id": PAD}
    model = import_checkpoint(program.state_dict(), "harvard", **hints)
    rng = np.random.default_rng(0)
    ids = [
        rng.integers(PAD + 1, size.vocabulary, (size.sentences, length))
        for length in (SOURCE_LENGTH, TARGET_LENGTH, TARGET_LENGTH)
    ]
    for each in ids:
        each[-1, 3:] = PAD
    reference = SystemReference("harvard", model.config, model.params.get("constants", {}))
    return JaxSide("jax", model), TorchSide("torch", model, reference), Problem("random", model.params, *ids)


def measure(size: Size, *, gradients: bool) -> dict[str, Any]:
    """Proves a pair in this process."""
    from jax_transformer.parity.backends.lowering import lowered
    from jax_transformer.proof import decide

    sides = lowered(*pair(size))
    load = os.getloadavg()[0]
    task, lowering = _timed(lambda: sides.forward(gradients=gradients))
    result, deciding = _timed(lambda: decide(task))
    if result.verdict != "proven":
        raise SystemExit(f"{size}: expected a proof; received {result.verdict}: {result.different[:3]} {result.reason}")
    return {
        **size._asdict(),
        "gradients": gradients,
        "operations": len(task.candidate.operations) + len(task.reference.operations),
        "outputs": len(result.equal),
        "points": len(result.points),
        "log2_error": result.log2_error,
        "lowering_seconds": lowering[0],
        "deciding_seconds": deciding[0],
        "cpu_seconds": lowering[1] + deciding[1],
        "peak_MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "load_before": load,
    }


def _timed(work: Callable[[], Any]) -> tuple[Any, tuple[float, float]]:
    """Returns a result, and the wall and CPU seconds that it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, (time.perf_counter() - wall, time.process_time() - cpu)


def measured(names: list[str]) -> Iterator[dict[str, Any]]:
    """Yields the measurements of cases, each of a process of its own."""
    for name in names:
        for size in CASES[name]:
            for gradients in (False, True):
                arguments = ["--one", json.dumps([*size, gradients])]
                run = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, check=True)
                row = {"case": name, **json.loads(run.stdout.splitlines()[-1])}
                print(f"{name} {size} gradients={gradients}: {row['cpu_seconds']:.1f} CPU seconds", file=sys.stderr)
                yield row


def report(rows: list[dict[str, Any]]) -> None:
    columns = "layers", "d_model", "vocabulary", "sentences", "outputs", "operations", "points"
    print(f"| {' | '.join(columns)} | seconds | CPU seconds | peak, GiB |")
    print("|---" * 10 + "|")
    for row in rows:
        print(
            f"| {row['layers']}+{row['layers']} | {row['d_model']} | {row['vocabulary']:,} | {row['sentences']} "
            f"| {row['outputs']}{' with gradients' if row['gradients'] else ''} | {row['operations']:,} "
            f"| {row['points']} | {row['lowering_seconds']:.1f} + {row['deciding_seconds']:.1f} "
            f"| {row['cpu_seconds']:.1f} | {row['peak_MiB'] / 1024:.1f} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(CASES), help="what grows; results aren't written then")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        *size, gradients = json.loads(options.one)
        print(json.dumps(measure(Size(*size), gradients=gradients)))
        return 0
    rows = list(measured(options.only or list(CASES)))
    report(rows)
    if not options.only:
        packages = {name: version(name) for name in ("jax", "torch", "numpy")}
        machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), **packages}
        RESULTS.write_text(json.dumps({"machine": machine, "cases": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
