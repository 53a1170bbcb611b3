"""Decoding options: one list of fields, with their defaults, checks and order of precedence.

`DecodingSettings` has the fields that a model may set for itself. `GenerationConfig` adds the model's special ids and
lengths. `DecodingConfig` adds the fields that only a caller sets; the options of the commands inherit from it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

from jax_transformer.config.series import SeriesTokens
from jax_transformer.config.speech import SpeechTokens
from jax_transformer.config.validation import ConfigError, check_field_types, require
from jax_transformer.runtime.trees import nearest

Semantics = Literal["huggingface", "gnmt", "floydhub"]

NO_ID = -1
"""As `forced_bos_id` or `forced_eos_id` of a DecodingConfig: force no token, even if the model's own settings do."""

BEAM_FIELDS = (
    *("beam_size", "semantics", "length_penalty", "early_stopping", "renormalize"),
    *("beam_groups", "diversity_penalty"),
)
SAMPLING_FIELDS = ("sampling", "temperature", "top_k", "top_p", "min_p")
LISTS_OF_IDS = ("suppress_tokens", "begin_suppress_tokens", "more_eos_ids")
DEFAULTS: Mapping[str, Any] = {
    "beam_size": 1,
    "num_return": 1,
    "max_new_tokens": None,
    "min_new_tokens": 0,
    "semantics": "huggingface",
    "length_penalty": 1.0,
    "early_stopping": False,
    "renormalize": False,
    "beam_groups": 1,
    "diversity_penalty": 0.0,
    "no_repeat_ngram": 0,
    "encoder_no_repeat_ngram": 0,
    "repetition_penalty": 1.0,
    "bad_words": (),
    "suppress_tokens": (),
    "begin_suppress_tokens": (),
    "more_eos_ids": (),
    "forced_bos_id": NO_ID,
    "forced_eos_id": NO_ID,
    "sampling": False,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "seed": 0,
}
"""The value of each option that neither the caller nor the model sets. (max_new_tokens: as many as the model allows)"""


