"""Faults of rotary positions: wrong pairs, wrong angles, and wrong operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.compare import relative_rms
from jax_transformer.config.positions import Rotary
from jax_transformer.parity.faults.positions import moved
from jax_transformer.parity.faults.precision import rounded
from jax_transformer.parity.faults.replay import Replay, Variant, configured
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import MODEL_INPUTS, Kind, place

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig

KINDS: tuple[Kind, ...] = ("rotation",)
LAYOUTS = {"halves": "pairs of the two halves", "interleaved": "pairs of neighbours"}
BASES = (500.0, 10000.0, 160000.0, 500000.0, 1000000.0)
"""Bases of published models. Any other is measured."""
MEASURED_WITHIN = 1e-6
"""The largest relative distance from a measured base of the rounder numbers that are tried for it."""
MOST_DIGITS = 15
SEARCHED = np.exp(np.arange(np.log(2.0), np.log(1e10), 0.05))
"""The bases among which one is searched that no angle shows. At the positions of a batch, the residual falls toward the
right one from neighbours on either side."""
BEST = 3
"""The most minima among them that are looked at more closely."""
GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0
HALVINGS = 70
"""The steps of a golden-section search that narrow an interval down to the last bits of float64."""
ANGLE_ROUNDINGS = 4.0
"""Largest error of an angle in its unit roundoffs: of its frequency, of the product with the position, and of its
cosine or sine relative to the angle."""
VALUE_ROUNDINGS = 2.0
"""The same for a cosine or sine, in roundoffs of 1."""


def rotary(config: TransformerConfig) -> Iterator[Variant]:
    own = [stack.positions for stack in (config.encoder, config.decoder) if isinstance(stack.positions, Rotary)]
    for spec in dict.fromkeys(own):
        for layout, base in product(LAYOUTS, dict.fromkeys((spec.base, *BASES))):
            if (layout, base) != (spec.layout, spec.base):
                yield with_base(spec, layout, base)
    if not own:
        return
    for offset in (-2, -1, 1, 2):
        name = f"rotary: positions {abs(offset)} too {'far' if offset > 0 else 'near'}"
        yield Variant(name, KINDS, partial(moved, by=offset))
    for index, name in {"column": "column", "non_pad_count": "count of real tokens"}.items():
        yield configured(f"rotary: indexed by {name}", KINDS, index=index)
    yield Variant("rotary: not rotated", KINDS, lambda replay: replay.inputs["x"])
    yield Variant("rotary: turned backwards", KINDS, partial(_with_angles, change=np.negative))
    yield Variant("rotary: exponents i / R", KINDS, partial(_with_frequencies, factor=0.5))
    yield Variant("rotary: exponents 4i / R", KINDS, partial(_with_frequencies, factor=2.0))
    yield Variant("rotary: exponents over the whole head", KINDS, partial(_with_frequencies, factor=None))
    yield Variant("rotary: whole head rotated", KINDS, partial(_with_width, share=1.0))
    for share, name in ((0.5, "half"), (0.25, "a quarter")):
        yield Variant(f"rotary: {name} of the head rotated", KINDS, partial(_with_width, share=share))
    yield Variant("rotary: cosines and sines in float32", KINDS, _with_narrow_angles)
    yield Variant("rotary: cross-attention rotated, too", ("attention_logits",), _cross_rotated)


def with_base(spec: Rotary, layout: str, base: float) -> Variant:
    """Returns the variant that rotates by another base, or other pairs."""
    names = [LAYOUTS[layout]] if layout != spec.layout else []
    if base != spec.base:
        names.append(f"base {base:,.{MOST_DIGITS}g} instead of {spec.base:,.{MOST_DIGITS}g}")
    return Variant(f"rotary: {', '.join(names)}", KINDS, partial(_turned, own=spec, layout=layout, base=base))


def _turned(replay: Replay, own: Rotary, layout: str, base: float) -> np.ndarray:
    """Rotates by another base or other pairs. Raises LookupError if the node's positions are of another kind."""
    if replay.parts["spec"] != own:
        raise LookupError("of the other stack")
    return replay.compute(parts=replay.with_options(layout=layout, base=base))


# --- a base that is measured


def measured_base(replay: Replay, layout: str) -> float | None:
    """Returns the base by which received pairs of a layout are rotated, from the angle of the second pair between
    neighbouring positions. None if the head has one pair, or there is one position."""
    spec = replay.with_options(layout=layout)["spec"]
    numbers, width = _numbers(replay), spec.dim or _head(replay)
    follows = np.diff(numbers, axis=1) == 1
    if width < 4 or not follows.any():
        return None
    first, second = (pairs[1] for pairs in formulas.rotary_pairs(spec, width))
    before, after = (array[..., first] + 1j * array[..., second] for array in (replay.inputs["x"], replay.received))
    turns = (after * before.conj()).sum(axis=2)  # [B, T], over the heads
    steps = turns[:, 1:] * turns[:, :-1].conj()
    angle = np.angle(steps[np.broadcast_to(follows, steps.shape)].sum())
    return float(angle ** (-width / 2)) if 0.0 < angle < 1.0 else None  # the first pair turns by 1


