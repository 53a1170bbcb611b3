"""What can't be decoded, told before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.decoding.padding import limit, pad
from jax_transformer.storage.model_directory import Model


class DecodingError(ValueError):
    """What the model can't decode, or not so."""


def starts_and_ends(model: Model) -> tuple[int, int]:
    """The id that the decoder starts with, and that which ends a sentence. Raises DecodingError where the model doesn't
    know."""
    start_id, eos_id = model.generation.decoder_start_id, model.generation.eos_id
    if start_id is None or eos_id is None:
        raise DecodingError(
            f"expected decoder_start_id and eos_id in the model's generation.json; received {start_id} and {eos_id}: "
            "port it with its "
            "vocabularies, or give them by name"
        )
    return start_id, eos_id


def check_decoding(model: Model, decoding: DecodingConfig, longest_prefix: int = 0) -> None:
    """Raises DecodingError where no sentence could be decoded so, after a prefix of so many tokens."""
    starts_and_ends(model)
    size, most = model.config.target_vocab_size, limit(model, "target")
    if decoding.beam_size > size:
        raise DecodingError(
            f"beam_size must be at most the target vocabulary's {size} tokens; received {decoding.beam_size}"
        )
    if longest_prefix >= most:
        raise DecodingError(
            f"prefix: expected at most {most - 1} tokens, so that there is room for another; received {longest_prefix}"
        )
    room = min(decoding.max_new_tokens or most, most - longest_prefix)
    if decoding.min_new_tokens >= room:
        raise DecodingError(
            f"min_new_tokens must be below the {room} that there is room for; received {decoding.min_new_tokens}"
        )
    forced = [i for i in (decoding.forced_bos_id, decoding.forced_eos_id) if i is not None]
    check_ids("target", [*decoding.bad_words, forced], size)


def check_ids(name: str, sequences: Sequence[Sequence[int]], size: int) -> None:
    """Raises DecodingError for an id that isn't one of a vocabulary's of this size."""
    flat = np.array([i for ids in sequences for i in ids] or [0])
    if flat.dtype.kind not in "iu" or flat.min() < 0 or flat.max() >= size:
        wrong = next(i for i in flat.tolist() if not isinstance(i, int) or not 0 <= i < size)
        raise DecodingError(f"{name}_ids: expected integers from 0 to {size - 1}; received {wrong}")


def source_array(model: Model, source_ids: np.ndarray | Sequence[Sequence[int]]) -> np.ndarray:
    """[B, S]: as it is, or of lists padded. Raises DecodingError for other arrays, and ids outside of the
    vocabulary."""
    if isinstance(source_ids, np.ndarray) and source_ids.ndim != 2:
        raise DecodingError(f"source_ids: expected [B, S]; received {list(source_ids.shape)}")
    if isinstance(source_ids, np.ndarray) and source_ids.dtype.kind not in "iu":
        raise DecodingError(f"source_ids: expected integers; received {source_ids.dtype}")
    check_ids("source", source_ids, model.config.source_vocab_size)  # type: ignore[arg-type]
    return source_ids if isinstance(source_ids, np.ndarray) else pad(source_ids, pad_id=model.config.source_pad_id)


def check_count(name: str, received: int, sentences: int) -> None:
    """Raises DecodingError unless there is one for each sentence."""
    if received != sentences:
        raise DecodingError(f"{name}: expected one for each of {sentences} sentences; received {received}")


def check_at_least_1(**values: int) -> None:
    """Raises DecodingError for a value below 1."""
    for name, value in values.items():
        if value < 1:
            raise DecodingError(f"{name} must be at least 1; received {value}")
