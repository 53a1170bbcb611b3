"""Runs the model of a server: tokenizes requests, and computes batches and streams on its device."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.data.tokenizers import NO_WORD, Tokenizer, Words, words_of_ids, words_of_text
from jax_transformer.decoding.alignment import cross_attention, entropies
from jax_transformer.decoding.batches import generate_each, padded_length, sources_fit
from jax_transformer.decoding.checks import check_decoding, starts_and_ends
from jax_transformer.decoding.padding import ROWS, limit, round_length, round_rows
from jax_transformer.decoding.pairs import EncodedPair, PairScore, encode_pairs, finite, pairs_fit, score_ids
from jax_transformer.decoding.prepared import PreparedModel
from jax_transformer.decoding.search_params import SearchProgram
from jax_transformer.decoding.stepwise import Step, decode_stepwise
from jax_transformer.decoding.target_tags import with_target_tag
from jax_transformer.decoding.translation import (
    Part,
    Translation,
    encode_prefix,
    sentence_parts,
    tokenizers_of,
    with_texts,
)
from jax_transformer.serving.limits import Limits, Refusal
from jax_transformer.serving.metrics import compiled_programs
from jax_transformer.serving.requests import ScoreRequest, TranslateRequest
from jax_transformer.serving.work import Attending, Kind, Scoring, Translating, Unit

FORGET_SECONDS = 600.0
"""Seconds within which all compiled programs may make room for another kind of search once."""
WORTH = 0.5
"""Share of the largest batch that must be filled: it takes about as long as four of the next smaller."""
PAIRS_AT_ONCE = 8
"""Pairs whose attention is computed, one after the other, before other work has its turn."""
WEIGHT_DIGITS = 4
"""Decimal places of attention weights in answers."""
KNOWN_OPTIONS = 256
"""Combinations of options whose checked searches are kept."""
MOST_PROGRAMS = 1_000
"""Compiled programs at once. Each takes some thirty memory mappings, of which Linux gives a process 65,530."""


class Texts(NamedTuple):
    """Holds a tokenized request for translations."""

    kind: Translating
    parts: list[list[Part]]
    """Of each text."""
    units: list[Unit]
    """One for each part."""
    source_tag: str


class Pairs(NamedTuple):
    """Holds a tokenized request for scores."""

    kind: Scoring
    pairs: list[EncodedPair]
    units: list[Unit]


class Attended(NamedTuple):
    """Holds the pairs of source and translation whose attention a request asks for."""

    kind: Attending
    units: list[Unit]
    """One for each part of each hypothesis of each text, in this order: text, hypothesis, part."""


class WarmUp(NamedTuple):
    """Holds a function that compiles the programs for one kind of batch."""

    name: str
    """What the programs are for, such as "8 texts of up to 16 tokens"."""
    compile: Callable[[], object]


class Engine:
    """Knows how requests become units and units become answers.

    `compute` and `steps` belong to the device's thread; other threads may call the other methods at the same time.
    """

    def __init__(
        self,
        model: PreparedModel,
        limits: Limits,
        *,
        rows: int = 64,
        batch_tokens: int = 4096,
        source_tag: str = "",
        target_tag: str = "",
    ) -> None:
        """Wraps a model whose `generation` has the server's own decoding options.

        Args:
          rows: most sentences to decode at once.
          batch_tokens: most source tokens to decode at once, padding included.
          source_tag, target_tag: for requests that don't set them.

        Raises:
          DecodingError, ValueError: the model has no tokenizers; it can't decode; it doesn't have the tags; its own
            options exceed a limit.
        """
        self.model, self.limits, self.rows, self.batch_tokens = model, limits, rows, batch_tokens
        self._tags = source_tag, target_tag
        self._variants: dict[str, tuple[PreparedModel, int | None]] = {"": (model, None)}
        self._searches = Searches(limits.max_searches)
        self._searched = lru_cache(maxsize=KNOWN_OPTIONS)(self._search)
        source_tokenizer, _ = tokenizers_of(model)
        source_tokenizer.encode([""], source_tag)
        variant, forced = self._variant(target_tag)
        self.default = DecodingConfig(forced_bos_id=forced).resolved(variant.generation)
        check_decoding(variant, self.default)
        hypotheses = Translating(target_tag, self.default, ()).hypotheses
        if hypotheses > limits.max_beam_size:
            raise ValueError(
                f"--max-beam-size must be at least {hypotheses}, which the model's or the server's own options follow; "
                f"received {limits.max_beam_size}"
            )
        self._searches.admit(SearchProgram.from_config(self.default))

    # --- from requests to units

    def texts(self, request: TranslateRequest) -> Texts:
        """Tokenizes the texts of a request.

        Raises:
          Refusal: the model can't follow the options; a text is too long; too many kinds of searches.
        """
        source_tag, target_tag = self._tags_of(request)
        try:
            kind, program = self._searched(tuple(request.given.items()), target_tag, request.prefix)
            model, _ = self._variant(target_tag)
            parts, problems = sentence_parts(model, request.texts, source_tag, request.split_long)
        except ValueError as error:
            raise Refusal(422, str(error).replace("--target-tag", "target_tag")) from None
        for index, problem in problems.items():
            raise Refusal(422, f"texts[{index}]: {problem}")
        for index, each in enumerate(parts):
            for part in each:
                self.limits.check("max_tokens", len(part.source_ids), "tokens", f"texts[{index}]")
        self._searches.admit(program)
        units = [Unit(part.source_ids, number=number) for number, each in enumerate(parts) for part in each]
        return Texts(kind, parts, units, source_tag)

    def _search(
        self, given: tuple[tuple[str, Any], ...], target_tag: str, prefix: str
    ) -> tuple[Translating, SearchProgram]:
        """Returns the search of a request that sets some options, and its program.

        Raises:
          Refusal, ValueError: the model can't follow the options; there are more hypotheses than the limit.
        """
        model, forced = self._variant(target_tag)
        decoding = DecodingConfig(**dict(given)).updated(forced_bos_id=forced).resolved(model.generation)
        prefix_ids = tuple(encode_prefix(model, prefix)) if prefix else ()
        kind = Translating(target_tag, decoding, prefix_ids)
        self.limits.check("max_beam_size", kind.hypotheses, "hypotheses for each text")
        check_decoding(model, decoding, len(prefix_ids))
        return kind, SearchProgram.from_config(decoding)

    def pairs(self, request: ScoreRequest) -> Pairs:
        """Tokenizes the pairs of a request. Raises Refusal as `texts` does."""
        source_tag, target_tag = self._tags_of(request)
        try:
            model, forced = self._variant(target_tag)
            forced = forced if target_tag else model.generation.forced_bos_id
            texts = list(zip(request.sources, request.targets, strict=True))
            pairs = encode_pairs(model, texts, source_tag=source_tag, forced=forced)
        except ValueError as error:
            raise Refusal(422, str(error).replace("--target-tag", "target_tag")) from None
        for index, pair in enumerate(pairs):
            if pair.problem:
                raise Refusal(422, f"{pair.problem.side}s[{index}]: {pair.problem.message}")
            for side, ids in (("sources", pair.source_ids), ("targets", pair.target_ids)):
                self.limits.check("max_tokens", len(ids), "tokens", f"{side}[{index}]")
        return Pairs(Scoring(target_tag), pairs, [Unit(pair.source_ids, pair.target_ids) for pair in pairs])

    def attended(self, texts: Texts, results: Sequence[Any]) -> Attended:
        """Returns the pairs whose attention belongs to the answer for these texts, given the hypotheses of each unit.

        Raises:
          Refusal: they have more weights than an answer may have.
        """
        units, remaining = [], iter(results)
        for parts in texts.parts:
            found = [next(remaining) for _ in parts]
            for rank in range(texts.kind.decoding.num_return or 1):
                units += [Unit(part.source_ids, each[rank].ids) for part, each in zip(parts, found, strict=True)]
        count = sum(self._weights_per_pair(len(unit.source_ids), len(unit.target_ids)) for unit in units)
        self.limits.check("max_weights", count, "attention weights in an answer", "attention")
        return Attended(Attending(texts.kind.target_tag), units)

    # --- batches

    def fits(self, kind: Kind, units: Sequence[Unit]) -> bool:
        """Returns whether units make one batch."""
        if isinstance(kind, Attending):
            return len(units) <= PAIRS_AT_ONCE
        longest = max(len(unit.source_ids) for unit in units)
        fit = sources_fit(self.model, len(units), longest, rows=self.rows, batch_tokens=self.batch_tokens)
        if isinstance(kind, Scoring):
            targets = max(len(unit.target_ids) for unit in units)
            return fit and pairs_fit(self.model, len(units), longest, targets, rows=self.rows)
        return fit

    def shape(self, kind: Kind, unit: Unit) -> tuple[int, ...]:
        """Returns the padded lengths of a unit's source and target."""
        return padded_length(self.model, len(unit.source_ids)), round_length(len(unit.target_ids), 1 << 30)

    def size(self, waiting: int) -> int:
        """Returns the number of units to take into a batch: a batch of few rows and mostly padding costs more."""
        small, large = ROWS[-2:]
        return small if small < waiting < WORTH * large else waiting

    def fill(self, kind: Kind, units: Sequence[Unit]) -> float:
        """Returns the share of a batch's source tokens that isn't padding."""
        longest = max(len(unit.source_ids) for unit in units)
        return sum(len(unit.source_ids) for unit in units) / (
            round_rows(len(units)) * padded_length(self.model, longest)
        )

    def compute(self, kind: Kind, units: Sequence[Unit]) -> Sequence[Any]:
        """Returns the result of each unit of a batch: its hypotheses, or log-probabilities. On the device's thread."""
        self._searches.forget_if_asked()
        model, _ = self._variant(kind.target_tag)
        sources = [unit.source_ids for unit in units]
        if isinstance(kind, Scoring):
            return score_ids(model, sources, [unit.target_ids for unit in units], rows=self.rows)
        if isinstance(kind, Attending):
            return [cross_attention(model, unit.source_ids, unit.target_ids) for unit in units]  # in few shapes
        return generate_each(
            model,
            sources,
            kind.decoding,
            rows=self.rows,
            batch_tokens=self.batch_tokens,
            prefix_ids=kind.prefix_ids,
            numbers=[unit.number for unit in units],
        )

    def target_tokens(self, unit: Unit, result: Any) -> int:
        """Returns the tokens of a unit's result: of all hypotheses, or of the unit's own target."""
        return sum(len(found.ids) for found in result) if isinstance(result, list) else len(unit.target_ids)

    def steps(self, kind: Translating, unit: Unit, tokens: Callable[[], int]) -> Iterator[Step]:
        """Yields a unit's hypothesis as it grows; see `decode_stepwise`. On the device's thread."""
        self._searches.forget_if_asked()
        model, _ = self._variant(kind.target_tag)
        return decode_stepwise(
            model, unit.source_ids, kind.decoding, tokens=tokens, prefix_ids=kind.prefix_ids, number=unit.number
        )

    def warm_ups(self, longest: int) -> Iterator[WarmUp]:
        """Yields what compiles the programs of the default search, for sources of up to so many tokens."""
        kind = Translating(self._tags[1], self.default, ())
        word = next(i for i in range(self.model.config.source_vocab_size) if i != self.model.config.source_pad_id)
        most = min(longest, limit(self.model, "source"))
        length = 0
        while length < most:
            length = round_length(length + 1, most)
            unit = Unit([word] * length)
            room = min(2 * length, limit(self.model, "target"))
            room = max(room, (self.default.min_new_tokens or 0) + 1)
            some = dataclasses.replace(kind, decoding=self.default.updated(max_new_tokens=room))
            for rows in sorted({min(rows, self.rows) for rows in (*ROWS, round_rows(self.rows))}):
                if self.fits(kind, [unit] * rows):
                    texts = "1 text" if rows == 1 else f"{rows} texts"
                    yield WarmUp(f"{texts} of up to {length} tokens", partial(self.compute, some, [unit] * rows))
            translated = unit._replace(target_ids=[starts_and_ends(self.model)[1]] * min(length, room))
            attending = partial(self.compute, Attending(self._tags[1]), [translated])
            yield WarmUp(f"the attention of a text of up to {length} tokens", attending)
            if some.can_stream:
                steps = self.steps(some, unit, lambda: 8)
                yield WarmUp(f"a stream of a text of up to {length} tokens", partial(list[Step], steps))

    # --- answers

    def translations(self, texts: Texts, results: Sequence[Any]) -> list[dict[str, Any]]:
        """Returns the answer for each text, given the hypotheses of each unit."""
        remaining, (model, _) = iter(results), self._variant(texts.kind.target_tag)
        found = [
            Translation([part._replace(hypotheses=with_texts(model, next(remaining))) for part in parts])
            for parts in texts.parts
        ]
        return [self._translation(each, texts.kind) for each in found]

    def add_attention(
        self, answers: list[dict[str, Any]], texts: Texts, attended: Attended, weights: Sequence[np.ndarray]
    ) -> None:
        """Adds to each answer, or to each of its hypotheses if it has several, the attention of its parts.

        Raises:
          Refusal: a weight isn't a finite number.
        """
        if not all(np.isfinite(each).all() for each in weights):
            raise Refusal(500, "attention: expected finite weights; the model computes NaN or infinity")
        remaining = iter(zip(attended.units, weights, strict=True))
        source_tokenizer, target_tokenizer = tokenizers_of(self._variant(texts.kind.target_tag)[0])
        for answer, parts in zip(answers, texts.parts, strict=True):
            sources = [_source_side(source_tokenizer, part, texts.source_tag) for part in parts]
            for hypothesis in answer.get("hypotheses", [answer]):
                hypothesis["attention"] = [
                    {
                        "source": source,
                        "target": _target_side(target_tokenizer, unit.target_ids),
                        "weights": np.round(each.astype(np.float64), WEIGHT_DIGITS).tolist(),
                        "entropies": np.round(entropies(each), WEIGHT_DIGITS).tolist(),
                    }
                    for source, (unit, each) in zip(sources, remaining, strict=False)
                ]

    def scores(self, pairs: Pairs, results: Sequence[Any]) -> list[PairScore]:
        """Returns the score of each pair, given the log-probabilities of each unit."""
        return [pair.scored(log_probs) for pair, log_probs in zip(pairs.pairs, results, strict=True)]

    def text(self, ids: Sequence[int], target_tag: str) -> str:
        """Returns the text of target ids under a target tag."""
        return tokenizers_of(self._variant(target_tag)[0])[1].decode([ids])[0]

    def _translation(self, found: Translation, kind: Translating) -> dict[str, Any]:
        num_return = kind.decoding.num_return or 1
        model, _ = self._variant(kind.target_tag)
        tokenizer, (_, eos_id) = tokenizers_of(model)[1], starts_and_ends(model)
        hypotheses = [
            {
                "text": found.text(rank),
                "score": finite(found.score(rank)),
                "tokens": [token for part in found.parts for token in tokenizer.tokens(part.hypotheses[rank].ids)],
                "cut_off": any(part.hypotheses[rank].ids[-1:] != [eos_id] for part in found.parts),
            }
            for rank in range(num_return if found.parts else 0)
        ]
        best = hypotheses[0] if hypotheses else {"text": "", "score": None, "tokens": [], "cut_off": False}
        return best | ({"hypotheses": hypotheses} if num_return > 1 else {})

    def _weights_per_pair(self, source_length: int, target_length: int) -> int:
        """Returns the number of cross-attention weights of a pair."""
        decoder = self.model.config.decoder
        assert decoder.cross_attention is not None
        return decoder.num_layers * decoder.cross_attention.num_heads * source_length * target_length

    # --- the page

    def facts(self) -> dict[str, Any]:
        """Returns what the page that translates needs to know of the model and of the server's own options."""
        source_tokenizer, target_tokenizer = tokenizers_of(self.model)
        return {
            "beam_size": self.default.beam_size or 1,
            "sampling": bool(self.default.sampling),
            "max_beam_size": self.limits.max_beam_size,
            "source_tags": source_tokenizer.tags,
            "target_tags": target_tokenizer.tags or source_tokenizer.tags,
            "source_tag": self._tags[0],
            "target_tag": self._tags[1],
        }

    # --- the model under a target tag

    def _tags_of(self, request: TranslateRequest | ScoreRequest) -> tuple[str, str]:
        own = request.source_tag, request.target_tag
        source_tag, target_tag = (tag if mine is None else mine for tag, mine in zip(self._tags, own, strict=True))
        return source_tag, target_tag

    def _variant(self, target_tag: str) -> tuple[PreparedModel, int | None]:
        """Returns the model under a target tag, and the id that it forces; see `with_target_tag`."""
        if target_tag not in self._variants:
            model, forced = with_target_tag(self.model, target_tag)
            assert isinstance(model, PreparedModel)  # as self.model is
            self._variants[target_tag] = self.model.sharing_weights(model), forced
        return self._variants[target_tag]


