"""One optimizer step in NumPy, over named arrays: clipping, decay, moments, rate.

Every choice between formulas is a field of `UpdateRule`, including known mistakes, so that another rule answers a "what
if". Arrays are float64. SGD's momentum is stored as the first moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

Arrays = Mapping[str, np.ndarray]
"""Arrays by the parameter's path, such as `decoder/norm/scale` or, in a layer,
`encoder/layers/self_attention/query/kernel[0]`."""

VECTORS = ("bias", "scale", "factor", "slope")
"""Last names of the parameters that many programs don't decay."""


@dataclass(frozen=True)
class UpdateRule:
    """Defines a step. The defaults of the second half are torch's choices: clip_grad_norm_, Adam and AdamW, SGD."""

    optimizer: Literal["adam", "sgd"]
    rates: tuple[float, ...] | Callable[[int], float]
    """The learning rate by the number of earlier steps."""
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-9
    momentum: float = 0.0
    weight_decay: float = 0.0
    weight_decay_kind: Literal["l2", "decoupled"] = "l2"
    clip_norm: float = 0.0
    """0: gradients aren't clipped."""
    pad_rows: tuple[tuple[str, int], ...] = ()
    """The path of each embedding, and its row of the pad."""
    pad_rows_move: Literal["as_others", "by_decay", "never"] = "as_others"
    """by_decay: the row's gradient is dropped, as by torch's padding_idx; nothing changes if it was dropped before."""

    clip_kind: Literal["global", "each", "values"] = "global"
    """global: clip by the norm of all gradients. each: clip each parameter's gradient by its own norm. values: clip
    each value by its size."""
    clip_epsilon: float = 1e-6
    """A constant added to the norm."""
    eps_inside_root: bool = False
    eps_uncorrected: bool = False
    """Whether ε is added to the root of the second moment before its bias is corrected (Kingma & Ba 2015, the end of
    §2)."""
    bias_correction: bool = True
    correction_offset: int = 0
    """Number of steps by which the bias correction is ahead."""
    momentum_averages: bool = False
    """Whether the momentum takes 1 - momentum of each gradient instead of all of it."""
    nesterov: bool = False
    decays_vectors: bool = True
    """Whether biases and scales decay as matrices do."""
    decay_is_clipped: bool = False
    """Whether L2 is part of the gradients when they are clipped, as a term of the loss is."""
    decay_takes_rate: bool = True
    """Whether decoupled decay is multiplied by the learning rate."""
    rate_offset: int = 0
    """Number of steps by which the schedule is ahead."""
    rate_before_first: Literal["first", "zero"] = "first"
    """The rate of a step before the schedule's first."""
    ascends: bool = False


@dataclass(frozen=True)
class State:
    """Holds the state before and after a step."""

    count: int
    """Steps done."""
    parameters: Arrays
    first: Arrays
    second: Arrays


def initial_state(parameters: Arrays) -> State:
    """Returns the state before the first step."""
    exact = {path: np.asarray(array, np.float64) for path, array in parameters.items()}
    zeros = {path: np.zeros(array.shape) for path, array in exact.items()}
    return State(0, exact, zeros, zeros)


def step(rule: UpdateRule, state: State, gradients: Arrays, only: Iterable[str] | None = None) -> State:
    """Returns the state after one step along these gradients, before clipping. The arguments stay unchanged.

    Args:
      only: the paths of the parameters to update and return. All gradients count in their norm.

    Raises:
      ValueError: gradients and parameters have different names or shapes.
      LookupError: the schedule has no rate for this step.
    """
    _check(state.parameters, gradients)
    rate, scale = _rate(rule, state.count), _global_scale(rule, state.parameters, gradients)
    parameters, first, second = {}, {}, {}
    for path in state.parameters if only is None else only:
        before = state.parameters[path]
        gradient = _clipped_and_decayed(rule, path, before, gradients[path], scale)
        direction, first[path], second[path] = _direction(
            rule, state.count + 1, gradient, state.first[path], state.second[path]
        )
        change = rate * direction
        if rule.weight_decay_kind == "decoupled":
            change = change + (rate if rule.decay_takes_rate else 1.0) * _decay(rule, path) * before
        parameters[path] = _with_pads(rule, path, before, before + change if rule.ascends else before - change)
    return State(state.count + 1, parameters, first, second)


