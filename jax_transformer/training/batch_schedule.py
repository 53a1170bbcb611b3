"""Assigns the batches of a prepared corpus to training steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from jax_transformer.config.run import RunConfig
from jax_transformer.data.batching import Batch, Planned
from jax_transformer.data.packing import PackedPlan
from jax_transformer.data.preparation import PreparedCorpus, TokenPairs
from jax_transformer.data.resegmentation import Resegmentation
from jax_transformer.parallel.placement import RowShare
from jax_transformer.training.batch_layout import BatchLayout, Plan, pairs_per_row, plan_padding
from jax_transformer.training.evaluation import batches
from jax_transformer.training.scheduled_batch import Position, ScheduledBatch


class BatchSchedule:
    """Assigns a batch to each step, as a function of the seed and the step alone."""

    def __init__(self, config: RunConfig, corpus: PreparedCorpus, share: RowShare | None = None) -> None:
        """Plans the batches, of which the rows of `share` are made. None: all."""
        self.corpus, self.seed, self._share = corpus, config.train.seed, share
        self.pairs = corpus.splits["train"]
        data = config.data
        self.weights = tuple(corpus.weight for corpus in data.corpora)
        self.resegmentation = (
            Resegmentation(self.pairs, corpus.source_tokenizer, corpus.target_tokenizer, data)
            if data.subword_sampling
            else None
        )
        self._planned = self.resegmentation.rooms if self.resegmentation else self.pairs
        lengths = self._planned.source_lengths, self._planned.target_lengths
        self._layout = BatchLayout.choose(config, lengths, self._pair_weights())
        self.shapes = self._layout.shapes
        plan = self._plan(epoch=0)
        self.batches_per_epoch = len(plan)  # the same in every epoch: shapes are filled by count, packed rows by length
        self.padding = plan_padding(self.resegmentation.expected_lengths if self.resegmentation else self.pairs, plan)
        self.pairs_per_row = pairs_per_row(plan)
        most = config.train.max_epochs * self.batches_per_epoch
        self.last_step = min(config.train.max_steps, most) if most else config.train.max_steps
        self.epochs = self.last_step / self.batches_per_epoch

    def batches_from(self, step: int) -> Iterator[Batch]:
        """Yields the batches after `step` steps, up to the last step."""
        while step < self.last_step:
            epoch, start = divmod(step, self.batches_per_epoch)
            plan = self._plan(epoch)[start : start + self.last_step - step]
            if self.resegmentation is None:
                yield from self._assembled(self.pairs, plan)
            else:
                for number, planned in enumerate(plan, start):
                    yield from self._assembled(*_drawn(self.resegmentation, planned, seed=(self.seed, epoch, number)))
            step += len(plan)

    def scheduled_from(self, step: int, position: Position) -> Iterator[ScheduledBatch]:
        """Yields the batches for the loop; see `Schedule`. The position is empty, since the step suffices."""
        for number, batch in enumerate(self.batches_from(step), start=step + 1):
            yield ScheduledBatch(
                batch, {}, {"epoch": round(number / self.batches_per_epoch, 4)}, number == self.last_step
            )

    def closing_lines(self, position: Position) -> list[str]:
        """Returns no lines: the counts were printed before the run."""
        return []

    def _plan(self, epoch: int) -> Plan:
        return self._layout.plan(self._planned, seed=self.seed, epoch=epoch, weights=self.weights)

    def _assembled(self, pairs: TokenPairs, plan: Plan) -> Iterator[Batch]:
        return batches(pairs, plan, self.corpus, self._share)

    def _pair_weights(self) -> npt.NDArray[np.float64] | None:
        if self.pairs.corpus is None or set(self.weights) <= {1.0}:
            return None
        return np.array(self.weights)[self.pairs.corpus]


def _drawn(
    resegmentation: Resegmentation, planned: Planned | PackedPlan, seed: tuple[int, ...]
) -> tuple[TokenPairs, Plan]:
    """Returns the pairs of a batch in new segmentations, and the batch of them."""
    numbers = np.arange(len(planned[1]))
    if isinstance(planned, PackedPlan):
        return resegmentation.draw(None, planned.indices, seed=seed), [planned._replace(indices=numbers)]
    shape, indices = planned
    return resegmentation.draw(shape, indices, seed=seed), [(shape, numbers)]
