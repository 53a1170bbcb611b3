"""Assigns the batches of a prepared corpus to training steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from jax_transformer.config.run import RunConfig
from jax_transformer.data.batch_shapes import choose_shapes
from jax_transformer.data.batching import Batch, Planned, padding_share, plan_epoch
from jax_transformer.data.preparation import PreparedCorpus, TokenPairs
from jax_transformer.data.resegmentation import Resegmentation
from jax_transformer.training.evaluation import batches
from jax_transformer.training.scheduled_batch import Position, ScheduledBatch


class BatchSchedule:
    """Assigns a batch to each step, as a function of the seed and the step alone."""

    def __init__(self, config: RunConfig, corpus: PreparedCorpus) -> None:
        self.corpus, self.seed = corpus, config.train.seed
        self.pairs = corpus.splits["train"]
        data = config.data
        self.weights = tuple(corpus.weight for corpus in data.corpora)
        self.resegmentation = (
            Resegmentation(self.pairs, corpus.source_tokenizer, corpus.target_tokenizer, data)
            if data.subword_sampling
            else None
        )
        self._planned = self.resegmentation.rooms if self.resegmentation else self.pairs
        shapes = choose_shapes(
            self._planned.source_lengths,
            self._planned.target_lengths,
            batch_tokens=data.batch_tokens,
            num_shapes=data.num_shapes,
            pair_weights=self._pair_weights(),
        )
        self.shapes = tuple(shape._replace(rows=shape.rows * config.train.accumulate) for shape in shapes)
        plan = self._plan(epoch=0)
        self.batches_per_epoch = len(plan)  # the same in every epoch: shapes are filled by count
        self.padding = padding_share(self.resegmentation.expected_lengths if self.resegmentation else self.pairs, plan)
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
                for number, (shape, indices) in enumerate(plan, start):
                    drawn = self.resegmentation.draw(shape, indices, seed=(self.seed, epoch, number))
                    yield from self._assembled(drawn, [(shape, np.arange(len(indices)))])
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

    def _plan(self, epoch: int) -> list[Planned]:
        return plan_epoch(self._planned, self.shapes, seed=self.seed, epoch=epoch, weights=self.weights)

    def _assembled(self, pairs: TokenPairs, plan: Sequence[Planned]) -> Iterator[Batch]:
        return batches(pairs, plan, self.corpus.source_tokenizer, self.corpus.target_tokenizer)

    def _pair_weights(self) -> npt.NDArray[np.float64] | None:
        if self.pairs.corpus is None or set(self.weights) <= {1.0}:
            return None
        return np.array(self.weights)[self.pairs.corpus]
