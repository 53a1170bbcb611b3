"""Runs one table of rules in both directions, `torch names ↔ JAX paths, axes`, over NumPy arrays.

Both directions are strict. Every tensor and every leaf is consumed exactly once, values and dtypes are moved and never
computed with, and whatever does not fit is collected and refused together.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from jax_transformer.mapping.axes import EACH, Axes
from jax_transformer.runtime.trees import nearest
from jax_transformer.storage.deferred import Deferred, contiguous
from jax_transformer.storage.tensors import DTYPES, PortingError, Tensors

Leaves = Mapping[str, np.ndarray]
"""The JAX side, flat: leaves by path, such as "encoder/layers/self_attention/query/kernel"."""
Shapes = Mapping[str, tuple[int, ...]]

NUMBER = "{i}"
"""The placeholder for a layer's number in the names of tensors."""


class Rule:
    """Defines one line of a table.

    Args:
      torch: a tensor's name, or several names of equal (tied) tensors. A copy that checkpoints may leave out ends in
        "?"; if all do, one of them must be present, and the first is written unless another one was read. {i} matches
        a layer's number: the leaf then has a leading layer axis. {n} matches the number of a tensor among the tensors
        that make one leaf, along the axis {n} of `axes`.
      jax: a leaf's path. Several, as in "attention/{query,key,value}/kernel", are the parts of one fused tensor if
        `axes` says so, and otherwise equal copies of it.
      axes: the correspondence of the axes (see Axes), without the layer axis. Empty: they are the same.
      stacked: whether the leaf has a layer axis without {i} too, for a single layer.
      by_layer: the names of layers that are called otherwise than `torch` says, by their numbers. (Then `torch` may be
        empty.)

    Raises:
      ValueError: a malformed equation, or one that fuses a different number of leaves than there are paths; {n} on one
        side only. (A mistake in the table.)
    """

    def __init__(
        self,
        torch: str | tuple[str, ...],
        jax: str,
        axes: str = "",
        *,
        stacked: bool = False,
        by_layer: Mapping[int, tuple[str, ...]] | None = None,
    ) -> None:
        names = (torch,) if isinstance(torch, str) else torch
        self.names = tuple(name.removesuffix("?") for name in names)
        self.optional = tuple(name.endswith("?") for name in names)
        self.by_layer = dict(by_layer or {})
        self.paths = alternatives(jax)
        self.axes = Axes.parse(axes) if axes else None
        self.stacked = stacked or bool(self.by_layer) or NUMBER in self.names[0]
        fused = self.axes.fused if self.axes else None
        if fused and int(fused) != len(self.paths):
            raise ValueError(f"{self}: {axes!r} fuses {fused} leaves, and {len(self.paths)} paths are given")
        if any(is_numbered(name) != self.counts for name in (*self.names, *itertools.chain(*self.by_layer.values()))):
            raise ValueError(f"{self}: expected {EACH} in names and axes, or in neither; received axes {axes!r}")
        self.are_copies = not fused

    def __str__(self) -> str:
        names = self.names or next(iter(self.by_layer.values()))
        return f"{' = '.join(names)} ↔ {', '.join(self.paths)}"

    @property
    def counts(self) -> bool:
        """Returns whether several tensors, numbered {n}, make one layer's leaf."""
        return self.axes is not None and self.axes.counts

    @property
    def all_names(self) -> tuple[str, ...]:
        """Returns the names of every tensor, with their placeholders."""
        written = (*self.names, *(name for names in self.by_layer.values() for name in names))
        return tuple(name for each in written for name in alternatives(each))

    def names_of(self, layer: int | None) -> tuple[str, ...]:
        """Returns the names of a layer's tensor and its copies, with {n} for its number; empty if no name is known."""
        if layer is None:
            return self.names
        return self.by_layer.get(layer, tuple(name.replace(NUMBER, str(layer)) for name in self.names))

    def leaf_shape(self, shapes: Shapes) -> tuple[int, ...]:
        """Returns one layer's shape."""
        shape = shapes[self.paths[0]]
        return shape[1:] if self.stacked else shape

    def torch_shape(self, shapes: Shapes) -> tuple[int, ...]:
        leaf_shape = self.leaf_shape(shapes)
        return self.axes.torch_shape(leaf_shape) if self.axes else leaf_shape

    def places(self, shapes: Shapes) -> list[Place]:
        """Returns the place of each tensor (with its tied copies) in the leaves: layer by layer, and by {n} in each."""
        layers = range(shapes[self.paths[0]][0]) if self.stacked else [None]
        numbers = range(self.axes.count(self.leaf_shape(shapes)) if self.axes else 1)
        return [
            Place(
                tuple(numbered_name(name, number) for name in self.names_of(layer)),
                self.optional if layer not in self.by_layer else (False,) * len(self.by_layer[layer]),
                ... if layer is None else layer,
                number,
            )
            for layer in layers
            for number in numbers
        ]


