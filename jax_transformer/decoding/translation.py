"""From sentences to sentences: batching by length, decoding, and putting the results back in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from jax_transformer.decoding.greedy import greedy
from jax_transformer.model_directory import Model

ROWS = (1, 8, 64)
"""Batches have one of these numbers of rows, padded with empty ones, so that few programs are compiled."""
SHORTEST = 16
"""Source and target lengths are rounded up to this times a power of two, for the same reason."""


class TranslationError(ValueError):
    """Sentences that the model can't translate."""


def translate(
    model: Model, sentences: Sequence[str], *, rows: int = 64, source_tag: str = "", on_batch: Callable[[int], None] | None = None
) -> list[str]:
    """The greedy translation of each sentence, in order; an empty (or blank) sentence gives an empty one.

    Args:
      rows: most sentences decoded at once.
      source_tag: put before every sentence: tells a multilingual model the target language. "" for none.
      on_batch: called after each batch with the number of sentences it held.

    Raises:
      TranslationError: the model has no tokenizers; a sentence is longer than the position table allows, named by its number (from 1).
      ValueError: a source_tag that the model doesn't have.
    """
    if model.source_tokenizer is None or model.target_tokenizer is None:
        raise TranslationError(
            "expected a model with tokenizers; this one has none: train it here, or port it together with its vocabularies"
        )
    filled = [i for i, sentence in enumerate(sentences) if sentence.strip()]
    encoded = model.source_tokenizer.encode([sentences[i] for i in filled], source_tag)
    source_ids = dict(zip(filled, encoded, strict=True))
    _check_lengths(model, source_ids)

    translations = [""] * len(sentences)
    by_length = sorted(filled, key=lambda i: len(source_ids[i]))
    for start in range(0, len(by_length), rows):
        batch = by_length[start : start + rows]
        decoded = decode_ids(model, [source_ids[i] for i in batch])
        for i, text in zip(batch, model.target_tokenizer.decode(decoded), strict=True):
            translations[i] = text
        if on_batch:
            on_batch(len(batch))
    return translations


def decode_ids(model: Model, source_ids: Sequence[Sequence[int]]) -> list[list[int]]:
    """The greedy target ids of each source, without start and end tokens.

    Sources are decoded to twice their length at first; those that haven't ended by then, again with room for twice as much, up to
    the model's max_decode_length, so that the room taken doesn't change a result.
    """
    config, (start_id, eos_id) = model.config, _decoding_ids(model)
    longest, fixed = max(len(ids) for ids in source_ids), model.generation.source_length or 0
    are_padded_alike = config.source_padding_is_invisible or longest <= fixed
    if len(source_ids) > 1 and not (are_padded_alike and config.batch_rows_are_independent):
        return [decoded for ids in source_ids for decoded in decode_ids(model, [ids])]  # each as if it were the only one
    length = _round_length(longest, limit(model, "source")) if config.source_padding_is_invisible else max(longest, fixed)
    padded = _pad(source_ids, rows=_round_rows(len(source_ids)), length=length, pad_id=config.source_pad_id)
    most = limit(model, "target")
    room = _round_length(2 * longest, most)
    while True:
        tokens = np.asarray(
            greedy(
                config, model.params, padded,
                decoder_start_id=start_id, eos_id=eos_id, max_decode_length=room,
            )
        )[: len(source_ids)]  # fmt: skip
        has_ended = (tokens == eos_id).any(axis=1)
        if has_ended.all() or room == most:
            return [_until(row.tolist(), eos_id) for row in tokens]
        room = _round_length(2 * room, most)


def _decoding_ids(model: Model) -> tuple[int, int]:
    """The id that the decoder starts with, and that which ends a sentence."""
    start_id, eos_id = model.generation.decoder_start_id, model.generation.eos_id
    if start_id is None or eos_id is None:
        raise TranslationError(
            f"expected decoder_start_id and eos_id in the model's generation.json; received {start_id} and {eos_id}: port it with its "
            "vocabularies, or give them by name"
        )
    return start_id, eos_id


def limit(model: Model, side: str) -> int:
    """Most tokens that the model takes ("source") or decodes ("target"), <eos> included."""
    config = model.config
    has_table = config.position_kind in ("sinusoidal", "learned") and config.position_index != "batch_row"
    if side == "source":
        return config.encoder.max_length if has_table else 1 << 16
    longest = config.decoder.max_length if has_table else 512
    return min(longest, model.generation.max_decode_length or longest)


def _check_lengths(model: Model, source_ids: dict[int, list[int]]) -> None:
    most = limit(model, "source")
    too_long = [(i + 1, len(ids)) for i, ids in source_ids.items() if len(ids) > most]
    if too_long:
        listed = ", ".join(f"sentence {number} has {length}" for number, length in too_long[:5])
        raise TranslationError(
            f"expected at most {most} tokens a sentence, the model's longest; received: {listed}; split or leave them out"
        )


def _round_rows(count: int) -> int:
    return next((rows for rows in ROWS if rows >= count), count)


def _round_length(length: int, most: int) -> int:
    rounded = SHORTEST
    while rounded < length:
        rounded *= 2
    return min(rounded, most)


def _pad(sequences: Sequence[Sequence[int]], *, rows: int, length: int, pad_id: int) -> np.ndarray:
    """[rows, length] int32, filled with pads."""
    padded = np.full((rows, length), pad_id, np.int32)
    for row, ids in zip(padded, sequences, strict=False):
        row[: len(ids)] = ids
    return padded


def _until(ids: list[int], eos_id: int) -> list[int]:
    return ids[: ids.index(eos_id)] if eos_id in ids else ids