@dataclass(frozen=True, kw_only=True)
class DecodingSettings:
    """Holds the decoding options that a model may set for itself. None: not set."""

    max_new_tokens: int | None = None
    """Most tokens to decode, counting the end token but no prefix. (Default: as many as the model allows)"""
    min_new_tokens: int | None = None
    """Fewest tokens to decode before the end token. (Default: 0)"""
    no_repeat_ngram: int | None = None
    """Never decode the same sequence of this many tokens twice; 0 allows it. (Default: 0)"""
    encoder_no_repeat_ngram: int | None = None
    """Never decode a sequence of this many tokens that the source has, whose vocabulary must be the target's. 1 also
    forbids the end token, if sources have it, as in transformers; 0 allows all. (Default: 0)"""
    repetition_penalty: float | None = None
    """Divide the logit of each token that is there already by this, or multiply it where it is below 0; in beam search,
    the log-probability. Above 1 disfavours repetitions (Keskar et al. 2019). (Default: 1)"""
    bad_words: tuple[tuple[int, ...], ...] | None = None
    """Sequences of ids never to decode. (Default: none)"""
    suppress_tokens: tuple[int, ...] | None = None
    """Ids never to decode. (Default: none)"""
    begin_suppress_tokens: tuple[int, ...] | None = None
    """Ids never to decode first, after any prefix. (Default: none)"""
    more_eos_ids: tuple[int, ...] | None = None
    """Ids that end a hypothesis as the end token does, such as the end of a turn. (Default: none)"""
    forced_bos_id: int | None = None
    """First token of every hypothesis, such as the target language of a multilingual model. (Default: none)"""
    forced_eos_id: int | None = None
    """Last token of every hypothesis that reaches max_new_tokens. (Default: none)"""
    beam_size: int | None = None
    """Hypotheses to follow side by side; 1 is greedy decoding. (Default: 1)"""
    semantics: Semantics | None = None
    """Rules of beam search. huggingface: `generate` of transformers 5; gnmt: the same with another length penalty;
    floydhub: ended beams continue until all have ended, and are compared then. (Default: huggingface)"""
    length_penalty: float | None = None
    """Exponent of the length that divides a hypothesis's score; above 0 favours long hypotheses. (Default: 1)"""
    early_stopping: bool | Literal["never"] | None = None
    """When to finish a sentence. true: beam_size hypotheses have ended; false: no open hypothesis, if it ended now,
    would beat them; never: none could at any length. (Default: false)"""
    renormalize: bool | None = None
    """Make the probabilities of the allowed next tokens sum to 1, in beam search. (Default: false)"""
    beam_groups: int | None = None
    """Diverse beam search (Vijayakumar et al. 2016): divide the beams into this many groups, which search one after the
    other. (Default: 1)"""
    diversity_penalty: float | None = None
    """Subtract this from a token's log-probability for each beam of the groups before that chose it in this place.
    (Default: 0)"""
    sampling: bool | None = None
    """Draw each token by its probability, instead of following beams. (Default: false)"""
    temperature: float | None = None
    """Sampling: divide the logits by this; below 1 favours probable tokens. (Default: 1)"""
    top_k: int | None = None
    """Sampling: draw only from the k most probable tokens; 0 for all. (Default: 0)"""
    top_p: float | None = None
    """Sampling: draw only from the fewest most probable tokens that have this probability together (Holtzman et al.
    2020). (Default: 1)"""
    min_p: float | None = None
    """Sampling: draw only tokens with at least this fraction of the greatest probability (Nguyen et al. 2024).
    (Default: 0)"""

    def __post_init__(self) -> None:
        for name in ("bad_words", *LISTS_OF_IDS):
            object.__setattr__(self, name, _as_tuples(getattr(self, name)))  # JSON has lists
        check_field_types(self)
        require(self, self._problems())

    def _problems(self) -> list[str]:
        """Returns one message for each value out of range. None is always in range."""
        problems = []

        def check(field: str, holds: Callable[[Any], bool], allowed: str) -> None:
            value = getattr(self, field)
            if value is not None and not holds(value):
                problems.append(f"{field} must be {allowed}; received {value!r}")

        for field in ("beam_size", "beam_groups", "max_new_tokens"):
            check(field, lambda value: value >= 1, "at least 1")
        for field in ("min_new_tokens", "no_repeat_ngram", "encoder_no_repeat_ngram", "top_k"):
            check(field, lambda value: value >= 0, "at least 0")
        check("length_penalty", math.isfinite, "finite")
        check("repetition_penalty", lambda value: 0 < value < math.inf, "greater than 0, and finite")
        check("diversity_penalty", lambda value: 0 <= value < math.inf, "at least 0, and finite")
        check("temperature", lambda value: value > 0, "greater than 0")
        check("temperature", lambda value: not value > 0 or 1e-30 <= value <= 1e30, "from 1e-30 to 1e+30, for float32")
        check("top_p", lambda value: 0 < value <= 1, "greater than 0 and at most 1")
        check("min_p", lambda value: 0 <= value <= 1, "between 0 and 1")
        check("bad_words", all, "a list of sequences of at least one id")
        for field in LISTS_OF_IDS:
            check(field, lambda ids: min(ids, default=0) >= 0, "a list of ids, at least 0")
        if (most := self.max_new_tokens) is not None:
            check("min_new_tokens", lambda value: value < most, f"below max_new_tokens={most}")
        if self.sampling:
            check("beam_size", lambda value: value == 1, "1 with sampling")
        return problems


@dataclass(frozen=True, kw_only=True)
class TokenSettings:
    """Holds the special ids and the lengths of a model's generation.json."""

    decoder_start_id: int | None = None
    """First decoder input. None: unknown, as for a checkpoint that doesn't say; such a model can't decode."""
    eos_id: int | None = None
    """Ends a sentence. None: unknown."""
    max_decode_length: int | None = None
    """Most tokens of a translation, <eos> included, whatever the caller wants: the model knows no longer ones. None:
    as many as the position table allows."""
    source_length: int | None = None
    """Length to pad sources to, for a model that attends to the source's padding and was trained on this length alone.
    None: sources aren't padded. Neither are longer ones."""
    speech: SpeechTokens | None = None
    """Special ids of a model that transcribes speech. None: it doesn't."""
    series: SeriesTokens | None = None
    """How a model that forecasts reads series of values. None: it doesn't."""


