"""One table, two directions: rules `torch names ↔ JAX paths, axes`, run over NumPy arrays.

Both directions are strict. Every tensor and every leaf is consumed exactly once, values and dtypes are moved and never
computed with, and whatever does not fit is collected and refused together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from jax_transformer.runtime.trees import nearest
from jax_transformer.storage.deferred import Deferred, contiguous
from jax_transformer.storage.tensors import DTYPES, PortingError, Tensors

Leaves = Mapping[str, np.ndarray]
"""The JAX side, flat: leaves by path, such as "encoder/layers/self_attention/query/kernel"."""
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Axes:
    """Maps a tensor's axes to a leaf's, such as "(N H) D -> D N H".

    Left of the arrow stand the tensor's axes, parentheses around those that are merged into one; right of it the
    leaf's. The number 1 is an axis of the tensor that the leaf doesn't have; a larger number is an axis along which
    that many leaves are fused in one tensor.
    """

    torch: tuple[tuple[str, ...], ...]
    jax: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Axes:
        """Raises ValueError for what is no such equation."""
        left, arrow, right = text.partition("->")
        groups = [tuple(group.strip("()").split()) for group in re.findall(r"\([^()]*\)|[^\s()]+", left)]
        axes = cls(tuple(groups), tuple(right.split()))
        named = [axis for axis in axes.flat if not axis.isdigit()]
        fused = [axis for axis in axes.flat if axis.isdigit()]
        if not arrow or sorted(named) != sorted(axes.jax) or len(set(named)) != len(named) or len(fused) > 1:
            raise ValueError(
                "axes: expected an equation such as '(N H) D -> D N H', each axis once on either side; received "
                f"{text!r}"
            )
        return axes

    @property
    def flat(self) -> tuple[str, ...]:
        """Returns the tensor's axes, split, without those of size 1."""
        return tuple(axis for group in self.torch for axis in group if axis != "1")

    @property
    def fused(self) -> str | None:
        """Returns the axis along which several leaves are fused."""
        return next((axis for axis in self.flat if axis.isdigit()), None)

    def sizes(self, leaf_shape: tuple[int, ...]) -> dict[str, int]:
        numbers = {axis: int(axis) for group in self.torch for axis in group if axis.isdigit()}
        return dict(zip(self.jax, leaf_shape, strict=True)) | numbers

    def torch_shape(self, leaf_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of the tensor whose leaves have this shape."""
        sizes = self.sizes(leaf_shape)
        return tuple(int(np.prod([sizes[axis] for axis in group])) for group in self.torch)

    def split(self, tensor: np.ndarray, leaf_shape: tuple[int, ...]) -> np.ndarray:
        """Splits a tensor into leaves [P, *leaf_shape], as a view if possible; P is 1 unless the tensor is fused."""
        sizes = self.sizes(leaf_shape)
        order = [self.flat.index(axis) for axis in self._leaf_order]
        leaves = tensor.reshape([sizes[axis] for axis in self.flat]).transpose(order)
        return leaves if self.fused else leaves[None]

    def merge(self, leaves: np.ndarray) -> np.ndarray:
        """Merges leaves [P, *leaf_shape] into the tensor: the inverse of split."""
        order = [self._leaf_order.index(axis) for axis in self.flat]
        tensor = contiguous((leaves if self.fused else leaves[0]).transpose(order))
        return tensor.reshape(self.torch_shape(leaves.shape[1:]))

    @property
    def _leaf_order(self) -> list[str]:
        return [*([self.fused] if self.fused else []), *self.jax]


class Rule:
    """Defines one line of a table.

    Args:
      torch: a tensor's name, or several names of equal (tied) tensors. A copy that checkpoints may leave out ends in
        "?"; if all do, one of them must be present, and the first is written unless another one was read. {i} stands
        for a layer's number: the leaf then has a leading layer axis.
      jax: a leaf's path. Several, as in "attention/{query,key,value}/kernel", are the parts of one fused tensor if
        `axes` says so, and otherwise equal copies of it.
      axes: the correspondence of the axes (see Axes), without the layer axis. Empty: they are the same.
      stacked: whether the leaf has a layer axis without {i} too, for a single layer.

    Raises:
      ValueError: a malformed equation, or one that fuses another number of leaves than there are paths. (A mistake in
        the table.)
    """

    def __init__(self, torch: str | tuple[str, ...], jax: str, axes: str = "", *, stacked: bool = False) -> None:
        names = (torch,) if isinstance(torch, str) else torch
        self.names = tuple(name.removesuffix("?") for name in names)
        self.optional = tuple(name.endswith("?") for name in names)
        self.paths = _alternatives(jax)
        self.axes = Axes.parse(axes) if axes else None
        self.stacked = stacked or "{i}" in self.names[0]
        fused = self.axes.fused if self.axes else None
        if fused and int(fused) != len(self.paths):
            raise ValueError(f"{self}: {axes!r} fuses {fused} leaves, and {len(self.paths)} paths are given")
        self.are_copies = not fused

    def __str__(self) -> str:
        return f"{' = '.join(self.names)} ↔ {', '.join(self.paths)}"

    def leaf_shape(self, shapes: Shapes) -> tuple[int, ...]:
        """Returns one layer's shape."""
        shape = shapes[self.paths[0]]
        return shape[1:] if self.stacked else shape

    def torch_shape(self, shapes: Shapes) -> tuple[int, ...]:
        leaf_shape = self.leaf_shape(shapes)
        return self.axes.torch_shape(leaf_shape) if self.axes else leaf_shape

    def places(self, shapes: Shapes) -> list[Place]:
        """Returns the place of each tensor (with its tied copies) in the leaves."""
        if not self.stacked:
            return [Place(self.names, self.optional, ...)]
        layers = range(shapes[self.paths[0]][0])
        return [Place(tuple(name.replace("{i}", str(i)) for name in self.names), self.optional, i) for i in layers]


class Place(NamedTuple):
    """Holds a tensor's names, and the index of its layer in the stacked leaf (`...`: the whole leaf)."""

    names: tuple[str, ...]
    optional: tuple[bool, ...]
    index: Any

    def required(self, others: Collection[str]) -> list[str]:
        """Returns the names that must be present beside `others`."""
        required = [name for name, optional in zip(self.names, self.optional, strict=True) if not optional]
        return required or ([] if any(name in others for name in self.names) else [self.names[0]])


def leaves_from_tensors(
    rules: list[Rule], tensors: Tensors, shapes: Shapes, what: str = "checkpoint"
) -> dict[str, Deferred]:
    """Converts tensors to leaves of these shapes, in the tensors' dtypes. It checks all now, and makes each on access.

    Raises:
      PortingError: tensors missing, unexpected, of the wrong shape or dtype, not finite, or tied and unequal; a rule
        that no tensor matches; a leaf without a rule.
    """
    problems = _table_problems(rules, shapes)
    if not problems:
        problems = [*_name_problems(rules, tensors, shapes)]
        for rule in rules:
            problems += _tensor_problems(rule, tensors, shapes)
    if problems:
        raise PortingError(f"{what} does not fit, {_count(problems)}", problems)
    leaves = {}
    for rule in rules:
        names = [next(name for name in place.names if name in tensors) for place in rule.places(shapes)]
        dtype = np.asarray(tensors[names[0]]).dtype
        for number, path in enumerate(rule.paths):
            part = 0 if rule.are_copies else number
            leaves[path] = Deferred(
                shapes[path], dtype, partial(_leaf_pieces, rule, part, names, tensors, rule.leaf_shape(shapes))
            )
    return {path: leaves[path] for path in shapes}


def _leaf_pieces(
    rule: Rule, part: int, names: list[str], tensors: Tensors, leaf_shape: tuple[int, ...]
) -> Iterator[np.ndarray]:
    """Yields the pieces of one leaf of the rule, one from each tensor."""
    for name in names:
        tensor = np.asarray(tensors[name])
        yield contiguous((rule.axes.split(tensor, leaf_shape) if rule.axes else tensor[None])[part])


def tensors_from_leaves(
    rules: list[Rule], leaves: Leaves, shapes: Shapes, optional: Collection[str] = (), what: str = "parameters"
) -> dict[str, Deferred]:
    """Converts leaves to tensors, in the leaves' dtypes; tied names share one object. It checks all now, and makes each
    on access.

    Args:
      optional: the optional copies to include.

    Raises:
      PortingError: leaves missing, unexpected, of the wrong shape or dtype, not finite, or copies of one tensor and
        unequal; a leaf without a rule.
    """
    problems = _table_problems(rules, shapes)
    if not problems:
        problems += _difference(shapes, leaves, "leaf", lambda path: f"expected shape {shapes[path]}")
        for rule in rules:
            problems += _leaf_problems(rule, leaves, shapes)
    if problems:
        raise PortingError(f"{what} do not fit, {_count(problems)}", problems)
    tensors: dict[str, Deferred] = {}
    for rule in rules:
        sources = [np.asarray(leaves[path]) for path in rule.paths[: 1 if rule.are_copies else None]]
        for place in rule.places(shapes):
            tensor = Deferred(
                rule.torch_shape(shapes), sources[0].dtype, partial(_tensor_pieces, rule, place.index, sources)
            )
            wanted = [name for name in place.names if name in optional or name in place.required(optional)]
            tensors |= dict.fromkeys(wanted, tensor)
    return tensors


def _tensor_pieces(rule: Rule, index: Any, leaves: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Yields the tensor that the rule makes of this layer of the leaves."""
    parts = leaves[0][index][None] if len(leaves) == 1 else np.stack([leaf[index] for leaf in leaves])
    yield contiguous(rule.axes.merge(parts) if rule.axes else parts[0])


# --- what does not fit


def _alternatives(path: str) -> tuple[str, ...]:
    """Expands "a/{b,c}/d" to ("a/b/d", "a/c/d")."""
    match = re.search(r"\{([^{}]*)\}", path)
    if not match:
        return (path,)
    return tuple(path[: match.start()] + option + path[match.end() :] for option in match[1].split(","))


def _count(problems: list[str]) -> str:
    return "1 problem" if len(problems) == 1 else f"{len(problems)} problems"


def _table_problems(rules: list[Rule], shapes: Shapes) -> list[str]:
    """Checks that each leaf has one rule, and each rule its leaves. (Problems are mistakes in the table, or a config
    that it can't serve.)"""
    paths = [path for rule in rules for path in rule.paths]
    problems = [
        f"unused rule: the model has no {path} ({rule})" for rule in rules for path in rule.paths if path not in shapes
    ]
    problems += [f"leaf {path} {shapes[path]}: no rule leads to it" for path in shapes if path not in paths]
    problems += [f"leaf {path}: several rules lead to it" for path in _repeated(paths)]
    if problems:
        return problems
    for rule in rules:
        if rule.axes and len(rule.axes.jax) != len(rule.leaf_shape(shapes)):
            problems.append(
                f"rule {rule}: {' '.join(rule.axes.jax)} are not the axes of a leaf {rule.leaf_shape(shapes)}"
            )
    names = (name for rule in rules for place in rule.places(shapes) for name in place.names)
    return problems + [f"tensor {name}: several rules use it" for name in _repeated(names)]


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _name_problems(rules: list[Rule], tensors: Tensors, shapes: Shapes) -> Iterator[str]:
    """Tensors missing and unexpected; a rule none of whose tensors is there is reported once."""
    expected = {name: rule for rule in rules for place in rule.places(shapes) for name in place.names}
    unexpected = [name for name in tensors if name not in expected]
    absent = [name for name in expected if name not in tensors]
    for rule in rules:
        names = [name for place in rule.places(shapes) for name in place.required(tensors)]
        shape = rule.torch_shape(shapes)
        if len(names) > 1 and not any(name in tensors for name in names):
            like = nearest(names[0], unexpected)
            yield f"unused rule: no tensor matches {rule}, {len(names)} of shape {shape} expected{like}"
        else:
            missing = [name for name in names if name not in tensors]
            yield from (f"missing tensor {name}: expected shape {shape}{nearest(name, unexpected)}" for name in missing)
    yield from (
        f"unexpected tensor {name} {tuple(tensors[name].shape)}{nearest(name, absent or expected)}"
        for name in unexpected
    )


def _tensor_problems(rule: Rule, tensors: Tensors, shapes: Shapes) -> Iterator[str]:
    """Yields the problems of the tensors' values."""
    shape, first = rule.torch_shape(shapes), None
    for place in rule.places(shapes):
        copies = {name: np.asarray(tensors[name]) for name in place.names if name in tensors}
        for name, tensor in copies.items():
            yield from _value_problems(f"tensor {name}", tensor, shape)
            first = first or (name, tensor.dtype)
            if tensor.dtype != first[1]:
                yield f"tensor {name}: expected dtype {first[1]}, as {first[0]} has; received {tensor.dtype}"
        if copies:
            yield from _unequal("tied tensors", copies)


def _leaf_problems(rule: Rule, leaves: Leaves, shapes: Shapes) -> Iterator[str]:
    group = {path: np.asarray(leaves[path]) for path in rule.paths if path in leaves}
    for path, leaf in group.items():
        yield from _value_problems(f"leaf {path}", leaf, shapes[path])
    if len({leaf.dtype for leaf in group.values()}) > 1:
        dtypes = ", ".join(str(leaf.dtype) for leaf in group.values())
        yield f"leaves {', '.join(group)}: expected one dtype; received {dtypes}"
    elif group and rule.are_copies:
        yield from _unequal(f"leaves that {rule.names[0]} holds once", group)


def _value_problems(what: str, array: np.ndarray, shape: tuple[int, ...]) -> Iterator[str]:
    if tuple(array.shape) != shape:
        yield f"{what}: expected shape {shape}; received {tuple(array.shape)}"
    if array.dtype.name not in DTYPES:
        yield f"{what}: expected a dtype of {', '.join(DTYPES)}; received {array.dtype}"
    elif not np.isfinite(array).all():
        yield _infinities(what, array)


def _infinities(what: str, array: np.ndarray) -> str:
    return f"{what} {tuple(array.shape)}: {int((~np.isfinite(array)).sum())} values are not finite"


def not_finite(tensors: Tensors) -> list[str]:
    """Returns one message for each tensor with non-finite values."""
    arrays = ((name, tensors[name]) for name in tensors)
    return [
        _infinities(f"tensor {name}", array)
        for name, array in arrays
        if array.dtype.name in DTYPES and not np.isfinite(array).all()
    ]


def _unequal(what: str, copies: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Copies that differ from the first in shape, dtype or any bit."""
    (first_name, first), *others = copies.items()
    for name, other in others:
        if (other.shape, other.dtype) != (first.shape, first.dtype):
            yield f"{what} {first_name} and {name} differ: {first.dtype} {first.shape} and {other.dtype} {other.shape}"
        elif not np.array_equal(_bits(first), _bits(other)):
            count = int((_bits(first) != _bits(other)).sum())
            yield f"{what} {first_name} and {name} {first.shape} differ in {count} of {first.size} values"


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}")


def _difference(
    expected: Iterable[str], received: Iterable[str], what: str, describe: Callable[[str], str]
) -> list[str]:
    """Names that are only on one side."""
    expected, received = dict.fromkeys(expected), dict.fromkeys(received)
    unexpected = [name for name in received if name not in expected]
    missing = [name for name in expected if name not in received]
    problems = [f"missing {what} {name}: {describe(name)}{nearest(name, unexpected)}" for name in missing]
    return problems + [f"unexpected {what} {name}{nearest(name, missing or expected)}" for name in unexpected]
