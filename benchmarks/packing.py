"""Packed training batches beside batches of a few shapes: padding, and target tokens per second.

    python benchmarks/packing.py TRAIN.en TRAIN.de [--batch-tokens 2048] [--shapes 1 4 7] [--lengths 64 128]

All train the preset `tiny` on the same text, in one process, some steps each in turns; a row of the table is one of
them. Compilation doesn't count. The tokens are those in the loss. The ratio is the median over the rounds of a layout's
speed over that of the first.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import tempfile
import time
from typing import Any

STEPS = 12
"""Steps of each contestant in a round."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs=2, metavar="TRAIN")
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--shapes", type=int, nargs="*", default=[1, 4, 7], help="without packing: numbers of shapes")
    parser.add_argument("--lengths", type=int, nargs="*", default=[64, 128], help="with packing: lengths of a row")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    layouts: list[dict[str, Any]] = [{"num_shapes": count} for count in options.shapes]
    layouts += [{"packing": True, "max_length": length} for length in options.lengths]
    with tempfile.TemporaryDirectory() as cache:
        data = {"train": tuple(options.text), "valid_pairs": 100, "cache_dir": cache}
        contestants = [Contestant(data | {"batch_tokens": options.batch_tokens} | layout) for layout in layouts]
        speeds = [[contestant.tokens_per_second() for contestant in contestants] for _ in range(options.rounds)]
    print("layout                  programs  padding  pairs per row  tokens/s  ratio")
    for contestant, layout, column in zip(contestants, layouts, zip(*speeds, strict=True), strict=True):
        name = f"rows of {layout['max_length']}, packed" if "packing" in layout else f"{layout['num_shapes']} shapes"
        schedule = contestant.schedule
        print(
            f"{name:<24}{len(schedule.shapes):>8}{schedule.padding:>9.1%}{schedule.pairs_per_row or 1.0:>15.1f}"
            f"{statistics.median(column):>10,.0f}"
            f"{statistics.median(own / first[0] for own, first in zip(column, speeds, strict=True)):>7.2f}"
        )


class Contestant:
    """Trains with one layout of the batches."""

    def __init__(self, data: dict[str, Any]) -> None:
        from jax_transformer.config.presets import get_preset
        from jax_transformer.data import prepare
        from jax_transformer.training import init_state, make_train_step
        from jax_transformer.training.batch_schedule import BatchSchedule
        from jax_transformer.training.fitting import fit_config
        from jax_transformer.training.throughput import Compiled

        preset = get_preset("tiny")
        self.config = dataclasses.replace(preset, data=dataclasses.replace(preset.data, **data))
        corpus = prepare(self.config.data)
        model = fit_config(self.config.model, corpus)
        self.schedule = BatchSchedule(self.config, corpus)
        self._batches = self.schedule.batches_from(0)
        self._state: Any = init_state(model, self.config.train)
        self._step = Compiled(make_train_step(model, self.config.train))
        for batch in self._one_of_each_shape():
            self._state, _ = self._step(self._state, batch)

    def tokens_per_second(self) -> float:
        """Trains STEPS more steps."""
        import jax

        batches, tokens = [next(self._batches) for _ in range(STEPS)], []
        start = time.perf_counter()
        for batch in batches:
            self._state, metrics = self._step(self._state, batch)
            tokens.append(metrics["tokens"])
        jax.block_until_ready(self._state)
        return float(sum(tokens)) / (time.perf_counter() - start)

    def _one_of_each_shape(self) -> list[Any]:
        by_shape = {}
        for _, batch in zip(range(self.schedule.batches_per_epoch), self.schedule.batches_from(0), strict=False):
            by_shape[batch.source_ids.shape] = batch
        return list(by_shape.values())


if __name__ == "__main__":
    main()
