"""Assigns the batches of a prepared or streamed corpus to training steps."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from jax_transformer.config.data import DataConfig
from jax_transformer.config.run import RunConfig
from jax_transformer.data.batching import Batch, assemble, assemble_packed
from jax_transformer.data.denoising import Denoising
from jax_transformer.data.encoding import SplitReport, drops
from jax_transformer.data.exchange import Exchange
from jax_transformer.data.loader import prefetch
from jax_transformer.data.planning import BatchLayout, PackedPlan, Plan, Planned, Shape, padding_share, pairs_per_row
from jax_transformer.data.preparation import PreparedCorpus, TokenPairs
from jax_transformer.data.resegmentation import Resegmentation
from jax_transformer.data.streaming import Shard, TrainingStream
from jax_transformer.data.text_files import CorpusError
from jax_transformer.data.token_pairs import Sentences
from jax_transformer.parallel.placement import RowShare

Position = dict[str, Any]
"""Position in the data after a step, in plain values for the checkpoint; empty if the step number suffices."""

GIVEN = "given"
"""Entry of a position in batches of the caller's own; see `given_batches`."""

Counts = Counter[str]
"""Counts of everything read from the stream so far, by the names of SplitReport's fields."""


class ScheduledBatch(NamedTuple):
    """Holds the batch of one step."""

    batch: Batch
    position: Position
    """Position after this step."""
    figures: dict[str, Any]
    """Data entries of this step's line of metrics: "epoch" and, for a stream, its counts."""
    is_last: bool
    """Whether this is the last step of the run."""
    failure: str = ""
    """The error that prevents reading the next batch; the loop saves the run after this step and stops. Empty: none."""


class Schedule(Protocol):
    """Assigns a batch to each step."""

    @property
    def last_step(self) -> int | None:
        """The last step of the run. None: unknown."""

    @property
    def shapes(self) -> tuple[Shape, ...] | None:
        """The shapes of all batches. None: unknown."""

    @property
    def description(self) -> str:
        """Returns the line to print before a run."""

    def scheduled_from(self, step: int, position: Position) -> Iterator[ScheduledBatch]:
        """Yields the batches after `step` steps; `position` was saved at that step, and is {} before the first."""

    def closing_lines(self, position: Position) -> list[str]:
        """Returns the lines to print at the end of a run, given its last position."""


class PlannedSchedule(Schedule, Protocol):
    """Assigns a batch of the training text to each step, in shapes that are chosen before."""

    @property
    def shapes(self) -> tuple[Shape, ...]: ...

    @property
    def padding(self) -> float:
        """Share of the batches' positions that is padding."""

    @property
    def pairs_per_row(self) -> float | None:
        """Mean number of pairs in a row of packed batches. None: they aren't packed."""

    @property
    def batches_per_epoch(self) -> int | None:
        """Batches per epoch. None: unknown, as for the next."""

    @property
    def epochs(self) -> float | None: ...


def make_batch_schedule(
    config: RunConfig, corpus: PreparedCorpus, share: RowShare | None = None, exchange: Exchange | None = None
) -> PlannedSchedule:
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


def batch_figures(schedule: PlannedSchedule) -> str:
    """Describes the batches in a few words, such as "2.5% padding, 8.2 pairs per row"."""
    packed = "" if schedule.pairs_per_row is None else f", {schedule.pairs_per_row:.1f} pairs per row"
    return f"{schedule.padding:.1%} padding{packed}"


def described(schedule: PlannedSchedule) -> str:
    """Describes planned batches in one line, with their shapes."""
    shapes = ", ".join(f"{rows}×{source}→{target}" for rows, source, target in schedule.shapes)
    return (
        f"batches: {known(schedule.batches_per_epoch, 'd')} per epoch, {batch_figures(schedule)}, "
        f"shapes {shapes} (rows×source→target)"
    )


def check_not_given(position: Position) -> None:
    """Raises CorpusError for a position in batches that the caller gave, which the config doesn't name."""
    if GIVEN in position:
        raise CorpusError(
            "this run trains on batches that its caller gives: expected them again; received none. Resume it with "
            "train(config, resume=True, batches=…)."
        )


def known(number: float | None, form: str = ",") -> str:
    """Formats a number, or returns "unknown" for None."""
    return "unknown" if number is None else format(number, form)


