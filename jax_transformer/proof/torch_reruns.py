"""Run a PyTorch program again, unwatched and on other weights, and compare it with the program read from its first run.

Numbers can leave PyTorch, or come back, invisibly: by earlier threads, memory shared with NumPy, a module that caches
results. The program that was read then contains numbers of the first run, and differs from the real one on other
weights, or branches differently for much larger or smaller ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from jax_transformer.proof.domains import Floats
from jax_transformer.proof.evaluating import evaluate
from jax_transformer.proof.programs import Program, UnknownOperation, digest_of
from jax_transformer.proof.torch_access import flat, is_tensor, written_by
from jax_transformer.proof.torch_memory import Variable, as_array, numbers_of, storage_of
from jax_transformer.proof.torch_programs import defined, user_line

MOST = {"bfloat16": 0.1, "float16": 0.01, "float32": 1e-3, "float64": 1e-6}
"""The largest relative RMS of a difference, for programs that compute in this type, or round to it."""
NARROWEST = 0.5
"""That for types of 8 bits."""
MOVES = 8.0
"""How many times as far as changed last bits of weights move it an output may be from what was read, if it is small
relative to the middle one: a rounding error of zero, such as the gradient of a bias of keys."""
DRAWS = 3
"""How often last bits are changed to find how far they move an output."""
SMALL = 1e-6
"""An output that is smaller than the middle one by this factor may be a rounding error of zero."""
FILLED = 1e8
"""A number as large is one that masks an entry."""
SIZES = (1e2, 1e9, -1e-3)
"""Factors of weights on which a program has to run the same operations: an invisible read may have a threshold."""
RAISED = (Exception, SystemExit)
"""All that a user's program may raise."""
PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Types of arguments that are compared from run to run."""
REASON = (
    "it computes something else when it runs again on other weights than was read of it ({}): it {}, reads numbers in "
    "a way that isn't seen, such as threads or NumPy's memory, or keeps what it computed"
)
OTHER_WAY = (
    "it runs other operations, or other numbers, on other weights: it reads weights in a way that isn't seen, or keeps "
    "what it computed"
)


def check_again(
    lowered: Program, program: Callable[[], Mapping[str, torch.Tensor]], weights: Mapping[str, torch.Tensor | Variable]
) -> None:
    """Raises UnknownOperation if a program differs from its lowered form on slightly larger weights, or on weights of
    the opposite sign, which may change branches.

    Args:
      program, weights: as in `torch_programs.lower`. The weights are changed while it runs.
    """
    variables = {name: Variable.of(weight) for name, weight in weights.items()}
    ways = [_check(lowered, program, variables, sign) for sign in (1, -1)]
    ways += [_run(program, variables, size) for size in SIZES]
    for way, size in zip(ways, (1, -1, *SIZES), strict=True):
        if way.steps != ways[0].steps:
            seen = _run(program, variables, size, with_lines=True)
            raise UnknownOperation("run", seen.line_of_difference(ways[0]), OTHER_WAY)


def _run(
    program: Callable[[], Mapping[str, torch.Tensor]], weights: Mapping[str, Variable], size: float, **options: bool
) -> _Way:
    """Runs a program on weights scaled by a factor. Raises UnknownOperation if it raises."""
    with _changed(weights, size), defined(), _Way(weights, **options) as way:
        try:
            program()
        except RAISED as error:
            reason = f"it raises {type(error).__name__} on weights {abs(size):g} times as large"
            raise UnknownOperation("run", "", reason) from error
    return way


def _check(
    lowered: Program, program: Callable[[], Mapping[str, torch.Tensor]], weights: Mapping[str, Variable], sign: int
) -> _Way:
    with _changed(weights, sign) as changed_weights, defined():
        with _Way(weights) as way:
            returned = program()
        tensors = {name: tensor for name, tensor in returned.items() if name not in lowered.unknown}
        found = {name: _numbers(tensor) for name, tensor in tensors.items()}
    read = {name: np.asarray(array, np.float64) for name, array in evaluate(lowered, Floats(), changed_weights).items()}
    if found.keys() != read.keys():
        reason = REASON.format(f"{len(found)} outputs for {len(read)}", "branches")
        raise UnknownOperation(min(found.keys() ^ read.keys()), "", reason)
    parts = [tensor for variable in weights.values() for tensor, _ in variable.parts]
    types = {each.split(" ")[0] for each in lowered.narrowing} | {
        str(each.dtype).removeprefix("torch.") for each in (*parts, *tensors.values()) if each.is_floating_point()
    }
    most = max((MOST.get(each, NARROWEST) for each in types), default=MOST["float64"])
    middle = float(np.median([size for size in map(_rms, found.values()) if size] or [0.0]))
    usual = SMALL * middle
    different = [
        name
        for name, each in found.items()
        if each.shape != read[name].shape or _differs(each, read[name], most, usual)
    ]
    moved = _moved(program, weights, sign, {name: found[name] for name in different}) if different else {}
    for name in different:
        same_shape = found[name].shape == read[name].shape
        noise = min(MOVES * moved[name], most * middle)
        if not same_shape or _differs(found[name], read[name], most, usual, noise):
            raise UnknownOperation(name, "", _reason(found[name], read[name], lowered.narrowing))
    return way


def _moved(
    program: Callable[[], Mapping[str, torch.Tensor]],
    weights: Mapping[str, Variable],
    sign: int,
    found: Mapping[str, np.ndarray],
) -> dict[str, float]:
    """Returns how far outputs move when weights change in their last bit: the root mean square of the smallest of some
    moves."""
    moves: dict[str, list[float]] = {name: [] for name in found}
    for draw in range(1, DRAWS + 1):
        with _changed(weights, sign, draw), defined():
            returned = program()
            for name, array in found.items():
                again = _numbers(returned[name]) if name in returned else array
                moves[name].append(_rms(again - array) if again.shape == array.shape else 0.0)
    return {name: min(several) for name, several in moves.items()}


def _numbers(tensor: torch.Tensor) -> np.ndarray:
    return np.asarray(as_array(tensor, ""), np.float64)


def _reason(found: np.ndarray, read: np.ndarray, narrowing: Sequence[str]) -> str:
    """Describes the largest difference of two arrays, and its possible reasons."""
    if found.shape != read.shape:
        return REASON.format(f"shape {list(found.shape)} for {list(read.shape)}", "branches")
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(found == read, 0.0, np.nan_to_num(np.abs(found - read), nan=np.inf))
    apart[np.isnan(found) & np.isnan(read)] = 0.0
    place = np.unravel_index(np.argmax(apart), apart.shape)
    why = f"rounds{f' to {narrowing[0]}' if narrowing else ''}, overflows"
    return REASON.format(f"{found[place]:.6g} for {read[place]:.6g}", why)


class _Way(TorchDispatchMode):
    """Notes which operations run, on which shapes and numbers, but for numbers that follow from weights."""

    def __init__(self, weights: Mapping[str, Variable], *, with_lines: bool = False) -> None:
        super().__init__()
        self.steps: list[Any] = []
        self.lines: list[str] = []
        self._with_lines = with_lines
        self._seen: dict[int, StorageWeakRef] = {}
        for variable in weights.values():
            for tensor, _ in variable.parts:
                self._note(tensor)

    def line_of_difference(self, other: _Way) -> str:
        """Returns the line of the first operation that differs from the other run's."""
        both = zip(self.steps, other.steps, self.lines, strict=False)
        return next((line for ours, theirs, line in both if ours != theirs), self.lines[-1] if self.lines else "")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        changed_weights = flat(args, kwargs)
        self.steps.append((func, [self._described(each) for each in changed_weights]))
        if self._with_lines:
            self.lines.append(user_line())
        result = func(*args, **kwargs)
        written = written_by(func, args, kwargs) if func._schema.is_mutable else []
        for each in (*flat(result, {}), *written):
            if is_tensor(each):
                self._note(each)
        return result

    def _described(self, each: Any) -> Any:
        """Returns a number, or a tensor's shape; with its numbers if it comes from outside."""
        if not is_tensor(each):
            return repr(each) if isinstance(each, PLAIN) else type(each)
        is_outside = each.layout is torch.strided and not each.is_quantized and not self._is_known(each)
        if is_outside:
            self._note(each)
        return each.shape, each.dtype, digest_of(numbers_of(each)) if is_outside else None

    def _note(self, tensor: torch.Tensor) -> None:
        """Records that a tensor's memory follows from the operations and the weights."""
        if tensor.layout is torch.strided:
            with torch._C.DisableTorchFunction():
                storage = tensor.untyped_storage()
            self._seen[storage._cdata] = StorageWeakRef(storage)

    def _is_known(self, tensor: torch.Tensor) -> bool:
        reference = self._seen.get(storage_of(tensor))
        return reference is not None and not reference.expired()


