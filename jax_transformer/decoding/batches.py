"""Batch any number of sentences by length, without changing any result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import NamedTuple

import jax
import numpy as np

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.decoding.checks import check_at_least_1, check_count, check_decoding, check_ids, starts_and_ends
from jax_transformer.decoding.generation import Search
from jax_transformer.decoding.padding import few_lengths, limit, pad, round_length, round_rows
from jax_transformer.decoding.prepared import PreparedModel, prepare
from jax_transformer.decoding.streams import in_streams, num_cores
from jax_transformer.decoding.waves import Wave, decode_in_waves
from jax_transformer.storage.model_directory import Model

MOST_TOKENS = 8192
"""Source tokens decoded at once by default, padding counted."""


class Decoded(NamedTuple):
    """Holds a hypothesis."""

    ids: list[int]
    """Ids without the start token, up to and including the end token."""
    score: float
    """See DecodingConfig."""


def generate_each(
    model: Model,
    source_ids: Sequence[Sequence[int]],
    decoding: DecodingConfig | None = None,
    *,
    rows: int = 64,
    batch_tokens: int = MOST_TOKENS,
    prefix_ids: Sequence[int] = (),
    numbers: Sequence[int] | None = None,
    on_batch: Callable[[int], None] | None = None,
) -> list[list[Decoded]]:
    """Decodes each sentence as if it were alone; returns its hypotheses, best first.

    On a CPU, several batches are decoded at once, each on a core of its own, and sentences that have ended leave their
    batches. In float32, the last digits of scores may depend on the other sentences.

    Args:
      decoding: decoding options, merged with the model's own as `generate` merges them.
      rows: maximum number of sentences per batch.
      batch_tokens: maximum number of source tokens per batch, including padding. A longer sentence is decoded alone.
      prefix_ids: ids that every hypothesis begins with.
      numbers: for each sentence, the number that is combined with the seed for its random draws. Defaults to its index.
      on_batch: called when sentences have ended, with their number.

    Raises:
      DecodingError, ValueError: see `generate`.
    """
    check_at_least_1(rows=rows, batch_tokens=batch_tokens)
    model = prepare(model)
    decoding = (decoding or DecodingConfig()).resolved(model.generation)
    check_decoding(model, decoding, len(prefix_ids))
    numbers = range(len(source_ids)) if numbers is None else numbers
    check_count("numbers", len(numbers), len(source_ids))
    check_ids("source", source_ids, model.config.source_vocab_size)
    check_ids("prefix", [prefix_ids], model.config.target_vocab_size)
    decoded: list[list[Decoded]] = [[] for _ in source_ids]
    (_, eos_id), pad_id = starts_and_ends(model), model.config.target_pad_id
    ends = {eos_id, *(decoding.more_eos_ids or ())}

    fit = cache(partial(sources_fit, model, rows=rows, batch_tokens=batch_tokens))
    may_pad = model.config.source_padding_is_invisible
    lengths = few_lengths(map(len, source_ids), limit(model, "source")) if may_pad else []

    def length(batch: list[int]) -> int:
        longest = len(source_ids[batch[-1]])
        return next((length for length in lengths if length >= longest), longest)

    def fits(batch: list[int]) -> bool:
        return fit(len(batch), length(batch))

    on_cpu = model.mesh is None and jax.default_backend() == "cpu"
    batches = list(grouped(sorted(range(len(source_ids)), key=lambda i: len(source_ids[i])), fits))
    are_many = on_cpu and len(batches) >= 2 * num_cores()
    streams = num_cores() if are_many else 1
    if streams > 1:
        model.weights  # noqa: B018 - before several threads ask for them

    def waves(batches: list[list[int]]) -> Iterator[Wave]:
        for batch in batches:
            sources = padded_sources(model, [source_ids[i] for i in batch], length(batch))
            yield _started(model, decoding, batch, sources, prefix_ids, numbers, on_one_core=are_many)

    # One stream begins with the shortest, the next with the longest, so that they compile different programs.
    shares = [batches[i::streams][:: -1 if i % 2 else 1] for i in range(streams)]
    searches = [decode_in_waves(waves(share), merge=on_cpu) for share in shares]
    for ended in in_streams(searches):
        for i, (sequences, scores) in ended:
            decoded[i] = [
                Decoded(trimmed(ids, len(prefix_ids), ends, pad_id), score)
                for ids, score in zip(sequences.tolist(), scores.tolist(), strict=True)
            ]
        if on_batch and ended:
            on_batch(len(ended))
    return decoded


def _started(
    model: PreparedModel,
    decoding: DecodingConfig,
    batch: Sequence[int],
    sources: np.ndarray,
    prefix_ids: Sequence[int],
    numbers: Sequence[int],
    *,
    on_one_core: bool,
) -> Wave:
    """Starts to decode the sentences of a batch, whose sources are padded."""
    empty = len(sources) - len(batch)
    prefixes, numbers = [[*prefix_ids]] * len(batch) + [[]] * empty, [*(numbers[i] for i in batch), *[0] * empty]
    search = Search(model, decoding, sources, prefixes, numbers, on_one_core=on_one_core)
    return Wave(search, [*batch, *[None] * (search.shape[0] - len(batch))])


def sources_fit(model: Model, count: int, longest: int, *, rows: int, batch_tokens: int) -> bool:
    """Returns whether this many sources, the longest with this many tokens, fit into one batch."""
    tokens = round_rows(count) * padded_length(model, longest)
    return count <= rows and tokens <= batch_tokens and may_share(model, longest)


def may_share(model: Model, source_length: int) -> bool:
    """Returns whether padding a source of this many tokens, or moving it to another row, changes no result."""
    config, fixed = model.config, model.generation.source_length or 0
    return config.batch_rows_are_independent and (config.source_padding_is_invisible or source_length <= fixed)


def padded_length(model: Model, longest: int) -> int:
    """Returns the length to which a batch of sources is padded, from its longest."""
    if model.config.source_padding_is_invisible:
        return round_length(longest, limit(model, "source"))
    return max(longest, model.generation.source_length or 0)


def padded_sources(model: Model, source_ids: Sequence[Sequence[int]], length: int = 0) -> np.ndarray:
    """Returns the sources of a batch, [rows, S], in one of few shapes, S at least `length`. Rows beyond them hold pads
    alone."""
    length = padded_length(model, max(length, *map(len, source_ids)))
    return pad(source_ids, rows=round_rows(len(source_ids)), length=length, pad_id=model.config.source_pad_id)


def grouped(items: Iterable[int], fits: Callable[[list[int]], bool]) -> Iterator[list[int]]:
    """Yields the items in order, in the largest groups that fit, at least one item each."""
    group: list[int] = []
    for item in items:
        if group and not fits([*group, item]):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def trimmed(ids: list[int], prefix_length: int, ends: Collection[int], pad_id: int) -> list[int]:
    """Returns the ids up to and with the first end after the prefix, or without their padding if none ends them."""
    for place, index in enumerate(ids[prefix_length:], prefix_length + 1):
        if index in ends:
            return ids[:place]
    while ids and ids[-1] == pad_id:
        ids = ids[:-1]
    return ids
