"""Draws a new segmentation of the training pairs in each epoch (subword sampling: Kudo 2018; Provilkov et al. 2020).

Batch shapes and the number of batches per epoch stay fixed: each pair reserves room for a segmentation that is longer
than the best one by the mean growth of drawn ones; a sentence that outgrows its shape keeps its best segmentation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from jax_transformer.config.data import DataConfig
from jax_transformer.data.encoding import TargetFrame
from jax_transformer.data.planning import Shape
from jax_transformer.data.token_pairs import Sentences, TokenPairs
from jax_transformer.data.tokenizers import Tokenizer

MEASURED_PAIRS = 1000
"""Number of pairs, spread over the corpus, for measuring the mean growth."""
SUBWORDS = ("bpe", "unigram")


class Resegmentation:
    """Draws segmentations of a split's pairs, which depend only on the seeds."""

    def __init__(
        self,
        pairs: TokenPairs,
        source: Tokenizer,
        target: Tokenizer,
        frames: Sequence[TargetFrame],
        config: DataConfig,
    ) -> None:
        self._pairs, self._strength = pairs, config.subword_sampling
        self._tags = [corpus.source_tag for corpus in config.corpora] or [""]
        self._frames = frames
        kinds = config.tokenizer, config.target_kind or config.tokenizer
        is_sampled = [kind in SUBWORDS or bool(config.source_tokenizer) for kind in kinds]
        self._tokenizers = [
            tokenizer if sampled else None for tokenizer, sampled in zip((source, target), is_sampled, strict=True)
        ]
        measured = np.unique(np.linspace(0, len(pairs) - 1, min(MEASURED_PAIRS, len(pairs))).astype(np.int64))
        drawn = [self._draw(side, measured, seed=(config.split_seed,)) for side in (0, 1)]
        self.growth = tuple(
            sum(map(len, sentences)) / max(int(np.diff(best.offsets)[measured].sum()), 1)
            for sentences, best in zip(drawn, self._sides, strict=True)
        )
        """Mean tokens of a drawn segmentation relative to the best one, for source and target."""
        self.rooms = TokenPairs(self._room(0), self._room(1), pairs.max_length, pairs.corpus)
        """Lengths reserved for each pair, without ids."""

    @property
    def expected_lengths(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the expected number of tokens of each pair's source and target."""
        source, target = (
            np.rint(np.diff(best.offsets) * growth).astype(np.int64)
            for best, growth in zip(self._sides, self.growth, strict=True)
        )
        return source, target

    def draw(self, shape: Shape | None, indices: npt.NDArray[np.int64], *, seed: tuple[int, ...]) -> TokenPairs:
        """Returns the pairs `indices` in segmentations drawn by the seed, which fit the shape or, without a shape, the
        room of each pair."""

        def fitting(side: int) -> Sentences:
            best, rooms = self._sides[side], (self.rooms.source_sentences, self.rooms.target_sentences)[side]
            if shape is None:
                most = rooms.offsets[indices + 1] - rooms.offsets[indices]
            else:
                most = np.full(len(indices), (shape.source_length, shape.target_length - 1)[side])
            drawn = self._draw(side, indices, (*seed, side))
            return Sentences.pack(
                [
                    ids if len(ids) <= room else best[i].tolist()
                    for ids, i, room in zip(drawn, indices, most, strict=True)
                ]
            )

        return TokenPairs(fitting(0), fitting(1), self._pairs.max_length)

    @property
    def _sides(self) -> tuple[Sentences, Sentences]:
        return self._pairs.source_sentences, self._pairs.target_sentences

    def _draw(self, side: int, indices: npt.NDArray[np.int64], seed: tuple[int, ...]) -> Sequence[Sequence[int]]:
        tokenizer, best = self._tokenizers[side], self._sides[side]
        if tokenizer is None:
            return [best[i].tolist() for i in indices]
        texts = best.texts(indices)
        if side == 1:
            drawn_targets = tokenizer.sample_encode(texts, seed=seed, strength=self._strength)
            numbers = np.zeros(len(indices), np.int64) if self._pairs.corpus is None else self._pairs.corpus[indices]
            return [
                ids
                for number, sentence in zip(numbers.tolist(), drawn_targets, strict=True)
                for ids in self._frames[number].stored([sentence])
            ]
        if len(self._tags) == 1 or self._pairs.corpus is None:
            return tokenizer.sample_encode(texts, seed=seed, strength=self._strength, tag=self._tags[0])
        drawn: dict[int, Sequence[int]] = {}
        for number, tag in enumerate(self._tags):
            members = np.flatnonzero(self._pairs.corpus[indices] == number).tolist()
            encoded = tokenizer.sample_encode(
                [texts[k] for k in members], seed=(*seed, number), strength=self._strength, tag=tag
            )
            drawn |= dict(zip(members, encoded, strict=True))
        return [drawn[k] for k in range(len(indices))]

    def _room(self, side: int) -> Sentences:
        lengths = np.diff(self._sides[side].offsets)
        most = self._pairs.max_length - side  # leaves room for the target's <eos>
        if self._tokenizers[side] is not None:
            lengths = np.maximum(lengths, np.minimum(np.ceil(lengths * self.growth[side]).astype(np.int64) + 1, most))
        return Sentences.without_ids(lengths)
