"""Rules for the times in a transcript (Radford et al. 2022, §2.3 and §4.5)."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class TimestampRules(NamedTuple):
    """Says which ids are times, and how a transcript holds them.

    It begins with a time. Times stand in pairs, the end of a segment and the start of the next; only before the end of
    the transcript one may stand alone. They don't decrease, and a segment takes time. If all times together are more
    probable than any other token, a time comes.

    Example:
      >>> TimestampRules(first_id=50364, no_timestamps_id=50363, eos_id=50257, max_initial=50).first_id
      50364
    """

    first_id: int
    """The time 0; all later ids are later times."""
    no_timestamps_id: int
    """Never decoded."""
    eos_id: int
    """The end; text has lower ids."""
    max_initial: int | None = None
    """Steps from 0 to the largest first time. None: any."""

    def constrain(self, tokens: jax.Array, column: jax.Array, count: jax.Array, scores: jax.Array) -> jax.Array:
        """Returns the scores [B, K, V] of the tokens for a column, with -inf for the forbidden ones.

        Args:
          tokens: [B, K, T], the targets so far.
          count: [B], the tokens that were decoded, after the prefix.
        """
        ids, last = jnp.arange(scores.shape[-1]), tokens.shape[-1] - 1
        is_time = ids >= self.first_id
        count = count[:, None]  # [B, 1]
        scores = jnp.where(ids == self.no_timestamps_id, -jnp.inf, scores)

        def token(before: int) -> jax.Array:
            return jnp.take(tokens, jnp.clip(column - before, 0, last), axis=-1)  # [B, K]

        ends_in_time = (count >= 1) & (token(1) >= self.first_id)
        ends_in_pair = (count < 2) | (token(2) >= self.first_id)
        places = jnp.arange(tokens.shape[-1])
        decoded = (places < column) & (places >= column - count[..., None])  # [B, 1, T]
        place = jnp.max(jnp.where(decoded & (tokens >= self.first_id), places, -1), axis=-1)  # [B, K]
        latest = jnp.take_along_axis(tokens, jnp.maximum(place, 0)[..., None], axis=-1)[..., 0]
        least = jnp.where(place < 0, self.first_id, latest + ~(ends_in_time & ~ends_in_pair))
        forbidden = is_time & (ids < least[..., None])
        forbidden |= (ends_in_time & ends_in_pair)[..., None] & is_time
        forbidden |= (ends_in_time & ~ends_in_pair)[..., None] & (ids < self.eos_id)
        is_first = (count == 0)[..., None]
        forbidden |= is_first & ~is_time
        if self.max_initial is not None:
            forbidden |= is_first & (ids > self.first_id + self.max_initial)
        scores = jnp.where(forbidden, -jnp.inf, scores)

        times = jax.nn.logsumexp(jnp.where(is_time, scores, -jnp.inf), axis=-1, keepdims=True)
        best_text = jnp.max(jnp.where(is_time, -jnp.inf, scores), axis=-1, keepdims=True)
        return jnp.where((times > best_text) & ~is_time, -jnp.inf, scores)
