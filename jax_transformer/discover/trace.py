"""Record every operation of a running PyTorch module, and where each element of every tensor comes from.

A run becomes a graph of `Value`s. Operations that only move elements (views, transposes, slices, concatenations) are
told apart from those that compute: `Recording.elements` follows the former back to the computed or stored tensors, the
roots, so that a slice of a fused weight or the heads of a projection are known element by element, however the program
writes them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.parity.backends.torch_precision import deterministic

if TYPE_CHECKING:
    import torch
    from torch import nn

SAME_ORDER = frozenset(
    [
        "view",
        "_unsafe_view",
        "reshape",
        "_reshape_alias",
        "view_copy",
        "clone",
        "detach",
        "alias",
        "contiguous",
        "lift_fresh",
        "lift_fresh_copy",
        "_to_copy",
        "unsqueeze",
        "squeeze",
    ]
)
"""Operations that keep all elements in their order."""
MOVES = SAME_ORDER - {"_to_copy"} | frozenset(
    [
        "t",
        "transpose",
        "permute",
        "expand",
        "slice",
        "select",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "cat",
        "stack",
        "narrow",
        "flip",
        "repeat",
        "expand_copy",
        "slice_copy",
        "unfold",
        "diagonal",
        "movedim",
        "tile",
        "roll",
        "overwritten",
    ]
)
"""Operations of aten that move elements and compute nothing."""
COPIES = ("_to_copy", "copy")
"""Operations that only move elements unless they change the dtype."""
IDLE = frozenset(
    ["masked_fill", "where", "mul", "div", "add", "sub", "clamp", "clamp_min", "nan_to_num", "native_dropout"]
)
"""Operations that may do nothing, such as filling where no row is masked."""
FILLS = frozenset(
    ["zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty"]
)
"""Operations that take only a shape from their operand."""
INPUTS = ("source_ids", "target_ids")


@dataclass(eq=False)
class Value:
    """Holds one tensor of a run: what it was when it was made, and how it was made."""

    number: int
    array: np.ndarray
    op: str
    """The operation of aten without its overload; of a stored tensor "parameter", "buffer" or "constant"; of an input
    its name."""
    function: Any = None
    args: tuple[Any, ...] = ()
    """The operation's arguments, with Values in place of tensors."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    output: int = 0
    """Its number among the operation's results."""
    names: tuple[str, ...] = ()
    """The names of a parameter or buffer in the state_dict."""
    trains: bool = False
    """Whether a parameter has a gradient."""
    line: str = ""
    """The line of the program, "file.py:12"."""
    module: str = ""
    """The path of the innermost module that was running."""

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """Returns the Values among the arguments."""
        return tuple(_values((self.args, self.kwargs)))

    @cached_property
    def depends_on_ids(self) -> bool:
        """Whether any input of the run reaches it."""
        return self.op in INPUTS or (self.op not in FILLS and any(value.depends_on_ids for value in self.inputs))

    @cached_property
    def parameters(self) -> frozenset[Value]:
        """Returns the parameters and buffers that it is computed from, and nothing else."""
        if self.op in ("parameter", "buffer"):
            return frozenset({self})
        return frozenset().union(*(value.parameters for value in self.inputs))

    @property
    def is_moved(self) -> bool:
        """Whether it holds elements of other Values, and nothing new."""
        return (
            self.op in MOVES
            or (self.op in COPIES and self.array.dtype == self.inputs[-1].array.dtype)
            or self.unchanged is not None
        )

    @cached_property
    def unchanged(self) -> Value | None:
        """Returns the operand that an operation left as it was on these inputs, as filling nothing does."""
        if self.op not in IDLE or not self.is_float or not self.depends_on_ids:
            return None
        for one in self.inputs:
            others = [other for other in self.inputs if other is not one]
            computed = any(other.parameters for other in others if not other.depends_on_ids)
            alike = one.depends_on_ids and one.array.shape == self.array.shape and not computed
            if alike and np.array_equal(one.array, self.array, equal_nan=True):
                return one
        return None

    @property
    def is_float(self) -> bool:
        return self.array.dtype.kind in "fc"

    @property
    def literals(self) -> tuple[float, ...]:
        """Returns the numbers among the arguments."""
        return tuple(float(one) for one in self.args if isinstance(one, (int, float)) and not isinstance(one, bool))

    def described(self) -> str:
        """Returns the operation, its place and its shape, for messages."""
        place = f" in {self.module}" if self.module else ""
        return f"{self.op}{list(self.array.shape)} at {self.line or '?'}{place}"


