"""Faults of token embeddings, and of their sum with the positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.parity.faults.replay import Replay, Variant, changed
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import Kind, place
from jax_transformer.parity.oracle.replay import parameter

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig


NEAR = 1e-9
"""The largest distance of a vector's first value from a token's, relative to the table's largest, at which the other
values are compared."""
SHIFTS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "one to the right: the first twice": lambda ids, pad: np.concatenate([ids[:, :1], ids[:, :-1]], axis=1),
    "one to the right: a pad first": lambda ids, pad: np.concatenate(
        [np.full_like(ids[:, :1], pad), ids[:, :-1]], axis=1
    ),
    "one to the left: the last twice": lambda ids, pad: np.concatenate([ids[:, 1:], ids[:, -1:]], axis=1),
    "one to the left: a pad last": lambda ids, pad: np.concatenate([ids[:, 1:], np.full_like(ids[:, :1], pad)], axis=1),
    "one to the left: token 0 last": lambda ids, pad: np.concatenate([ids[:, 1:], np.zeros_like(ids[:, :1])], axis=1),
}
"""(ids [B, T], pad id) → the decoder's inputs shifted once too often, or not at all, which leaves out the start."""


def embeddings(config: TransformerConfig) -> Iterator[Variant]:
    tokens: tuple[Kind, ...] = ("token_embedding",)
    for name, factor in _other_factors(config).items():
        yield Variant(name, tokens, partial(_scaled_by, factor=factor))
    yield Variant("pad row zero", tokens, _pads_zeroed)
    yield Variant("tables of the two sides swapped", tokens, _other_side)
    for name, shifted in SHIFTS.items():
        yield Variant(f"decoder's ids {name}", tokens, partial(_of_shifted, shifted=shifted))
    yield Variant("decoder's ids one to the left: one token at each end", tokens, _without_start, True)
    sums: tuple[Kind, ...] = ("embedding",)
    yield Variant("√d_model applied after positions", sums, _scaled_after)
    yield Variant(
        "sum with positions scaled by √d_model", sums, lambda replay: replay.compute() * math.sqrt(config.d_model)
    )
    if _has_factors(config):
        yield Variant(
            "factor of embeddings applied after positions",
            sums,
            lambda replay: replay.compute() * replay.stack.embedding_factor,
        )
    if config.position_factor != 1.0 or config.learned_position_scale:
        yield Variant("positions not scaled", sums, partial(_rescaled, of_tokens=False, of_positions=False))
        yield Variant(
            "tokens scaled in place of positions", sums, partial(_rescaled, of_tokens=True, of_positions=False)
        )
        yield Variant("tokens scaled as positions are", sums, partial(_rescaled, of_tokens=True, of_positions=True))
    for times, name in ((0.0, "positions missing"), (2.0, "positions added twice")):
        yield Variant(name, sums, partial(_times, argument="positions", factor=times))


def _has_factors(config: TransformerConfig) -> bool:
    """Returns whether a stack has a factor of its own, in place of √d_model or 1."""
    return config.embedding_factor is not None or config.decoder_embedding_factor is not None


def _other_factors(config: TransformerConfig) -> dict[str, Callable[[Replay], float]]:
    """Returns what token embeddings may be scaled by instead of their own factor, by the fault's name."""
    root = math.sqrt(config.d_model)
    if not _has_factors(config):
        name, plain = ("√d_model missing", 1.0) if config.scale_embedding else ("√d_model applied", root)
        return {name: lambda _: plain, "scaled by d_model": lambda _: float(config.d_model)}
    return {
        "factor of embeddings missing": lambda _: 1.0,
        "√d_model in place of the factor of embeddings": lambda _: root,
        "√d_model beside the factor of embeddings": lambda replay: replay.stack.embedding_factor * root,
        "factor of embeddings applied twice": lambda replay: replay.stack.embedding_factor**2,
        "divided by the factor of embeddings": _inverse,
        "factor of the other stack's embeddings": _of_other_stack,
    }