class BatchSchedule:
    """Assigns a batch to each step, as a function of the seed and the step alone."""

    def __init__(self, config: RunConfig, corpus: PreparedCorpus, share: RowShare | None = None) -> None:
        """Plans the batches; yields only the rows of `share`. None: all."""
        self.corpus, self.seed, self._share = corpus, config.train.seed, share
        self.pairs = corpus.splits["train"]
        data = config.data
        self.drawing: Drawing | None = None
        if data.is_pretraining:
            self.drawing = Denoising(self.pairs, corpus.source_tokenizer, data, seed=(self.seed,))
        elif data.subword_sampling:
            self.drawing = Resegmentation(
                self.pairs, corpus.source_tokenizer, corpus.target_tokenizer, corpus.frames, data
            )
        self._planned = self.drawing.rooms if self.drawing else self.pairs
        self.weights = mixture_weights(data, self._planned)
        lengths = self._planned.source_lengths, self._planned.target_lengths
        self._layout = BatchLayout.choose(data, lengths, self._pair_weights(), accumulate=config.train.accumulate)
        self.shapes = self._layout.shapes
        plan = self._plan(epoch=0)
        self.batches_per_epoch = len(plan)  # the same in every epoch: shapes are filled by count, packed rows by length
        self.padding = padding_share(self.drawing.expected_lengths if self.drawing else self.pairs, plan)
        self.pairs_per_row = pairs_per_row(plan)
        most = config.train.max_epochs * self.batches_per_epoch
        self.last_step = min(config.train.max_steps, most) if most else config.train.max_steps
        self.epochs = self.last_step / self.batches_per_epoch

    def batches_from(self, step: int) -> Iterator[Batch]:
        """Yields the batches after `step` steps, up to the last step."""
        while step < self.last_step:
            epoch, start = divmod(step, self.batches_per_epoch)
            plan = self._plan(epoch)[start : start + self.last_step - step]
            if self.drawing is None:
                yield from self._assembled(self.pairs, plan)
            else:
                for number, planned in enumerate(plan, start):
                    yield from self._assembled(*_drawn(self.drawing, planned, seed=(self.seed, epoch, number)))
            step += len(plan)

    def scheduled_from(self, step: int, position: Position) -> Iterator[ScheduledBatch]:
        """Yields the batches for the loop; see `Schedule`. The position is empty, since the step suffices."""
        check_not_given(position)
        for number, batch in enumerate(self.batches_from(step), start=step + 1):
            yield ScheduledBatch(
                batch, {}, {"epoch": round(number / self.batches_per_epoch, 4)}, number == self.last_step
            )

    def closing_lines(self, position: Position) -> list[str]:
        """Returns no lines: the counts were printed before the run."""
        return []

    @property
    def description(self) -> str:
        """Returns the number of batches, their padding and shapes."""
        return described(self)

    def _plan(self, epoch: int) -> Plan:
        return self._layout.plan(self._planned, seed=self.seed, epoch=epoch, weights=self.weights)

    def _assembled(self, pairs: TokenPairs, plan: Plan) -> Iterator[Batch]:
        return batches(pairs, plan, self.corpus, self._share)

    def _pair_weights(self) -> npt.NDArray[np.float64] | None:
        if self._planned.corpus is None or set(self.weights) <= {1.0}:
            return None
        return np.array(self.weights)[self._planned.corpus]


Drawing = Resegmentation | Denoising
"""Draws the pairs of a batch anew in each epoch, in lengths known before."""


def mixture_weights(data: DataConfig, pairs: TokenPairs) -> tuple[float, ...]:
    """Returns how often each pair of a corpus occurs in an epoch, by the corpus's number: its weight, flattened by the
    temperature, so that an epoch keeps its length."""
    weights = tuple(corpus.weight for corpus in data.corpora)
    if data.mixture_temperature == 1.0 or len(weights) < 2 or pairs.corpus is None:
        return weights
    masses = np.bincount(pairs.corpus, minlength=len(weights)) * np.array(weights)
    shares = masses / masses.sum()
    flattened = shares ** (1.0 / data.mixture_temperature)
    flattened /= flattened.sum()
    return tuple(
        float(weight * wanted / share) if share else weight
        for weight, wanted, share in zip(weights, flattened, shares, strict=True)
    )


def _drawn(drawing: Drawing, planned: Planned | PackedPlan, seed: tuple[int, ...]) -> tuple[TokenPairs, Plan]:
    """Draws a batch's pairs; returns these pairs, and the plan of the batch that they make."""
    numbers = np.arange(len(planned[1]))
    if isinstance(planned, PackedPlan):
        return drawing.draw(None, planned.indices, seed=seed), [planned._replace(indices=numbers)]
    shape, indices = planned
    return drawing.draw(shape, indices, seed=seed), [(shape, numbers)]