def _source_side(tokenizer: Tokenizer, part: Part, source_tag: str) -> dict[str, Any]:
    return _side(tokenizer, part.source_ids, words_of_text(tokenizer, part.source, source_tag))


def _target_side(tokenizer: Tokenizer, ids: Sequence[int]) -> dict[str, Any]:
    return _side(tokenizer, ids, words_of_ids(tokenizer, ids))


def _side(tokenizer: Tokenizer, ids: Sequence[int], words: Words) -> dict[str, Any]:
    """Returns the tokens of a source or a translation, their words, and which tokens are unknown."""
    return {
        "tokens": tokenizer.tokens(ids),
        "words": words.texts,
        "token_words": [None if number == NO_WORD else int(number) for number in words.numbers],
        "unknown": [place for place, token in enumerate(ids) if token == tokenizer.unk_id],
    }


class Searches:
    """Bounds the kinds of searches that programs are compiled for.

    Where there is no room for another kind, all programs are forgotten, but at most once in FORGET_SECONDS: compiling
    takes seconds, and clients that ask for ever other kinds mustn't keep the device busy with it.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._known: set[SearchProgram] = set()
        self._forgotten = clock()
        self._must_forget = False
        self._compiled = compiled_programs()
        self._lock = threading.Lock()

    def admit(self, program: SearchProgram) -> None:
        """Counts a kind in. Raises Refusal if there is no room for another kind."""
        with self._lock:
            if program not in self._known:
                self._make_room()
                self._known.add(program)

    def _make_room(self) -> None:
        if len(self._known) >= self._most:
            wait = self._forgotten + FORGET_SECONDS - self._clock()
            if wait > 0:
                raise Refusal(
                    503,
                    f"expected at most {self._most} kinds of searches (--max-searches); received another. Use options "
                    "that others use",
                    retry_after=int(wait) + 1,
                )
            self._known, self._forgotten, self._must_forget = set(), self._clock(), True

    def forget_if_asked(self) -> None:
        """Lets go of all compiled programs, if they must make room. On the device's thread."""
        if self._must_forget or compiled_programs() > self._compiled + MOST_PROGRAMS:
            self._must_forget, self._compiled = False, compiled_programs()
            jax.clear_caches()