class Place(NamedTuple):
    """Holds a tensor's names, the index of its layer in the stacked leaf (`...`: the whole leaf), and its number among
    the tensors that make this layer."""

    names: tuple[str, ...]
    optional: tuple[bool, ...]
    index: Any
    number: int

    def required(self, others: Collection[str]) -> list[str]:
        """Returns the names that must be present, given `others`."""
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
    problems = tensor_problems(rules, tensors, shapes)
    if problems:
        raise PortingError(f"{what} does not fit, {count(problems)}", problems)
    leaves = {}
    for rule in rules:
        places, shape = rule.places(shapes), rule.leaf_shape(shapes)
        names = [next(name for name in place.names if name in tensors) for place in places]
        dtype = np.asarray(tensors[names[0]]).dtype
        size = rule.axes.count(shape) if rule.axes else 1
        layers = [names[start : start + size] for start in range(0, len(names), size)]
        for number, path in enumerate(rule.paths):
            part = 0 if rule.are_copies else number
            leaves[path] = Deferred(shapes[path], dtype, partial(_leaf_pieces, rule, part, layers, tensors, shape))
    return {path: leaves[path] for path in shapes}


def _leaf_pieces(
    rule: Rule, part: int, layers: list[list[str]], tensors: Tensors, leaf_shape: tuple[int, ...]
) -> Iterator[np.ndarray]:
    """Yields the pieces of one leaf of the rule, one for each layer."""
    for names in layers:
        arrays = [np.asarray(tensors[name]) for name in names]
        yield contiguous(rule.axes.split(arrays, leaf_shape)[part] if rule.axes else arrays[0])


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
    problems = leaf_problems(rules, leaves, shapes)
    if problems:
        raise PortingError(f"{what} do not fit, {count(problems)}", problems)
    tensors: dict[str, Deferred] = {}
    for rule in rules:
        sources = [np.asarray(leaves[path]) for path in rule.paths[: 1 if rule.are_copies else None]]
        for place in rule.places(shapes):
            tensor = Deferred(rule.torch_shape(shapes), sources[0].dtype, partial(_tensor_pieces, rule, place, sources))
            wanted = [name for name in place.names if name in optional or name in place.required(optional)]
            tensors |= dict.fromkeys(wanted, tensor)
    return tensors


