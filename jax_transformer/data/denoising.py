"""Makes training pairs of plain text by hiding a part of it: span corruption (Raffel et al. 2020), UL2's mixture of
denoisers (Tay et al. 2022), and prefixes to continue.

Spans are drawn as T5's `random_spans_noise_mask` does: the numbers of hidden tokens and of spans follow from the length
of a text alone, and all ways to place them are equally likely. So the lengths of an example are known before it is
drawn, and batches keep their shapes when the spans change with each epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jax_transformer.config.data import MODES, DataConfig
from jax_transformer.data.planning import Shape
from jax_transformer.data.text_files import CorpusError
from jax_transformer.data.token_pairs import Sentences, TokenPairs
from jax_transformer.data.tokenizers import Tokenizer

Mask = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.integer]


class Denoiser(NamedTuple):
    """Says how much of a text is hidden, in how long spans, and the token that announces it."""

    density: float
    span: float
    """Mean length of a span; below 1, that share of the text's length."""
    mode: str = ""


REGULAR, EXTREME, SEQUENTIAL = MODES
UL2 = (
    Denoiser(0.15, 3.0, REGULAR),
    Denoiser(0.15, 8.0, REGULAR),
    Denoiser(0.5, 3.0, EXTREME),
    Denoiser(0.5, 8.0, EXTREME),
    Denoiser(0.15, 64.0, EXTREME),
    Denoiser(0.5, 64.0, EXTREME),
    Denoiser(0.25, 0.25, SEQUENTIAL),
)
"""UL2's seven denoisers (Tay et al. 2022, table 1). Here each text gets one with equal probability."""


# --- masks


def noise_counts(length: int, denoiser: Denoiser) -> tuple[int, int]:
    """Returns how many tokens of a text are hidden, and in how many spans, in T5's arithmetic of float32.

    Example:
      >>> noise_counts(100, Denoiser(0.15, 3.0))
      (15, 5)
    """
    length = max(length, 2)
    hidden = int(np.rint(np.float32(length) * np.float32(denoiser.density)))
    hidden = min(max(hidden, 1), length - 1)
    mean = denoiser.span * length if denoiser.span < 1.0 else denoiser.span
    spans = int(np.rint(np.float32(hidden) / np.float32(mean)))
    return hidden, min(max(spans, 1), hidden, length - hidden)


def random_spans(length: int, denoiser: Denoiser, random: np.random.Generator) -> Mask:
    """Draws a mask [length] of hidden tokens: spans of them after spans of visible ones, all equally likely.

    Example:
      >>> random_spans(12, Denoiser(0.25, 3.0), np.random.default_rng(0)).tolist()
      [False, False, False, False, False, False, False, False, False, True, True, True]
    """
    hidden, spans = noise_counts(length, denoiser)
    noise = _segments(hidden, spans, random)
    visible = _segments(max(length, 2) - hidden, spans, random)
    mask = np.repeat(np.tile([False, True], spans), np.stack([visible, noise], axis=1).reshape(-1))
    return mask[:length]


