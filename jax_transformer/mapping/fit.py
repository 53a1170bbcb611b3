"""What doesn't fit between a table's rules, tensors and leaves: one message for each problem, and all of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.runtime.trees import nearest
from jax_transformer.storage.tensors import DTYPES, Tensors

if TYPE_CHECKING:
    from jax_transformer.mapping.rules import Leaves, Rule, Shapes


def tensor_problems(rules: list[Rule], tensors: Tensors, shapes: Shapes) -> list[str]:
    """Returns what keeps tensors from becoming leaves of these shapes."""
    problems, usable = _table_problems(rules, shapes)
    others = matcher(name for rule in rules if rule not in usable for name in rule.all_names)
    problems += _name_problems(usable, tensors, shapes, others)
    for rule in usable:
        problems += _value_problems(rule, tensors, shapes)
    return problems


def leaf_problems(rules: list[Rule], leaves: Leaves, shapes: Shapes) -> list[str]:
    """Returns what keeps leaves from becoming tensors."""
    problems, usable = _table_problems(rules, shapes)
    problems += _difference(shapes, leaves, "leaf", lambda path: f"expected shape {shapes[path]}")
    for rule in usable:
        problems += _leaf_problems(rule, leaves, shapes)
    return problems


def count(problems: list[str]) -> str:
    return "1 problem" if len(problems) == 1 else f"{len(problems)} problems"


def matcher(names: Iterable[str]) -> re.Pattern[str]:
    """Returns an expression that matches these names in full, with any number in place of {i} and of {n}, and anything
    in place of * at the end."""
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
    usable, taken = [], Counter[str]()
    for rule in rules:
        if any(path not in shapes or path in taken for path in rule.paths):
            continue
        found = [*_layer_problems(rule, shapes), *_axes_problems(rule, shapes)]
        names = [] if found else [name for place in rule.places(shapes) for name in place.names]
        if not found and not any(name in taken for name in names):
            usable.append(rule)
        problems += found
        taken.update([*rule.paths, *names])
    return problems + [f"tensor {name}: several rules use it" for name in _repeated(taken.elements())], usable


def _layer_problems(rule: Rule, shapes: Shapes) -> Iterator[str]:
    """Yields layers that no name is known of, and those that the model doesn't have."""
    path, layers = rule.paths[0], range(shapes[rule.paths[0]][0] if rule.stacked else 0)
    yield from (f"leaf {path}[{i}]: no rule leads to it" for i in layers if not rule.names_of(i))
    yield from (
        f"unused rule: the model has no {path}[{i}] ({' = '.join(names)})"
        for i, names in rule.by_layer.items()
        if i not in layers
    )


def _axes_problems(rule: Rule, shapes: Shapes) -> Iterator[str]:
    """Yields a different number of axes."""
    if rule.axes and len(rule.axes.jax) != len(rule.leaf_shape(shapes)):
        yield f"rule {rule}: {' '.join(rule.axes.jax)} are not the axes of a leaf {rule.leaf_shape(shapes)}"


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _name_problems(rules: list[Rule], tensors: Tensors, shapes: Shapes, others: re.Pattern[str]) -> Iterator[str]:
    """Tensors missing and unexpected, but `others`; a rule none of whose tensors is there is reported once."""
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
