"""Evaluates a model on a split: its loss, and the scores of its translations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jax_transformer.data.batching import Batch
from jax_transformer.data.planning import Planned, choose_shapes, plan_in_order
from jax_transformer.data.preparation import PreparedCorpus, TokenPairs
from jax_transformer.decoding.padding import limit
from jax_transformer.decoding.translation import translate
from jax_transformer.model.functional import Params
from jax_transformer.parallel.placement import RowShare
from jax_transformer.storage.model_directory import Model
from jax_transformer.training.batch_schedule import batches
from jax_transformer.training.metrics import TranslationScores, score_translations

EvaluationStep = Callable[[Params, Batch], tuple[Any, Any]]
"""(params, batch) → the sum of the losses and the number of tokens, scalars."""


@dataclass(frozen=True)
class Split:
    """Holds a split and its evaluation batches, all of one shape so that they share one program."""

    pairs: TokenPairs
    plan: Sequence[Planned]

    @classmethod
    def lay_out(cls, pairs: TokenPairs, batch_tokens: int) -> Split:
        usable = pairs.usable_indices
        if not len(usable):
            return cls(pairs, [])
        shapes = choose_shapes(
            pairs.source_lengths[usable], pairs.target_lengths[usable], batch_tokens=batch_tokens, num_shapes=1
        )
        return cls(pairs, plan_in_order(pairs, shapes))


def split_batches(split: Split, corpus: PreparedCorpus, share: RowShare) -> Iterator[Batch]:
    """Yields a split's evaluation batches on the mesh."""
    return map(share.place, batches(split.pairs, split.plan, corpus, share))


def mean_loss(step: EvaluationStep, params: Params, batches: Iterable[Batch]) -> float:
    """Returns the cross-entropy of the batches in nats per target token, without dropout and label smoothing; NaN
    without tokens."""
    sums = [step(params, batch) for batch in batches]
    total, tokens = (float(np.sum([np.asarray(pair[k], np.float64) for pair in sums])) for k in (0, 1))
    return total / tokens if tokens else math.nan


@dataclass(frozen=True)
class Sample:
    """Holds one translated sentence.

    Example:
      >>> from jax_transformer.training import Sample
      >>> Sample(source="a house", reference="ein Haus", translation="ein Hund").translation
      'ein Hund'
    """

    source: str
    reference: str
    translation: str


def translate_split(
    model: Model, pairs: TokenPairs, most: int | None = None, *, tokenize: str = "13a", tags: Sequence[str] = ()
) -> tuple[TranslationScores, list[Sample]]:
    """Translates sentences of a split greedily; returns their scores and the samples.

    Sentences longer than the model allows are counted, and scored with an empty translation.

    Args:
      model: the model with its tokenizers.
      pairs: the split.
      most: maximum number of sentences, spread evenly over the split. None: all.
      tokenize: see `score_translations`.
      tags: the source tag of each corpus, in the numbering of TokenPairs.corpus; empty for a single corpus without one.
    """
    count = len(pairs) if most is None else min(most, len(pairs))
    indices = np.linspace(0, len(pairs) - 1, count).astype(np.int64)
    sources, references = pairs.source_texts(indices), pairs.target_texts(indices)
    fits = pairs.source_lengths[indices] <= limit(model, "source")
    corpora = np.zeros(count, np.int64) if pairs.corpus is None else pairs.corpus[indices]
    translations = [""] * count
    for number, tag in enumerate(tags or [""]):
        members = np.flatnonzero((corpora == number) & fits).tolist() if tags else np.flatnonzero(fits).tolist()
        for k, text in zip(members, translate(model, [sources[k] for k in members], source_tag=tag), strict=True):
            translations[k] = text
    samples = [Sample(*texts) for texts in zip(sources, references, translations, strict=True)]
    scores = score_translations(translations, references, tokenize=tokenize)
    return dataclasses.replace(scores, too_long=int((~fits).sum())), samples
