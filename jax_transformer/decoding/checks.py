"""Checks of a model, its inputs and its decoding options before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jax_transformer.config.decoding import LISTS_OF_IDS, NO_ID, DecodingConfig, DecodingOptions
from jax_transformer.decoding.padding import limit, pad
from jax_transformer.model.arguments import check_source
from jax_transformer.model.features import Features
from jax_transformer.parallel.placement import add_rows
from jax_transformer.runtime.arguments import check_id_lists
from jax_transformer.storage.model_directory import Model

MOST_MAGNITUDE = 30.0
"""Decimal exponent of the largest and, negated, of the smallest power of a length that divides scores. float32 holds
10^±38, and a score of 10^5 must still fit."""


class DecodingError(ValueError):
    """Raised when a model can't decode its input, or not with these options.

    Example:
      >>> issubclass(DecodingError, ValueError)
      True
    """


def check_model(model: Any) -> None:
    """Raises DecodingError for anything but a Model."""
    if not isinstance(model, Model):
        raise DecodingError(
            "model: expected a Model, the first argument: as load_model and import_checkpoint return it, or "
            "Model(config, params, source_tokenizer, target_tokenizer, generation); received "
            f"{type(model).__name__}"
        )


def merged_options(decoding: DecodingConfig | None, options: DecodingOptions) -> DecodingConfig:
    """Merges options by name over those of `decoding`.

    Raises:
      ConfigError: an unknown option, or one out of range.
      DecodingError: `decoding` isn't a DecodingConfig.
    """
    if decoding is not None and not isinstance(decoding, DecodingConfig):
        raise DecodingError(
            f"decoding: expected a DecodingConfig, or options by name such as beam_size=4; received "
            f"{type(decoding).__name__}"
        )
    return (decoding or DecodingConfig()).updated(**options)


def starts_and_ends(model: Model) -> tuple[int, int]:
    """Returns the ids that start and end a target.

    Raises:
      DecodingError: the model's generation.json doesn't have them, or has one that its vocabulary lacks.
    """
    start_id, eos_id = model.generation.decoder_start_id, model.generation.eos_id
    target = model.target_tokenizer
    if start_id is None and eos_id is not None and target is not None and target.tag_is_last:
        some = ", ".join(target.tags[:5])
        raise DecodingError(
            f"expected a target tag, which starts this model's decoder; received none. Give --target-tag, one of {some}"
            f"{', …' if len(target.tags) > 5 else ''}, or decoder_start_id by name"
        )
    if start_id is None or eos_id is None:
        raise DecodingError(
            f"expected decoder_start_id and eos_id in the model's generation.json; received {start_id} and {eos_id}: "
            "port it with its vocabularies, or give them by name"
        )
    # A model in memory may have an eos_id outside the vocabulary: its sentences then run to the maximum length.
    outside = model.generation.ids_outside(model.config.target_vocab_size, but="eos_id")
    if outside:
        raise DecodingError(f"generation: {'; '.join(outside)}")
    return start_id, eos_id


def check_decoding(model: Model, decoding: DecodingConfig, longest_prefix: int = 0) -> None:
    """Checks resolved decoding options, for prefixes of at most this many tokens.

    Raises:
      DecodingError: no sentence can be decoded with them.
    """
    starts_and_ends(model)
    settings: Any = decoding  # every option is set
    size, most = model.config.target_vocab_size, limit(model, "target")
    if settings.beam_size > size:
        raise DecodingError(
            f"beam_size must be at most the target vocabulary's {size} tokens; received {settings.beam_size}"
        )
    if longest_prefix >= most:
        raise DecodingError(
            f"prefix: expected at most {most - 1} tokens, to leave room for one more; received {longest_prefix}"
        )
    room = min(settings.max_new_tokens or most, most - longest_prefix)
    if settings.min_new_tokens >= room:
        raise DecodingError(
            f"min_new_tokens must be below the {room} tokens that fit; received {settings.min_new_tokens}"
        )
    most_penalty = MOST_MAGNITUDE / math.log10(max(most, 10))
    if abs(settings.length_penalty) > most_penalty:
        raise DecodingError(
            f"length_penalty must be from {-most_penalty:.3g} to {most_penalty:.3g}, since float32 holds no larger "
            f"powers of {most} tokens, the model's longest; received {settings.length_penalty:g}"
        )
    if settings.encoder_no_repeat_ngram and model.config.stem is not None:
        raise DecodingError(
            "encoder_no_repeat_ngram compares ids of the source with ids of the target: expected 0 for a model whose "
            f"source is features; received {settings.encoder_no_repeat_ngram}"
        )
    tokenizers = model.source_tokenizer, model.target_tokenizer
    if settings.encoder_no_repeat_ngram and not model.config.share_embeddings and None not in tokenizers:
        source, target = tokenizers
        if not source.has_vocabulary_of(target):  # type: ignore[union-attr, arg-type]
            raise DecodingError(
                "encoder_no_repeat_ngram compares ids of the source with ids of the target: expected a model with one "
                "vocabulary for both; this one has two"
            )
    forced = [i for i in (settings.forced_bos_id, settings.forced_eos_id) if i != NO_ID]
    lists = [getattr(settings, name) for name in LISTS_OF_IDS]
    check_ids("target", [*settings.bad_words, *lists, forced], size)


def check_ids(name: str, sequences: Sequence[Sequence[int]], size: int) -> None:
    """Raises ValueError for anything but sequences of ids, DecodingError for an id outside of a vocabulary of this
    size."""
    check_id_lists(f"{name}_ids", sequences)
    flat = np.array([i for ids in sequences for i in ids] or [0])
    if flat.dtype.kind not in "iu" or flat.min() < 0 or flat.max() >= size:
        wrong = next(i for i in flat.tolist() if not isinstance(i, int) or not 0 <= i < size)
        raise DecodingError(f"{name}_ids: expected integers from 0 to {size - 1}; received {wrong}")


def source_arrays(
    model: Model, source_ids: np.ndarray | jax.Array | Sequence[Sequence[int]] | Features
) -> np.ndarray | Features:
    """Returns the sources as an array [B, S], lists padded, or as features of arrays with lengths.

    Raises:
      DecodingError: an array of another shape or dtype; ids outside of the vocabulary.
      ValueError: neither an array nor a list of each sentence's ids; features that the model doesn't read, or none
        where it does.
    """
    if model.config.stem is not None or isinstance(source_ids, Features):
        check_source("generate", model.config, source_ids)
        assert isinstance(source_ids, Features)  # as the check requires
        vectors, lengths = source_ids
        full = np.full(len(vectors), vectors.shape[1], np.int32)
        return Features(np.asarray(vectors), full if lengths is None else np.asarray(lengths))
    if hasattr(source_ids, "ndim"):
        source_ids = np.asarray(source_ids)  # of JAX's or PyTorch's arrays too
    if isinstance(source_ids, np.ndarray) and source_ids.ndim != 2:
        raise DecodingError(f"source_ids: expected [B, S]; received {list(source_ids.shape)}")
    if isinstance(source_ids, np.ndarray) and source_ids.dtype.kind not in "iu":
        raise DecodingError(f"source_ids: expected integers; received {source_ids.dtype}")
    check_ids("source", source_ids, model.config.source_vocab_size)  # type: ignore[arg-type]
    return source_ids if isinstance(source_ids, np.ndarray) else pad(source_ids, pad_id=model.config.source_pad_id)


def with_empty_rows(model: Model, source: np.ndarray | Features, count: int) -> np.ndarray | Features:
    """Returns sources as `source_arrays` does, with `count` more rows of padding alone."""
    if isinstance(source, Features):
        return Features(*(add_rows(np.asarray(array), count) for array in source))
    return add_rows(source, count, model.config.source_pad_id)


def check_count(name: str, received: int, sentences: int) -> None:
    """Raises DecodingError unless the counts are equal."""
    if received != sentences:
        raise DecodingError(f"{name}: expected one for each of {sentences} sentences; received {received}")


def check_at_least_1(**values: int) -> None:
    """Raises DecodingError for a value below 1."""
    for name, value in values.items():
        if value < 1:
            raise DecodingError(f"{name} must be at least 1; received {value}")
