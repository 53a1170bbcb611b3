"""Assigns the batches of a streamed corpus to training steps."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

from jax_transformer.config.run import RunConfig
from jax_transformer.data.exchange import Exchange
from jax_transformer.data.loader import prefetch
from jax_transformer.data.preparation import PreparedCorpus
from jax_transformer.data.report import SplitReport, drops
from jax_transformer.data.streaming import Shard, TrainingStream
from jax_transformer.data.text_files import CorpusError
from jax_transformer.parallel.placement import RowShare
from jax_transformer.training.batch_layout import BatchLayout, pairs_per_row, plan_padding
from jax_transformer.training.batch_schedule import BatchSchedule
from jax_transformer.training.evaluation import batches
from jax_transformer.training.scheduled_batch import Position, Schedule, ScheduledBatch

Counts = Counter[str]
"""Counts of everything read from the stream so far, by the names of SplitReport's fields."""


def make_batch_schedule(
    config: RunConfig, corpus: PreparedCorpus, share: RowShare | None = None, exchange: Exchange | None = None
) -> Schedule:
    """Returns the schedule of a run, for a streamed or a prepared corpus.

    Args:
      config: the run.
      corpus: its text.
      share: the rows of each batch that this process makes. None: all.
      exchange: gives the parts of a stream that other processes read. None: this process reads all.
    """
    if config.data.streaming:
        return StreamSchedule(config, corpus, share, exchange)
    return BatchSchedule(config, corpus, share)


class StreamSchedule:
    """Assigns a batch to each step, as a function of the stream, the seed and the position. See `Schedule`.

    An epoch is one pass over the stream. Each shard is shuffled and batched like an epoch of a prepared corpus, seeded
    by (seed, epoch, shard). The shapes fit the first shard; if none of them holds a pair of max_length on both sides,
    one more shape does, since later shards may have longer pairs. Packed rows all do.
    """

    def __init__(
        self,
        config: RunConfig,
        corpus: PreparedCorpus,
        share: RowShare | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        """Begins the stream; see `make_batch_schedule`."""
        if corpus.beginning is None:
            raise ValueError("corpus: expected one that is prepared for streaming; received one without `beginning`")
        self._config, self._corpus, self._share, data = config, corpus, share, config.data
        lengths = corpus.beginning.lengths
        self._layout = BatchLayout.choose(config, lengths)
        self.shapes = self._layout.shapes
        plan = self._layout.plan(lengths, seed=config.train.seed, epoch=0)
        self.padding, self.pairs_per_row = plan_padding(lengths, plan), pairs_per_row(plan)
        self.batches_per_epoch = self.epochs = None
        self.last_step = None if config.train.max_epochs else config.train.max_steps
        self._revision = corpus.beginning.revision
        self._stream = TrainingStream(
            data,
            (corpus.source_tokenizer, corpus.target_tokenizer),
            self._revision,
            log=lambda line: print(line, flush=True),
            exchange=exchange,
        )

    def scheduled_from(self, step: int, position: Position) -> Iterator[ScheduledBatch]:
        """Yields the batches, reading one ahead to recognize the last; see `Schedule`.

        Raises:
          CorpusError: the stream can't be read from `position` on, had another version when that was saved, or has no
            usable pair.
        """
        with closing(self._scheduled(position)) as upcoming:
            current = next(upcoming, None) if step < self._config.train.max_steps else None
            while current is not None:
                step += 1
                following, failure = None, ""
                if step < self._config.train.max_steps:
                    try:
                        following = next(upcoming, None)
                    except CorpusError as error:
                        failure = str(error)
                yield current._replace(is_last=following is None and not failure, failure=failure)
                current = following

    def closing_lines(self, position: Position) -> list[str]:
        """Returns lines on what was read and dropped in all passes over the stream."""
        counts = position.get("counts", {})
        nothing = {field.name: 0 for field in dataclasses.fields(SplitReport)} | {
            "source_length_counts": (),
            "target_length_counts": (),
        }
        return self._corpus.report.split_lines("train", SplitReport(**nothing | counts))

    def _scheduled(self, position: Position) -> Generator[ScheduledBatch, None, None]:
        """Yields the batches after `position`, none of them marked as the last."""
        self._check(position)
        start, done, seed = position.get("start", 0), position.get("batches", 0), self._config.train.seed
        before: Counts = Counter(position.get("counts_before"))
        with prefetch(self._shards(position.get("epoch", 0), start), depth=1) as shards:
            for epoch, shard in shards:
                counts = before + _counts(shard.report)
                number = shard.start // self._config.data.stream_pairs
                plan = self._layout.plan(shard.pairs, seed=seed, epoch=epoch, shard=number)
                made = batches(shard.pairs, plan[done:], self._corpus, self._share)
                for count, batch in enumerate(made, start=done + 1):
                    reached = {
                        "epoch": epoch,
                        "start": shard.start,
                        "batches": count,
                        "counts_before": dict(before),
                        "counts": dict(counts),
                        "revision": self._revision,
                    }
                    yield ScheduledBatch(
                        batch, reached, {"epoch": epoch, "stream": self._figures(counts)}, is_last=False
                    )
                before, done = counts, 0

    def _shards(self, epoch: int, start: int) -> Iterator[tuple[int, Shard]]:
        """Yields the shards from pair `start` on, pass after pass, each with the number of its pass."""
        most = self._config.train.max_epochs
        while not most or epoch < most:
            kept = 0
            for shard in self._stream.shards(start):
                kept += shard.report.kept
                yield epoch, shard
            if not kept:
                raise CorpusError(
                    f"dataset {self._config.data.used_dataset}: expected usable training pairs after the first "
                    f"{start:,}; received none in a whole pass. It changed since it was prepared: start a new run."
                )
            epoch, start = epoch + 1, 0

    def _figures(self, counts: Counts) -> dict[str, Any]:
        return {
            name: counts[name]
            for name in ("read", "kept", *drops(self._config.data))
            if name not in ("overlapping", "duplicated")
        }

    def _check(self, position: Position) -> None:
        """Raises CorpusError if the dataset was prepared again with another version than the run began with."""
        saved = position.get("revision", self._revision)
        if saved != self._revision:
            raise CorpusError(
                f"dataset {self._config.data.used_dataset}: expected version {saved}, with which the run began; "
                f"received {self._revision}, since it was prepared again. Start a new run."
            )


def _counts(report: SplitReport) -> Counts:
    return Counter({name: value for name, value in dataclasses.asdict(report).items() if isinstance(value, int)})
