"""Decoding of a batch of ids: greedy decoding, beam search and sampling behind one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.config.decoding import DecodingConfig, DecodingOptions
from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding import beam, sampling_loop
from jax_transformer.decoding.allowed import NOT_ASKED, AllowedTokens, allowed_by
from jax_transformer.decoding.cache import Weights
from jax_transformer.decoding.checks import (
    check_at_least_1,
    check_count,
    check_decoding,
    check_ids,
    merged_options,
    source_arrays,
    with_empty_rows,
)
from jax_transformer.decoding.padding import FEATURES_ROOM, LEAST_ROOM, limit, pad, round_length
from jax_transformer.decoding.prepared import PreparedModel, prepare
from jax_transformer.decoding.search_params import SamplingParams, SearchParams, SearchProgram
from jax_transformer.decoding.timestamps import TimestampRules
from jax_transformer.model.features import Features
from jax_transformer.parallel.placement import fetch, place_rows, row_shards
from jax_transformer.parallel.tracing import in_mesh
from jax_transformer.storage.model_directory import Model


class Generated(NamedTuple):
    """Holds the hypotheses of B sentences, best first.

    Example:
      >>> import numpy as np
      >>> generated = Generated(np.array([[[5, 2]]]), np.array([[-0.5]]))
      >>> generated.sequences[:, 0].tolist()  # the best of each sentence
      [[5, 2]]
    """

    sequences: np.ndarray
    """[B, num_return, T] int32: ids without the start token, up to and with the end token, then pads."""
    scores: np.ndarray
    """[B, num_return] float32: see DecodingConfig."""


def generate(
    model: Model,
    source_ids: np.ndarray | jax.Array | Sequence[Sequence[int]] | Features,
    decoding: DecodingConfig | None = None,
    *,
    prefix_ids: Sequence[Sequence[int]] | None = None,
    sentence_numbers: Sequence[int] | None = None,
    allowed: AllowedTokens | None = None,
    timestamps: TimestampRules | None = None,
    most_new: Sequence[int] | None = None,
    **options: Unpack[DecodingOptions],
) -> Generated:
    """Decodes a batch of B sentences.

    Settings in order of precedence: the options, `decoding`, the model's `generation.json`, the defaults.

    Decoding starts with room for a few tokens and doubles the room until all sentences have ended, so that few lengths
    are compiled. The room changes no result.

    Args:
      model: a Model, or a PreparedModel.
      source_ids: [B, S] integers, padded, or a list of each sentence's ids, which is padded here. A sentence of only
        pads gives pads. Ids are checked on the host, so `generate` can't run inside `jax.jit`. A model with a stem
        reads `Features`; a row of length 0 gives pads.
      decoding: decoding options as a config.
      prefix_ids: for each sentence, the ids that its hypotheses begin with.
      sentence_numbers: for each sentence, the number that is combined with the seed for its random draws. Defaults to
        the row. With fixed numbers, draws don't depend on the batch.
      allowed: a function of a sentence's number and the ids so far, without the start token, that returns the ids that
        may come next. It runs on the host at each step, also for hypotheses that have ended; a program is compiled for
        each function.
      timestamps: rules for the times in a transcript of speech. Scores then count the tokens that the rules allow.
      most_new: for each sentence, the most tokens after its prefix, where they are fewer than max_new_tokens.
      **options: fields of DecodingConfig, such as beam_size=4.

    Returns:
      Generated: sequences [B, num_return, T] int32 and scores [B, num_return] float32.

    Raises:
      ConfigError: an unknown option, one out of range, or two that contradict each other.
      DecodingError: the model has no decoder_start_id or eos_id; more beams than tokens in the vocabulary; ids outside
        it; `allowed` returns none; no room for a token after a prefix, or for min_new_tokens; different numbers of
        prefixes and sentences.
      ValueError: a source longer than the position table; source_ids without ids.

    Example:
      >>> import jax
      >>> from jax_transformer.config.decoding import GenerationConfig
      >>> from jax_transformer.config.model import TransformerConfig
      >>> from jax_transformer.model.functional import init_params
      >>> config = TransformerConfig(source_vocab_size=9, target_vocab_size=9, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1)
      >>> generation = GenerationConfig(decoder_start_id=1, eos_id=2, forced_bos_id=7)
      >>> model = Model(config, init_params(config, jax.random.key(0)), None, None, generation)
      >>> generated = generate(model, [[3, 4, 5], [6]], beam_size=2, max_new_tokens=4)
      >>> generated.sequences.shape, generated.sequences[:, 0, 0].tolist()
      ((2, 1, 4), [7, 7])
    """
    model = prepare(model)
    decoding = merged_options(decoding, options).resolved(model.generation)
    config = model.config
    source = source_arrays(model, source_ids)
    count = source.shape[0]
    prefix_ids = [[]] * count if prefix_ids is None else prefix_ids
    check_ids("prefix", prefix_ids, config.target_vocab_size)
    prefixes = [list(ids) for ids in prefix_ids]
    numbers = list(range(count) if sentence_numbers is None else sentence_numbers)
    check_decoding(model, decoding, max(map(len, prefixes), default=0))
    check_count("prefix_ids", len(prefixes), count)
    check_count("sentence_numbers", len(numbers), count)
    if most_new is not None:
        check_count("most_new", len(most_new), count)
        check_at_least_1(most_new=min(most_new, default=1))
    num_return = decoding.num_return or 1
    if not count:
        return Generated(np.zeros((0, num_return, 0), np.int32), np.zeros((0, num_return), np.float32))
    search = Search(
        model, decoding, source, prefixes, numbers, allowed=allowed, timestamps=timestamps, most_new=most_new
    )
    while not search.is_done:
        search.advance()
    return search.hypotheses()


class Search:
    """Holds a search in progress, with room for tokens that grows on demand.

    The room takes few different lengths, whatever `max_new_tokens` is, so that few programs are compiled.
    """

    def __init__(
        self,
        model: PreparedModel,
        decoding: DecodingConfig,
        source: np.ndarray | Features,
        prefixes: list[list[int]],
        numbers: list[int],
        *,
        on_one_core: bool = False,
        allowed: AllowedTokens | None = None,
        timestamps: TimestampRules | None = None,
        most_new: Sequence[int] | None = None,
    ) -> None:
        """Starts the search for sources, with resolved options that were checked.

        Args:
          on_one_core: compute on one core of a CPU, as other searches run on the others.
          allowed, timestamps, most_new: see `generate`.
        """
        config, most, self._count = model.config, limit(model, "target"), source.shape[0]
        self._model, self._decoding = model, decoding
        self._program = SearchProgram.from_config(decoding)._replace(timestamps=timestamps)
        if allowed is not None:
            self._program = self._program._replace(allowed=allowed_by(allowed))
        loop: Any = beam if self._program.uses_beams else sampling_loop
        start, run = _on_one_core(loop) if on_one_core else (loop.start, run_loop)
        self._run: Callable[..., Any] = partial(run, loop)
        filling = -self._count % row_shards(model.mesh)
        source = with_empty_rows(model, source, filling)
        prefixes, numbers = prefixes + [[]] * filling, numbers + [0] * filling
        lengths = np.array([len(ids) for ids in prefixes], int)
        max_new = np.minimum(min(decoding.max_new_tokens or most, most), most - lengths)
        if most_new is not None:
            max_new = np.minimum(max_new, [*most_new, *[1] * filling])
        self._last, self._most = int(np.max(lengths + max_new)), most
        # Room that stays empty costs attention time; another room, another program: a file is worth it.
        length = FEATURES_ROOM if isinstance(source, Features) else source.shape[1]
        expected, least = (length, 1) if on_one_core else (2 * length, LEAST_ROOM)
        self._room = round_length(max(min(expected, self._last), least), most)
        self.shape: tuple[int, int] = source.shape[0], source.shape[1]
        """Rows, rows that fill the batch included, and padded length of the sources."""
        with in_mesh(model.mesh):
            self._params = make_search_params(model, decoding, max_new, prefixes, numbers, source)
            if allowed is not None:
                asked: Any = np.array(numbers[: self._count] + [NOT_ASKED] * filling, np.int32)
                self._params = self._params._replace(numbers=asked)
            source = place_rows(source, model.mesh)
            self._state = start(config, self._program, model.weights, source, self._params, self._room)
        self.length = 0
        """Tokens decoded so far, prefixes counted."""
        self.has_ended = np.zeros(self.shape[0], bool)
        """Whether all hypotheses of each row have ended, [rows]."""

    @property
    def is_done(self) -> bool:
        """Returns whether all hypotheses have ended."""
        return self.length >= self._last or bool(self.has_ended.all())

    def advance(self, column: int | None = None, size: int = 0) -> None:
        """Decodes until the room is full; if it is full already, makes room for twice as many tokens first.

        Args:
          column: stop when so many tokens are decoded, prefixes counted. None: no such limit.
          size: stop when the hypotheses of at most so many rows go on.
        """
        model = self._model
        if self.length == self._room:
            self._room = round_length(2 * self._room, self._most)
            with in_mesh(model.mesh):
                self._state = _grown(self._state, model.config, self._room)
        limits = np.int32(self._room if column is None else min(column, self._room)), np.int32(size)
        with in_mesh(model.mesh):
            self._state, progress = self._run(
                model.config, self._program, model.weights, self._params, self._state, *limits
            )
            length, ended, *self._found = fetch(progress)
        if self._program.allowed is not None:
            self._program.allowed.check()
        self.length, self.has_ended = int(length), np.array(ended)

    def hypotheses(self) -> Generated:
        """Returns the hypotheses that the last call of `advance` found, best first."""
        sequences, scores = self._found
        num_return = self._decoding.num_return or 1
        return Generated(
            sequences[: self._count, :num_return, : min(self._room, self._last)], scores[: self._count, :num_return]
        )

    def take_rows(self, into: list[int], other: Search, rows: list[int]) -> None:
        """Replaces some rows, at most half, by those of another search, which must be alike and as far."""
        sources = np.full(self.shape[0], -1, np.int32)
        sources[into] = rows
        self._state = _with_rows(self._state, other._state, sources)
        self._params = self._params.with_rows(into, other._params, rows)
        self.has_ended[into] = False
        self._count = self.shape[0]  # also rows that filled the batch


def _run_and_report(
    loop: Any,
    config: TransformerConfig,
    program: SearchProgram,
    weights: Weights,
    params: SearchParams,
    state: Any,
    until: np.int32,
    size: np.int32,
) -> tuple[Any, tuple[jax.Array, ...]]:
    """Runs a loop, one of the modules `beam` and `sampling_loop`; returns the new state with what the host reads.

    That is the number of tokens, whether each row has ended [B], and the hypotheses' tokens and scores.
    """
    state = loop.run(config, program, weights, params, state, until, size)
    return state, (state.state.position, state.is_done, *state.hypotheses(params))


_RUN: dict[str, Any] = {"static_argnames": ("loop", "config", "program"), "donate_argnames": "state"}
run_loop = jax.jit(_run_and_report, **_RUN)


@cache
def _on_one_core(loop: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns a loop's `start`, and `run_loop`, compiled such that no operation of them is divided among a CPU's cores,
    and maxima are computed with vectors, as if no number were NaN."""
    options = {"xla_cpu_multi_thread_eigen": False, "xla_cpu_enable_fast_min_max": True}
    compiled: Any = partial(jax.jit, compiler_options=options)
    start = compiled(loop.start.__wrapped__, static_argnames=("config", "program", "length"))
    return start, compiled(_run_and_report, **_RUN)


