"""From pairs of sentences to how probable they are: batching by length, scoring, and putting the results back in order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

import jax
import numpy as np

from jax_transformer.decoding.generate import DecodingError, starts_and_ends
from jax_transformer.decoding.scoring import perplexity, score
from jax_transformer.decoding.shapes import WITHOUT_TABLE, limit, num_positions, pad, round_length, round_rows
from jax_transformer.model_directory import Model

BATCHES = 64
"""So many are made of the pairs that are sorted by length together."""
MOST_LOGITS = 1 << 27
"""Of one batch, half a gigabyte in float32: of long targets there are fewer rows."""

Ids = tuple[list[int], list[int]]
"""The ids of a source and of its target."""


class Problem(NamedTuple):
    """Why a pair has no score."""

    side: Literal["source", "target"]
    message: str


@dataclass(frozen=True, eq=False)
class PairScore:
    """How probable a target is as the translation of its source."""

    token_log_probs: np.ndarray
    """[T]: the log-probability of each token after those before it, the end token last; with a problem T is 0."""
    unknown: int = 0
    """How many of the tokens stand for what the vocabulary doesn't have."""
    problem: Problem | None = None

    @property
    def log_prob(self) -> float:
        """Of the whole target; NaN with a problem."""
        return float(self.token_log_probs.sum(dtype=np.float64)) if self.problem is None else math.nan

    @property
    def perplexity(self) -> float:
        """Of a token: see `scoring.perplexity`."""
        return perplexity(self.log_prob, len(self.token_log_probs))


def score_pairs(model: Model, pairs: Iterable[tuple[str, str]], *, rows: int = 64, source_tag: str = "") -> Iterator[PairScore]:
    """How probable each target is, its end counted, in order; a blank source, or too long a side, is a problem of that pair alone.

    Pairs are read a few thousand at a time. Batches are padded to one of few shapes where padding changes nothing; otherwise pairs are
    scored one by one.

    Args:
      pairs: sources and targets; a blank target is an end alone.
      rows: most pairs scored at once.
      source_tag: put before every source: tells a multilingual model the target language. "" for none.

    Raises (when the first score is asked for):
      DecodingError: the model has no tokenizers, or doesn't know how sentences begin and end.
      ValueError: a source_tag that the model doesn't have.
    """
    source_tokenizer, target_tokenizer = model.source_tokenizer, model.target_tokenizer
    if source_tokenizer is None or target_tokenizer is None:
        raise DecodingError("expected a model with tokenizers; this one has none: port it together with its vocabularies")
    _, eos_id = starts_and_ends(model)
    model = dataclasses.replace(model, params=jax.device_put(model.params))  # once, not with every batch
    target_tokenizer = target_tokenizer.adding(bos=False, eos=False)
    remaining = iter(pairs)
    while some := list(islice(remaining, BATCHES * rows)):
        sources, targets = zip(*some, strict=True)
        target_ids = [[*ids, eos_id] for ids in target_tokenizer.encode(targets)]
        encoded = list(zip(source_tokenizer.encode(sources, source_tag), target_ids, strict=True))
        problems = [_problem(model, source, ids) for source, ids in zip(sources, encoded, strict=True)]
        scores = [PairScore(np.zeros(0), problem=problem) for problem in problems]
        for batch in _batches(model, {i: encoded[i] for i, problem in enumerate(problems) if problem is None}, rows):
            for i, log_probs in zip(batch, _score_batch(model, [encoded[i] for i in batch]), strict=True):
                scores[i] = PairScore(log_probs, encoded[i][1].count(target_tokenizer.unk_id))
        yield from scores


def _problem(model: Model, source: str, ids: Ids) -> Problem | None:
    if not source.strip():
        return Problem("source", "expected a sentence; received an empty line")
    sides: tuple[Literal["source", "target"], ...] = ("source", "target")
    for side, sequence in zip(sides, ids, strict=True):
        most = num_positions(model, side) or WITHOUT_TABLE
        if len(sequence) > most:
            return Problem(side, f"expected at most {most} tokens, the model's longest; received {len(sequence)}")
    return None


def _batches(model: Model, pairs: dict[int, Ids], rows: int) -> Iterator[list[int]]:
    """The keys of the pairs in batches of similar lengths; alone are those that other rows or padding would change."""
    config, fixed = model.config, model.generation.source_length or 0

    def may_share(i: int) -> bool:
        return config.batch_rows_are_independent and (config.source_padding_is_invisible or len(pairs[i][0]) <= fixed)

    yield from ([i] for i in pairs if not may_share(i))
    batch: list[int] = []
    longest = 0
    for i in sorted(filter(may_share, pairs), key=lambda i: (_rounded(len(pairs[i][0])), len(pairs[i][1]))):
        longest = max(longest, len(pairs[i][1]))
        logits = round_rows(len(batch) + 1) * _rounded(longest) * config.target_vocab_size
        if batch and (len(batch) == rows or logits > MOST_LOGITS):
            yield batch
            batch, longest = [], len(pairs[i][1])
        batch.append(i)
    if batch:
        yield batch


def _score_batch(model: Model, pairs: Sequence[Ids]) -> list[np.ndarray]:
    """The log-probabilities of each target's tokens."""
    config, fixed = model.config, model.generation.source_length or 0
    sources, targets = zip(*pairs, strict=True)
    longest, rows = max(map(len, sources)), round_rows(len(pairs))
    length = round_length(longest, limit(model, "source")) if config.source_padding_is_invisible else max(longest, fixed)
    padded = pad(sources, rows=rows, length=length, pad_id=config.source_pad_id)
    found = score(model, padded, [*targets, *[[]] * (rows - len(pairs))]).token_log_probs
    return [row[: len(target)] for row, target in zip(found, targets, strict=False)]


def _rounded(length: int) -> int:
    return round_length(length, WITHOUT_TABLE)