def _inverse(replay: Replay) -> float:
    if replay.stack.embedding_factor == 0.0:
        raise LookupError("no inverse")
    return 1.0 / replay.stack.embedding_factor


def _of_other_stack(replay: Replay) -> float:
    is_encoder = place(replay.node.name).stack == "encoder"
    return (replay.config.decoder if is_encoder else replay.config.encoder).embedding_factor


def _scaled_by(replay: Replay, factor: Callable[[Replay], float]) -> np.ndarray:
    return formulas.rows(replay.parameters["embedding"], replay.inputs["ids"]) * factor(replay)


def _scaled_after(replay: Replay) -> np.ndarray:
    """Scales the sum with the positions instead of the tokens alone."""
    root = math.sqrt(replay.config.d_model)
    if not replay.config.scale_embedding or "positions" not in replay.inputs:
        raise LookupError("no scale, or nothing else in the sum")
    return replay.compute({"tokens": replay.inputs["tokens"] / root}) * root


def _times(replay: Replay, argument: str, factor: float) -> np.ndarray:
    return replay.compute({argument: factor * replay.inputs[argument]})


def _rescaled(replay: Replay, of_tokens: bool, of_positions: bool) -> np.ndarray:
    """Applies the scale of the positions to other terms of the sum."""
    scale = replay.config.position_factor * replay.parameters.get("position_scale", 1.0)
    tokens, positions = (
        replay.inputs[name] * scale if scaled else replay.inputs[name]
        for name, scaled in (("tokens", of_tokens), ("positions", of_positions))
    )
    parameters = {role: array for role, array in replay.parameters.items() if role != "position_scale"}
    plain = changed(replay.config, position_factor=1.0)
    return replay.compute({"tokens": tokens, "positions": positions}, parameters, plain)


def _pads_zeroed(replay: Replay) -> np.ndarray:
    pad_id = replay.config.source_pad_id if place(replay.node.name).stack == "encoder" else replay.config.target_pad_id
    return np.where((replay.inputs["ids"] == pad_id)[..., None], 0.0, replay.compute())


def _other_side(replay: Replay) -> np.ndarray:
    (path,) = replay.node.parameters.values()
    swapped = {
        "source_embedding/embedding": "target_embedding/embedding",
        "target_embedding/embedding": "source_embedding/embedding",
    }
    return replay.compute(parameters={"embedding": parameter(replay.params, swapped[path])})


def _of_shifted(replay: Replay, shifted: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    return replay.compute({"ids": shifted(_decoder_ids(replay), replay.config.target_pad_id)})


def _decoder_ids(replay: Replay) -> np.ndarray:
    if place(replay.node.name).stack != "decoder":
        raise LookupError("the encoder's ids aren't shifted")
    return replay.inputs["ids"]


def _without_start(replay: Replay) -> np.ndarray:
    """Reads the labels as inputs. Their last token isn't among the inputs: it is found by its received vector."""
    ids, pad_id = _decoder_ids(replay), replay.config.target_pad_id
    columns = np.arange(ids.shape[1])
    last = np.where(ids != pad_id, columns, 0).max(axis=1, keepdims=True)
    vectors = replay.compute({"ids": np.arange(len(replay.parameters["embedding"]))[None]})[0]  # [V, D]
    received = replay.received[0, last[0, 0]]
    (found,) = np.nonzero(np.abs(vectors[:, 0] - received[0]) <= NEAR * np.abs(vectors[:, 0]).max())
    if not len(found):
        raise LookupError("no token's vector")
    token = found[np.abs(vectors[found] - received).sum(axis=-1).argmin()]
    if token == pad_id:
        raise LookupError("one of the shifts")
    return replay.compute({"ids": np.where(columns == last, token, SHIFTS["one to the left: a pad last"](ids, pad_id))})
