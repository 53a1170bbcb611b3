"""Faults of the masks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.comparison.gates import tolerances
from jax_transformer.parity.faults.replay import Replay, Variant
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import MODEL_INPUTS, Kind, known_nodes, place

if TYPE_CHECKING:
    from jax_transformer.config.specs import Attention

COVERS = {
    "keys": "pads masked as keys", "queries": "pads masked as queries", "both": "pads masked as keys and queries",
    "none": "padding not masked",
}  # fmt: skip


def masks() -> Iterator[Variant]:
    """Yields faults of a mask, which all its attentions apply, and the same faults in one attention alone."""
    for variant in _mask_faults():
        yield variant
        compute = partial(_in_one_attention, variant=variant)
        yield Variant(f"{variant.name}, in this attention alone", ("attention_logits",), compute)


def _mask_faults() -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = ("mask",)
    yield Variant("mask inverted", kinds, lambda replay: ~replay.compute())
    yield Variant("not causal", kinds, _not_causal)
    yield Variant("causal mask off by one: sees one token too many", kinds, partial(_shifted, by=1))
    yield Variant("causal mask off by one: doesn't see itself", kinds, partial(_shifted, by=-1))
    yield Variant("causal where it shouldn't be", kinds, _causal_too)
    for by, where in ((-1, "left"), (1, "right")):
        yield Variant(f"padding mask one place to the {where}", kinds, partial(_padding_moved, by=by))
    for cover, name in COVERS.items():
        yield Variant(name, kinds, partial(_covering, cover=cover))
        yield Variant(f"{name}, and not causal", kinds, partial(_not_causal, cover=cover))
        for side in ("target", "source"):
            yield Variant(f"{name}, by the {side}'s pad id", kinds, partial(_with_pad_id, cover=cover, side=side))
    for by, name in ((1, "wider"), (-1, "narrower")):
        yield Variant(f"window off by one: {name}", kinds, partial(_other_window, change=partial(_wider, by=by)))
    yield Variant("window divided between both sides", kinds, partial(_other_window, change=_divided))
    yield Variant("window missing", kinds, partial(_other_window, change=_no_window))
    yield Variant("window where all positions should be seen", kinds, _window_too)
    yield Variant("cross-attention uses the target's padding", kinds, _targets_padding)
    yield Variant("padding of the other side", kinds, _other_padding)


def _in_one_attention(replay: Replay, variant: Variant) -> np.ndarray:
    """Applies the faulty mask to these logits; masked logits keep their received value.

    A mask that is correct on these inputs would therefore fit any fill value, so it isn't tried.
    """
    name = replay.node.inputs["mask"]  # KeyError without one
    (node,) = (one for one in known_nodes(replay.config) if one.name == name)
    inputs = {argument: replay.captured[of] for argument, of in node.inputs.items()}
    mask = variant.compute(Replay(replay.config, node, inputs, {}, replay.captured, replay.params))
    if mask.all():
        raise LookupError("no mask at all")
    if (mask == replay.inputs["mask"]).all():
        raise LookupError("the right mask")
    fill = formulas.masked_value(replay.parts["spec"])
    with contextlib.suppress(LookupError):
        received = replay.received
        is_masked = received <= tolerances.MASKED_BELOW
        return np.where(mask, replay.without_mask, np.where(is_masked, received, fill))
    return np.where(mask, replay.without_mask, fill)


def fill_names(replay: Replay) -> tuple[str, ...]:
    """Returns the fill value of masked logits, or the value added to them, as a cause; nothing if it varies."""
    mask = np.broadcast_to(replay.inputs["mask"], replay.received.shape)
    received, products = replay.received[~mask], np.broadcast_to(replay.without_mask, mask.shape)[~mask]
    value = received[0]
    if (received == value).all():
        return (f"masked logits are {value:g}",)
    with np.errstate(all="ignore"):
        added = float(np.median(received - products))
        is_added = (np.abs(received - products - added) <= tolerances.FLOAT64_RELATIVE_RMS * np.abs(added)).all()
    return (f"{added:g} added to masked logits",) if is_added else ()


def _covering(replay: Replay, cover: str) -> np.ndarray:
    return replay.under(padding=cover)


def _with_pad_id(replay: Replay, cover: str, side: str) -> np.ndarray:
    pad_id = getattr(replay.config, side).pad_id
    own = formulas.decoder_padding_id(replay.parts["spec"], replay.config.target)
    if not _is_of_decoder(replay) or pad_id == own:
        raise LookupError("as it is")
    return replay.compute(parts=replay.with_options(padding=cover, padding_id=pad_id))


def _not_causal(replay: Replay, cover: str | None = None) -> np.ndarray:
    if not _is_causal(replay):
        raise LookupError("not causal anyway")
    return replay.compute(parts=replay.with_options(padding=cover or replay.option("padding"), causal=False))


def _shifted(replay: Replay, by: int) -> np.ndarray:
    if not _is_causal(replay):
        raise LookupError("not causal anyway")
    length = replay.inputs["decoder_input_ids"].shape[1]
    return replay.under(causal=False) & (np.arange(length) <= np.arange(length)[:, None] + by)


def _is_causal(replay: Replay) -> bool:
    return _is_of_decoder(replay) and bool(replay.option("causal"))


def _targets_padding(replay: Replay) -> np.ndarray:
    if _kind(replay) != "cross":
        raise LookupError("no cross-attention")
    is_real = replay.inputs["decoder_input_ids"] != replay.config.target.pad_id
    return formulas.padding_mask(replay.option("padding"), is_real, is_real)


def _causal_too(replay: Replay) -> np.ndarray:
    """Makes a mask causal that shouldn't be: the encoder's, or cross-attention's."""
    if _is_causal(replay):
        raise LookupError("causal as it is")
    lengths = {name: ids.shape[1] for name, ids in replay.captured.items() if name in MODEL_INPUTS}
    keys = lengths["decoder_input_ids" if _is_of_decoder(replay) else "source_ids"]
    queries = keys if _kind(replay) != "cross" else lengths["decoder_input_ids"]
    return replay.own & (np.arange(keys) <= np.arange(queries)[:, None])


