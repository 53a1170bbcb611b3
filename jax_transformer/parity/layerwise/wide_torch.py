"""Runs a PyTorch program, and each of its operations a second time in float64."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from jax_transformer.comparison.sides import CannotRun

if TYPE_CHECKING:
    import torch


class Replay:
    """Repeats each operation of a running program on wide copies of what it reads.

    The program itself computes as it does without: it sees its own dtypes, and decides by its own numbers. Beside every
    tensor stands the number that it would have if nothing had been rounded: casts to narrower types, and results of a
    narrower type, are float64 there.

    Args:
      widen: returns a weight in float64, or None for another tensor.
    """

    def __init__(self, widen: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        from torch.utils.weak import WeakTensorKeyDictionary

        self._wide: Any = WeakTensorKeyDictionary()
        self._widen = widen
        self.is_paused = False

    def wide_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the number that a tensor would be, in float64. Integers are what they are."""
        if tensor in self._wide:
            return self._wide[tensor]
        weight = self._widen(tensor)  # not kept: all weights together would be a whole copy
        if weight is not None:
            return weight
        if not _is_narrow(tensor.dtype):
            return tensor
        self._wide[tensor] = found = tensor.to(_wide_dtype(tensor.dtype))
        return found

    def replay(self, operation: Any, args: tuple[Any, ...], options: dict[str, Any], result: Any) -> None:
        """Repeats an operation that returned a result. Raises CannotRun if it can't be repeated in float64."""
        import torch
        from torch.utils._pytree import tree_flatten

        given, structure = tree_flatten((args, options))
        results, _ = tree_flatten(result)
        tensors = [each for each in given if isinstance(each, torch.Tensor)]
        made = [each for each in results if isinstance(each, torch.Tensor)]
        if not made or not any(each in self._wide or _is_narrow(each.dtype) for each in (*tensors, *made)):
            return
        if operation is torch.ops.aten.view.dtype:
            raise CannotRun("it reads the bits of floating-point numbers, which float64 hasn't")
        wide = [self._wide_argument(each) for each in given]
        is_softmax = operation in (torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default)
        if is_softmax:
            wide[2] = False  # half to float
        if operation is torch.ops.aten._fused_rms_norm.default and given[3] is None:
            wide[3] = torch.finfo(tensors[0].dtype).eps
        wide_args, wide_options = structure.unflatten(wide)
        try:
            again = operation(*wide_args, **wide_options)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            raise CannotRun(f"{operation} can't be repeated in float64: {str(error).splitlines()[0]}") from error
        for narrow, broad in zip(results, tree_flatten(again)[0], strict=True):
            if isinstance(narrow, torch.Tensor) and narrow is not broad:
                self._wide[narrow] = broad

    def _wide_argument(self, each: Any) -> Any:
        import torch

        if isinstance(each, torch.Tensor):
            return self.wide_of(each)
        if isinstance(each, torch.dtype) and _is_narrow(each):
            return _wide_dtype(each)
        return each


def _is_narrow(dtype: torch.dtype) -> bool:
    import torch

    return (dtype.is_floating_point and dtype != torch.float64) or dtype in (torch.complex64, torch.complex32)


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    import torch

    return torch.complex128 if dtype.is_complex else torch.float64


@contextlib.contextmanager
def replaying(replay: Replay) -> Iterator[None]:
    """Repeats the operations of this context."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Repeating(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options = kwargs or {}
            if replay.is_paused:
                return func(*args, **options)
            if func._schema.is_mutable:  # copies what it changes, before it does
                for each in args:
                    replay.wide_of(each) if isinstance(each, torch.Tensor) else None
            result = func(*args, **options)
            replay.replay(func, args, options, result)
            return result

    with Repeating():
        yield
