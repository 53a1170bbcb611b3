"""Runs a PyTorch module with weights that are read when an operation needs them."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.comparison.capture import check_module, unfused_attention
from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.torch_tensors import to_array, to_tensor
from jax_transformer.comparison.user_errors import cannot_run, shapes_of
from jax_transformer.matching.programs import with_one_output
from jax_transformer.parity.layerwise.calls import (
    Computed,
    Layer,
    LayerCall,
    Seen,
    first_array,
    first_float,
    replaced_first,
)
from jax_transformer.parity.layerwise.weights import Nudge, Weight, Weights, reader
from jax_transformer.parity.layerwise.wide_torch import Replay, replaying
from jax_transformer.programs.copies import copied
from jax_transformer.programs.torch_precision import deterministic

if TYPE_CHECKING:
    import torch
    from torch import nn

FACTS = ("shape", "dtype", "ndim", "requires_grad", "is_leaf", "layout", "is_meta", "grad_fn")
"""Attributes of a weight that need none of its numbers."""
QUESTIONS = ("size", "dim", "numel", "is_floating_point", "is_complex", "element_size", "__len__")
"""The same for its methods."""


class TorchSide:
    """Runs a PyTorch module.

    Parameters on the meta device are read from the checkpoint by each operation that needs one, and forgotten after it.

    Args:
      module: in evaluation mode.
      inputs: arguments of its forward by name.
      checkpoint: see `weights.reader`.
      device: a device of PyTorch's; None: where the module is.

    Raises:
      ParityError: it isn't such a module; quantised weights, or weights without numbers.
    """

    def __init__(
        self, module: nn.Module, name: str, inputs: Mapping[str, np.ndarray], checkpoint: Any = None, device: Any = None
    ) -> None:
        check_module(module, name)
        self.name, self.inputs = name, inputs
        self._checkpoint = None if checkpoint is None else reader(checkpoint, name)
        held = {**dict(module.named_parameters(remove_duplicate=False))}
        buffers = dict(module.named_buffers(remove_duplicate=False))
        held |= {each: tensor for each, tensor in buffers.items() if tensor.is_meta or _is_quantised(tensor)}
        for each, tensor in held.items():
            if type(tensor).__name__ == "DTensor":
                raise ParityError(f"{name}: {each} is a DTensor, which isn't supported; expected its full_tensor()")
        self._aliases: dict[int, list[str]] = {}
        for each, tensor in held.items():
            self._aliases.setdefault(id(tensor), []).append(each)
        known = {
            names[0]: Weight(tuple(held[names[0]].shape), _dtype(held[names[0]]), _held(held[names[0]]))
            for names in self._aliases.values()
        }
        self.weights = Weights(name, known, None if self._checkpoint is None else self._read)
        self.device = device
        self._own = module
        if device is not None and not any(weight.held is None for weight in known.values()):
            self._own = copied(module).to(device)
            moved = dict(self._own.named_parameters(remove_duplicate=False))
            self._aliases = {id(moved[names[0]]): names for names in self._aliases.values() if names[0] in moved}
        self._tensors = {id(tensor): tensor for _, tensor in self._own.named_parameters(remove_duplicate=False)}
        self._tensors |= {id(tensor): tensor for _, tensor in self._own.named_buffers() if id(tensor) in self._aliases}
        self.module = with_one_output(self._own, name)
        self._is_repeating = False

    def _read(self, name: str) -> Any:
        """Reads a weight under any of its names."""
        assert self._checkpoint is not None
        names = next(names for names in self._aliases.values() if name in names)
        for each in names[:-1]:
            with contextlib.suppress(KeyError):
                return self._checkpoint(each)
        return self._checkpoint(names[-1])

    def layers(self) -> list[Layer]:
        return [Layer(path, type(part).__name__) for path, part in self._own.named_modules() if path]

    def run(
        self, seen: Seen | None = None, paths: Sequence[str] = (), *, nudge: Nudge | None = None, wide: bool = False
    ) -> Computed:
        import torch

        parts = dict(self._own.named_modules())
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._running(nudge, wide))
            stack.enter_context(torch.no_grad())
            stack.enter_context(deterministic())
            stack.enter_context(unfused_attention())
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))  # of modules that print
            given = {name: self._input(array) for name, array in self.inputs.items()}
            reading = stack.enter_context(_reading(self, nudge))
            replay = self._replay(reading, wide)
            for path in paths if seen is not None else ():
                part = parts[path]
                stack.callback(part.register_forward_pre_hook(self._before(path), with_kwargs=True).remove)
                after = self._after(path, reading, replay, seen)
                stack.callback(part.register_forward_hook(after, with_kwargs=True).remove)
            stack.enter_context(replaying(replay) if replay is not None else contextlib.nullcontext())
            output = self.module(**given)
            return self._computed(output, replay)

    def _running(self, nudge: Nudge | None, wide: bool) -> contextlib.AbstractContextManager[None]:
        return cannot_run(f"{self.name}:", f"{shapes_of(self.inputs)}{' in float64, too' if wide else ''}")

    def _input(self, array: np.ndarray) -> torch.Tensor:
        """Returns a copy of an input; NumPy's own floats in the type of the weights."""
        import torch

        tensor = to_tensor(np.array(array))
        if array.dtype == np.float64:
            floats = [weight.dtype for weight in self.weights.known.values()]
            tensor = tensor.to(getattr(torch, floats[0] if floats else "float32"))
        return tensor if self.device is None else tensor.to(self.device)

    def _before(self, path: str) -> Any:
        def before(part: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            if not self._is_repeating:
                self._given = {**getattr(self, "_given", {}), path: _copies((args, options))}

        return before

    def _after(self, path: str, reading: Any, replay: Replay | None, seen: Seen | None) -> Any:
        assert seen is not None

        def after(part: nn.Module, args: tuple[Any, ...], options: dict[str, Any], output: Any) -> None:
            if self._is_repeating:
                return
            args, options = self._given.pop(path)
            given = first_float(args, options, _is_float)
            tensor = first_array(output)
            with _paused(replay), self._repeating():
                again = partial(self._again, part, args, options, reading)
                computed = self._computed(tensor, replay)
                seen(LayerCall(path, None if given is None else _own_array(given), computed, again))

        return after

    def _again(
        self,
        part: nn.Module,
        args: tuple[Any, ...],
        options: dict[str, Any],
        reading: Any,
        other: np.ndarray | None,
        nudge: Nudge | None,
        wide: bool,
    ) -> Computed:
        args, options = _copies((args, options))
        if other is not None:
            mine = first_float(args, options, _is_float)
            tensor = _tensor(other).to(mine.device, mine.dtype).reshape(mine.shape)
            args, options = replaced_first(args, options, tensor, _is_float)
        replay = self._replay(reading, wide)
        before, reading.nudge = reading.nudge, nudge
        try:
            with replaying(replay) if replay is not None else contextlib.nullcontext():
                return self._computed(first_array(part(*args, **options)), replay)
        finally:
            reading.nudge = before
            reading.replays.remove(replay) if replay is not None else None

    def _replay(self, reading: Any, wide: bool) -> Replay | None:
        if not wide:
            return None
        reading.replays.append(Replay(partial(self._wide_weight, reading)))
        return reading.replays[-1]

    @contextlib.contextmanager
    def _repeating(self) -> Iterator[None]:
        self._is_repeating = True
        try:
            yield
        finally:
            self._is_repeating = False

    def _computed(self, tensor: Any, replay: Replay | None) -> Computed:
        if tensor is None:
            raise ParityError(f"{self.name}: a layer returns no tensor: leave it out of layers")
        with _paused(replay):
            wide = None if replay is None else to_array(replay.wide_of(tensor))
            return Computed(_own_array(tensor), wide)

    # --- weights

    def name_of(self, tensor: torch.Tensor) -> str | None:
        names = self._aliases.get(id(tensor))
        return None if names is None or self._tensors.get(id(tensor)) is not tensor else names[0]

    def loaded(self, name: str, nudge: Nudge | None) -> torch.Tensor:
        import torch

        tensor = _tensor(self.weights.array(name, None if nudge is None or nudge.dtype else nudge))
        tensor = tensor.to(getattr(torch, self.weights.known[name].dtype))
        return tensor if self.device is None else tensor.to(self.device)

    def _wide_weight(self, reading: Any, tensor: torch.Tensor) -> torch.Tensor | None:
        """Returns a weight in float64; None for another tensor."""
        name = self.name_of(tensor) or reading.names.get(tensor)
        if name is None:
            return None
        if reading.nudge is not None and reading.nudge.dtype:
            wide = to_tensor(self.weights.array(name, reading.nudge)).double()
            return wide if self.device is None else wide.to(self.device)
        return tensor.detach().double()


@contextlib.contextmanager
def _reading(side: TorchSide, nudge: Nudge | None) -> Iterator[Any]:
    """Gives every operation the numbers of the weights that it reads."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._pytree import tree_map
    from torch.utils.weak import WeakTensorKeyDictionary

    facts = {getattr(torch.Tensor, name).__get__ for name in FACTS}
    facts |= {getattr(torch.Tensor, name) for name in QUESTIONS}
    of_device = torch.Tensor.device.__get__

    class Reading(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.nudge = nudge
            self.replays: list[Replay] = []
            self.names: Any = WeakTensorKeyDictionary()

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options = kwargs or {}
            if func in facts:
                return func(*args, **options)
            if func is of_device and args[0].is_meta and side.name_of(args[0]) is not None:
                return torch.device(side.device or "cpu")
            args, options = tree_map(self._read, (args, options))
            return func(*args, **options)

        def _read(self, each: Any) -> Any:
            if not isinstance(each, torch.Tensor):
                return each
            name = side.name_of(each)
            is_nudged = self.nudge is not None and not self.nudge.dtype
            if name is None or not (is_nudged or side.weights.known[name].held is None):
                return each
            with contextlib.ExitStack() as stack:
                for replay in self.replays:
                    stack.enter_context(_paused(replay))
                tensor = side.loaded(name, self.nudge)
                self.names[tensor] = name
            return tensor

    with Reading() as reading:
        yield reading


@contextlib.contextmanager
def _paused(replay: Replay | None) -> Iterator[None]:
    if replay is None:
        yield
        return
    before, replay.is_paused = replay.is_paused, True
    try:
        yield
    finally:
        replay.is_paused = before


def _copies(given: Any) -> Any:
    """Copies arguments, caches among them, which a layer may change."""
    from torch import nn

    memo: dict[int, Any] = {}
    for each in (*given[0], *given[1].values()):
        if isinstance(each, nn.Module):
            memo[id(each)] = each
    return copy.deepcopy(given, memo)


def _is_float(each: Any) -> bool:
    import torch

    return isinstance(each, torch.Tensor) and each.is_floating_point()


def _is_quantised(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_quantized)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _held(tensor: torch.Tensor) -> Any:
    """Returns a weight as an array that shares its memory where NumPy has its dtype; None for one without numbers."""
    return None if tensor.is_meta else _Later(tensor)


class _Later:
    """An array that is made when it is read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return _own_array(self._tensor)


def _own_array(tensor: torch.Tensor) -> np.ndarray:
    """Returns a tensor's array in its own dtype, bfloat16 included."""
    import ml_dtypes
    import torch

    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _tensor(array: np.ndarray) -> torch.Tensor:
    """Returns an array's tensor in its own dtype, bfloat16 included."""
    import torch

    array = np.ascontiguousarray(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array) if not array.flags.writeable else array)
