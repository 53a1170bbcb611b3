"""What decoding token by token keeps: the keys and values of every token so far, for each of a sentence's K beams."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_transformer.model.masks import Mask


class LayerCache(NamedTuple):
    """A decoder layer's keys and values. Heads come before tokens, so that attending to them needs no copy in another
    order."""

    self_keys: jax.Array  # [B, N, T K, H]: the K beams' of the first token, of the second, …
    self_values: jax.Array  # [B, N, T K, H]
    cross_keys: jax.Array  # [B, N, S, H], which a sentence's beams share
    cross_values: jax.Array  # [B, N, S, H]


class DecoderState(NamedTuple):
    """Everything that decoding one more token needs; arrays only.

    When beams change places their keys and values stay where they are: `slots` says which are whose.
    """

    layers: tuple[LayerCache, ...]
    cross_mask: Mask  # [B, 1, 1, S]
    key_is_real: jax.Array  # [B, T, K] bool: which cached tokens may be attended
    slots: jax.Array  # [B, K, T] int32: where, among the K of a column, that token stands which the beam descends from
    real_count: jax.Array  # [B, K] int32: real tokens so far
    position: jax.Array  # [] int32: the column of the next token

    @property
    def num_beams(self) -> int:
        return self.slots.shape[1]

    @property
    def length(self) -> int:
        """How many tokens there is room for."""
        return self.slots.shape[2]

    def exists(self) -> jax.Array:
        """Which of the cached tokens are each beam's own, up to `position`: a mask [B, 1, K, T K], or one that can be
        broadcast to it."""
        is_past = jnp.arange(self.length) <= self.position
        if self.num_beams == 1:
            return is_past
        is_own = self.slots[..., None] == jnp.arange(self.num_beams)  # [B, K, T, K]
        return (is_own & is_past[:, None]).reshape(len(self.slots), 1, self.num_beams, -1)

    def written(self, is_real: jax.Array, attendable: jax.Array) -> DecoderState:
        """With the tokens at `position` counted in, before their keys and values are: is_real, attendable [B, K]."""
        own = jnp.broadcast_to(jnp.arange(self.num_beams, dtype=jnp.int32)[:, None], (*self.real_count.shape, 1))
        return self._replace(
            key_is_real=jax.lax.dynamic_update_slice_in_dim(
                self.key_is_real, attendable[:, None], self.position, axis=1
            ),
            slots=jax.lax.dynamic_update_slice_in_dim(self.slots, own, self.position, axis=2),
            real_count=self.real_count + is_real,
        )

    def reordered(self, parents: jax.Array) -> DecoderState:
        """With beam k going on from what beam parents[b, k] was; parents [B, K]."""
        return self._replace(
            slots=jnp.take_along_axis(self.slots, parents[..., None], axis=1),
            real_count=jnp.take_along_axis(self.real_count, parents, axis=1),
        )

    def grown(self, length: int) -> DecoderState:
        """With room for `length` tokens, at least as many as before."""
        columns = length - self.length
        rows = ((0, 0), (0, 0), (0, columns * self.num_beams), (0, 0))
        return self._replace(
            layers=tuple(
                layer._replace(self_keys=jnp.pad(layer.self_keys, rows), self_values=jnp.pad(layer.self_values, rows))
                for layer in self.layers
            ),
            key_is_real=jnp.pad(self.key_is_real, ((0, 0), (0, columns), (0, 0))),
            slots=jnp.pad(self.slots, ((0, 0), (0, 0), (0, columns))),
        )


def empty_state(
    layers: list[tuple[jax.Array, jax.Array]], cross_mask: Mask, num_beams: int, length: int
) -> DecoderState:
    """The state before the first token, of every layer's cross-attention keys and values [B, N, S, H]."""
    batch = len(layers[0][0])
    caches = []
    for cross_keys, cross_values in layers:
        empty = jnp.zeros((batch, cross_keys.shape[1], length * num_beams, cross_keys.shape[3]), cross_keys.dtype)
        caches.append(LayerCache(empty, empty, cross_keys, cross_values))
    return DecoderState(
        layers=tuple(caches),
        cross_mask=cross_mask,
        key_is_real=jnp.zeros((batch, length, num_beams), bool),
        slots=jnp.zeros((batch, num_beams, length), jnp.int32),
        real_count=jnp.zeros((batch, num_beams), jnp.int32),
        position=jnp.zeros((), jnp.int32),
    )