def _tensor_pieces(rule: Rule, place: Place, leaves: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Yields the tensor that the rule makes of this place in the leaves."""
    parts = leaves[0][place.index][None] if len(leaves) == 1 else np.stack([leaf[place.index] for leaf in leaves])
    yield contiguous(rule.axes.merge(parts, place.number) if rule.axes else parts[0])


def alternatives(path: str) -> tuple[str, ...]:
    """Expands "a/{b,c}/d" to ("a/b/d", "a/c/d")."""
    match = re.search(r"\{([^{}]*,[^{}]*)\}", path)
    if not match:
        return (path,)
    return tuple(path[: match.start()] + option.strip() + path[match.end() :] for option in match[1].split(","))


def is_numbered(name: str) -> bool:
    """Returns whether a name is that of several tensors which make one leaf: numbered {n}, or in braces."""
    return EACH in name or len(alternatives(name)) > 1


def numbered_name(name: str, number: int) -> str:
    """Returns the name of one of the tensors that make a leaf."""
    several = alternatives(name)
    return several[number].replace(EACH, str(number)) if len(several) > 1 else name.replace(EACH, str(number))


# --- what does not fit: one message for each problem, and all of them


def tensor_problems(rules: list[Rule], tensors: Tensors, shapes: Shapes) -> list[str]:
    """Lists the problems that keep tensors from becoming leaves of these shapes."""
    problems, usable = _table_problems(rules, shapes)
    others = matcher(name for rule in rules if rule not in usable for name in rule.all_names)
    problems += _name_problems(usable, tensors, shapes, others)
    for rule in usable:
        problems += _value_problems(rule, tensors, shapes)
    return problems


def leaf_problems(rules: list[Rule], leaves: Leaves, shapes: Shapes) -> list[str]:
    """Lists the problems that keep leaves from becoming tensors."""
    problems, usable = _table_problems(rules, shapes)
    problems += _difference(shapes, leaves, "leaf", lambda path: f"expected shape {shapes[path]}")
    for rule in usable:
        problems += _leaf_problems(rule, leaves, shapes)
    return problems


def count(problems: list[str]) -> str:
    return "1 problem" if len(problems) == 1 else f"{len(problems)} problems"


def matcher(names: Iterable[str]) -> re.Pattern[str]:
    """Compiles an expression that matches these names in full, with any number in place of {i} and of {n}, and
    anything in place of * at the end."""
    patterns = [re.escape(name).replace(r"\{i\}", "[0-9]+").replace(r"\{n\}", "[0-9]+") for name in names]
    patterns = [re.sub(r"\\\*$", ".*", pattern) for pattern in patterns]
    return re.compile("|".join(patterns) or "(?!)")


def _table_problems(rules: list[Rule], shapes: Shapes) -> tuple[list[str], list[Rule]]:
    """Checks that each leaf has one rule, and each rule its leaves and its tensors, and returns the rules that do.
    (Problems are mistakes in the table or map, or a config that it can't serve.)"""
    paths = [path for rule in rules for path in rule.paths]
    problems = [
        f"unused rule: the model has no {path} ({rule})" for rule in rules for path in rule.paths if path not in shapes
    ]
    problems += [f"leaf {path} {shapes[path]}: no rule leads to it" for path in shapes if path not in paths]
    problems += [f"leaf {path}: several rules lead to it" for path in _repeated(paths)]
    usable, taken, used = [], set[str](), Counter[str]()
    for rule in rules:
        if any(path not in shapes or path in taken for path in rule.paths):
            continue
        found = [*_layer_problems(rule, shapes), *_axes_problems(rule, shapes)]
        names = [] if found else [name for place in rule.places(shapes) for name in place.names]
        if not found and not any(name in used for name in names):
            usable.append(rule)
        problems += found
        taken.update(rule.paths)
        used.update(names)
    return problems + [f"tensor {name}: several rules use it" for name in _repeated(used.elements())], usable


def _layer_problems(rule: Rule, shapes: Shapes) -> Iterator[str]:
    """Yields layers without a known name, and layers that the model doesn't have."""
    path, layers = rule.paths[0], range(shapes[rule.paths[0]][0] if rule.stacked else 0)
    yield from (f"leaf {path}[{i}]: no rule leads to it" for i in layers if not rule.names_of(i))
    yield from (
        f"unused rule: the model has no {path}[{i}] ({' = '.join(names)})"
        for i, names in rule.by_layer.items()
        if i not in layers
    )


def _axes_problems(rule: Rule, shapes: Shapes) -> Iterator[str]:
    """Yields a axes that aren't the leaf's."""
    if not rule.axes:
        return
    if len(rule.axes.jax) != len(rule.leaf_shape(shapes)):
        yield f"rule {rule}: {rule.axes.leaf_text} are not the axes of a leaf {rule.leaf_shape(shapes)}"
        return
    sizes = rule.axes.sizes(rule.leaf_shape(shapes))
    shape = tuple(int(np.prod([sizes[axis] for axis in group])) for group in rule.axes.jax)
    if shape != rule.leaf_shape(shapes):
        yield f"rule {rule}: {rule.axes.leaf_text} has sizes {shape}, and the leaf {rule.leaf_shape(shapes)}"
    count = rule.axes.count(rule.leaf_shape(shapes))
    for name in (*rule.names, *itertools.chain(*rule.by_layer.values())):
        if (named := len(alternatives(name))) not in (1, count):
            yield f"rule {rule}: {named} tensors are named, and {EACH} is {count}"


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _name_problems(rules: list[Rule], tensors: Tensors, shapes: Shapes, others: re.Pattern[str]) -> Iterator[str]:
    """Yields missing and unexpected tensors, except `others`; reports a rule without any tensor once."""
    expected = {name: rule for rule in rules for place in rule.places(shapes) for name in place.names}
    unexpected = [name for name in tensors if name not in expected and not others.fullmatch(name)]
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


def _value_problems(rule: Rule, tensors: Tensors, shapes: Shapes) -> Iterator[str]:
    """Yields the problems of the tensors' values."""
    shape, first = rule.torch_shape(shapes), None
    for place in rule.places(shapes):
        copies = {name: np.asarray(tensors[name]) for name in place.names if name in tensors}
        for name, tensor in copies.items():
            yield from _array_problems(f"tensor {name}", tensor, shape)
            first = first or (name, tensor.dtype)
            if tensor.dtype != first[1]:
                yield f"tensor {name}: expected dtype {first[1]}, as {first[0]} has; received {tensor.dtype}"
        if copies:
            yield from _unequal("tied tensors", copies)


def _leaf_problems(rule: Rule, leaves: Leaves, shapes: Shapes) -> Iterator[str]:
    group = {path: np.asarray(leaves[path]) for path in rule.paths if path in leaves}
    for path, leaf in group.items():
        yield from _array_problems(f"leaf {path}", leaf, shapes[path])
    if len({leaf.dtype for leaf in group.values()}) > 1:
        dtypes = ", ".join(str(leaf.dtype) for leaf in group.values())
        yield f"leaves {', '.join(group)}: expected one dtype; received {dtypes}"
    elif group and rule.are_copies:
        yield from _unequal(f"leaves that {rule.all_names[0]} holds once", group)


def _array_problems(what: str, array: np.ndarray, shape: tuple[int, ...]) -> Iterator[str]:
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
    """Yields copies that differ from the first in shape, dtype or any bit."""
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
    """Lists names that are only on one side."""
    expected, received = dict.fromkeys(expected), dict.fromkeys(received)
    unexpected = [name for name in received if name not in expected]
    missing = [name for name in expected if name not in received]
    problems = [f"missing {what} {name}: {describe(name)}{nearest(name, unexpected)}" for name in missing]
    return problems + [f"unexpected {what} {name}{nearest(name, missing or expected)}" for name in unexpected]