def _segments(items: int, segments: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Draws the lengths of non-empty segments that items are divided into; every division is equally likely."""
    cuts = np.sort(random.choice(items - 1, segments - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], cuts, [items]]))


def with_sentinels(ids: Ids, mask: Mask, sentinels: Ids) -> Ids:
    """Replaces each run of masked tokens by one sentinel, the first by the first.

    The source of an example is `with_sentinels(ids, mask, …)`, its target `with_sentinels(ids, ~mask, …)`, as T5's
    `noise_span_to_unique_sentinel` and `nonnoise_span_to_unique_sentinel` make them.

    Raises:
      ValueError: more runs than sentinels.

    Example:
      >>> ids, mask = np.array([5, 6, 7, 8]), np.array([False, True, True, False])
      >>> tuple(with_sentinels(ids, one, np.array([99, 98])).tolist() for one in (mask, ~mask))
      ([5, 99, 8], [99, 6, 7, 98])
    """
    is_first = mask & ~np.concatenate([[False], mask[:-1]])
    count = int(is_first.sum())
    if count > len(sentinels):
        raise ValueError(f"sentinels: expected at least {count}, one for each span; received {len(sentinels)}")
    replaced = np.array(ids)
    replaced[is_first] = sentinels[:count]
    return replaced[~mask | is_first]


# --- examples


class Denoising:
    """Draws the examples of a split of plain text, which depend only on the seeds. Like `Resegmentation`, it has the
    lengths of each pair beforehand."""

    def __init__(self, pairs: TokenPairs, tokenizer: Tokenizer, config: DataConfig, *, seed: tuple[int, ...]) -> None:
        """Chooses a denoiser for each text.

        Args:
          pairs: the texts, as targets.
          tokenizer: the source's, which says what stands around sources.
          config: the objective.
          seed: draws the denoisers, and where prefixes end.

        Raises:
          CorpusError: the vocabulary has fewer sentinels than a text of max_length has spans, or no token for a mode.
        """
        self._texts, corpus = pairs.target_sentences, pairs.corpus
        self._objective, self._denoisers = config.objective, denoisers_of(config)
        self._sentinels = np.array(tokenizer.sentinel_ids, np.int64)
        self._modes = [[tokenizer.tag_id(one.mode, "data.objective")] if one.mode else [] for one in self._denoisers]
        self._before, self._after = _around(tokenizer)
        if config.join_lines:
            self._texts, corpus = _joined(self._texts, corpus, self._text_length(config.max_length))
        lengths = np.diff(self._texts.offsets)
        needed = max(noise_counts(config.max_length, one)[1] for one in self._denoisers)
        if self._objective != "prefix-lm" and needed > len(self._sentinels):
            raise CorpusError(
                f"data.sentinels: expected at least {needed} tokens <extra_id_0>, <extra_id_1>, … for texts of "
                f"max_length={config.max_length}; received a vocabulary with {len(self._sentinels)}"
            )
        random = np.random.default_rng((*seed, 0))
        self._chosen = random.integers(len(self._denoisers), size=len(lengths))
        self._prefixes = random.integers(1, np.maximum(lengths, 2))  # uniform in [1, length), as T5's prefixes are
        source, target = self._lengths(lengths)
        self.rooms = TokenPairs(Sentences.without_ids(source), Sentences.without_ids(target), pairs.max_length, corpus)
        """The lengths of each pair, without ids."""

    @property
    def expected_lengths(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the number of tokens of each pair's source and target."""
        return self.rooms.source_lengths, self.rooms.target_lengths

    def draw(self, shape: Shape | None, indices: npt.NDArray[np.int64], *, seed: tuple[int, ...]) -> TokenPairs:
        """Returns the pairs `indices`, with spans drawn by the seed; `shape` is known to hold them."""
        random = np.random.default_rng((*seed, 1))
        drawn = [self._pair(int(index), random) for index in indices]
        source, target = (Sentences.pack([pair[side] for pair in drawn]) for side in (0, 1))
        return TokenPairs(source, target, self.rooms.max_length)

    def _pair(self, index: int, random: np.random.Generator) -> tuple[list[int], list[int]]:
        ids: Ids = self._texts[index]
        number = int(self._chosen[index])
        if self._objective == "prefix-lm":
            source, target = np.split(ids, [int(self._prefixes[index])])
        else:
            mask = random_spans(len(ids), self._denoisers[number], random)
            source, target = (with_sentinels(ids, one, self._sentinels) for one in (mask, ~mask))
        return [*self._before, *self._modes[number], *source.tolist(), *self._after], target.tolist()

    def _text_length(self, most: int) -> int:
        """Returns the length of the longest text whose examples have at most so many tokens on both sides."""
        around = len(self._before) + len(self._after)
        if self._objective == "prefix-lm":
            return most - max(around - 1, 0)  # the longest prefix lacks one token, and so does the longest rest

        def fits(length: int) -> bool:
            sizes = (_sizes(length, one) for one in self._denoisers)
            modes = max(map(len, self._modes))
            return all(source + around + modes <= most and target + 1 <= most for source, target in sizes)

        return next(length for length in range(2 * most, 0, -1) if fits(length))

    def _lengths(self, lengths: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns the lengths of sources and targets of texts of these lengths."""
        around = len(self._before) + len(self._after)
        if self._objective == "prefix-lm":
            prefixes = np.minimum(self._prefixes, lengths)
            return prefixes + around, lengths - prefixes
        source, target = np.zeros_like(lengths), np.zeros_like(lengths)
        for number, denoiser in enumerate(self._denoisers):
            members = np.flatnonzero(self._chosen == number)
            sizes, inverse = np.unique(lengths[members], return_inverse=True)
            counts = np.array([_sizes(int(size), denoiser) for size in sizes], np.int64).reshape(-1, 2)[inverse]
            source[members] = counts[:, 0] + around + len(self._modes[number])
            target[members] = counts[:, 1]
        return source, target


def denoisers_of(config: DataConfig) -> Sequence[Denoiser]:
    """Returns the denoisers of an objective."""
    return UL2 if config.objective == "ul2" else (Denoiser(config.noise_density, config.mean_span_length),)


def _sizes(length: int, denoiser: Denoiser) -> tuple[int, int]:
    """Returns the numbers of tokens of an example's source and target, without what stands around them."""
    if length < 2:  # the one token is visible
        return length, length
    hidden, spans = noise_counts(length, denoiser)
    return length - hidden + spans, hidden + spans


def _joined(
    lines: Sentences, corpus: npt.NDArray[np.uint16] | None, length: int
) -> tuple[Sentences, npt.NDArray[np.uint16] | None]:
    """Returns texts of this length that the lines make together, and the corpus in which each begins."""
    total = int(lines.offsets[-1])
    offsets = np.minimum(np.arange(0, total + length, length, dtype=np.int64), total)
    texts = Sentences(lines.ids, offsets, np.zeros(0, np.uint8), np.zeros(1, np.int64))
    starts = np.searchsorted(lines.offsets, offsets[:-1], side="right") - 1
    return texts, None if corpus is None else corpus[starts]


def _around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Returns the ids that the tokenizer puts before and after sources."""
    return [tokenizer.bos_id] * tokenizer.adds_bos, [tokenizer.eos_id] * tokenizer.adds_eos


def fixed_examples(pairs: TokenPairs, tokenizer: Tokenizer, config: DataConfig) -> TokenPairs:
    """Returns the examples of a split for evaluation: the same in every run and at every step; with the text that they
    come from if each is a line."""
    denoising = Denoising(pairs, tokenizer, config, seed=(config.split_seed,))
    drawn = denoising.draw(None, np.arange(len(denoising.rooms)), seed=(config.split_seed,))
    if config.join_lines:
        return drawn
    return TokenPairs(
        _with_text(drawn.source_sentences, pairs.source_sentences),
        _with_text(drawn.target_sentences, pairs.target_sentences),
        pairs.max_length,
        pairs.corpus,
    )


def _with_text(drawn: Sentences, like: Sentences) -> Sentences:
    return Sentences(drawn.ids, drawn.offsets, like.text, like.text_offsets)
