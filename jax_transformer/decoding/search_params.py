"""Settings of a search: the static ones that a compiled program depends on, and the arrays that it takes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.config.decoding import NO_ID, DecodingConfig, Semantics
from jax_transformer.decoding.allowed import Allowed
from jax_transformer.decoding.timestamps import TimestampRules


class SearchProgram(NamedTuple):
    """Holds the settings that a compiled search depends on. Searches that differ elsewhere share a program."""

    num_rows: int
    """Hypotheses decoded side by side for each sentence: K."""
    uses_beams: bool
    semantics: Semantics
    early_stopping: bool | str
    renormalize: bool
    no_repeat_ngram: int
    encoder_no_repeat_ngram: int
    has_repetition_penalty: bool
    bad_words: tuple[tuple[int, ...], ...]
    has_forced_bos: bool
    has_forced_eos: bool
    has_min_new: bool
    top_k: int
    has_top_p: bool
    has_min_p: bool
    beam_groups: int = 1
    allowed: Allowed | None = None
    """What asks the caller which tokens may come next."""
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    more_eos_ids: tuple[int, ...] = ()
    """Ids that end a hypothesis, in addition to eos_id."""
    timestamps: TimestampRules | None = None
    """Rules for times. With them, log-probabilities are those of the tokens that the rules allow."""

    @classmethod
    def from_config(cls, decoding: DecodingConfig) -> SearchProgram:
        """Returns the program for a resolved config."""
        config: Any = decoding  # every option is set
        return cls(
            num_rows=config.num_return if config.sampling else config.beam_size,
            uses_beams=not config.sampling and (config.beam_size > 1 or config.semantics == "floydhub"),
            semantics=config.semantics,
            early_stopping=config.early_stopping,
            renormalize=config.renormalize,
            no_repeat_ngram=config.no_repeat_ngram,
            encoder_no_repeat_ngram=config.encoder_no_repeat_ngram,
            has_repetition_penalty=config.repetition_penalty != 1.0,
            bad_words=config.bad_words,
            has_forced_bos=config.forced_bos_id != NO_ID,
            has_forced_eos=config.forced_eos_id != NO_ID,
            has_min_new=config.min_new_tokens > 0,
            top_k=config.top_k,
            has_top_p=config.top_p < 1,
            has_min_p=config.min_p > 0,
            beam_groups=config.beam_groups,
            suppress_tokens=config.suppress_tokens,
            begin_suppress_tokens=config.begin_suppress_tokens,
            more_eos_ids=config.more_eos_ids,
        )

    def is_end(self, ids: jax.Array, eos_id: jax.Array | int) -> jax.Array:
        """Returns which ids end a hypothesis, bool."""
        ends = ids == eos_id
        for other in self.more_eos_ids:
            ends |= ids == other
        return ends


class SamplingParams(NamedTuple):
    """Holds the array arguments of sampling; see DecodingConfig."""

    temperature: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    keys: jax.Array
    """[B]: the PRNG key of each sentence."""


class SearchParams(NamedTuple):
    """Holds the array arguments of a search: scalars, unless a field says otherwise.

    They are numbers of NumPy until a search starts: one at a time, JAX would take longer to place them than to search.
    """

    start_id: jax.Array
    eos_id: jax.Array
    pad_id: jax.Array
    max_new: jax.Array
    """[B] or a scalar: most tokens to decode, without the prefix."""
    penalties: jax.Array
    """[N]: divisor of the log-probability of a hypothesis of n tokens."""
    last_penalty: jax.Array
    """Shaped like max_new: the penalty at that length."""
    min_new: jax.Array
    forced_bos_id: jax.Array
    """Such as the tag of a target language: one program serves all languages. Read if the program has one."""
    forced_eos_id: jax.Array
    repetition_penalty: jax.Array
    """Read if the program has one."""
    diversity_penalty: jax.Array
    """Read if the program has groups of beams."""
    source: jax.Array | None = None
    """[B, S]: the source's ids, then -1, if the program has encoder_no_repeat_ngram."""
    numbers: jax.Array | None = None
    """[B]: the sentences' numbers, if the program asks which tokens are allowed."""
    prefix: jax.Array | None = None
    """[B, P]: the ids that each target begins with, then -1."""
    sampling: SamplingParams | None = None

    @classmethod
    def from_numbers(
        cls,
        start_id: int,
        eos_id: int,
        pad_id: int,
        max_new: int | np.ndarray,
        penalties: np.ndarray | jax.Array,
        min_new: int = 0,
        forced_bos_id: int = NO_ID,
        forced_eos_id: int = NO_ID,
        repetition_penalty: float = 1.0,
        diversity_penalty: float = 0.0,
    ) -> SearchParams:
        """Returns the parameters of a search without prefixes or sampling."""
        number: Any = np.int32
        lengths: Any = np.asarray(max_new, np.int32)
        divisors: Any = penalties
        penalty: Any = np.float32(repetition_penalty)
        diversity: Any = np.float32(diversity_penalty)
        return cls(
            start_id=number(start_id),
            eos_id=number(eos_id),
            pad_id=number(pad_id),
            max_new=lengths,
            penalties=divisors,
            last_penalty=divisors[max_new],
            min_new=number(min_new),
            forced_bos_id=number(forced_bos_id),
            forced_eos_id=number(forced_eos_id),
            repetition_penalty=penalty,
            diversity_penalty=diversity,
        )

    def prefix_lengths(self, batch: int) -> jax.Array:
        """Returns the number of prefix ids of each target, [B]."""
        if self.prefix is None:
            return jnp.zeros(batch, jnp.int32)
        return jnp.sum(self.prefix >= 0, axis=1, dtype=jnp.int32)

    def prefix_at(self, column: jax.Array, batch: int) -> jax.Array:
        """Returns the prefix id of each target in this column, or -1, [B]."""
        if self.prefix is None:
            return jnp.full(batch, -1, jnp.int32)
        inside = jnp.minimum(column, self.prefix.shape[1] - 1)
        return jnp.where(column < self.prefix.shape[1], self.prefix[:, inside], -1)

    def with_rows(self, into: list[int], other: SearchParams, rows: list[int]) -> SearchParams:
        """Returns the parameters with those of some rows replaced by other rows' of another search."""

        def replaced(mine: Any, theirs: Any) -> Any:
            if isinstance(mine, jax.Array):
                return mine.at[np.asarray(into)].set(theirs[np.asarray(rows)])
            mine = mine.copy()
            mine[into] = theirs[rows]
            return mine

        changed = self._replace(
            max_new=replaced(self.max_new, other.max_new), last_penalty=replaced(self.last_penalty, other.last_penalty)
        )
        for name in ("source", "numbers", "prefix"):
            if getattr(self, name) is not None:
                changed = changed._replace(**{name: replaced(getattr(self, name), getattr(other, name))})
        if self.sampling is not None and other.sampling is not None:
            keys = replaced(self.sampling.keys, other.sampling.keys)
            changed = changed._replace(sampling=self.sampling._replace(keys=keys))
        return changed
