"""Faults of linear layers: of their kernels, their inputs, and of splitting and merging heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from jax_transformer.parity.faults.replay import Replay, Variant, without
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import (
    Kind,
    known_nodes,
    norm_module,
    parameter,
    place,
    placement_of,
    sublayers_of,
)


def projections() -> Iterator[Variant]:
    linear: tuple[Kind, ...] = ("projection", "feed_forward_hidden", "head_transform", "logits")
    yield Variant("bias missing", linear, partial(without, role="bias"))
    yield Variant("kernel transposed", linear, _transposed)
    for name in ("query", "key", "value"):
        yield Variant(f"kernel of the {name}", ("projection",), partial(_with_sibling_kernel, name=name))
    yield Variant("fused kernel of 3 × N × H sliced as N × 3 × H", ("projection",), partial(_sliced, is_by_head=True))
    yield Variant("fused kernel of N × 3 × H sliced as 3 × N × H", ("projection",), partial(_sliced, is_by_head=False))
    for name, split in SPLITS.items():
        yield Variant(name, ("projection",), partial(_split, split=split))
        yield Variant(name, ("attention_logits", "context"), partial(_from_split, split=split))
    for split_name, (name, order) in zip(SPLITS, MERGES.items(), strict=True):
        yield Variant(name, ("projection", "merge_heads"), partial(_merged, order=order))
        yield Variant(name, ("context",), partial(_context_merged, order=order, split=None))
        both = partial(_context_merged, order=order, split=SPLITS[split_name])
        yield Variant(f"{split_name}, and {name}", ("context",), both)
    yield Variant("reads its input normed", ("projection", "feed_forward_hidden"), _read_normed)
    yield Variant("reads its input before the norm", ("projection", "feed_forward_hidden"), _read_unnormed)
    yield Variant("keys and values of the decoder", ("projection",), _reading_decoder)
    yield Variant("encoder's output before its final norm", ("projection",), _before_final_norm)


def _transposed(replay: Replay) -> np.ndarray:
    kernel = replay.parameters["kernel"]
    reads_heads = kernel.ndim == 3 and place(replay.node.name).path[-1] == "output"
    matrix = kernel.reshape(-1, kernel.shape[-1]) if reads_heads else kernel.reshape(len(kernel), -1)
    return replay.compute(parameters={**replay.parameters, "kernel": matrix.T.reshape(kernel.shape)})


def _with_sibling_kernel(replay: Replay, name: str) -> np.ndarray:
    own = place(replay.node.name).path[-1]
    if own not in ("query", "key", "value") or own == name:
        raise LookupError(name)
    paths = {role: path.replace(f"/{own}/", f"/{name}/") for role, path in replay.node.parameters.items()}
    return replay.compute(parameters={role: parameter(replay.params, path) for role, path in paths.items()})


def projected_by(replay: Replay, own: str, part: str) -> np.ndarray:
    """Returns the query, key or value of attention logits, projected by the kernel of another of the three."""
    name = replay.node.inputs[own]
    (node,) = (one for one in known_nodes(replay.config) if one.name == name)
    paths = {role: path.replace(f"/{own}/", f"/{part}/") for role, path in node.parameters.items()}
    inputs = {argument: replay.captured[of] for argument, of in node.inputs.items()}
    return node.compute(replay.config, inputs, {role: parameter(replay.params, path) for role, path in paths.items()})


def _sliced(replay: Replay, is_by_head: bool) -> np.ndarray:
    """Slices a kernel that fuses query, key and value (in cross-attention, key and value) along the wrong axis.

    Args:
      is_by_head: slice as if the parts were interleaved head by head, though they are consecutive; False: the reverse.
    """
    at = place(replay.node.name).path
    parts = ("key", "value") if at[0] == "cross_attention" else ("query", "key", "value")
    if at[-1] not in parts:
        raise LookupError("not fused")
    sliced = {}
    for role, path in replay.node.parameters.items():
        own = np.stack(
            [parameter(replay.params, path.replace(f"/{at[-1]}/", f"/{part}/")) for part in parts]
        )  # [3, …, N, H]
        *rest, heads, width = own.shape[1:]
        by_part, by_head = np.moveaxis(own, 0, -3), np.moveaxis(own, 0, -2)
        fused = (by_part if is_by_head else by_head).reshape(*rest, -1)
        shape, axis = ((heads, len(parts), width), -2) if is_by_head else ((len(parts), heads, width), -3)
        sliced[role] = fused.reshape(*rest, *shape).take(parts.index(at[-1]), axis=axis)
    return replay.compute(parameters=sliced)


def _otherwise(y: np.ndarray) -> np.ndarray:
    """Reads the features of [B, T, N, H] as [H, N]."""
    batch, length, heads, width = y.shape
    return y.reshape(batch, length, width, heads).swapaxes(2, 3)


def _untransposed(y: np.ndarray) -> np.ndarray:
    """Reads [B, T, N · H] as [B, N, T, H], without moving memory."""
    batch, length, heads, width = y.shape
    return y.reshape(batch, heads, length, width).swapaxes(1, 2)


SPLITS = {"heads split in the other order": _otherwise, "heads split without transposing": _untransposed}
MERGES = {"heads merged in the other order": (0, 1, 3, 2), "heads merged without transposing back": (0, 2, 1, 3)}
"""Merges that undo these splits, in programs that get both wrong; axes of [B, T, N, H] as they are read."""


def _split(replay: Replay, split: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    return split(replay.compute())


def _from_split(replay: Replay, split: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Recomputes a node from wrongly split queries and keys, or values, which show as correct before the split."""
    roles = ("query", "key") if replay.node.kind == "attention_logits" else ("value",)
    return replay.compute({role: split(np.ascontiguousarray(replay.inputs[role])) for role in roles})


