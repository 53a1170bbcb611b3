"""Finds which weights of two programs are one: tensors that share memory, and weights that correspond to one weight of
the other program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jax_transformer.proof.distinct import distinct
from jax_transformer.proof.programs import UnknownOperation

if TYPE_CHECKING:
    from torch import nn

Shapes = Mapping[str, tuple[int, ...]]


class MemoryPlace(NamedTuple):
    """Locates a weight that shares numbers with other weights, or with itself, as an expanded tensor does."""

    block: int
    """Weights of different blocks share no number."""
    places: np.ndarray | None
    """The place of each element in the block; None: the weights of the block are all the same numbers."""


class Leaf(NamedTuple):
    """Holds the part of a variable that a weight is."""

    variable: str
    places: np.ndarray | None = None
    """The variable's element that each element is; None: the weight is the variable."""

    def select(self, array: Any) -> Any:
        """Selects the weight from the variable, an array of NumPy, JAX or PyTorch."""
        return array if self.places is None else array[self.places]


class SeparateWeights(NamedTuple):
    """Holds weights that are separate in one program and one weight in the other."""

    side: int
    """0: the candidate. 1: the reference."""
    names: tuple[str, ...]


@dataclass(frozen=True)
class Ties:
    """Holds the weights of two programs as parts of variables; each variable is drawn once."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Variables by name, the first of the candidate's → shapes."""
    leaves: tuple[dict[str, Leaf], dict[str, Leaf]] = field(default_factory=lambda: ({}, {}))
    """Names of weights, of the candidate and of the reference → their parts of variables."""
    apart: list[SeparateWeights] = field(default_factory=list)


def shared_memory(module: nn.Module, names: Sequence[str]) -> dict[str, MemoryPlace]:
    """Locates the weights of a module that share numbers.

    Raises:
      UnknownOperation: some share memory in two dtypes.
    """
    import torch

    from jax_transformer.proof.torch_memory import layout_of, storage_of

    held = module.state_dict(keep_vars=True)
    by_storage: dict[int, list[str]] = {}
    for name in names:
        if held[name].layout is torch.strided and held[name].numel():
            by_storage.setdefault(storage_of(held[name]), []).append(name)
    found: dict[str, MemoryPlace] = {}
    for block, several in enumerate(by_storage.values()):
        layouts = {name: layout_of(held[name]) for name in several}
        if len({*layouts.values()}) == 1 and layouts[several[0]].dense_order() is not None:
            found |= {name: MemoryPlace(block, None) for name in several if len(several) > 1}
            continue
        if len({held[name].dtype for name in several}) > 1:
            raise UnknownOperation("tie", "", f"{' and '.join(several)} share memory in two dtypes")
        places = {name: layout.places() for name, layout in layouts.items()}
        numbers, counts = np.unique(np.concatenate([each.ravel() for each in places.values()]), return_counts=True)
        shared = numbers[counts > 1]
        found |= {name: MemoryPlace(block, each) for name, each in places.items() if np.isin(each, shared).any()}
    return found


def find_ties(
    weights: tuple[Shapes, Shapes],
    names: Mapping[str, str],
    lies: tuple[Mapping[str, MemoryPlace], Mapping[str, MemoryPlace]],
) -> Ties:
    """Finds which weights of two programs are one.

    Args:
      weights: the shapes of weights of the candidate and of the reference.
      names: all names of the reference → the candidate's names.
      lies: the weights of either program that share numbers.
    """
    groups = {(side, name): [(side, name)] for side in (0, 1) for name in weights[side]}
    pairs = [((0, ours), (1, theirs)) for theirs, ours in names.items()]
    for side in (0, 1):
        first: dict[int, str] = {}
        pairs += [((side, first.setdefault(one.block, name)), (side, name)) for name, one in lies[side].items()]
    for one, other in pairs:
        joined, added = groups[one], groups[other]
        if joined is not added:
            joined += added
            groups |= dict.fromkeys(added, joined)
    order = {node: place for place, node in enumerate(groups)}
    ties = Ties()
    for group in {id(group): group for group in groups.values()}.values():
        _add(ties, _Group(sorted(group, key=order.__getitem__), weights, names, lies))
    return ties


