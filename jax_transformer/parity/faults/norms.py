"""Faults of norms; most are the formula under another config."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from jax_transformer.comparison.gates import tolerances
from jax_transformer.config.specs import Norm
from jax_transformer.parity.faults.replay import (
    Replay,
    Variant,
    exchanged,
    norm_parameters,
    norm_scale,
    sum_of,
    without,
)
from jax_transformer.parity.faults.rounding import is_of
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import Kind, place

NORMS: tuple[Kind, ...] = ("norm", "residual_norm")
SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")
LAYER_NORMS = tuple(f"{sublayer}{kind}" for kind in ("_norm", "_output_norm") for sublayer in SUBLAYERS)
EPSILONS = (1e-3, 1e-5, 1e-6, 1e-8, 1e-12, 0.0)
CHOICES: dict[str, dict[str, Any]] = {
    "ε outside the root": {"eps_outside": True},
    "ε inside the root": {"eps_outside": False},
    "variance over D − 1": {"unbiased": True},
    "variance over D": {"unbiased": False},
    **{f"ε = {eps:g}": {"eps": eps} for eps in EPSILONS},
    "RMS without centring": {"kind": "rms_norm"},
    "stored scale without + 1": {"scale_offset": 0.0},
    "stored scale + 1": {"scale_offset": 1.0},
}
"""Name → options of a wrong norm."""
KINDS: tuple[Kind, ...] = (*NORMS, "embedding")


def norms() -> Iterator[Variant]:
    everywhere: tuple[Kind, ...] = (*KINDS, "context_norm")
    for name, options in CHOICES.items():
        yield Variant(f"norm: {name}", everywhere, partial(_under, options=options))
    for first, second in combinations(CHOICES, 2):
        if CHOICES[first].keys().isdisjoint(CHOICES[second]):
            both = CHOICES[first] | CHOICES[second]
            yield Variant(f"norm: {first}, and {second}", everywhere, partial(_under, options=both))
    yield Variant("norm: variance as E[x²] − E[x]²", KINDS, partial(_fast_variance, dtype="float64"), True)
    yield Variant("norm: variance as E[x²] − E[x]² in float32", KINDS, partial(_fast_variance, dtype="float32"), True)
    yield Variant("norm: variance in float32", KINDS, partial(_narrow_variance, options={}), True)
    swapped = {"scale": "bias", "bias": "scale"}
    yield Variant("norm: scale dropped", everywhere, partial(without, role="scale"))
    yield Variant("norm: bias dropped", everywhere, partial(without, role="bias"))
    yield Variant("norm: scale and bias swapped", everywhere, partial(exchanged, roles=swapped))
    alone: tuple[Kind, ...] = ("norm", "context_norm")
    yield Variant("norm missing", alone, lambda replay: replay.inputs["x"])
    yield Variant("norm twice", alone, lambda replay: replay.compute({"x": replay.compute()}))
    yield Variant("contexts normed head by head", ("context_norm",), _head_by_head)
    for module in LAYER_NORMS:
        yield Variant(f"parameters of {module}", NORMS, partial(_with_norm_of, module=module))
    yield Variant("norm before the output projection, not after it", ("norm",), _before_projection)
    yield Variant("norm before the activation, not after it", ("norm",), _before_activation)


def _under(replay: Replay, options: Mapping[str, Any]) -> np.ndarray:
    """Computes the node with another norm. Raises LookupError if it has no norm, or already these options."""
    _require_norm(replay)
    if "scale_offset" in options and "scale" not in replay.parameters:
        raise LookupError("no scale")
    return replay.under(**options)


def _require_norm(replay: Replay) -> None:
    """Raises LookupError if the node is an embedding that isn't normed."""
    if replay.node.kind == "embedding" and replay.stack.embedding_norm == "none":
        raise LookupError("no norm")


def with_narrow_variance(replay: Replay) -> Iterator[tuple[str, np.ndarray]]:
    """Yields wrong norms whose variance is also computed in float32, by name, with their values."""
    if replay.node.kind in KINDS:
        for name, options in CHOICES.items():
            with contextlib.suppress(LookupError):
                _under(replay, options)
                yield f"norm: {name}, and variance in float32", _narrow_variance(replay, options)


# --- misplaced or shared norms


def _with_norm_of(replay: Replay, module: str) -> np.ndarray:
    """Uses the parameters of another norm of the layer, like programs that share one norm between two places."""
    own = place(replay.node.name).path
    if own == (module,) or len(own) > 1 or not norm_parameters(replay):
        raise LookupError("no other norm")
    return replay.compute(parameters={**replay.parameters, **replay.norm_of(module)})


