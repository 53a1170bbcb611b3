"""Which batch each training step gets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from jax_transformer.data.batching import Batch, Planned, choose_shapes, padding_share, plan_epoch
from jax_transformer.data.preparation import PreparedCorpus
from jax_transformer.run_config import RunConfig
from jax_transformer.training.evaluation import batches


class BatchSchedule:
    """Which batch each step gets: a function of the seed and the step alone."""

    def __init__(self, config: RunConfig, corpus: PreparedCorpus) -> None:
        self.corpus, self.seed = corpus, config.train.seed
        self.pairs = corpus.splits["train"]
        data = config.data
        self.weights = tuple(corpus.weight for corpus in data.corpora)
        shapes = choose_shapes(
            self.pairs.source_lengths, self.pairs.target_lengths, batch_tokens=data.batch_tokens, num_shapes=data.num_shapes,
            pair_weights=self._pair_weights(),
        )  # fmt: skip
        self.shapes = tuple(shape._replace(rows=shape.rows * config.train.accumulate) for shape in shapes)
        plan = self._plan(epoch=0)
        self.batches_per_epoch = len(plan)  # the same in every epoch: shapes are filled by count
        self.padding = padding_share(self.pairs, plan)
        most = config.train.max_epochs * self.batches_per_epoch
        self.last_step = min(config.train.max_steps, most) if most else config.train.max_steps
        self.epochs = self.last_step / self.batches_per_epoch

    def batches_from(self, step: int) -> Iterator[Batch]:
        """The batches after `step` steps, up to the last step."""
        while step < self.last_step:
            epoch, start = divmod(step, self.batches_per_epoch)
            plan = self._plan(epoch)[start : start + self.last_step - step]
            yield from batches(self.pairs, plan, self.corpus.source_tokenizer, self.corpus.target_tokenizer)
            step += len(plan)

    def _plan(self, epoch: int) -> list[Planned]:
        return plan_epoch(self.pairs, self.shapes, seed=self.seed, epoch=epoch, weights=self.weights)

    def _pair_weights(self) -> npt.NDArray[np.float64] | None:
        if self.pairs.corpus is None or set(self.weights) <= {1.0}:
            return None
        return np.array(self.weights)[self.pairs.corpus]