@partial(jax.jit, static_argnums=(1, 2))
def _grown(state: Any, config: TransformerConfig, length: int) -> Any:
    """Returns a loop's state with room for `length` tokens."""
    return state.grown(config, length)


@partial(jax.jit, donate_argnums=0)
def _with_rows(state: Any, other: Any, sources: jax.Array) -> Any:
    """Returns the state in which row b is row sources[b] of the other state, or its own if that is -1."""

    def replaced(mine: jax.Array, theirs: jax.Array) -> jax.Array:
        # A CPU selects among gathered rows several times as fast as it scatters them, and compiles it in less time.
        if not mine.ndim:
            return mine
        moves = jnp.expand_dims(sources >= 0, range(1, mine.ndim))
        return jnp.where(moves, jnp.take(theirs, sources, axis=0, mode="clip"), mine)

    return jax.tree.map(replaced, state, other)


def make_search_params(
    model: Model,
    decoding: DecodingConfig,
    max_new: int | np.ndarray,
    prefixes: Sequence[Sequence[int]] = (),
    numbers: Sequence[int] = (),
    source: np.ndarray | Features | None = None,
) -> SearchParams:
    """Returns the numbers that a search takes, on the host; see `generate` for the arguments, which must be checked and
    complete.

    Args:
      max_new: the maximum number of tokens to decode, for all sentences or for each, [B].
      source: the sources [B, S], padded, for `encoder_no_repeat_ngram`.
    """
    settings: Any = decoding  # every option is set
    tokens: Any = model.generation  # has both ids
    counts = np.arange(limit(model, "target") + 1, dtype=np.float64)  # so that the shape depends on the model alone
    base = (5 + counts) / 6 if settings.semantics == "gnmt" else np.maximum(counts, 1)
    penalties = (base**settings.length_penalty).astype(np.float32)
    search = SearchParams.from_numbers(
        tokens.decoder_start_id, tokens.eos_id, model.config.target_pad_id, max_new, penalties, settings.min_new_tokens,
        settings.forced_bos_id, settings.forced_eos_id, settings.repetition_penalty, settings.diversity_penalty,
    )  # fmt: skip
    if settings.encoder_no_repeat_ngram and source is not None and not isinstance(source, Features):
        unpadded: Any = np.where(source == model.config.source_pad_id, -1, source)
        search = search._replace(source=unpadded)
    if any(prefixes):
        length = round_length(max(map(len, prefixes)), limit(model, "target"))
        ids: Any = pad(prefixes, pad_id=-1, length=length)
        search = search._replace(prefix=ids)
    if settings.sampling:
        keys = _sentence_keys(jax.random.key(settings.seed), np.asarray(numbers))
        number: Any = np.float32
        temperature, top_p, min_p = map(number, (settings.temperature, settings.top_p, settings.min_p))
        search = search._replace(sampling=SamplingParams(temperature, top_p, min_p, keys))
    return search


@jax.jit
def _sentence_keys(key: jax.Array, numbers: jax.Array) -> jax.Array:
    return jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)
