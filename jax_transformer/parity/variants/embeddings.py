"""Faults of the tables of tokens, and of their sum with the positions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.parity.truth.graph import Kind, place
from jax_transformer.parity.truth.replay import parameter
from jax_transformer.parity.variants.replay import Replay, Variant, configured

if TYPE_CHECKING:
    from jax_transformer.config import TransformerConfig


def embeddings(config: TransformerConfig) -> Iterator[Variant]:
    tokens: tuple[Kind, ...] = ("token_embedding",)
    yield configured(f"√d_model {'missing' if config.scale_embedding else 'applied'}", tokens, scale_embedding=not config.scale_embedding)
    yield Variant("scaled by d_model", tokens, lambda replay: replay.compute() * math.sqrt(config.d_model))
    yield Variant("pad row zero", tokens, _pads_zeroed)
    yield Variant("tables of the two sides swapped", tokens, _other_side)
    sums: tuple[Kind, ...] = ("embedding",)
    yield Variant("√d_model applied after positions", sums, lambda replay: replay.compute() * math.sqrt(config.d_model))
    for times, name in ((0.0, "positions missing"), (2.0, "positions added twice")):
        yield Variant(name, sums, partial(_times, argument="positions", factor=times))


def _times(replay: Replay, argument: str, factor: float) -> np.ndarray:
    return replay.compute({argument: factor * replay.inputs[argument]})


def _pads_zeroed(replay: Replay) -> np.ndarray:
    pad_id = replay.config.source_pad_id if place(replay.node.name).stack == "encoder" else replay.config.target_pad_id
    return np.where((replay.inputs["ids"] == pad_id)[..., None], 0.0, replay.compute())


def _other_side(replay: Replay) -> np.ndarray:
    (path,) = replay.node.parameters.values()
    swapped = {"source_embedding/embedding": "target_embedding/embedding", "target_embedding/embedding": "source_embedding/embedding"}
    return replay.compute(parameters={"embedding": parameter(replay.params, swapped[path])})
