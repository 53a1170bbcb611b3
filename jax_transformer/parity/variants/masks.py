"""Faults of the masks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.parity.truth import formulas
from jax_transformer.parity.truth.graph import Kind, place
from jax_transformer.parity.variants.replay import Replay, Variant

if TYPE_CHECKING:
    from jax_transformer.config import TransformerConfig


COVERS = {
    "keys": "pads masked as keys", "queries": "pads masked as queries", "both": "pads masked as keys and queries",
    "none": "padding not masked",
}  # fmt: skip
FIELDS = {"encoder_self": "encoder_padding", "decoder_self": "decoder_padding", "cross": "cross_padding"}


def masks(config: TransformerConfig) -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = ("mask",)
    yield Variant("mask inverted", kinds, lambda replay: ~replay.compute())
    yield Variant("not causal", kinds, _not_causal)
    yield Variant("causal mask off by one: sees a token too many", kinds, partial(_shifted, by=1))
    yield Variant("causal mask off by one: doesn't see itself", kinds, partial(_shifted, by=-1))
    for cover, name in COVERS.items():
        yield Variant(name, kinds, partial(_covering, cover=cover))
        yield Variant(f"{name}, and not causal", kinds, partial(_not_causal, cover=cover))
        for pad_id, whose in ((config.target_pad_id, "target's"), (config.source_pad_id, "source's")):
            yield Variant(f"{name}, by the {whose} pad id", kinds, partial(_of_pad_id, cover=cover, pad_id=pad_id))
    yield Variant("cross-attention uses the target's padding", kinds, _targets_padding)


def _covering(replay: Replay, cover: str, **changes: Any) -> np.ndarray:
    field = FIELDS[place(replay.node.name).path[-1]]
    if not changes and getattr(replay.config, field) == cover:
        raise LookupError("as it is")
    return replay.under(**{field: cover}, **changes)


def _of_pad_id(replay: Replay, cover: str, pad_id: int) -> np.ndarray:
    own = replay.config.target_pad_id if replay.config.decoder_padding_id is None else replay.config.decoder_padding_id
    if place(replay.node.name).path[-1] != "decoder_self" or pad_id == own:
        raise LookupError("as it is")
    return replay.under(decoder_padding=cover, decoder_padding_id=pad_id)


def _not_causal(replay: Replay, cover: str | None = None) -> np.ndarray:
    if not _is_causal(replay):
        raise LookupError("not causal anyway")
    return _covering(replay, cover or replay.config.decoder_padding, decoder_causal=False)


def _shifted(replay: Replay, by: int) -> np.ndarray:
    if not _is_causal(replay):
        raise LookupError("not causal anyway")
    length = replay.inputs["decoder_input_ids"].shape[1]
    return replay.under(decoder_causal=False) & (np.arange(length) <= np.arange(length)[:, None] + by)


def _is_causal(replay: Replay) -> bool:
    return place(replay.node.name).path[-1] == "decoder_self" and replay.config.decoder_causal


def _targets_padding(replay: Replay) -> np.ndarray:
    is_real = replay.inputs["decoder_input_ids"] != replay.config.target_pad_id
    return formulas.padding_mask(replay.config.cross_padding, is_real, is_real)
