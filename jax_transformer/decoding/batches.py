"""Any number of sentences, as ids: those of similar lengths together, where the others of a batch don't change what one
gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.decoding.checks import check_at_least_1, check_count, check_decoding, starts_and_ends
from jax_transformer.decoding.generate import generate
from jax_transformer.decoding.padding import limit, pad, round_length, round_rows
from jax_transformer.storage.model_directory import Model

MOST_TOKENS = 8192


class Decoded(NamedTuple):
    """A hypothesis."""

    ids: list[int]
    """Without the start token; the end token last, if it was reached."""
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
    """The hypotheses of each sentence, in order, the best first, as if it were decoded alone.

    Args:
      decoding: as of `generate`.
      rows: most sentences decoded at once.
      batch_tokens: most source tokens decoded at once, padding counted; a sentence of more is decoded alone.
      prefix_ids: what every hypothesis begins with.
      numbers: what each sentence draws by, beside the seed; by default its place.
      on_batch: called after each batch with the number of sentences that it held.

    Raises:
      DecodingError, ValueError: see `generate`.
    """
    check_at_least_1(rows=rows, batch_tokens=batch_tokens)
    check_decoding(model, decoding or DecodingConfig.for_model(model.generation), len(prefix_ids))
    numbers = range(len(source_ids)) if numbers is None else numbers
    check_count("numbers", len(numbers), len(source_ids))
    found: list[list[Decoded]] = [[] for _ in source_ids]

    def fits(batch: list[int]) -> bool:
        longest = len(source_ids[batch[-1]])
        tokens = round_rows(len(batch)) * padded_length(model, longest)
        return len(batch) <= rows and tokens <= batch_tokens and may_share(model, longest)

    for batch in grouped(sorted(range(len(source_ids)), key=lambda i: len(source_ids[i])), fits):
        padded = padded_sources(model, [source_ids[i] for i in batch])
        empty = len(padded) - len(batch)
        prefixes = [*[prefix_ids] * len(batch), *[[]] * empty]
        generated = generate(
            model, padded, decoding, prefix_ids=prefixes, sentence_numbers=[*(numbers[i] for i in batch), *[0] * empty]
        )
        for i, sequences, scores in zip(batch, generated.sequences.tolist(), generated.scores.tolist(), strict=False):
            found[i] = [
                Decoded(_ended(model, ids, len(prefix_ids)), score)
                for ids, score in zip(sequences, scores, strict=True)
            ]
        if on_batch:
            on_batch(len(batch))
    return found


def may_share(model: Model, source_length: int) -> bool:
    """Whether a source of so many tokens may be padded, and stand in any row of a batch."""
    config, fixed = model.config, model.generation.source_length or 0
    return config.batch_rows_are_independent and (config.source_padding_is_invisible or source_length <= fixed)


def padded_length(model: Model, longest: int) -> int:
    """What sources of a batch are padded to, the longest of which has so many tokens."""
    if model.config.source_padding_is_invisible:
        return round_length(longest, limit(model, "source"))
    return max(longest, model.generation.source_length or 0)


def padded_sources(model: Model, source_ids: Sequence[Sequence[int]]) -> np.ndarray:
    """[rows, S]: the sources of a batch in one of few shapes; rows beyond them are of pads alone."""
    length = padded_length(model, max(map(len, source_ids)))
    return pad(source_ids, rows=round_rows(len(source_ids)), length=length, pad_id=model.config.source_pad_id)


def grouped(items: Iterable[int], fits: Callable[[list[int]], bool]) -> Iterator[list[int]]:
    """The items in order, in groups as large as they fit, or of one."""
    group: list[int] = []
    for item in items:
        if group and not fits([*group, item]):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def _ended(model: Model, ids: list[int], forced: int) -> list[int]:
    """Up to and with the first end after the forced ids; without the padding of what has none."""
    _, eos_id = starts_and_ends(model)
    if eos_id in ids[forced:]:
        return ids[: ids.index(eos_id, forced) + 1]
    while ids and ids[-1] == model.config.target_pad_id:
        ids = ids[:-1]
    return ids