def _context_merged(
    replay: Replay, order: tuple[int, ...], split: Callable[[np.ndarray], np.ndarray] | None
) -> np.ndarray:
    """Flattens the context in the wrong order for the linear layer, perhaps from wrongly split values."""
    context = replay.own if split is None else _from_split(replay, split)
    return context.transpose(order).reshape(context.shape)


def _merged(replay: Replay, order: tuple[int, ...]) -> np.ndarray:
    """Flattens the context [B, T, N, H] in another order."""
    x = replay.inputs["x"]
    if x.ndim != 4:
        raise LookupError("heads")
    return replay.compute({"x": x.transpose(order).reshape(x.shape)})


def _read_normed(replay: Replay) -> np.ndarray:
    """Reads the input through the norm, though the norm comes after the sublayer."""
    at = place(replay.node.name)
    if placement_of(replay.stack) == "pre":
        raise LookupError("normed already")
    parameters = replay.norm_of(norm_module(replay.stack, at.path[0]))
    return replay.compute({"x": formulas.norm(replay.norm, replay.inputs["x"], **parameters)})


def _read_unnormed(replay: Replay) -> np.ndarray:
    """Reads the input without the norm, though the norm comes before the sublayer."""
    at = place(replay.node.name)
    layer = f"{at.stack}.layers.{at.layer}"
    if replay.node.inputs["x"] not in (f"{layer}.{at.path[0]}_norm", f"{layer}.shared_norm"):
        raise LookupError("not normed")
    sublayers = sublayers_of(replay.stack)
    number = sublayers.index(at.path[0])
    if number == 0 or replay.stack.residual.parallel:
        before = f"{at.stack}.layers.{at.layer - 1}.output" if at.layer else f"{at.stack}.embedding"
    else:
        before = f"{layer}.{sublayers[number - 1]}_residual"
    return replay.compute({"x": replay.captured[before]})


def _reading_decoder(replay: Replay) -> np.ndarray:
    at = place(replay.node.name)
    if at.path[0] != "cross_attention" or at.path[-1] not in ("key", "value"):
        raise LookupError("no cross-attention")
    return replay.compute({"x": replay.layer_activation("self_attention_residual")})


def _before_final_norm(replay: Replay) -> np.ndarray:
    if replay.node.inputs["x"] != "encoder.output" or not replay.config.encoder.final_norm:
        raise LookupError("no final norm")
    return replay.compute({"x": replay.captured[f"encoder.layers.{replay.config.encoder.num_layers - 1}.output"]})
