"""Holds every operation of a run of a PyTorch module, and follows each element of every tensor back to its origin.

A run becomes a graph of `Value`s. Some operations only move elements: views, transposes, slices, concatenations.
`Recording.elements` follows these back to the computed or stored tensors, the roots. A slice of a fused weight or the
heads of a projection are thus known element by element, however the program writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from jax_transformer.programs.operations import CLAMPS, COMPARISONS, COPIES, FILLS, IDLE, MOVES, SAME_ORDER

INPUTS = ("source_ids", "target_ids")
OUT_OF_REACH = 1e4
"""A clamp at this number or a larger one guards against overflow; no activation reaches it."""


@dataclass(eq=False)
class Value:
    """Holds one tensor of a run: its values when it was computed, and its operation."""

    number: int
    array: np.ndarray
    op: str
    """The operation of aten without its overload; of a stored tensor "parameter", "buffer" or "constant"; of an input
    its name."""
    function: Any = None
    args: tuple[Any, ...] = ()
    """The operation's arguments, with Values instead of tensors."""
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
        """Returns whether it depends on any input of the run."""
        return self.op in INPUTS or (self.op not in FILLS and any(value.depends_on_ids for value in self.inputs))

    @cached_property
    def parameters(self) -> frozenset[Value]:
        """Returns the parameters and buffers that it is computed from."""
        if self.op in ("parameter", "buffer"):
            return frozenset({self})
        return frozenset().union(*(value.parameters for value in self.inputs))

    @property
    def is_moved(self) -> bool:
        """Returns whether it only holds elements of other Values."""
        return (
            self.op in MOVES
            or (self.op in COPIES and self.array.dtype == self.inputs[-1].array.dtype)
            or self.unchanged is not None
        )

    @cached_property
    def unchanged(self) -> Value | None:
        """Returns the operand that an operation left unchanged on these inputs, such as a fill of no element."""
        if self.op not in IDLE or not self.is_float or not self.depends_on_ids or self.bounds_activations:
            return None
        for one in self.inputs:
            others = [other for other in self.inputs if other is not one]
            computed = any(other.parameters for other in others if not other.depends_on_ids)
            alike = one.depends_on_ids and one.array.shape == self.array.shape and not computed
            if alike and np.array_equal(one.array, self.array, equal_nan=True):
                return one
        return None

    @property
    def bounds_activations(self) -> bool:
        """Returns whether it changes activations that are large enough, or that meet a condition on their values."""
        if self.op in CLAMPS:
            return any(abs(bound) < OUT_OF_REACH for bound in self.literals)
        return any(one.compares_activations for one in self.inputs if not one.is_float)

    @cached_property
    def compares_activations(self) -> bool:
        """Returns whether it is a condition on activations' values, other than a test for NaN or infinity."""
        if self.op in COMPARISONS and any(
            one.is_float and one.depends_on_ids and one.parameters for one in self.inputs
        ):
            return not any(np.isinf(literal) for literal in self.literals)
        return any(one.compares_activations for one in self.inputs if not one.is_float)

    @property
    def is_float(self) -> bool:
        return self.array.dtype.kind in "fc"

    @property
    def has_low_fractions(self) -> bool:
        """Returns whether it holds fractions in a lower precision than float64, which may be rounded."""
        if self.array.dtype not in (np.float16, np.float32, np.complex64):
            return False
        numbers = np.atleast_1d(self.array).view(self.array.real.dtype)
        return bool((np.isfinite(numbers) & (numbers != np.rint(numbers))).any())

    @property
    def literals(self) -> tuple[float, ...]:
        """Returns the numbers among the arguments."""
        return tuple(float(one) for one in self.args if isinstance(one, (int, float)) and not isinstance(one, bool))

    @property
    def place(self) -> str:
        """Returns the line of the program and the module, for messages."""
        return f"{self.line or '?'}{f' in {self.module}' if self.module else ''}"

    def described(self) -> str:
        """Returns the operation, its shape and its place, for messages."""
        return f"{self.op}{list(self.array.shape)} at {self.place}"


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
        """Maps each element of a Value to the number of its root's element (int64, same shape)."""
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
        if not elements.size:
            return ()
        ends = np.array([elements.min(), elements.max()])
        first, last = np.searchsorted(self._starts, ends, side="right") - 1
        if first == last:  # most have one root, and searching for each element's takes long
            return (self.values[first],)
        numbers = np.searchsorted(self._starts[first : last + 1], elements.ravel(), side="right") - 1
        return tuple(self.values[first + number] for number in np.flatnonzero(np.bincount(numbers)))

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
        """Returns the elements of a tensor after writes to tensors that share its memory."""
        result = self.elements(value.args[0]).copy()
        for before, after in value.args[1]:
            old, new = self.elements(before).ravel(), self.elements(after).ravel()
            if not old.size:
                continue
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
        numbers = replaced((value.args, value.kwargs), lambda one: torch.from_numpy(self.elements(one)))
        result = value.function(*numbers[0], **numbers[1])
        return (result[value.output] if isinstance(result, (tuple, list)) else result).numpy()


def _values(tree: Any) -> Iterator[Value]:
    if isinstance(tree, Value):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for part in tree:
            yield from _values(part)
    elif isinstance(tree, dict):
        yield from _values(tuple(tree.values()))


def replayed(goal: Value, replacements: Mapping[Value, np.ndarray]) -> np.ndarray | None:
    """Recomputes a Value from replacements of other Values; None if it can't be recomputed."""
    import torch

    known: dict[Value, Any] = {value: torch.from_numpy(array) for value, array in replacements.items()}

    def tensor(value: Value) -> Any:
        if value not in known:
            if not any(_depends(value, one) for one in replacements):
                known[value] = torch.from_numpy(value.array)
            elif value.op == "overwritten" or value.function is None:
                raise NotImplementedError
            else:
                args, kwargs = replaced((value.args, value.kwargs), lambda one: tensor(one).clone())
                result = value.function(*args, **kwargs)
                known[value] = result[value.output] if isinstance(result, (tuple, list)) else result
        return known[value]

    try:
        return np.asarray(tensor(goal).numpy())
    except NotImplementedError:
        return None


def _depends(value: Value, other: Value) -> bool:
    """Returns whether a Value is computed from another one."""
    return value is other or any(_depends(one, other) for one in value.inputs if one.number >= other.number)


def replaced(tree: Any, replace: Callable[[Any], Any], kind: type = Value) -> Any:
    """Returns the tree with every leaf of this kind replaced."""
    if isinstance(tree, kind):
        return replace(tree)
    if isinstance(tree, (tuple, list)):
        return type(tree)(replaced(part, replace, kind) for part in tree)
    if isinstance(tree, dict):
        return {key: replaced(part, replace, kind) for key, part in tree.items()}
    return tree
