"""From source ids to hypotheses: greedy decoding, beam search and sampling behind one function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.decoding import beam, chains
from jax_transformer.decoding.decoding_config import DecodingConfig
from jax_transformer.decoding.shapes import limit, pad, round_length
from jax_transformer.decoding.terms import Drawing, Terms
from jax_transformer.decoding.weights import weights_of
from jax_transformer.model_directory import Model


class DecodingError(ValueError):
    """What the model can't decode, or not so."""


class Generated(NamedTuple):
    """Hypotheses of B sentences, the best of each first."""

    sequences: np.ndarray
    """[B, num_return, T] int32: ids without the start token, up to and with the end token, and pads after it."""
    scores: np.ndarray
    """[B, num_return] float32: see DecodingConfig."""


def generate(
    model: Model,
    source_ids: np.ndarray | Sequence[Sequence[int]],
    decoding: DecodingConfig | None = None,
    *,
    prefix_ids: Sequence[Sequence[int]] | None = None,
    sentence_numbers: Sequence[int] | None = None,
) -> Generated:
    """Decodes a batch.

    Targets are decoded with room for some tokens at first, and where some have not ended then, all go on with room for twice as many, so
    that what is compiled depends on few lengths; the room changes no result.

    Args:
      source_ids: [B, S], padded, or a list of each sentence's ids, which is padded here. A sentence of pads alone gives nothing.
      decoding: all of how to decode; by default, as the model says in its generation.json, which is greedily where that says nothing.
      prefix_ids: of each sentence, ids that its hypotheses begin with.
      sentence_numbers: what each sentence draws by, beside the seed; by default its row. So drawn, hypotheses don't depend on the batch.

    Raises:
      DecodingError: the model doesn't know how sentences begin and end; more beams than the vocabulary has tokens; ids outside of it; no
        room for a token after a prefix.
      ValueError: a source longer than the position table allows.
    """
    decoding = decoding or DecodingConfig.for_model(model.generation)
    config = model.config
    source = source_ids if isinstance(source_ids, np.ndarray) else pad(source_ids, pad_id=config.source_pad_id)
    prefixes = [list(ids) for ids in prefix_ids] if prefix_ids is not None else [[] for _ in source]
    check_decoding(model, decoding)
    _check_ids(model, source, prefixes)
    if not len(source):
        return Generated(np.zeros((0, decoding.num_return, 0), np.int32), np.zeros((0, decoding.num_return), np.float32))
    count = len(source)
    numbers = list(range(count) if sentence_numbers is None else sentence_numbers)
    if (
        count * decoding.num_rows == 1 and config.batch_rows_are_independent
    ):  # on a CPU, XLA multiplies by two rows thrice as fast as by one
        source, prefixes, numbers = np.concatenate([source, np.full_like(source, config.source_pad_id)]), [*prefixes, []], [*numbers, 0]
    most = limit(model, "target")
    longest = max((len(ids) for ids in prefixes), default=0)
    if longest >= most:
        raise DecodingError(f"prefix_ids: expected at most {most - 1} ids, so that there is room for another; received {longest}")
    max_new = np.minimum(decoding.max_new_tokens or most, most - np.array([len(ids) for ids in prefixes], int))
    if decoding.min_new_tokens >= max_new.min(initial=most):
        raise DecodingError(f"min_new_tokens must be below the model's most, {max_new.min()}; received {decoding.min_new_tokens}")
    terms = _terms(model, decoding, max_new, prefixes, numbers)
    program, weights = decoding.program(), weights_of(model)
    search: Any = chains if decoding.sampling or (decoding.beam_size == 1 and decoding.semantics != "floydhub") else beam
    last = int(max(len(ids) + count for ids, count in zip(prefixes, max_new, strict=True)))
    room = round_length(min(2 * source.shape[1], last), last)
    under_way = _STARTS[search](config, program, weights, source, terms, room)
    while True:
        under_way = search.run(config, program, weights, terms, under_way)
        if room >= last or bool(np.all(under_way.is_done)):
            break
        room = round_length(2 * room, last)
        under_way = under_way.grown(config, room)
    sequences, scores = under_way.hypotheses(terms)
    return Generated(np.asarray(sequences[:count, : decoding.num_return]), np.asarray(scores[:count, : decoding.num_return]))


_STARTS = {search: jax.jit(search.start, static_argnames=("config", "decoding", "length")) for search in (chains, beam)}


def starts_and_ends(model: Model) -> tuple[int, int]:
    """The id that the decoder starts with, and that which ends a sentence. Raises DecodingError where the model doesn't know."""
    start_id, eos_id = model.generation.decoder_start_id, model.generation.eos_id
    if start_id is None or eos_id is None:
        raise DecodingError(
            f"expected decoder_start_id and eos_id in the model's generation.json; received {start_id} and {eos_id}: port it with its "
            "vocabularies, or give them by name"
        )
    return start_id, eos_id


def check_decoding(model: Model, decoding: DecodingConfig) -> None:
    """Raises DecodingError where `generate` could decode no sentence so."""
    starts_and_ends(model)
    size = model.config.target_vocab_size
    if decoding.beam_size > size:
        raise DecodingError(f"beam_size must be at most the target vocabulary's {size} tokens; received {decoding.beam_size}")
    _check_target_ids(model, [*decoding.bad_words, [i for i in (decoding.forced_bos_id, decoding.forced_eos_id) if i is not None]])


def _check_target_ids(model: Model, sequences: Sequence[Sequence[int]]) -> None:
    size = model.config.target_vocab_size
    outside = [i for ids in sequences for i in ids if not 0 <= i < size]
    if outside:
        raise DecodingError(f"expected target ids from 0 to {size - 1}; received {outside[0]}")


def _check_ids(model: Model, source: np.ndarray, prefixes: list[list[int]]) -> None:
    _check_target_ids(model, prefixes)
    if len(prefixes) != len(source):
        raise DecodingError(f"prefix_ids: expected one prefix for each of {len(source)} sentences; received {len(prefixes)}")
    if source.ndim != 2 or source.dtype.kind not in "iu":
        raise DecodingError(f"source_ids: expected integers [B, S]; received {source.dtype} {list(source.shape)}")
    if source.size and not 0 <= source.min() <= source.max() < model.config.source_vocab_size:
        raise DecodingError(
            f"source_ids: expected ids from 0 to {model.config.source_vocab_size - 1}; received {source.min()} to {source.max()}"
        )


def _terms(model: Model, decoding: DecodingConfig, max_new: np.ndarray, prefixes: list[list[int]], numbers: list[int]) -> Terms:
    start_id, eos_id = starts_and_ends(model)
    counts = np.arange(limit(model, "target") + 1, dtype=np.float64)  # so that the shape depends on the model alone
    base = (5 + counts) / 6 if decoding.semantics == "gnmt" else np.maximum(counts, 1)
    penalties = jnp.asarray(base**decoding.length_penalty, jnp.float32)
    terms = Terms.of_numbers(start_id, eos_id, model.config.target_pad_id, max_new, penalties, decoding.min_new_tokens)
    if any(prefixes):
        length = round_length(max(map(len, prefixes)), limit(model, "target"))
        terms = terms._replace(forced=jnp.asarray(pad(prefixes, pad_id=-1, length=length)))
    if decoding.sampling:
        key = jax.random.key(decoding.seed)
        keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(np.asarray(numbers))
        temperature, top_p, min_p = map(jnp.float32, (decoding.temperature, decoding.top_p, decoding.min_p))
        terms = terms._replace(drawing=Drawing(temperature, top_p, min_p, keys))
    return terms