class _Group(NamedTuple):
    """Holds weights that are one variable, or are parts of one."""

    nodes: list[tuple[int, str]]
    """Sides and names."""
    weights: tuple[Shapes, Shapes]
    names: Mapping[str, str]
    lies: tuple[Mapping[str, MemoryPlace], Mapping[str, MemoryPlace]]

    def whole(self) -> tuple[dict[Any, str], dict[Any, str]] | None:
        """Returns the blocks of both sides, each with a weight of it; None if some weights are only parts."""
        blocks: tuple[dict[Any, str], dict[Any, str]] = ({}, {})
        for side, name in self.nodes:
            lies = self.lies[side].get(name)
            if lies is not None and lies.places is not None:
                return None
            blocks[side].setdefault(name if lies is None else lies.block, name)
        return blocks

    def numbers(self) -> list[np.ndarray]:
        """Numbers the elements of each weight; an element that a program holds once has one number."""
        begins: dict[Any, int] = {}
        sizes: dict[Any, int] = {}
        found: list[tuple[int, Any, np.ndarray]] = []
        for side, name in self.nodes:
            lies, shape = self.lies[side].get(name), self.weights[side][name]
            own = np.arange(np.prod(shape, dtype=np.int64)).reshape(shape)
            if lies is None:
                found.append((side, name, own))
            else:
                found.append((side, lies.block, own if lies.places is None else lies.places))
        for side, block, places in found:
            sizes[side, block] = max(sizes.get((side, block), 0), 1 + int(places.max(initial=-1)))
        total = 0
        for key, size in sizes.items():
            begins[key], total = total, total + size
        return [places + begins[side, block] for side, block, places in found]


def _add(ties: Ties, group: _Group) -> None:
    """Adds the variable of a group of weights."""
    variable = group.nodes[0][1]
    if (blocks := group.whole()) is not None:
        ties.shapes[variable] = group.weights[0][variable]
        for side, name in group.nodes:
            ties.leaves[side][name] = Leaf(variable)
        ties.apart.extend(
            SeparateWeights(side, tuple(of_side.values())) for side, of_side in enumerate(blocks) if len(of_side) > 1
        )
        return
    numbers = dict(zip(group.nodes, group.numbers(), strict=True))
    joined = _joined(numbers, [((0, group.names[name]), (1, name)) for side, name in group.nodes if side == 1])
    size = 1 + max(int(each.max(initial=-1)) for each in joined.values())
    ties.shapes[variable] = (size,)
    for (side, name), places in joined.items():
        ties.leaves[side][name] = Leaf(variable, places)
    for side in (0, 1):
        own = {name: numbers[of, name] for of, name in group.nodes if of == side}
        if distinct(np.concatenate([each.ravel() for each in own.values()])).size > size:
            ties.apart.append(SeparateWeights(side, tuple(own)))


def _joined(
    numbers: Mapping[tuple[int, str], np.ndarray], pairs: Sequence[tuple[tuple[int, str], tuple[int, str]]]
) -> dict[tuple[int, str], np.ndarray]:
    """Numbers elements from 0 on; the elements of each pair of weights get equal numbers."""
    label = np.arange(1 + max(int(each.max(initial=-1)) for each in numbers.values()))
    before = None
    while before is None or not np.array_equal(before, label):
        before = label.copy()
        for one, other in pairs:
            least = np.minimum(label[numbers[one]], label[numbers[other]])
            np.minimum.at(label, numbers[one], least)
            np.minimum.at(label, numbers[other], least)
    kept = distinct(np.concatenate([label[each].ravel() for each in numbers.values()]))
    return {node: np.searchsorted(kept, label[each]) for node, each in numbers.items()}