def _check(parameters: Arrays, gradients: Arrays) -> None:
    missing = sorted(parameters.keys() ^ gradients.keys())
    if missing:
        raise ValueError(f"expected a gradient for each parameter; not both are there for {', '.join(missing[:3])}")
    for path, array in parameters.items():
        if array.shape != gradients[path].shape:
            raise ValueError(
                f"{path}: expected a gradient of shape {list(array.shape)}; received {list(gradients[path].shape)}"
            )


def _rate(rule: UpdateRule, count: int) -> float:
    number = count + rule.rate_offset
    if number < 0 and rule.rate_before_first == "zero":
        return 0.0
    number = max(number, 0)
    return float(rule.rates(number) if callable(rule.rates) else rule.rates[number])


def _global_scale(rule: UpdateRule, parameters: Arrays, gradients: Arrays) -> float:
    """Returns the factor by which clipping multiplies all gradients."""
    if not rule.clip_norm or rule.clip_kind != "global":
        return 1.0
    arrays = (_unclipped(rule, path, parameters[path], gradient) for path, gradient in gradients.items())
    return _scale(rule, sum(float(np.square(array).sum()) for array in arrays))


def _scale(rule: UpdateRule, sum_of_squares: float) -> float:
    norm = math.sqrt(sum_of_squares) + rule.clip_epsilon
    return rule.clip_norm / norm if norm > rule.clip_norm else 1.0


def _unclipped(rule: UpdateRule, path: str, parameter: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Returns the gradients to clip."""
    gradient = _without_pads(rule, path, gradient)
    is_decayed = rule.weight_decay_kind == "l2" and rule.decay_is_clipped
    return gradient + _decay(rule, path) * parameter if is_decayed else gradient


def _clipped_and_decayed(
    rule: UpdateRule, path: str, parameter: np.ndarray, gradient: np.ndarray, scale: float
) -> np.ndarray:
    """Returns the gradients that enter the moments."""
    gradient = _unclipped(rule, path, parameter, gradient)
    if rule.clip_norm and rule.clip_kind == "values":
        gradient = np.clip(gradient, -rule.clip_norm, rule.clip_norm)
    elif rule.clip_norm:
        gradient = gradient * (_scale(rule, float(np.square(gradient).sum())) if rule.clip_kind == "each" else scale)
    is_decayed = rule.weight_decay_kind == "l2" and not rule.decay_is_clipped
    return gradient + _decay(rule, path) * parameter if is_decayed else gradient


def _direction(
    rule: UpdateRule, number: int, gradient: np.ndarray, first: np.ndarray, second: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the step downwards for a learning rate of 1, and the moments after it; steps are counted from 1."""
    if rule.optimizer == "sgd":
        first = rule.momentum * first + (1.0 - rule.momentum if rule.momentum_averages else 1.0) * gradient
        return (gradient + rule.momentum * first if rule.nesterov else first), first, second
    first = rule.b1 * first + (1.0 - rule.b1) * gradient
    second = rule.b2 * second + (1.0 - rule.b2) * np.square(gradient)
    counted = number + rule.correction_offset
    first_correction, second_correction = (
        (1.0 - rule.b1**counted, 1.0 - rule.b2**counted) if rule.bias_correction else (1.0, 1.0)
    )
    if rule.eps_uncorrected:
        return math.sqrt(second_correction) / first_correction * first / (np.sqrt(second) + rule.eps), first, second
    corrected = second / second_correction
    root = np.sqrt(corrected + rule.eps) if rule.eps_inside_root else np.sqrt(corrected) + rule.eps
    return first / first_correction / root, first, second


def _decay(rule: UpdateRule, path: str) -> float:
    is_vector = path.split("[")[0].split("/")[-1] in VECTORS
    return 0.0 if is_vector and not rule.decays_vectors else rule.weight_decay


def _without_pads(rule: UpdateRule, path: str, gradient: np.ndarray) -> np.ndarray:
    rows = _pad_rows(rule, path)
    if not rows or rule.pad_rows_move == "as_others":
        return gradient
    gradient = gradient.copy()
    gradient[rows] = 0.0
    return gradient


def _with_pads(rule: UpdateRule, path: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    if rule.pad_rows_move == "never":
        rows = _pad_rows(rule, path)
        after[rows] = before[rows]
    return after


def _pad_rows(rule: UpdateRule, path: str) -> list[int]:
    return [row for of, row in rule.pad_rows if of == path]
