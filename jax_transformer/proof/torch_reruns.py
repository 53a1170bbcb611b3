"""Run a PyTorch program again, unwatched and on other weights, and compare it with what was read of its first run.

Numbers can leave PyTorch, or come back, in ways that no operation shows: old constructors such as
`torch.DoubleTensor([w[0]])`, other threads, memory that NumPy shares, a module that keeps what it computed. The program
that was read then has numbers of the first run, and computes something else on other weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch

from jax_transformer.proof.domains import Floats
from jax_transformer.proof.evaluating import evaluate
from jax_transformer.proof.programs import Program, UnknownOperation
from jax_transformer.proof.torch_memory import as_array
from jax_transformer.proof.torch_programs import defined

MOST = {"bfloat16": 0.1, "float16": 0.01, "float32": 1e-3, "float64": 1e-6}
"""The largest relative RMS of a difference, for programs that compute in this type, or round to it."""
NARROWEST = 0.5
"""That for types of 8 bits."""
SMALL = 1e-6
"""An output that is smaller than the middle one by this factor may be a rounding error of zero."""
FILLED = 1e8
"""A number as large is one that masks an entry."""
REASON = (
    "it computes something else when it runs again on other weights: it reads numbers in a way that isn't seen, such "
    "as old constructors, threads or NumPy's memory, or keeps what it computed"
)


def check_again(
    lowered: Program, program: Callable[[], Mapping[str, torch.Tensor]], weights: Mapping[str, torch.Tensor]
) -> None:
    """Raises UnknownOperation if a program computes something else than was read of it, on weights that are somewhat
    larger, or of the other sign, where branches may change.

    Args:
      program, weights: as of `torch_programs.lower`. The weights are changed while it runs.
    """
    for sign in (1, -1):
        _check(lowered, program, weights, sign)


def _check(
    lowered: Program, program: Callable[[], Mapping[str, torch.Tensor]], weights: Mapping[str, torch.Tensor], sign: int
) -> None:
    with _changed(weights, sign), defined():
        given = {name: as_array(tensor, "") for name, tensor in weights.items()}
        tensors = {name: tensor for name, tensor in program().items() if name not in lowered.unknown}
        found = {name: np.asarray(as_array(tensor, ""), np.float64) for name, tensor in tensors.items()}
    read = {name: np.asarray(array, np.float64) for name, array in evaluate(lowered, Floats(), given).items()}
    if found.keys() != read.keys():
        raise UnknownOperation(min(found.keys() ^ read.keys()), "", REASON)
    types = {each.split(" ")[0] for each in lowered.narrowing} | {
        str(each.dtype).removeprefix("torch.")
        for each in (*weights.values(), *tensors.values())
        if each.is_floating_point()
    }
    most = max((MOST.get(each, NARROWEST) for each in types), default=MOST["float64"])
    usual = SMALL * float(np.median([size for size in map(_rms, found.values()) if size] or [0.0]))
    for name, array in found.items():
        if array.shape != read[name].shape or _differs(array, read[name], most, usual):
            raise UnknownOperation(name, "", REASON)


def _differs(found: np.ndarray, read: np.ndarray, most: float, usual: float) -> bool:
    """Returns whether two arrays differ: in which numbers are NaN, infinite or fills, by which fills, or in the root of
    the mean square of the others."""
    large = [np.where(np.abs(each) < FILLED, 0.0, each) for each in (found, read)]  # NaN is kept
    with np.errstate(invalid="ignore"):
        apart = np.abs(large[0] - large[1]) > most * np.abs(large[1])
    finite = np.isfinite(large[0]) & np.isfinite(large[1])
    if not np.array_equal(large[0][~finite], large[1][~finite], equal_nan=True) or apart[finite].any():
        return True
    small = [np.where(each == 0, array, 0.0) for each, array in zip(large, (found, read), strict=True)]
    return _rms(small[0] - small[1]) > most * max(_rms(found), usual)


def _rms(array: np.ndarray) -> float:
    """Returns the root of the mean square of the numbers that are no fill, infinite or NaN; 0 if none is."""
    kept = array[np.abs(array) < FILLED]
    return float(np.sqrt(np.mean(np.square(kept)))) if kept.size else 0.0


@contextlib.contextmanager
def _changed(weights: Mapping[str, torch.Tensor], sign: int) -> Iterator[None]:
    """Makes each weight larger by some 10 % and some 0.1, multiplies it by a sign, and restores it."""
    key = np.random.default_rng(0)
    with torch.inference_mode():
        before = {name: tensor.clone() for name, tensor in weights.items()}
    try:
        with torch.inference_mode():
            for tensor in weights.values():
                factors, terms = (torch.from_numpy(key.uniform(0.05, 0.15, tensor.shape)) for _ in range(2))
                tensor.mul_(1 + factors.to(tensor)).add_(terms.to(tensor)).mul_(sign)
        yield
    finally:
        with torch.inference_mode():
            for name, tensor in weights.items():
                tensor.copy_(before[name])
