"""From pairs of sentences to how probable they are: batching by length, scoring, and putting the results back in
order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np

from jax_transformer.config.decoding import NO_ID
from jax_transformer.decoding.batches import grouped, may_share, padded_length, padded_sources
from jax_transformer.decoding.checks import check_at_least_1, check_count, starts_and_ends
from jax_transformer.decoding.padding import WITHOUT_TABLE, num_positions, round_length, round_rows
from jax_transformer.decoding.scoring import perplexity, score
from jax_transformer.decoding.target_tags import with_target_tag
from jax_transformer.decoding.translation import tokenizers_of
from jax_transformer.storage.model_directory import Model

BATCHES = 64
"""Number of batches whose pairs are sorted by length together."""
MOST_LOGITS = 1 << 27
"""Maximum number of logits per batch (512 MiB in float32); batches of long targets have fewer rows."""

Ids = tuple[list[int], list[int]]
"""The ids of a source and of its target."""


class Problem(NamedTuple):
    """Describes why a pair has no score."""

    side: Literal["source", "target"]
    message: str


@dataclass(frozen=True, eq=False)
class PairScore:
    """Holds the log-probability of a target given its source."""

    token_log_probs: np.ndarray
    """[T]: the log-probability of each token after its prefix, the end token last; T is 0 with a problem."""
    unknown: int = 0
    """Number of target tokens outside the vocabulary."""
    problem: Problem | None = None

    @property
    def log_prob(self) -> float:
        """Returns the log-probability of the whole target; NaN with a problem."""
        return float(self.token_log_probs.sum(dtype=np.float64)) if self.problem is None else math.nan

    @property
    def perplexity(self) -> float:
        """Returns the perplexity per token; see `scoring.perplexity`."""
        return perplexity(self.log_prob, len(self.token_log_probs))

    def as_json(self) -> dict[str, Any]:
        """Returns the score's fields for JSON: null for a number that isn't finite; the problem, if any, as `error`."""
        error = {"error": f"{self.problem.side}: {self.problem.message}"} if self.problem else {}
        return {
            "log_prob": finite(self.log_prob),
            "tokens": len(self.token_log_probs),
            "perplexity": finite(self.perplexity),
            "token_log_probs": [finite(value) for value in self.token_log_probs.tolist()],
            **error,
        }


def finite(value: float) -> float | None:
    """Returns the number for JSON, with six digits after the point: None unless it is finite."""
    return round(value, 6) if math.isfinite(value) else None


def score_pairs(
    model: Model, pairs: Iterable[tuple[str, str]], *, rows: int = 64, source_tag: str = "", target_tag: str = ""
) -> Iterator[PairScore]:
    """Yields the score of each target with its end token, in order. A blank source or an overlong side is a problem of
    its pair only.

    A first token that decoding forces, such as the tag of the target's language or BART's <s>, precedes the target, and
    counts as certain.

    It reads a few thousand pairs at a time, and pads batches to one of few shapes. If padding changes the model's
    results, it scores pairs one by one.

    Args:
      pairs: sources and targets; a blank target has only an end token.
      rows: maximum number of pairs per batch.
      source_tag: precedes every source, as the target language of a multilingual model. "" for none.
      target_tag: begins every target, as in `translate --target-tag`. "": from the model's generation.json.

    Raises (at the first score):
      DecodingError: the model has no tokenizers, or doesn't know how sentences begin and end.
      ValueError: the model lacks the source_tag or target_tag.
    """
    check_at_least_1(rows=rows)
    tokenizers_of(model)
    model, forced = with_target_tag(model, target_tag)
    forced = forced if target_tag else model.generation.forced_bos_id
    remaining = iter(pairs)
    while some := list(islice(remaining, BATCHES * rows)):
        encoded = encode_pairs(model, some, source_tag=source_tag, forced=forced)
        fine = [pair for pair in encoded if pair.problem is None]
        sources, targets = [pair.source_ids for pair in fine], [pair.target_ids for pair in fine]
        found = iter(score_ids(model, sources, targets, rows=rows) if fine else ())
        for pair in encoded:
            yield PairScore(np.zeros(0), problem=pair.problem) if pair.problem else pair.scored(next(found))


class EncodedPair(NamedTuple):
    """Holds the ids of a source and its target, which ends and may begin with tokens that decoding adds."""

    source_ids: list[int]
    target_ids: list[int]
    num_forced: int
    """Tokens at the target's start that decoding forces, which aren't scored."""
    unknown: int
    """Number of target tokens outside the vocabulary."""
    problem: Problem | None

    def scored(self, log_probs: np.ndarray) -> PairScore:
        """Returns the pair's score, given the log-probability of each of target_ids."""
        return PairScore(log_probs[self.num_forced :], self.unknown)


