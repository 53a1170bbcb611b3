"""Defines the terms of attention's logits other than query · key: masks and positions."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jax_transformer.config import specs
from jax_transformer.config.positions import Alibi, Rotary
from jax_transformer.model import rotary
from jax_transformer.model.distances import Vectors, alibi_bias, offsets
from jax_transformer.model.dropout import Site
from jax_transformer.model.dtypes import at_least_float32
from jax_transformer.model.masks import Mask, both
from jax_transformer.model.positions import Places
from jax_transformer.model.rotary import Rotation
from jax_transformer.model.scope import Scope

Bias = jax.Array | None
"""An array added to attention logits, [1, N, Q, K] or broadcastable; None adds nothing."""


class AttentionTerms(NamedTuple):
    """Holds everything that enters attention logits besides query · key."""

    mask: Mask = None
    """Boolean, True = may attend. Masked logits become one finite value, so a fully masked row attends to all keys
    alike."""
    bias: Bias = None
    """Added to the scaled logits."""
    exists: Mask = None
    """Boolean, False = an empty slot of a cache or buffer. Such keys get a weight of exactly zero, even in fully masked
    rows."""
    rotation: Rotation | None = None
    """The angles by which positions rotate queries and keys; None rotates nothing."""
    vectors: Vectors | None = None
    """The vectors that distances add to keys and values; None adds nothing."""
    window: Mask = None
    """The mask of layers with a window, which hides what `mask` does and more; None: no layer has one."""
    places: Places | None = None
    """The positions of the tokens of self-attention. None: cross-attention, whose keys are in another sentence."""

    def for_beams(self, count: int) -> AttentionTerms:
        """Returns the terms of a decoding step's keys, `count` beams' for each column: T K keys in place of T."""
        mask, bias = (
            None if part is None else jnp.repeat(part, count, axis=-1) for part in (self.mask, self.bias)
        )  # [1, 1, 1, T K] and [1, N, 1, T K]
        vectors = jax.tree.map(lambda part: jnp.repeat(part, count, axis=1), self.vectors)  # [1, T K, H] each
        return self._replace(mask=mask, bias=bias, vectors=vectors)


class HasPositions(Protocol):
    """Describes a stack's module. It may have a `relative_bias` or `relative_vectors` that all layers share."""

    stack: specs.Stack
    is_decoder: bool


def stack_terms(module: HasPositions, places: Places, mask: Mask, dtype: jnp.dtype, scope: Scope) -> AttentionTerms:
    """Returns the terms of the self-attention of every layer, without what each layer has of its own.

    Args:
      mask: of self-attention; None while decoding, where it is the cache's.
      dtype: that of the token vectors.
      scope: the model's.
    """
    stack, name = module.stack, "decoder" if module.is_decoder else "encoder"
    terms = AttentionTerms(mask, window=window_mask(stack.self_attention, places, mask), places=places)
    if scope.tap.record and terms.window is not None:
        scope.tap.trace[f"mask.{name}_window"] = terms.window
    if isinstance(stack.positions, Rotary):
        angles = rotary.angles(stack.positions, stack.heads.head_dim, places.numbers, dtype)
        return terms._replace(rotation=Rotation(angles, angles))
    if hasattr(module, "relative_vectors"):
        return terms._replace(vectors=module.relative_vectors(places.length, places.column, dtype))
    if isinstance(stack.positions, Alibi):
        wide = at_least_float32(dtype)
        bias = alibi_bias(stack.self_attention.num_heads, places.length, places.column, wide)
    elif hasattr(module, "relative_bias"):
        bias = module.relative_bias(places.length, places.column)
    else:
        return terms
    own = scope(Site[name.upper()])
    return terms._replace(bias=own.tap("position_bias", bias))  # [1, N, T, T] or [1, N, 1, T]


def window_mask(part: specs.Attention, places: Places, mask: Mask) -> Mask:
    """Returns a mask of self-attention that also hides what is out of the window, of every query [B, 1, T, T] or of the
    one in the column of a step [B, 1, 1, T]. None: the attention has no window."""
    if part.window is None:
        return None
    distances = jnp.abs(offsets(places.length, places.column))
    return both(mask, (distances < part.window)[None, None])


class HasPart(Protocol):
    """Describes an attention's module. It may have a `relative_bias` or `relative_vectors` of its own."""

    part: specs.Attention


def layer_terms(module: HasPart, terms: AttentionTerms, dtype: jnp.dtype, scope: Scope) -> AttentionTerms:
    """Returns the stack's terms with what the attention of one layer has of its own.

    Args:
      dtype: that of its keys.
      scope: the attention's.
    """
    if terms.places is None:
        return terms
    _, length, column = terms.places
    terms = terms._replace(mask=_mask_of_layer(terms, module.part, scope.layer))
    if hasattr(module, "relative_bias"):
        bias = module.relative_bias(length, column)
        terms = terms._replace(bias=scope.tap("position_bias", bias))  # [1, N, Q, K]
    if hasattr(module, "relative_vectors"):
        terms = terms._replace(vectors=module.relative_vectors(length, column, dtype))
    return terms


def _mask_of_layer(terms: AttentionTerms, part: specs.Attention, layer: jax.Array | int | None) -> Mask:
    """Returns the mask of self-attention in a layer, whose number is traced under a scan."""
    if terms.window is None:
        return terms.mask
    if part.full_every is None:
        return terms.window
    assert layer is not None
    is_full = (layer + 1) % part.full_every == 0
    if isinstance(is_full, bool):
        return terms.mask if is_full else terms.window
    return jnp.where(is_full, True if terms.mask is None else terms.mask, terms.window)