def _head_by_head(replay: Replay) -> np.ndarray:
    """Norms the context of each head separately, with its part of the scale and bias."""
    x = replay.inputs["x"]
    if x.shape[2] == 1:
        raise LookupError("one head")
    own = {role: array.reshape(x.shape[2:]) for role, array in norm_parameters(replay).items()}
    return formulas.norm(replay.norm, x, **own)


def _before_projection(replay: Replay) -> np.ndarray:
    """Norms the merged heads, and projects them afterwards."""
    (name, *_) = place(replay.node.name).path
    attention = name.removesuffix("_output_norm")
    if attention == name or not attention.endswith("attention"):
        raise LookupError("not of an attention's output")
    context = replay.layer_activation(f"{attention}.context")
    normed = replay.compute({"x": context.reshape(*context.shape[:2], -1)})  # ValueError unless N · H is D
    use_bias = getattr(replay.stack, attention).output_bias
    bias = replay.own_parameter(f"{attention}/output", "bias") if use_bias else None
    kernel = replay.own_parameter(f"{attention}/output", "kernel")
    return formulas.projection(normed.reshape(context.shape), kernel, bias, axes="BTNH,NHD->BTD")


def _before_activation(replay: Replay) -> np.ndarray:
    """Norms the hidden units before their activation; in a gated layer, the product's other factor."""
    if place(replay.node.name).path != ("feed_forward", "hidden_norm"):
        raise LookupError("not of hidden units")
    part = replay.stack.feed_forward
    if part is None or part.gated:
        raise LookupError("two factors")
    slope = replay.own_parameter("feed_forward", "slope") if part.activation == "prelu" else None
    return formulas.activation(part, replay.compute({"x": _hidden_before_activation(replay, part.bias)}), slope)


def _hidden_before_activation(replay: Replay, use_bias: bool) -> np.ndarray:
    """Recomputes the hidden units before activation, from the feed-forward's input."""
    kernel = replay.own_parameter("feed_forward/hidden", "kernel")
    bias = replay.own_parameter("feed_forward/hidden", "bias") if use_bias else None
    x = replay.at(replay.sibling("feed_forward.hidden"), ["x"]).inputs["x"]
    return formulas.projection(x, kernel, bias, axes="BTD,DF->BTF")


# --- variances with different rounding: no formula fixes it, so they are recognised from the received deviations


class _Normed(NamedTuple):
    """Holds the input and output of a norm."""

    x: np.ndarray
    """The input, [..., D]."""
    added: np.ndarray | float
    """Terms added after the norm: bias and positions."""
    received: np.ndarray
    """The received value minus `added`."""
    scale: np.ndarray | float


def _normed(replay: Replay) -> _Normed:
    """Returns a node's norm. Raises LookupError for an embedding without one."""
    inputs, scale, added = replay.inputs, norm_scale(replay), replay.parameters.get("bias", 0.0)
    if replay.node.kind == "norm":
        x = inputs["x"]
    elif replay.node.kind == "residual_norm":
        x = sum_of(replay)
    else:
        _require_norm(replay)
        normed = replay.stack.embedding_norm
        factor = formulas.position_factor(replay.stack.positions) * replay.parameters.get("position_scale", 1.0)
        x, positions = inputs["tokens"], inputs.get("positions", np.zeros(())) * factor
        x, added = (x + positions, added) if normed == "after_positions" else (x, added + positions)
    return _Normed(x, added, replay.received - added, scale)


