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

MOST = {"bfloat16": 0.1, "float16": 0.01, "float32": 1e-3}
"""The largest relative RMS of a difference, for programs that round to a narrower type. Numbers of other weights are
some 10 % apart."""
MOST_IN_FLOAT64 = 1e-6
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
        found = {name: np.asarray(as_array(tensor, ""), np.float64) for name, tensor in program().items()}
    read = {name: np.asarray(array, np.float64) for name, array in evaluate(lowered, Floats(), given).items()}
    most = max((MOST.get(each.split(" ")[0], 0.0) for each in lowered.narrowing), default=MOST_IN_FLOAT64)
    sizes = {name: _rms(array) for name, array in found.items()}
    usual = SMALL * float(np.median([size for size in sizes.values() if size] or [0.0]))
    for name, array in found.items():
        if array.shape != read[name].shape or _rms(array, read[name]) > most * max(sizes[name], usual):
            raise UnknownOperation(name, "", REASON)


def _rms(array: np.ndarray, other: np.ndarray | float = 0.0) -> float:
    """Returns the root of the mean square of a difference, where no number is a fill, infinite or NaN; 0 if all are."""
    kept = (np.abs(array) < FILLED) & np.isfinite(other)
    apart = array[kept] - np.broadcast_to(other, array.shape)[kept]
    return float(np.sqrt(np.mean(np.square(np.clip(apart, -FILLED, FILLED))))) if apart.size else 0.0


@contextlib.contextmanager
def _changed(weights: Mapping[str, torch.Tensor], sign: int) -> Iterator[None]:
    """Makes each weight larger by some 10 %, multiplies it by a sign, and restores it."""
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