def _padding_moved(replay: Replay, by: int) -> np.ndarray:
    """Computes the mask with all tokens moved one place left or right, repeating the token at the edge."""
    return replay.compute({name: _moved(ids, by) for name, ids in replay.inputs.items()})


def _moved(ids: np.ndarray, by: int) -> np.ndarray:
    return np.concatenate([ids[:, :1], ids[:, :-1]] if by > 0 else [ids[:, 1:], ids[:, -1:]], axis=1)


def _other_padding(replay: Replay) -> np.ndarray:
    """Uses the other stack's padding in self-attention, if both sides have the same length."""
    (own,) = replay.inputs  # ValueError for cross-attention, which has two
    other = next(name for name in MODEL_INPUTS if name != own)
    if replay.captured[other].shape != replay.inputs[own].shape:
        raise LookupError("another length")
    pad_ids = {"source_ids": replay.config.source.pad_id, "decoder_input_ids": replay.config.target.pad_id}
    is_real = replay.captured[other] != pad_ids[other]
    padding = formulas.padding_mask(replay.option("padding"), is_real, is_real)
    if _has_window(replay):
        padding = padding & formulas.window_mask(replay.parts["spec"], is_real.shape[1])
    return padding & formulas.causal_mask(replay.parts["spec"], is_real.shape[1]) if _is_causal(replay) else padding


def _other_window(replay: Replay, change: Callable[[Attention], int | None]) -> np.ndarray:
    if not _has_window(replay):
        raise LookupError("no window")
    return replay.under(window=change(replay.parts["spec"]))


def _wider(spec: Attention, by: int) -> int:
    assert spec.window is not None
    if spec.window + by < 1:
        raise LookupError("no position left")
    return spec.window + by


def _divided(spec: Attention) -> int:
    """Returns half of the window, and the position itself, as programs have it that count both sides together."""
    assert spec.window is not None
    if spec.causal or spec.window <= DIVIDED_FROM:
        raise LookupError("one side alone, or off by one")
    return spec.window // 2 + 1


DIVIDED_FROM = 3
"""The largest window half of which is as wide, or narrower by one."""


def _no_window(spec: Attention) -> None:
    return None


def _window_too(replay: Replay) -> np.ndarray:
    """Hides what is out of the window, as in layers that have one."""
    if _kind(replay) == "cross" or _has_window(replay) or replay.option("window") is None:
        raise LookupError("no window")
    (ids,) = replay.inputs.values()
    return replay.own & formulas.window_mask(replay.parts["spec"], ids.shape[1])


def _kind(replay: Replay) -> str:
    """Returns the kind of mask: encoder_self, decoder_self or cross; in layers with a window, encoder_window or
    decoder_window."""
    return place(replay.node.name).path[-1]


def _is_of_decoder(replay: Replay) -> bool:
    return _kind(replay).startswith("decoder")


def _has_window(replay: Replay) -> bool:
    return _kind(replay).endswith("window")
