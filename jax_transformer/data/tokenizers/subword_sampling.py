"""Draws random segmentations of words into subwords, as a pure function of the text and a seed.

All occurrences of a word are segmented at once: they go down a tree of choices together, and part where the drawn
numbers differ. The time therefore depends on the number of different words and segmentations, not on the length of the
text.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, Protocol

import numpy as np

from jax_transformer.data.tokenizers.special_tokens import SPACE_MARK
from jax_transformer.data.tokenizers.word_counts import split_words

Segmentation = tuple[int, ...]
UNKNOWN_PENALTY = 10.0
"""Log-probability of the rarest piece minus that of an unknown character; as in sentencepiece."""
BLOCK = 1 << 16


class Draws:
    """Draws uniform numbers in [0, 1) from a seed."""

    def __init__(self, seed: int | tuple[int, ...]) -> None:
        parts = (seed,) if isinstance(seed, int) else tuple(seed)
        if not parts or min(parts) < 0:
            raise ValueError(f"seed: expected integers, 0 or more; received {seed!r}")
        self._generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(parts)))
        self._block: list[float] = []

    def take(self, count: int) -> list[float]:
        """Returns the next `count` numbers."""
        if count > len(self._block):
            self._block += self._generator.random(max(BLOCK, count)).tolist()
        taken = self._block[-count:]
        del self._block[-count:]
        return taken

    def shuffled(self, items: list[Segmentation]) -> list[Segmentation]:
        """Returns the items in a random order."""
        keys = self.take(len(items))
        return [items[index] for index in sorted(range(len(items)), key=keys.__getitem__)]


class Segmenter(Protocol):
    """Splits sentences into words, and draws segmentations of a word."""

    def words(self, sentence: str) -> list[str]:
        """Returns the words, which are segmented one by one."""

    def check(self, strength: float) -> None:
        """Raises ValueError for a strength out of range."""

    def draw(self, word: str, count: int, draws: Draws, strength: float) -> Mapping[Segmentation, int]:
        """Draws `count` independent segmentations of a word, and returns each with its count."""


def sample_segmentations(
    segmenter: Segmenter, sentences: Sequence[str], seed: int | tuple[int, ...], strength: float
) -> list[list[int]]:
    """Returns the ids of each sentence, with an independently drawn segmentation of each word. Raises ValueError for a
    strength out of range."""
    segmenter.check(strength)
    draws = Draws(seed)
    split = [segmenter.words(sentence) for sentence in sentences]
    drawn = {}
    for word, count in Counter(chain.from_iterable(split)).items():  # in the order of the text
        counts = segmenter.draw(word, count, draws, strength)
        items = [segmentation for segmentation, times in counts.items() for _ in range(times)]
        drawn[word] = iter(draws.shuffled(items) if len(counts) > 1 else items)
    return [list(chain.from_iterable(next(drawn[word]) for word in words)) for words in split]


class BpeDropout:
    """Merges in the order of ranks, and leaves out each candidate at each step with some probability (Provilkov et al.,
    2020)."""

    def __init__(
        self,
        words: Callable[[str], list[str]],
        symbols: Callable[[str], Segmentation],
        merge: Callable[[int, int], tuple[float, int] | None],
    ) -> None:
        """Stores `symbols`, which returns a word's characters as ids, and `merge`, which returns the rank of a pair
        (the lowest is merged first) and its result, or None."""
        self.words = words
        self._symbols, self._merge = symbols, merge

    def check(self, strength: float) -> None:
        if not 0.0 <= strength <= 1.0:
            raise ValueError(
                f"subword sampling: expected a probability of dropping a merge, in [0, 1]; received {strength}"
            )

    def draw(self, word: str, count: int, draws: Draws, strength: float) -> Mapping[Segmentation, int]:
        level = {self._symbols(word): count}
        finished: dict[Segmentation, int] = {}
        while level:  # all segmentations of a level have the same number of pieces
            following: dict[Segmentation, int] = {}
            for pieces, times in level.items():
                candidates = self._candidates(pieces)
                for chosen, chosen_times in _first_kept(len(candidates), times, draws, strength).items():
                    if chosen == len(candidates):
                        finished[pieces] = chosen_times
                        continue
                    _, place, merged = candidates[chosen]
                    shorter = (*pieces[:place], merged, *pieces[place + 2 :])
                    following[shorter] = following.get(shorter, 0) + chosen_times
            level = following
        return finished

    def _candidates(self, pieces: Segmentation) -> list[tuple[float, int, int]]:
        """Returns the possible merges as (rank, place, result), in their order."""
        found = []
        for place in range(len(pieces) - 1):
            merge = self._merge(pieces[place], pieces[place + 1])
            if merge is not None:
                found.append((merge[0], place, merge[1]))
        found.sort()
        return found


def _first_kept(candidates: int, times: int, draws: Draws, dropped: float) -> dict[int, int]:
    """Counts how often each candidate is the first that isn't dropped; the key `candidates` counts draws that drop
    all."""
    if not candidates or not 0.0 < dropped < 1.0:
        return {candidates if not candidates or dropped else 0: times}
    thresholds = [1.0 - dropped**place for place in range(1, candidates + 1)]  # the first i are not all dropped
    chosen: dict[int, int] = {}
    for number in draws.take(times):
        place = bisect_right(thresholds, number)
        chosen[place] = chosen.get(place, 0) + 1
    return chosen


class UnigramSampling:
    """Draws from the distribution of all segmentations, P(x)^strength up to a factor (Kudo, 2018)."""

    def __init__(
        self,
        words: Callable[[str], list[str]],
        scores: Mapping[str, tuple[int, float]],
        unknown: Callable[[str], Segmentation],
    ) -> None:
        """Stores `scores`, each piece's id and log-probability, and `unknown`, which returns the ids of a run of
        unknown characters."""
        self.words = words
        self._scores, self._unknown = scores, unknown
        self._longest = max(map(len, scores), default=1)
        self._unknown_score = min((score for _, score in scores.values()), default=0.0) - UNKNOWN_PENALTY

    def check(self, strength: float) -> None:
        if not 0.0 <= strength < math.inf:
            raise ValueError(f"subword sampling: expected an exponent, 0 or more; received {strength}")

    def draw(self, word: str, count: int, draws: Draws, strength: float) -> Mapping[Segmentation, int]:
        choices = self._choices(word, strength)
        # open_at[begin]: the drawn segmentations of word[begin:]
        open_at: list[dict[Segmentation, int]] = [{} for _ in range(len(word) + 1)]
        open_at[len(word)] = {(): count}
        for end in range(len(word), 0, -1):
            begins, ids, shares = choices[end]
            for tail, times in open_at[end].items():
                for number in draws.take(times):
                    place = bisect_right(shares, number)
                    at_begin, longer = open_at[begins[place]], (ids[place], *tail)
                    at_begin[longer] = at_begin.get(longer, 0) + 1
            open_at[end] = {}
        return {self._resolved(word, pieces): times for pieces, times in open_at[0].items()}

    def _choices(self, word: str, strength: float) -> list[tuple[list[int], list[int], list[float]]]:
        """Returns, for each end of a piece, the begins, the ids, and the cumulative probabilities of the pieces without
        the last."""
        length = len(word)
        edges: list[list[tuple[int, int, float]]] = [[] for _ in range(length + 1)]
        for begin in range(length):
            for end in range(begin + 1, min(length, begin + self._longest) + 1):
                found = self._scores.get(word[begin:end])
                if found is not None:
                    edges[end].append((begin, found[0], strength * found[1]))
                elif end == begin + 1:
                    edges[end].append((begin, -end, strength * self._unknown_score))
        total = [0.0] * (length + 1)  # the logarithm of the sum over all segmentations up to here
        choices: list[tuple[list[int], list[int], list[float]]] = [([], [], [])]
        for end in range(1, length + 1):
            weights = [total[begin] + score for begin, _, score in edges[end]]
            most = max(weights)
            shares = [math.exp(weight - most) for weight in weights]
            whole = sum(shares)
            total[end] = most + math.log(whole)
            summed, bounds = 0.0, []
            for share in shares[:-1]:
                summed += share / whole
                bounds.append(summed)
            choices.append(([begin for begin, _, _ in edges[end]], [index for _, index, _ in edges[end]], bounds))
        return choices

    def _resolved(self, word: str, pieces: Segmentation) -> Segmentation:
        """Replaces unknown characters, which were drawn as the negative of their ends, by their ids."""
        if min(pieces, default=0) >= 0:
            return pieces
        ids: list[int] = []
        run = ""
        for piece in (*pieces, 0):
            if piece < 0:
                run += word[-piece - 1]
                continue
            if run:
                ids += self._unknown(run)
                run = ""
            ids.append(piece)
        return tuple(ids[:-1])


# --- from tokenizers


def pipeline_segmenter(pipeline: Any) -> Segmenter:
    """Returns the segmenter of a `tokenizers.Tokenizer` with a BPE or Unigram model. Raises ValueError for any
    other."""
    model = json.loads(pipeline.to_str())["model"]
    kind = model["type"]
    added = [token.content for token in pipeline.get_added_tokens_decoder().values() if not token.special]
    if added:
        raise ValueError(
            "subword sampling: expected a tokenizer without added tokens but special ones; received "
            f"{', '.join(added[:10])}"
        )

    def words(sentence: str) -> list[str]:
        return split_words(sentence, pipeline)

    def looked_up(text: str) -> Segmentation:
        return tuple(token.id for token in pipeline.model.tokenize(text))

    if kind == "Unigram":
        scores = {
            piece: (index, score) for index, (piece, score) in enumerate(model["vocab"]) if index != model["unk_id"]
        }
        return UnigramSampling(words, scores, looked_up)
    marks = [name for name in ("continuing_subword_prefix", "end_of_word_suffix") if model.get(name)]
    if kind != "BPE" or marks:
        received = f"BPE with {', '.join(marks)}" if marks else kind
        raise ValueError(
            f"subword sampling: expected a bpe or unigram tokenizer; received one with the model {received}"
        )
    vocab: dict[str, int] = model["vocab"]
    ranks = {
        (vocab[left], vocab[right]): (float(rank), vocab[left + right])
        for rank, (left, right) in enumerate(
            pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]
        )
    }

    def symbols(word: str) -> Segmentation:
        known = [vocab.get(character) for character in word]
        return tuple(
            chain.from_iterable(
                looked_up(c) if index is None else (index,) for c, index in zip(word, known, strict=True)
            )
        )

    return BpeDropout(words, symbols, lambda left, right: ranks.get((left, right)))


def sentencepiece_segmenter(processor: Any, normalizer: Any, kind: str) -> Segmenter:
    """Returns the segmenter of a `sentencepiece.SentencePieceProcessor` of a kind. Raises ValueError for one without
    subwords, or one that joins words."""
    if kind not in ("unigram", "bpe"):
        raise ValueError(
            f"subword sampling: expected a bpe or unigram tokenizer; received a sentencepiece model of the kind {kind}"
        )
    pieces = [processor.id_to_piece(index) for index in range(len(processor))]
    tests = (processor.is_control, processor.is_unknown, processor.is_unused, processor.is_byte)
    scores = {
        piece: (i, processor.get_score(i)) for i, piece in enumerate(pieces) if not any(test(i) for test in tests)
    }
    joining = next((piece for piece in scores if SPACE_MARK in piece.lstrip(SPACE_MARK)), None)
    if joining is not None:
        raise ValueError(
            "subword sampling: expected a sentencepiece model whose pieces stay within words; received one with "
            f"{joining!r}"
        )
    has_bytes = any(processor.is_byte(index) for index in range(len(processor)))

    def words(sentence: str) -> list[str]:
        text = processor.normalize(normalizer.normalize_str(sentence))
        return re.findall(rf"{SPACE_MARK}+[^{SPACE_MARK}]*|[^{SPACE_MARK}]+", text)

    def unknown(text: str) -> Segmentation:
        if has_bytes:
            return tuple(processor.piece_to_id(f"<0x{byte:02X}>") for byte in text.encode("utf-8"))
        return (processor.unk_id(),)

    if kind == "unigram":
        return UnigramSampling(words, scores, unknown)

    def symbols(word: str) -> Segmentation:
        runs = groupby(word, key=scores.__contains__)
        return tuple(
            chain.from_iterable((scores[c][0] for c in run) if known else unknown("".join(run)) for known, run in runs)
        )

    def merge(left: int, right: int) -> tuple[float, int] | None:
        found = scores.get(pieces[left] + pieces[right])
        return None if found is None else (-found[1], found[0])

    return BpeDropout(words, symbols, merge)
