"""Training steps in virtual shards beside plain data parallelism, on the same mesh.

    python benchmarks/virtual_shards.py [--devices 1] [--shards 8] [--rounds 9]

Both train the same model on the same batch, in one process, one step each in turns. `--devices N` takes N CPU devices
where there is no accelerator. The ratio of a round is the time of the virtual step over that of the plain one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

LAYERS, D_MODEL, D_FF, HEADS, VOCABULARY, ROWS, LENGTH = 3, 256, 1024, 8, 8000, 64, 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(options.devices))  # read when jax is imported
    plain, virtual = contestants(options.devices, options.shards)
    seconds: list[tuple[float, float]] = [(plain(), virtual()) for _ in range(options.rounds + 1)][1:]
    for name, column in zip(("plain", "virtual"), zip(*seconds, strict=True), strict=True):
        print(f"{name:<8} {statistics.median(column):.3f} s a step")
    print(f"ratio    {statistics.median(two / one for one, two in seconds):.2f}")


def contestants(devices: int, shards: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """Returns two functions that train one more step and return its seconds."""
    import jax
    import numpy as np

    from jax_transformer import ParallelConfig, TrainConfig, TransformerConfig, init_state, make_train_step
    from jax_transformer.data import Batch
    from jax_transformer.parallel import make_mesh, place_rows
    from jax_transformer.training.virtual_shards import VirtualShards

    model = TransformerConfig(
        source_vocab_size=VOCABULARY,
        target_vocab_size=VOCABULARY,
        d_model=D_MODEL,
        num_heads=HEADS,
        d_ff=D_FF,
        num_encoder_layers=LAYERS,
        num_decoder_layers=LAYERS,
        max_length=LENGTH,
    )
    train = TrainConfig(clip_norm=1.0)
    mesh = make_mesh(ParallelConfig(virtual_shards=shards), jax.devices()[:devices])
    ids = np.random.default_rng(0).integers(4, VOCABULARY, (3, ROWS, LENGTH), dtype=np.int32)
    batch = place_rows(Batch(*ids), mesh)

    def timed(step: Any) -> Callable[[], float]:
        state = init_state(model, train, mesh=mesh)

        def run() -> float:
            nonlocal state
            start = time.perf_counter()
            state, metrics = step(state, batch)
            jax.block_until_ready((state, metrics))
            return time.perf_counter() - start

        return run

    return timed(make_train_step(model, train, mesh=mesh)), timed(VirtualShards(model, train, mesh, shards))


if __name__ == "__main__":
    main()
