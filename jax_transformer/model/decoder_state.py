"""The state of decoding token by token: keys and values of every token so far, for each of a sentence's K beams."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jax_transformer.config.specs import HeadShape
from jax_transformer.model.masks import Mask
from jax_transformer.model.sharding import constrain


class LayerCache(NamedTuple):
    """Holds a decoder layer's keys and values; heads come before tokens, so that attention needs no transposed copy."""

    self_keys: jax.Array  # [B, G, T, H], or [B, G, H, T K] with K beams: K keys of the first token, K of the second, …
    self_values: jax.Array  # [B, G, T K, W]
    cross_keys: jax.Array  # [B, G, S, H], shared by a sentence's beams
    cross_values: jax.Array  # [B, G, S, W]


def key_layout(num_beams: int) -> str:
    """Returns the axes of `self_keys`, of which T counts the tokens of all beams.

    A CPU multiplies several queries fastest with keys that lie side by side, and writes a single one's as a row.
    """
    return "BGTH" if num_beams == 1 else "BGHT"


class DecoderState(NamedTuple):
    """Holds the state of step-by-step decoding; arrays only.

    Reordering beams doesn't move keys and values: `slots` records which beam owns each.
    """

    layers: tuple[LayerCache, ...]
    cross_mask: Mask  # [B, 1, 1, S]
    key_is_real: jax.Array  # [B, T, K] bool: True = this cached token may be attended
    slots: jax.Array  # [B, K, T] int32: which of a column's K tokens is the beam's own
    real_count: jax.Array  # [B, K] int32: number of real tokens so far
    position: jax.Array  # [] int32: the column of the next token

    @property
    def num_beams(self) -> int:
        """Returns K, the beams of each sentence."""
        return self.slots.shape[1]

    @property
    def key_layout(self) -> str:
        """Returns the axes of the layers' `self_keys`."""
        return key_layout(self.num_beams)

    @property
    def length(self) -> int:
        """Returns the number of tokens that fit into the state."""
        return self.slots.shape[2]

    def exists(self) -> jax.Array:
        """Returns a mask of each beam's own cached tokens up to `position`: [B, 1, K, T K] or broadcastable to it."""
        is_past = jnp.arange(self.length) <= self.position
        if self.num_beams == 1:
            return is_past
        is_own = self.slots[..., None] == jnp.arange(self.num_beams)  # [B, K, T, K]
        return (is_own & is_past[:, None]).reshape(self.slots.shape[0], 1, self.num_beams, -1)

    def written(self, is_real: jax.Array, attendable: jax.Array) -> DecoderState:
        """Returns the state that counts in the tokens at `position`; their keys and values are still missing.

        Args:
          is_real: boolean [B, K], False at pads; real tokens count towards positions.
          attendable: boolean [B, K], True = later tokens may attend to this one.
        """
        own = jnp.broadcast_to(jnp.arange(self.num_beams, dtype=jnp.int32)[:, None], (*self.real_count.shape, 1))
        return self._replace(
            key_is_real=jax.lax.dynamic_update_slice_in_dim(
                self.key_is_real, attendable[:, None], self.position, axis=1
            ),
            slots=jax.lax.dynamic_update_slice_in_dim(self.slots, own, self.position, axis=2),
            real_count=self.real_count + is_real,
        )

    def reordered(self, parents: jax.Array) -> DecoderState:
        """Returns the state in which beam k of sentence b continues beam parents[b, k]; parents is [B, K]."""
        return self._replace(
            slots=jnp.take_along_axis(self.slots, parents[..., None], axis=1),
            real_count=jnp.take_along_axis(self.real_count, parents, axis=1),
        )

    def grown(self, length: int) -> DecoderState:
        """Returns the state with room for `length` tokens, at least as many as before."""
        columns = length - self.length
        more = {"T": (0, columns * self.num_beams)}
        keys, values = ([more.get(axis, (0, 0)) for axis in layout] for layout in (self.key_layout, "BGTW"))
        return self._replace(
            layers=tuple(
                layer._replace(self_keys=jnp.pad(layer.self_keys, keys), self_values=jnp.pad(layer.self_values, values))
                for layer in self.layers
            ),
            key_is_real=jnp.pad(self.key_is_real, ((0, 0), (0, columns), (0, 0))),
            slots=jnp.pad(self.slots, ((0, 0), (0, 0), (0, columns))),
        )


def empty_state(
    layers: list[tuple[jax.Array, jax.Array]], own: HeadShape, cross_mask: Mask, num_beams: int, length: int
) -> DecoderState:
    """Returns the state before the first token.

    Args:
      layers: every layer's cross-attention keys [B, G, S, H] and values [B, G, S, W].
      own: the sizes of self-attention, which may differ from those of cross-attention.
    """
    batch = layers[0][0].shape[0]

    sizes = {"B": batch, "G": own.num_kv_heads, "T": length * num_beams, "H": own.head_dim, "W": own.value_dim}

    def empty(layout: str, dtype: jnp.dtype) -> jax.Array:
        return constrain(jnp.zeros([sizes[axis] for axis in layout], dtype), "rows", "width", None, None)

    caches = [
        LayerCache(empty(key_layout(num_beams), keys.dtype), empty("BGTW", values.dtype), keys, values)
        for keys, values in layers
    ]
    return DecoderState(
        layers=tuple(caches),
        cross_mask=cross_mask,
        key_is_real=jnp.zeros((batch, length, num_beams), bool),
        slots=jnp.zeros((batch, num_beams, length), jnp.int32),
        real_count=jnp.zeros((batch, num_beams), jnp.int32),
        position=jnp.zeros((), jnp.int32),
    )