def _factors(normed: _Normed, norm_kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns x, centred, and the factor of each row that best turns it into the received value."""
    centred = normed.x - normed.x.mean(axis=-1, keepdims=True) if norm_kind == "layer_norm" else normed.x
    scaled = centred * normed.scale
    return centred, (scaled * normed.received).sum(axis=-1, keepdims=True) / np.square(scaled).sum(
        axis=-1, keepdims=True
    )


ROUNDINGS = 8.0
"""Largest error of a variance computed from E[x²], in roundings of E[x²]; largest error of a mean, in roundings of
√E[x²]; and least error of such a variance in its own roundings, since correct formulas have a few, too."""


def _fast_variance(replay: Replay, dtype: str) -> np.ndarray:
    """Recognises E[x²] − E[x]² as the variance, which cancels where the mean is large."""
    spec = replay.norm
    if spec.kind != "layer_norm":
        raise LookupError("no mean")
    normed = _normed(replay)
    if replay.is_right:
        return _with_fast_variance(replay, normed, dtype)
    factors, shifts, value = _line(normed)
    width, square = normed.x.shape[-1], np.square(normed.x).mean(axis=-1, keepdims=True)
    exact = normed.x.var(axis=-1, keepdims=True) * (width / (width - 1) if spec.unbiased else 1.0)
    variance = np.square(1.0 / factors - spec.eps) if spec.eps_outside else np.square(1.0 / factors) - spec.eps
    off, rounding = np.abs(variance - exact), ROUNDINGS * np.finfo(dtype).eps
    is_near = (off <= rounding * square).all() and (np.abs(shifts) <= rounding * np.sqrt(square)).all()
    is_scattered = (
        np.ptp(variance - exact) > 0.5 * off.max()
    )  # ε, or a variance over D − 1, is off in one direction everywhere
    if is_near and is_scattered and (off > rounding * exact).any():
        if dtype == "float64":
            return value
        allowed = tolerances.COMPUTED_IN["float32"]
        if is_of(replay.received, dtype) and replay.error(value) <= allowed < replay.error(replay.own):
            return replay.received
    return _with_fast_variance(replay, normed, dtype)


def _line(normed: _Normed) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns each row's factor and shift for which (x − mean − shift) · factor · scale is nearest to the received one,
    and the value that they give."""
    centred = normed.x - normed.x.mean(axis=-1, keepdims=True)
    slope, level = centred * normed.scale, np.broadcast_to(normed.scale, centred.shape)

    def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a * b).sum(axis=-1, keepdims=True)

    determinant = dot(slope, slope) * dot(level, level) - np.square(dot(slope, level))
    factor = (
        dot(slope, normed.received) * dot(level, level) - dot(level, normed.received) * dot(slope, level)
    ) / determinant
    constant = (
        dot(level, normed.received) * dot(slope, slope) - dot(slope, normed.received) * dot(slope, level)
    ) / determinant
    return factor, -constant / factor, slope * factor + level * constant + normed.added


def _with_fast_variance(replay: Replay, normed: _Normed, dtype: str) -> np.ndarray:
    x = normed.x.astype(dtype)
    mean, width = x.mean(axis=-1, keepdims=True), x.shape[-1]
    variance = np.maximum(np.square(x).mean(axis=-1, keepdims=True) - np.square(mean), 0.0)
    variance = variance * (width / (width - 1)) if replay.norm.unbiased else variance
    scale, added = np.asarray(normed.scale, dtype), np.asarray(normed.added, dtype)
    return ((x - mean) / _deviation(replay.norm, variance) * scale + added).astype(np.float64)


def _deviation(spec: Norm, variance: np.ndarray) -> np.ndarray:
    """Returns the deviation in the variance's dtype."""
    root: np.ndarray = np.sqrt(variance) + spec.eps if spec.eps_outside else np.sqrt(variance + spec.eps)
    return root


MOST_ROUNDOFFS = 8.0
"""The largest error of a deviation in float32, in unit roundoffs. An error in the variance's sum is halved by the
root; a wrong ε is larger, on inputs of small variance by far."""


def _narrow_variance(replay: Replay, options: Mapping[str, Any]) -> np.ndarray:
    """Recognises T5's norm: float64 x divided by a float32 deviation, or multiplied by the inverse of one.

    Args:
      options: further wrong options of the norm.

    Raises:
      LookupError: the node has no norm.
    """
    _require_norm(replay)
    spec = next(part for part in replay.with_options(**options).values() if isinstance(part, Norm))
    normed = _normed(replay)._replace(scale=norm_scale(replay, spec))
    centred, factors = _factors(normed, spec.kind)
    own = 1.0 / formulas.deviation(spec, centred)
    for narrow in (_float32(factors), 1.0 / _float32(1.0 / factors)):
        is_float32 = (np.abs(narrow / factors - 1.0) <= tolerances.FLOAT64_RELATIVE_RMS).all()
        if is_float32 and (np.abs(narrow / own - 1.0) <= MOST_ROUNDOFFS * tolerances.UNIT_ROUNDOFF["float32"]).all():
            return centred * narrow * normed.scale + normed.added
    width = centred.shape[-1] - 1 if spec.unbiased else centred.shape[-1]
    variance = np.square(centred.astype(np.float32)).sum(axis=-1, keepdims=True) / np.float32(width)
    return centred * (np.float32(1.0) / _deviation(spec, variance)) * normed.scale + normed.added


def _float32(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32).astype(np.float64)
