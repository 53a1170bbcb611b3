"""The numbers that decoding goes by, as compiled programs take them: what of them changes compiles nothing anew."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Drawing(NamedTuple):
    """What tokens are drawn by; see DecodingConfig."""

    temperature: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    keys: jax.Array
    """[B]: the PRNG key of each sentence."""


class Terms(NamedTuple):
    """Numbers, if nothing else is said."""

    start_id: jax.Array
    eos_id: jax.Array
    """-1 where nothing ends a sentence."""
    pad_id: jax.Array
    max_new: jax.Array
    """[B] or a number: most tokens that are decoded, forced ones not counted."""
    penalties: jax.Array
    """[N]: what the log-probability of a hypothesis of n tokens is divided by."""
    last_penalty: jax.Array
    """As max_new: that of so many tokens."""
    min_new: jax.Array
    forced: jax.Array | None = None
    """[B, P]: the ids that each target begins with; -1 after them."""
    drawing: Drawing | None = None

    @classmethod
    def of_numbers(
        cls,
        start_id: int | jax.Array,
        eos_id: int | jax.Array,
        pad_id: int,
        max_new: int | np.ndarray,
        penalties: jax.Array,
        min_new: int = 0,
    ) -> Terms:
        """Of a search that draws and forces nothing."""
        return cls(
            start_id=jnp.asarray(start_id, jnp.int32),
            eos_id=jnp.asarray(eos_id, jnp.int32),
            pad_id=jnp.asarray(pad_id, jnp.int32),
            max_new=jnp.asarray(max_new, jnp.int32),
            penalties=penalties,
            last_penalty=penalties[max_new],
            min_new=jnp.asarray(min_new, jnp.int32),
        )

    def forced_lengths(self, batch: int) -> jax.Array:
        """[B]: how many ids each target is made to begin with."""
        return (
            jnp.zeros(batch, jnp.int32) if self.forced is None else jnp.sum(self.forced >= 0, axis=1, dtype=jnp.int32)
        )

    def forced_at(self, column: jax.Array, batch: int) -> jax.Array:
        """[B]: the id that must stand in this column, or -1."""
        if self.forced is None:
            return jnp.full(batch, -1, jnp.int32)
        inside = jnp.minimum(column, self.forced.shape[1] - 1)
        return jnp.where(column < self.forced.shape[1], self.forced[:, inside], -1)
