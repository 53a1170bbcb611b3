"""Greedy decoding and sampling of one sentence, a few tokens at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.decoding.batches import Decoded, padded_sources, trimmed
from jax_transformer.decoding.checks import DecodingError, check_decoding, starts_and_ends
from jax_transformer.decoding.generation import Search
from jax_transformer.decoding.prepared import prepare
from jax_transformer.decoding.search_params import SearchProgram
from jax_transformer.storage.model_directory import Model


class Step(NamedTuple):
    """Holds a hypothesis that may still grow."""

    decoded: Decoded
    is_last: bool


def decode_stepwise(
    model: Model,
    source_ids: Sequence[int],
    decoding: DecodingConfig | None = None,
    *,
    tokens: Callable[[], int],
    prefix_ids: Sequence[int] = (),
    number: int = 0,
) -> Iterator[Step]:
    """Yields the growing hypothesis. The last one equals that of `generate_each`.

    Args:
      decoding: decoding options, merged with the model's own as `generate` merges them.
      tokens: called before each step; returns how many tokens to decode in it, at least 1.
      prefix_ids: ids that the hypothesis begins with.
      number: the number that is combined with the seed for random draws.

    Raises (at the first step):
      DecodingError: the options ask for several hypotheses; see `generate`.
    """
    model = prepare(model)
    decoding = (decoding or DecodingConfig()).resolved(model.generation)
    check_decoding(model, decoding, len(prefix_ids))
    program = SearchProgram.from_config(decoding)
    if program.uses_beams or program.num_rows > 1:
        raise DecodingError(
            "expected greedy decoding, or sampling with num_return=1, to decode a few tokens at a time; received "
            f"beam_size={decoding.beam_size} and num_return={decoding.num_return}"
        )
    (_, eos_id), pad_id = starts_and_ends(model), model.config.target_pad_id
    ends = {eos_id, *(decoding.more_eos_ids or ())}
    search = Search(model, decoding, padded_sources(model, [source_ids])[:1], [[*prefix_ids]], [number])
    while not search.is_done:
        search.advance(search.length + max(tokens(), 1))
        found = search.hypotheses()
        tokens_so_far = found.sequences[0, 0, : search.length].tolist()
        ids = trimmed(tokens_so_far, len(prefix_ids), ends, pad_id)
        yield Step(Decoded(ids, found.scores[0, 0].item()), search.is_done)