class Recording:
    """Holds the Values of one run, in execution order."""

    def __init__(self, values: list[Value], output: Value, narrowed: Sequence[str] = ()) -> None:
        self.values, self.output = values, output
        self.narrowed = tuple(narrowed)
        """The lines that would have computed in lower precision."""
        starts = np.cumsum([0, *(value.array.size for value in values)])
        self._starts = starts[:-1]
        self._elements: dict[int, np.ndarray] = {}
        self.users: dict[Value, list[Value]] = {value: [] for value in values}
        for value in values:
            for one in dict.fromkeys(value.inputs):
                self.users[one].append(value)

    def elements(self, value: Value) -> np.ndarray:
        """Returns, for each element of a Value, the number of the root's element that it is (int64, same shape)."""
        found = self._elements.get(value.number)
        if found is None:
            found = self._elements[value.number] = self._moved(value) if value.is_moved else self.own(value)
        return found

    def own(self, value: Value) -> np.ndarray:
        """Returns the numbers of the Value's own elements."""
        first = int(self._starts[value.number])
        return np.arange(first, first + value.array.size).reshape(value.array.shape)

    def roots(self, elements: np.ndarray) -> tuple[Value, ...]:
        """Returns the roots of elements, in execution order."""
        numbers = np.unique(np.searchsorted(self._starts, elements.ravel(), side="right") - 1)
        return tuple(self.values[number] for number in numbers)

    def root(self, value: Value) -> Value | None:
        """Returns the only root of a Value; None if it has several."""
        if not value.is_moved:
            return value
        found = self.roots(self.elements(value))
        return found[0] if len(found) == 1 else None

    def places(self, elements: np.ndarray, root: Value) -> np.ndarray:
        """Returns the flat places of elements in their root."""
        return np.asarray(elements - self._starts[root.number])

    def _overwritten(self, value: Value) -> np.ndarray:
        """Returns the elements of a tensor after others that share its memory were written to."""
        result = self.elements(value.args[0]).copy()
        for before, after in value.args[1]:
            old, new = self.elements(before).ravel(), self.elements(after).ravel()
            order = np.argsort(old)
            places = np.minimum(np.searchsorted(old, result.ravel(), sorter=order), len(old) - 1)
            found = (old[order[places]] == result.ravel()).reshape(result.shape)
            result[found] = new[order[places]].reshape(result.shape)[found]
        return result

    def _moved(self, value: Value) -> np.ndarray:
        import torch

        if value.unchanged is not None:
            return self.elements(value.unchanged)
        if value.op in SAME_ORDER:
            return self.elements(value.inputs[0]).reshape(value.array.shape)
        if value.op == "copy":
            return np.broadcast_to(self.elements(value.inputs[1]), value.array.shape)
        if value.op == "overwritten":
            return self._overwritten(value)
        numbers = _replaced((value.args, value.kwargs), lambda one: torch.from_numpy(self.elements(one)))
        result = value.function(*numbers[0], **numbers[1])
        return (result[value.output] if isinstance(result, (tuple, list)) else result).numpy()