@dataclass(frozen=True, kw_only=True)
class GenerationConfig(DecodingSettings, TokenSettings):  # fields of the last base come first, in files, too
    """Configures how a model is decoded by default; `generation.json` of a model directory.

    See DecodingConfig for the options and how a caller overrides them. None: the model doesn't set the option.

    Raises:
      ConfigError: a value is of another type or out of range.

    Example:
      >>> GenerationConfig(decoder_start_id=2, eos_id=3, beam_size=4).decoding
      {'beam_size': 4}
    """

    def __post_init__(self) -> None:
        if isinstance(self.speech, Mapping):  # as JSON has it
            object.__setattr__(self, "speech", SpeechTokens.from_plain(self.speech))
        if isinstance(self.series, Mapping):
            object.__setattr__(self, "series", SeriesTokens.from_plain(self.series))
        super().__post_init__()

    def _problems(self) -> list[str]:
        ids = ("decoder_start_id", "eos_id", "forced_bos_id", "forced_eos_id")
        problems = []
        for name, least in (*((name, 0) for name in ids), ("max_decode_length", 1), ("source_length", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                problems.append(f"{name} must be at least {least}; received {value}")
        return problems + super()._problems()

    @property
    def decoding(self) -> dict[str, Any]:
        """The decoding options that the model sets, by name."""
        names = [field.name for field in dataclasses.fields(DecodingSettings)]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def without_decoding(self) -> GenerationConfig:
        """Returns the same special ids and lengths without any decoding option."""
        return dataclasses.replace(self, **dict.fromkeys(self.decoding))

    def ids_outside(self, target_vocab_size: int, *, but: str = "") -> list[str]:
        """Returns one message for each id that a vocabulary of this size doesn't have, but the id of one field."""
        ids = [(name, getattr(self, name)) for name in ("decoder_start_id", "eos_id", "forced_bos_id", "forced_eos_id")]
        ids += [("bad_words", index) for words in self.bad_words or () for index in words]
        ids += [(name, index) for name in LISTS_OF_IDS for index in getattr(self, name) or ()]
        return [
            f"{name} must be below target_vocab_size={target_vocab_size}; received {index}"
            for name, index in ids
            if (index or 0) >= target_vocab_size and name != but
        ]


class DecodingOptions(TypedDict, total=False):
    """The fields of `DecodingConfig`, as `generate` and `translate` take them, for type checkers."""

    max_new_tokens: int | None
    min_new_tokens: int | None
    no_repeat_ngram: int | None
    encoder_no_repeat_ngram: int | None
    repetition_penalty: float | None
    bad_words: tuple[tuple[int, ...], ...] | None
    suppress_tokens: tuple[int, ...] | None
    begin_suppress_tokens: tuple[int, ...] | None
    more_eos_ids: tuple[int, ...] | None
    forced_bos_id: int | None
    forced_eos_id: int | None
    beam_size: int | None
    semantics: Semantics | None
    length_penalty: float | None
    early_stopping: bool | Literal["never"] | None
    renormalize: bool | None
    beam_groups: int | None
    diversity_penalty: float | None
    sampling: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    num_return: int | None
    seed: int | None


@dataclass(frozen=True, kw_only=True)
class DecodingConfig(DecodingSettings):
    """Configures how to decode. None, the default of every option: the model's own setting, or else the default.

    `resolved` merges the three. One beam without sampling is greedy decoding.

    The score of a hypothesis is the sum of its tokens' log-probabilities divided by a penalty. With p =
    `length_penalty` and length n (counting the end token but no prefix), the penalty is n^p (huggingface, floydhub) or
    ((5 + n) / 6)^p (gnmt; Wu et al. 2016, §7). A token forced by forced_bos_id or forced_eos_id adds 0 to the sum,
    and 1 to the length. With beam_groups, the sum includes the penalties for diversity.

    None can't undo a setting of the model. To undo it, pass the neutral value: -1 for forced_bos_id and forced_eos_id,
    () for bad_words and lists of ids, 0 for no_repeat_ngram and min_new_tokens.

    Raises:
      ConfigError: an option is out of range, or contradicts another one.

    Example:
      >>> from jax_transformer import DecodingConfig, GenerationConfig
      >>> config = DecodingConfig(beam_size=4).resolved(GenerationConfig(length_penalty=0.6, forced_eos_id=2))
      >>> config.beam_size, config.length_penalty, config.forced_eos_id, config.num_return
      (4, 0.6, 2, 1)
    """

    num_return: int | None = None
    """Hypotheses to return for each sentence, best first; with sampling, how many to draw. Drawing takes time that
    grows with the square of this: for hundreds, draw a few at a time with other seeds. (Default: 1)"""
    seed: int | None = None
    """Sampling: seed of the random numbers; the same seed draws the same tokens. (Default: 0)"""

    def _problems(self) -> list[str]:
        problems = super()._problems()

        def check(holds: bool, field: str, allowed: str) -> None:
            value = getattr(self, field)
            if value is not None and not holds:
                problems.append(f"{field} must be {allowed}; received {value!r}")

        for field in ("forced_bos_id", "forced_eos_id"):
            check((getattr(self, field) or 0) >= NO_ID, field, "at least 0, or -1 for none")
        check((self.num_return or 0) >= 1, "num_return", "at least 1")
        check(0 <= (self.seed or 0) < 1 << 63, "seed", "at least 0 and below 2^63")
        draws_nothing = self.sampling is False or (self.sampling is None and self.beam_size is not None)
        if draws_nothing:
            for field in SAMPLING_FIELDS[1:]:
                check(getattr(self, field) == DEFAULTS[field], field, f"{DEFAULTS[field]} without sampling")
            if self.beam_size is not None:
                check((self.num_return or 1) <= self.beam_size, "num_return", f"at most beam_size={self.beam_size}")
        if self.beam_size == 1 or self.sampling:
            check(self.early_stopping is False, "early_stopping", "false without beams")
        groups, penalty = self.beam_groups or 1, self.diversity_penalty
        if self.beam_size is not None:
            check(self.beam_size % groups == 0, "beam_groups", f"a divisor of beam_size={self.beam_size}")
        if groups > 1:
            check(penalty is None or penalty > 0, "diversity_penalty", "greater than 0 with groups")
            check(self.semantics != "floydhub", "beam_groups", "1 with floydhub")
        elif self.beam_groups == 1:
            check(not penalty, "diversity_penalty", "0 without beam_groups")
        if self.semantics == "floydhub":
            check(self.early_stopping is False, "early_stopping", "false with floydhub, which knows no other rule")
        return problems

    @property
    def given(self) -> dict[str, Any]:
        """The options that are set, by name."""
        return {name: getattr(self, name) for name in DEFAULTS if getattr(self, name) is not None}

    def updated(self, **options: Unpack[DecodingOptions]) -> DecodingConfig:
        """Returns a config with the options that aren't None set on top of this one's.

        Raises:
          ConfigError: unknown option; the message names the nearest one. As for DecodingConfig.
        """
        for name in options:
            if name not in DEFAULTS:
                known = nearest(name, DEFAULTS) or f" (known: {', '.join(DEFAULTS)})"
                raise ConfigError(f"expected a decoding option; received the unknown name {name!r}{known}")
        return DecodingConfig(**self.given | {name: value for name, value in options.items() if value is not None})

    def resolved(self, generation: DecodingSettings) -> DecodingConfig:
        """Returns a config with every option set. Order of precedence: this config, the model's settings, the defaults.

        Only max_new_tokens may stay None. Resolving a resolved config again changes nothing.

        Model settings for another kind of search are ignored: those for sampling unless tokens are drawn; those for
        beams if tokens are drawn or there is one beam; length_penalty and early_stopping under other semantics than the
        model's. Setting beam_size turns the model's sampling off. If this config sets one of max_new_tokens and
        min_new_tokens, the model's value of the other makes room.

        Args:
          generation: the model's settings, `Model.generation`.

        Raises:
          ConfigError: an option contradicts another one.
        """
        own = {name: getattr(generation, name, None) for name in DEFAULTS}
        own = {name: value for name, value in own.items() if value is not None}
        given = self.given
        ignored = _ignored_fields(own, given)
        merged = {name: value for name, value in own.items() if name not in ignored} | given
        most = merged.get("max_new_tokens")
        if most is not None and merged.get("min_new_tokens", 0) >= most:
            if "min_new_tokens" not in given:
                merged["min_new_tokens"] = max(most - 1, 0)
            elif "max_new_tokens" not in given:
                del merged["max_new_tokens"]
        return DecodingConfig(**{**DEFAULTS, **merged})


def _ignored_fields(own: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names of the model's own settings that don't apply to the decoding that the caller wants."""
    merged = {**own, **given}
    if (given if "beam_size" in given else merged).get("sampling"):
        return BEAM_FIELDS
    if merged.get("beam_size", 1) == 1:
        return SAMPLING_FIELDS + BEAM_FIELDS
    usual = own.get("semantics", "huggingface")
    if given.get("semantics", usual) == usual:
        return SAMPLING_FIELDS
    return (*SAMPLING_FIELDS, "length_penalty", "early_stopping")


def _as_tuples(value: Any) -> Any:
    """Returns lists, and lists in them, as tuples."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