def searched_bases(residual: Callable[[float], float]) -> Iterator[float]:
    """Yields the bases at which a residual is least, the best first."""
    found = np.array([residual(base) for base in SEARCHED])
    inner = np.arange(1, len(found) - 1)
    minima = inner[(found[inner] <= found[inner - 1]) & (found[inner] <= found[inner + 1])]
    for number in sorted(minima, key=lambda index: found[index])[:BEST]:
        low, high = np.log(SEARCHED[number - 1]), np.log(SEARCHED[number + 1])
        for _ in range(HALVINGS):
            below, above = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
            if residual(float(np.exp(below))) < residual(float(np.exp(above))):
                high = above
            else:
                low = below
        yield float(np.exp((low + high) / 2))


def round_numbers(measured: float) -> list[float]:
    """Returns the round numbers that a measured one may be, fewest digits first."""
    numbers = dict.fromkeys(float(f"{measured:.{digits}g}") for digits in range(1, MOST_DIGITS + 1))
    return [number for number in numbers if abs(number - measured) <= MEASURED_WITHIN * measured]


def _angles(replay: Replay) -> np.ndarray:
    """Returns the angle of every position and pair: [B or 1, T, 1, R / 2]."""
    frequencies = formulas.rotary_frequencies(replay.parts["spec"], replay.inputs["x"].shape[-1])
    return _numbers(replay)[:, :, None, None] * frequencies


def _numbers(replay: Replay) -> np.ndarray:
    """Returns the position of every token: [1, T] or [B, T]."""
    return formulas.position_numbers(replay.parts["spec"], replay.parts["tokens"], replay.inputs["ids"])


def _with_angles(replay: Replay, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    angles = change(_angles(replay))
    return formulas.rotated(replay.parts["spec"], replay.inputs["x"], np.cos(angles), np.sin(angles))


def _with_frequencies(replay: Replay, factor: float | None) -> np.ndarray:
    """Rotates with exponents of the base that are `factor` times as large; None: divided by the head's width."""
    angles = _angles(replay)
    factor = 2 * angles.shape[-1] / _head(replay) if factor is None else factor
    frequencies = formulas.rotary_frequencies(replay.parts["spec"], _head(replay)) ** factor
    turned = angles[..., :1] * frequencies  # the first frequency is 1
    return formulas.rotated(replay.parts["spec"], replay.inputs["x"], np.cos(turned), np.sin(turned))


def _head(replay: Replay) -> int:
    return int(replay.inputs["x"].shape[-1])


def _with_width(replay: Replay, share: float) -> np.ndarray:
    width = int(share * _head(replay))
    if width % 2 or width < 2 or width == (replay.option("dim") or _head(replay)):
        raise LookupError("no such width, or unchanged")
    return replay.under(dim=width)


# --- cosines and sines in float32: programs differ in the last bit, so they are recognised


def _with_narrow_angles(replay: Replay) -> np.ndarray:
    """Returns the rotation by the received cosines and sines if these are float32 numbers that are off by at most
    rounding; otherwise by one possible result."""
    angles = _angles(replay)
    found = _received_turn(replay, angles)
    if found is not None:
        return formulas.rotated(replay.parts["spec"], replay.inputs["x"], *found)
    frequencies = rounded(formulas.rotary_frequencies(replay.parts["spec"], _head(replay)), "float32")
    narrow = rounded(angles[..., :1] * frequencies, "float32")
    turn = (rounded(function(narrow), "float32") for function in (np.cos, np.sin))
    return formulas.rotated(replay.parts["spec"], replay.inputs["x"], *turn)


def _received_turn(replay: Replay, angles: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the received cosines and sines [B, T, 1, R / 2] if they are such numbers of float32."""
    x, y = replay.inputs["x"], replay.received
    first, second = formulas.rotary_pairs(replay.parts["spec"], 2 * angles.shape[-1])
    squares = (x[..., first] ** 2 + x[..., second] ** 2).sum(axis=2, keepdims=True)  # over the heads
    along = (x[..., first] * y[..., first] + x[..., second] * y[..., second]).sum(axis=2, keepdims=True)
    across = (x[..., first] * y[..., second] - x[..., second] * y[..., first]).sum(axis=2, keepdims=True)
    cosine, sine = (rounded(part / squares, "float32") for part in (along, across))
    roundoff = tolerances.UNIT_ROUNDOFF["float32"]
    allowed = roundoff * (ANGLE_ROUNDINGS * np.abs(angles) + VALUE_ROUNDINGS)
    is_near = all((np.abs(one - of(angles)) <= allowed).all() for one, of in ((cosine, np.cos), (sine, np.sin)))
    if (
        not is_near
        or relative_rms(y, formulas.rotated(replay.parts["spec"], x, cosine, sine)) > tolerances.FLOAT64_RELATIVE_RMS
    ):
        return None
    return cosine, sine


# --- in cross-attention


def _cross_rotated(replay: Replay) -> np.ndarray:
    spec = replay.stack.positions
    if place(replay.node.name).path[0] != "cross_attention" or not isinstance(spec, Rotary) or spec.cross_attention:
        raise LookupError("no cross-attention, or rotated anyway")
    sides = {"query": (replay.config.target, MODEL_INPUTS[1]), "key": (replay.config.source, MODEL_INPUTS[0])}
    turned = {
        name: formulas.rotation(spec, tokens, replay.inputs[name], replay.captured[ids])
        for name, (tokens, ids) in sides.items()
    }
    return replay.compute(turned)