def record(module: nn.Module, source_ids: torch.Tensor, target_ids: torch.Tensor) -> Recording:
    """Runs a module on ids and returns everything that it computes.

    Where the module casts activations in float64 to a lower precision, they stay in float64, so that the recording
    shows the function that it computes and not its rounding.

    Args:
      module: called with (source_ids [B, S], target_ids [B, T]), in evaluation mode; returns one tensor.

    Raises:
      Whatever the module raises.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    recorder = _Recorder(module, {"source_ids": source_ids, "target_ids": target_ids})
    with (
        torch.no_grad(),
        deterministic(),
        sdpa_kernel(SDPBackend.MATH),
        recorder.paths(module),
        recorder.mode(),
    ):
        output = module(source_ids, target_ids)
    return Recording(recorder.values, recorder.value_of(output), tuple(recorder.narrowed))


class _Recorder:
    """Collects Values while a module runs."""

    def __init__(self, module: nn.Module, inputs: dict[str, torch.Tensor]) -> None:
        self.values: list[Value] = []
        self._of: dict[int, Value] = {}
        self._kept: list[torch.Tensor] = []  # so that no address is used twice
        self._sharing: dict[int, set[int]] = {}  # storage → tensors
        self._stale: dict[int, list[tuple[Value, Value]]] = {}  # tensors written through another one → before, after
        self._running: list[str] = []
        self.narrowed: dict[str, None] = {}
        for name, tensor in inputs.items():
            self._add(tensor, op=name)
        stored: dict[int, tuple[torch.Tensor, str, list[str]]] = {}
        for kind, found in (
            ("parameter", module.named_parameters(remove_duplicate=False)),
            ("buffer", module.named_buffers(remove_duplicate=False)),
        ):
            for name, tensor in found:
                stored.setdefault(id(tensor), (tensor, kind, []))[2].append(name)
        kept = module.state_dict().keys()
        for tensor, kind, names in stored.values():
            saved = tuple(name for name in names if name in kept)
            self._add(tensor, op=kind, names=saved, trains=tensor.requires_grad)

    def value_of(self, tensor: torch.Tensor) -> Value:
        """Returns the Value of a tensor as it is now."""
        found = self._of.get(id(tensor))
        if found is None:
            return self._add(tensor, op="constant", line=_line())
        if id(tensor) in self._stale:
            return self._add(tensor, op="overwritten", args=(found, self._stale[id(tensor)]), line=_line())
        return found

    def mode(self) -> contextlib.AbstractContextManager[Any]:
        from torch.utils._python_dispatch import TorchDispatchMode

        recorder = self

        class Recording(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return recorder.run(func, args, kwargs or {})

        return Recording()

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs one operation and records its results."""
        import torch

        given = _replaced((args, kwargs), self.value_of, torch.Tensor)
        if func.overloadpacket is torch.ops.aten._to_copy and self._narrows(given[0][0], kwargs):
            kwargs = kwargs | {"dtype": torch.float64}
            self.narrowed[_line()] = None
        written = [(one, self.value_of(one)) for one in _written(func, args, kwargs)]
        result = func(*args, **kwargs)
        results = result if isinstance(result, (tuple, list)) else (result,)
        op = func.overloadpacket.__name__
        for number, tensor in enumerate(results):
            if isinstance(tensor, torch.Tensor):
                self._add(
                    tensor,
                    op=op.removesuffix("_") if op.endswith("_") and not op.startswith("__") else op,
                    function=func,
                    args=given[0],
                    kwargs=given[1],
                    output=number,
                    line=_line(),
                    module=self._running[-1] if self._running else "",
                )
        for tensor, before in written:
            self._spoil(tensor, before)
        return result

    def _narrows(self, value: Value, kwargs: dict[str, Any]) -> bool:
        import torch

        low = (torch.float32, torch.bfloat16, torch.float16)
        return value.depends_on_ids and value.array.dtype == np.float64 and kwargs.get("dtype") in low

    def _spoil(self, written: torch.Tensor, before: Value) -> None:
        """Notes that a tensor's memory was written to, for the tensors that share it."""
        for other in self._sharing.get(written.untyped_storage()._cdata, set()) - {id(written)}:
            self._stale.setdefault(other, []).append((before, self._of[id(written)]))

    @contextlib.contextmanager
    def paths(self, module: nn.Module) -> Iterator[None]:
        """Knows which part of the module is running."""
        handles = []

        def entering(name: str) -> Callable[..., None]:
            return lambda *_: self._running.append(name)

        def leaving(*_: Any) -> None:
            self._running.pop()

        for name, part in module.named_modules():
            handles.append(part.register_forward_pre_hook(entering(name)))
            handles.append(part.register_forward_hook(leaving, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _add(self, tensor: torch.Tensor, **fields: Any) -> Value:
        value = Value(len(self.values), _snapshot(tensor), **fields)
        self.values.append(value)
        self._of[id(tensor)] = value
        self._stale.pop(id(tensor), None)
        self._sharing.setdefault(tensor.untyped_storage()._cdata, set()).add(id(tensor))
        self._kept.append(tensor)
        return value


def _snapshot(tensor: torch.Tensor) -> np.ndarray:
    import torch

    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return np.array(tensor.resolve_conj().resolve_neg().cpu().numpy())


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yields the tensors that an operation writes to."""
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[number] if number < len(args) else kwargs[argument.name]


def _line() -> str:
    """Returns the line of the program that is running: the innermost frame outside of torch and of this file."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and "/torch/" not in file and "contextlib" not in file:
            return f"{file.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _values(tree: Any) -> Iterator[Value]:
    if isinstance(tree, Value):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for part in tree:
            yield from _values(part)
    elif isinstance(tree, dict):
        yield from _values(tuple(tree.values()))


def _replaced(tree: Any, replace: Callable[[Any], Any], kind: type = Value) -> Any:
    """Returns the tree with every leaf of this kind replaced."""
    if isinstance(tree, kind):
        return replace(tree)
    if isinstance(tree, (tuple, list)):
        return type(tree)(_replaced(part, replace, kind) for part in tree)
    if isinstance(tree, dict):
        return {key: _replaced(part, replace, kind) for key, part in tree.items()}
    return tree
