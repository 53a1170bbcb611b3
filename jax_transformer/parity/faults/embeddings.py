"""Faults of token embeddings, and of their sum with the positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from jax_transformer.parity.faults.replay import Replay, Variant, without
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import Kind, parameter, place

NEAR = 1e-9
"""Largest distance of a vector's first value from a token's, relative to the table's largest, at which the remaining
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
"""(ids [B, T], pad id) → the decoder's inputs, shifted once too often or not at all, which omits the start token."""


def embeddings() -> Iterator[Variant]:
    tokens: tuple[Kind, ...] = ("token_embedding",)
    for name, factor in FACTORS.items():
        yield Variant(name, tokens, partial(_scaled_by, factor=factor))
    yield Variant("pad row zero", tokens, _pads_zeroed)
    yield Variant("tables of the two sides swapped", tokens, _other_side)
    for name, shifted in SHIFTS.items():
        yield Variant(f"decoder's ids {name}", tokens, partial(_with_shifted_ids, shifted=shifted))
    yield Variant("decoder's ids one to the left: one token at each end", tokens, _without_start, True)
    sums: tuple[Kind, ...] = ("embedding",)
    yield Variant("token types missing", sums, partial(without, role="types"))
    yield Variant("second row of the token types", sums, _second_type)
    yield Variant("√d_model applied after positions", sums, _scaled_after)
    yield Variant("sum with positions scaled by √d_model", sums, lambda replay: replay.own * _root(replay))
    yield Variant("factor of embeddings applied after positions", sums, lambda replay: replay.own * _own_factor(replay))
    for name, on_tokens, on_positions in (
        ("positions not scaled", False, False),
        ("tokens scaled instead of positions", True, False),
        ("tokens scaled as positions are", True, True),
    ):
        scaled = partial(_rescaled, on_tokens=on_tokens, on_positions=on_positions)
        yield Variant(name, sums, scaled)
    for times, name in ((0.0, "positions missing"), (2.0, "positions added twice")):
        yield Variant(name, sums, partial(_times, argument="positions", factor=times))


def _second_type(replay: Replay) -> np.ndarray:
    return replay.compute(parameters={**replay.parameters, "types": replay.parameters["types"][1:]})


def _root(replay: Replay) -> float:
    return math.sqrt(replay.stack.d_model)


def _missing_root(replay: Replay) -> float:
    if replay.stack.embedding_scale != "sqrt_d_model":
        raise LookupError("no √d_model")
    return 1.0


def _added_root(replay: Replay) -> float:
    if replay.stack.embedding_scale != 1.0:
        raise LookupError("scaled anyway")
    return _root(replay)


def _model_width(replay: Replay) -> float:
    if replay.stack.embedding_scale not in ("sqrt_d_model", 1.0):
        raise LookupError("a factor of its own")
    return float(replay.stack.d_model)


def _own_factor(replay: Replay) -> float:
    """Returns the factor of the stack's embeddings. Raises LookupError if it is √d_model or 1."""
    if replay.stack.embedding_scale in ("sqrt_d_model", 1.0):
        raise LookupError("no factor of its own")
    return replay.stack.embedding_factor


def _inverse(replay: Replay) -> float:
    if _own_factor(replay) == 0.0:
        raise LookupError("no inverse")
    return 1.0 / _own_factor(replay)


def _other_stack_factor(replay: Replay) -> float:
    own, other = replay.stack, replay.other_stack
    if own.embedding_scale == other.embedding_scale:
        raise LookupError("the same")
    return other.embedding_factor


FACTORS: dict[str, Callable[[Replay], float]] = {
    "√d_model missing": _missing_root,
    "√d_model applied": _added_root,
    "scaled by d_model": _model_width,
    "factor of embeddings missing": lambda replay: _own_factor(replay) ** 0,
    "√d_model instead of the factor of embeddings": lambda replay: _own_factor(replay) ** 0 * _root(replay),
    "√d_model besides the factor of embeddings": lambda replay: _own_factor(replay) * _root(replay),
    "factor of embeddings applied twice": lambda replay: _own_factor(replay) ** 2,
    "divided by the factor of embeddings": _inverse,
    "factor of the other stack's embeddings": _other_stack_factor,
}
"""Fault's name → the wrong scale of token embeddings."""


def _scaled_by(replay: Replay, factor: Callable[[Replay], float]) -> np.ndarray:
    return formulas.rows(replay.parameters["embedding"], replay.inputs["ids"]) * factor(replay)


def _scaled_after(replay: Replay) -> np.ndarray:
    """Scales the sum with the positions instead of the tokens alone."""
    root = _root(replay)
    if replay.stack.embedding_scale != "sqrt_d_model" or "positions" not in replay.inputs:
        raise LookupError("no scale, or nothing else in the sum")
    return replay.compute({"tokens": replay.inputs["tokens"] / root}) * root


def _times(replay: Replay, argument: str, factor: float) -> np.ndarray:
    return replay.compute({argument: factor * replay.inputs[argument]})


def _rescaled(replay: Replay, on_tokens: bool, on_positions: bool) -> np.ndarray:
    """Applies the scale of the positions to other terms of the sum."""
    factor = formulas.position_factor(replay.stack.positions)
    if factor == 1.0 and "position_scale" not in replay.parameters:
        raise LookupError("positions aren't scaled")
    scale = factor * replay.parameters.get("position_scale", 1.0)
    tokens, positions = (
        replay.inputs[name] * scale if scaled else replay.inputs[name]
        for name, scaled in (("tokens", on_tokens), ("positions", on_positions))
    )
    parameters = {role: array for role, array in replay.parameters.items() if role != "position_scale"}
    plain = {**replay.parts, "table_spec": replace(replay.parts["table_spec"], factor=1.0)}
    return replay.compute({"tokens": tokens, "positions": positions}, parameters, plain)


def _pads_zeroed(replay: Replay) -> np.ndarray:
    pad_id = (replay.config.source if place(replay.node.name).stack == "encoder" else replay.config.target).pad_id
    return np.where((replay.inputs["ids"] == pad_id)[..., None], 0.0, replay.compute())


def _other_side(replay: Replay) -> np.ndarray:
    (path,) = replay.node.parameters.values()
    swapped = {
        "source_embedding/embedding": "target_embedding/embedding",
        "target_embedding/embedding": "source_embedding/embedding",
    }
    return replay.compute(parameters={"embedding": parameter(replay.params, swapped[path])})


def _with_shifted_ids(replay: Replay, shifted: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
    return replay.compute({"ids": shifted(_decoder_ids(replay), replay.config.target.pad_id)})


def _decoder_ids(replay: Replay) -> np.ndarray:
    if place(replay.node.name).stack != "decoder":
        raise LookupError("the encoder's ids aren't shifted")
    return replay.inputs["ids"]


def _without_start(replay: Replay) -> np.ndarray:
    """Reads the labels as inputs. The last label isn't among the inputs, so it is inferred from its received vector."""
    ids, pad_id = _decoder_ids(replay), replay.config.target.pad_id
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
