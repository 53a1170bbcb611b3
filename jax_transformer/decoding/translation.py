"""From sentences to sentences: batching by length, decoding, and putting the results back in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jax_transformer.decoding.decoding_config import DecodingConfig
from jax_transformer.decoding.generate import DecodingError, generate, starts_and_ends
from jax_transformer.decoding.shapes import limit, pad, round_length, round_rows
from jax_transformer.model_directory import Model


class TranslationError(DecodingError):
    """Sentences that the model can't translate."""


def translate(
    model: Model,
    sentences: Sequence[str],
    decoding: DecodingConfig | None = None,
    *,
    rows: int = 64,
    source_tag: str = "",
    on_batch: Callable[[int], None] | None = None,
) -> list[str]:
    """The best translation of each sentence, in order; an empty (or blank) sentence gives an empty one.

    Args:
      decoding: all of how to decode; by default, as the model says in its generation.json, or else greedily.
      rows: most sentences decoded at once.
      source_tag: put before every sentence: tells a multilingual model the target language. "" for none.
      on_batch: called after each batch with the number of sentences it held.

    Raises:
      TranslationError: the model has no tokenizers; a sentence is longer than the position table allows, named by its number (from 1).
      DecodingError: see `generate`.
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
        decoded = decode_ids(model, [source_ids[i] for i in batch], decoding, batch)
        for i, text in zip(batch, model.target_tokenizer.decode(decoded), strict=True):
            translations[i] = text
        if on_batch:
            on_batch(len(batch))
    return translations


def decode_ids(
    model: Model, source_ids: Sequence[Sequence[int]], decoding: DecodingConfig | None = None, numbers: Sequence[int] | None = None
) -> list[list[int]]:
    """The best target ids of each source, without start and end tokens; `numbers` as of `generate`."""
    config, (_, eos_id) = model.config, starts_and_ends(model)
    numbers = range(len(source_ids)) if numbers is None else numbers
    longest, fixed = max(len(ids) for ids in source_ids), model.generation.source_length or 0
    are_padded_alike = config.source_padding_is_invisible or longest <= fixed
    if len(source_ids) > 1 and not (are_padded_alike and config.batch_rows_are_independent):  # each as if it were the only one
        each = zip(source_ids, numbers, strict=True)
        return [decoded for ids, number in each for decoded in decode_ids(model, [ids], decoding, [number])]
    length = round_length(longest, limit(model, "source")) if config.source_padding_is_invisible else max(longest, fixed)
    padded = pad(source_ids, rows=round_rows(len(source_ids)), length=length, pad_id=config.source_pad_id)
    rows = [*numbers, *[0] * (len(padded) - len(source_ids))]
    sequences = generate(model, padded, decoding, sentence_numbers=rows).sequences[: len(source_ids), 0]
    return [_until(row.tolist(), eos_id) for row in sequences]


def _check_lengths(model: Model, source_ids: dict[int, list[int]]) -> None:
    most = limit(model, "source")
    too_long = [(i + 1, len(ids)) for i, ids in source_ids.items() if len(ids) > most]
    if too_long:
        listed = ", ".join(f"sentence {number} has {length}" for number, length in too_long[:5])
        raise TranslationError(
            f"expected at most {most} tokens a sentence, the model's longest; received: {listed}; split or leave them out"
        )


def _until(ids: list[int], eos_id: int) -> list[int]:
    return ids[: ids.index(eos_id)] if eos_id in ids else ids