class StreamSchedule:
    """Assigns a batch to each step, as a function of the stream, the seed and the position. See `Schedule`.

    An epoch is one pass over the stream. Each shard is shuffled and batched like an epoch of a prepared corpus, seeded
    by (seed, epoch, shard). The shapes fit the first shard. Since later shards may have longer pairs, a shape for pairs
    of max_length on both sides is added if none of them holds such a pair; packed rows always do.
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
        lengths = self._lengths(corpus.beginning.lengths)
        self._layout = BatchLayout.choose(data, lengths, accumulate=config.train.accumulate)
        self.shapes = self._layout.shapes
        plan = self._layout.plan(lengths, seed=config.train.seed, epoch=0)
        self.padding, self.pairs_per_row = padding_share(lengths, plan), pairs_per_row(plan)
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
        """Returns lines with the numbers of pairs read and dropped in all passes over the stream."""
        counts = position.get("counts", {})
        nothing = {field.name: 0 for field in dataclasses.fields(SplitReport)} | {
            "source_length_counts": (),
            "target_length_counts": (),
        }
        return self._corpus.report.split_lines("train", SplitReport(**nothing | counts))

    @property
    def description(self) -> str:
        """Returns the padding and the shapes of the batches."""
        return described(self)

    def _scheduled(self, position: Position) -> Generator[ScheduledBatch, None, None]:
        """Yields the batches after `position`, none of them marked as the last."""
        self._check(position)
        start, done, seed = position.get("start", 0), position.get("batches", 0), self._config.train.seed
        before: Counts = Counter(position.get("counts_before"))
        with prefetch(self._shards(position.get("epoch", 0), start), depth=1) as shards:
            for epoch, shard in shards:
                counts = before + _counts(shard.report)
                number = shard.start // self._config.data.stream_pairs
                drawing = self._drawing(shard.pairs, (seed, epoch, number))
                rooms = shard.pairs if drawing is None else drawing.rooms
                plan = self._layout.plan(rooms, seed=seed, epoch=epoch, shard=number)
                made = self._made(shard.pairs, drawing, plan, done, (seed, epoch, number))
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

    def _lengths(self, lengths: tuple[npt.NDArray[Any], npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Returns the lengths of the pairs that are made of texts of these lengths."""
        source, target = map(Sentences.without_ids, lengths)
        texts = TokenPairs(source, target, self._config.data.max_length)
        drawing = self._drawing(texts, (self._config.train.seed, 0, 0))
        return lengths if drawing is None else drawing.expected_lengths

    def _drawing(self, pairs: TokenPairs, seed: tuple[int, ...]) -> Denoising | None:
        if not self._config.data.is_pretraining:
            return None
        return Denoising(pairs, self._corpus.source_tokenizer, self._config.data, seed=seed)

    def _made(
        self, pairs: TokenPairs, drawing: Denoising | None, plan: Plan, done: int, seed: tuple[int, ...]
    ) -> Iterator[Batch]:
        """Yields the batches of a shard's plan after the first `done`."""
        if drawing is None:
            yield from batches(pairs, plan[done:], self._corpus, self._share)
            return
        for number, planned in enumerate(plan[done:], done):
            yield from batches(*_drawn(drawing, planned, (*seed, number)), self._corpus, self._share)

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
        """Raises CorpusError if the dataset was prepared again with another version than the run began with, or if the
        run trained on batches of its caller."""
        check_not_given(position)
        saved = position.get("revision", self._revision)
        if saved != self._revision:
            raise CorpusError(
                f"dataset {self._config.data.used_dataset}: expected version {saved}, with which the run began; "
                f"received {self._revision}, since it was prepared again. Start a new run."
            )


def _counts(report: SplitReport) -> Counts:
    return Counter({name: value for name, value in dataclasses.asdict(report).items() if isinstance(value, int)})


def batches(pairs: TokenPairs, plan: Plan, corpus: PreparedCorpus, share: RowShare | None = None) -> Iterator[Batch]:
    """Yields the batches of a plan as arrays.

    Args:
      pairs: the pairs that the plan indexes.
      plan: the batches.
      corpus: the corpus of the pairs, which gives pad ids and the tokens around targets.
      share: the rows to make. None: all.
    """
    ids: dict[str, Any] = {
        "source_pad_id": corpus.source_tokenizer.pad_id,
        "target_pad_id": corpus.target_tokenizer.pad_id,
        "bos_id": corpus.frame.start_id,
        "eos_id": corpus.frame.end_id,
    }
    for whole in plan:
        planned = whole if share is None else _own_part(whole, share)
        if isinstance(planned, PackedPlan):
            yield assemble_packed(pairs, planned, **ids)
        else:
            yield assemble(pairs, *planned, **ids)


def _own_part(planned: Planned | PackedPlan, share: RowShare) -> Planned | PackedPlan:
    """Returns the rows of a batch that this process makes, as a batch of their own."""
    shape, indices = planned[:2]
    own = share.rows_of(shape.rows)
    shape = shape._replace(rows=len(own))
    if isinstance(planned, PackedPlan):
        mine = np.isin(planned.rows, own)
        return PackedPlan(shape, indices[mine], np.searchsorted(own, planned.rows[mine]))
    return shape, indices[own[own < len(indices)]]
