"""From source ids to hypotheses: greedy decoding, beam search and sampling behind one function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.decoding import beam
from jax_transformer.decoding import sampling_loop as chains
from jax_transformer.decoding.checks import check_count, check_decoding, check_ids, source_array, starts_and_ends
from jax_transformer.decoding.padding import limit, pad, round_length
from jax_transformer.decoding.search_params import Drawing, Terms
from jax_transformer.decoding.weights import weights_of
from jax_transformer.storage.model_directory import Model


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

    Targets are decoded with room for some tokens at first, and where some have not ended then, all go on with room for
    twice as many, so that what is compiled depends on few lengths; the room changes no result.

    Args:
      source_ids: [B, S], padded, or a list of each sentence's ids, which is padded here. A sentence of pads alone gives
        nothing.
      decoding: all of how to decode; by default, as the model says in its generation.json, which is greedily where that
        says nothing.
      prefix_ids: of each sentence, ids that its hypotheses begin with.
      sentence_numbers: what each sentence draws by, beside the seed; by default its row. So drawn, hypotheses don't
        depend on the batch.

    Raises:
      DecodingError: the model doesn't know how sentences begin and end; more beams than the vocabulary has tokens; ids
        outside of it; no room for a token after a prefix, or for the least number of tokens; other numbers of prefixes
        than of sentences.
      ValueError: a source longer than the position table allows.
    """
    decoding = decoding or DecodingConfig.for_model(model.generation)
    config = model.config
    source = source_array(model, source_ids)
    count = len(source)
    prefixes = [list(ids) for ids in prefix_ids] if prefix_ids is not None else [[]] * count
    numbers = list(range(count) if sentence_numbers is None else sentence_numbers)
    check_decoding(model, decoding, max(map(len, prefixes), default=0))
    check_ids("prefix", prefixes, config.target_vocab_size)
    check_count("prefix_ids", len(prefixes), count)
    check_count("sentence_numbers", len(numbers), count)
    if not count:
        return Generated(
            np.zeros((0, decoding.num_return, 0), np.int32), np.zeros((0, decoding.num_return), np.float32)
        )
    if count * decoding.num_rows == 1 and config.batch_rows_are_independent:
        # on a CPU, XLA multiplies by two rows thrice as fast as by one
        source, prefixes, numbers = (
            np.concatenate([source, np.full_like(source, config.source_pad_id)]),
            [*prefixes, []],
            [*numbers, 0],
        )
    most = limit(model, "target")
    max_new = np.minimum(
        min(decoding.max_new_tokens or most, most), most - np.array([len(ids) for ids in prefixes], int)
    )
    terms = _terms(model, decoding, max_new, prefixes, numbers)
    program, weights = decoding.program(), weights_of(model)
    search: Any = (
        chains if decoding.sampling or (decoding.beam_size == 1 and decoding.semantics != "floydhub") else beam
    )
    last = max(len(ids) + int(more) for ids, more in zip(prefixes, max_new, strict=True))
    room = round_length(min(2 * source.shape[1], last), last)
    under_way = _STARTS[search](config, program, weights, source, terms, room)
    while True:
        under_way = search.run(config, program, weights, terms, under_way)
        if room >= last or bool(np.all(under_way.is_done)):
            break
        room = round_length(2 * room, last)
        under_way = under_way.grown(config, room)
    sequences, scores = under_way.hypotheses(terms)
    return Generated(
        np.asarray(sequences[:count, : decoding.num_return]), np.asarray(scores[:count, : decoding.num_return])
    )


_STARTS = {search: jax.jit(search.start, static_argnames=("config", "decoding", "length")) for search in (chains, beam)}


def _terms(
    model: Model, decoding: DecodingConfig, max_new: np.ndarray, prefixes: list[list[int]], numbers: list[int]
) -> Terms:
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
