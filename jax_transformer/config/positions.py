"""The kinds of positions a stack may have, each with its own options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from jax_transformer.config.validation import Spec

PositionKind = Literal[
    "sinusoidal", "learned", "rotary", "alibi", "relative_bias", "relative_vectors", "none"
]  # fmt: skip
Layout = Literal["interleaved", "halves"]
Index = Literal["column", "batch_row", "non_pad_count"]


@dataclass(frozen=True, kw_only=True)
class Sinusoidal(Spec):
    """Configures a fixed table, added to the embeddings (Vaswani et al. 2017, §3.5).

    Example:
      >>> from jax_transformer.config import Sinusoidal
      >>> Sinusoidal(layout="halves").kind
      'sinusoidal'
    """

    kind: Literal["sinusoidal"] = field(default="sinusoidal", init=False)
    layout: Layout = "interleaved"
    """Order of the table's columns: sines and cosines alternate, or all sines come first."""
    frequency: Literal["standard", "inclusive", "doubled"] = "standard"
    """Exponent of column pair i of P: standard i/P, inclusive i/(P-1) (fairseq), doubled: twice each column's own
    number / D (floydhub)."""
    index: Index = "column"
    """A token's position number: its column, its row in the batch, or the number of real tokens up to and including it
    (0 for pads)."""
    offset: int = 0
    """Added to the position number before the table lookup."""
    factor: float = 1.0
    """Multiply the table's rows by this number before they are added."""
    learned_scale: bool = False
    """Multiply them by a trained number, which begins at 1 (SpeechT5, Ao et al. 2022)."""


@dataclass(frozen=True, kw_only=True)
class Learned(Spec):
    """Configures a trained table, added to the embeddings.

    Example:
      >>> from jax_transformer.config import Learned
      >>> Learned(offset=2).kind
      'learned'
    """

    kind: Literal["learned"] = field(default="learned", init=False)
    index: Index = "column"
    """A token's position number, as of `Sinusoidal`."""
    offset: int = 0
    """Added to the position number before the table lookup."""
    factor: float = 1.0
    """Multiply the table's rows by this number before they are added."""
    learned_scale: bool = False
    """Multiply them by a trained number, which begins at 1."""
    trains_pad: bool = True
    """With index='non_pad_count', send gradients to the row of pads. False: the row gets none, as with torch's
    padding_idx (RoBERTa)."""


@dataclass(frozen=True, kw_only=True)
class Rotary(Spec):
    """Configures rotated queries and keys of self-attention; angles grow with the position (Su et al. 2021).

    Example:
      >>> from jax_transformer.config import Rotary
      >>> Rotary(base=500_000.0).layout
      'interleaved'
    """

    kind: Literal["rotary"] = field(default="rotary", init=False)
    layout: Layout = "interleaved"
    """Neighbouring features are rotated as a pair, or each of the first half with one of the second."""
    base: float = 10000.0
    """Pair i of a head turns by base^(-2i / dim) for each position."""
    dim: int | None = None
    """Features of a head that are rotated, from the first on. None: all."""
    index: Index = "column"
    """A token's position number: its column, or the number of real tokens up to and including it (0 for pads). Its row
    is refused."""
    offset: int = 0
    """Added to the position number before the rotation."""
    cross_attention: bool = False
    """In a decoder, rotate the queries of cross-attention by the target's positions, and its keys by the source's."""


@dataclass(frozen=True, kw_only=True)
class Alibi(Spec):
    """Configures logits of self-attention that fall with the distance, each head by its slope (Press et al. 2022).

    Example:
      >>> from jax_transformer.config import Alibi
      >>> Alibi().kind
      'alibi'
    """

    kind: Literal["alibi"] = field(default="alibi", init=False)


@dataclass(frozen=True, kw_only=True)
class RelativeBias(Spec):
    """Configures learned biases of self-attention by distance (T5, Raffel et al. 2020).

    Example:
      >>> from jax_transformer.config import RelativeBias
      >>> RelativeBias(buckets=16).max_distance
      128
    """

    kind: Literal["relative_bias"] = field(default="relative_bias", init=False)
    buckets: int = 32
    """Biases per head: one for each of the nearest distances, then one for each of ever longer ranges of distances. In
    a stack that isn't causal, half of them are for later positions."""
    max_distance: int = 128
    """Distances from here on share one bias."""
    factor: float = 1.0
    """Multiply the biases by this number; some programs scale them by sqrt(head_dim)."""
    per_layer: bool = False
    """Give every layer biases of its own (UMT5), instead of one set per stack (T5)."""


@dataclass(frozen=True, kw_only=True)
class RelativeVectors(Spec):
    """Configures learned vectors by distance, added to keys and values of self-attention (Shaw et al. 2018).

    Example:
      >>> from jax_transformer.config import RelativeVectors
      >>> RelativeVectors(max_distance=16).values
      True
    """

    kind: Literal["relative_vectors"] = field(default="relative_vectors", init=False)
    max_distance: int = 128
    """Distances from here on share, in each direction, one vector."""
    per_layer: bool = False
    """Give every layer vectors of its own, instead of one set per stack."""
    values: bool = True
    """Add vectors to the values too, not only to the keys."""


Table: TypeAlias = Sinusoidal | Learned
Positions: TypeAlias = Sinusoidal | Learned | Rotary | Alibi | RelativeBias | RelativeVectors
KINDS: dict[str, type[Positions]] = {
    str(kind.__dataclass_fields__["kind"].default): kind
    for kind in (Sinusoidal, Learned, Rotary, Alibi, RelativeBias, RelativeVectors)
}
"""Every kind by its name."""