def _differs(found: np.ndarray, read: np.ndarray, most: float, usual: float, noise: float = 0.0) -> bool:
    """Returns whether two arrays differ: in their NaN, infinite or fill values, or in the root mean square of the
    rest, by more than their share or than noise."""
    large = [np.where(np.abs(each) < FILLED, 0.0, each) for each in (found, read)]  # NaN is kept
    with np.errstate(invalid="ignore"):
        apart = np.abs(large[0] - large[1]) > most * np.abs(large[1])
    finite = np.isfinite(large[0]) & np.isfinite(large[1])
    if not np.array_equal(large[0][~finite], large[1][~finite], equal_nan=True) or apart[finite].any():
        return True
    small = [np.where(each == 0, array, 0.0) for each, array in zip(large, (found, read), strict=True)]
    return _rms(small[0] - small[1]) > max(most * max(_rms(found), usual), noise)


def _rms(array: np.ndarray) -> float:
    """Returns the root of the mean square of the numbers that are no fill, infinite or NaN; 0 if none is."""
    kept = array[np.abs(array) < FILLED]
    return float(np.sqrt(np.mean(np.square(kept)))) if kept.size else 0.0


@contextlib.contextmanager
def _changed(weights: Mapping[str, Variable], factor: float, draw: int = 0) -> Iterator[dict[str, np.ndarray]]:
    """Increases each weight by about 10 % plus 0.1, multiplies it by a factor, yields the results, and restores the
    weights.

    Args:
      draw: 0: that is all. Another number also changes last bits, each by one, or not.
    """
    key, bits = np.random.default_rng(0), np.random.default_rng(draw)
    tensors = [tensor for variable in weights.values() for tensor, _ in variable.written()]
    with torch.inference_mode():
        before = [tensor.clone() for tensor in tensors]
    try:
        changed_weights = {}
        with torch.inference_mode():
            for name, variable in weights.items():
                factors, terms = (torch.from_numpy(key.uniform(0.05, 0.15, variable.shape)) for _ in range(2))
                held = _held(variable)
                changed = held.mul_(1 + factors.to(held)).add_(terms.to(held)).mul_(factor)
                if draw and changed.is_floating_point():
                    away = torch.from_numpy(bits.choice([-np.inf, np.inf], variable.shape)).to(changed)
                    changed = torch.nextafter(changed, away)
                for tensor, places in variable.written():
                    tensor.copy_(changed if places is None else changed[torch.from_numpy(places)])
                changed_weights[name] = as_array(changed, "")
        yield changed_weights
    finally:
        with torch.inference_mode():
            for tensor, old in zip(tensors, before, strict=True):
                tensor.copy_(old)


def _held(variable: Variable) -> torch.Tensor:
    """Returns a copy of a variable's numbers."""
    first = variable.parts[0][0]
    held = torch.zeros(variable.shape, dtype=first.dtype)
    for tensor, places in variable.parts:
        if places is None:
            held.copy_(tensor)
        else:
            held[torch.from_numpy(places)] = tensor
    return held