def encode_pairs(
    model: Model, pairs: Sequence[tuple[str, str]], *, source_tag: str = "", forced: int | None = None
) -> list[EncodedPair]:
    """Returns the ids of each pair, or its problem.

    Args:
      model: the model from `with_target_tag`.
      pairs: sources and targets.
      source_tag: as for `score_pairs`.
      forced: the id that begins every target; None or NO_ID for none.

    Raises:
      DecodingError, ValueError: as for `score_pairs`.
    """
    source_tokenizer, target_tokenizer = tokenizers_of(model)
    _, eos_id = starts_and_ends(model)
    first = [] if forced in (None, NO_ID) else [forced]
    target_tokenizer = target_tokenizer.adding(bos=False, eos=False)
    source_ids = source_tokenizer.encode([source for source, _ in pairs], source_tag)
    target_ids = [[*first, *ids, eos_id] for ids in target_tokenizer.encode([target for _, target in pairs])]
    return [
        EncodedPair(*ids, len(first), ids[1].count(target_tokenizer.unk_id), _problem(model, source, ids))
        for (source, _), ids in zip(pairs, zip(source_ids, target_ids, strict=True), strict=True)
    ]


def score_ids(
    model: Model, source_ids: Sequence[Sequence[int]], target_ids: Sequence[Sequence[int]], *, rows: int = 64
) -> list[np.ndarray]:
    """Returns the log-probability of each token of each target, in order, as `score` does for a batch.

    Raises:
      DecodingError: see `score`.
    """
    check_at_least_1(rows=rows)
    check_count("target_ids", len(target_ids), len(source_ids))
    scores = [np.zeros(0)] * len(source_ids)
    by_length = sorted(
        range(len(source_ids)), key=lambda i: (padded_length(model, len(source_ids[i])), len(target_ids[i]))
    )

    def fits(batch: list[int]) -> bool:
        longest = max(len(source_ids[i]) for i in batch), max(len(target_ids[i]) for i in batch)
        return pairs_fit(model, len(batch), *longest, rows=rows)

    for batch in grouped(by_length, fits):
        padded = padded_sources(model, [source_ids[i] for i in batch])
        targets = [target_ids[i] for i in batch]
        found = score(model, padded, [*targets, *[[]] * (len(padded) - len(batch))]).token_log_probs
        for i, row in zip(batch, found, strict=False):
            scores[i] = row[: len(target_ids[i])]
    return scores


def pairs_fit(model: Model, count: int, longest_source: int, longest_target: int, *, rows: int) -> bool:
    """Returns whether this many pairs, with these longest sides, fit into one batch."""
    logits = round_rows(count) * round_length(longest_target, WITHOUT_TABLE) * model.config.target_vocab_size
    return count <= rows and logits <= MOST_LOGITS and may_share(model, longest_source)


def _problem(model: Model, source: str, ids: Ids) -> Problem | None:
    if not source.strip():
        return Problem("source", "expected a sentence; received an empty line")
    sides: tuple[Literal["source", "target"], ...] = ("source", "target")
    for side, sequence in zip(sides, ids, strict=True):
        most = num_positions(model, side) or WITHOUT_TABLE
        if len(sequence) > most:
            return Problem(side, f"expected at most {most} tokens, the model's longest; received {len(sequence)}")
    return None
