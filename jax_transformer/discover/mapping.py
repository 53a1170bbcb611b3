"""Turn leaves, given as elements of stored tensors, into a map of names with axes."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

import numpy as np

from jax_transformer.discover.problems import DiscoverError
from jax_transformer.discover.trace import Recording, Value
from jax_transformer.porting.rules import Axes


@dataclass(frozen=True)
class Entry:
    """Holds one line of a map."""

    names: tuple[str, ...]
    """The tensor's names: several if the module holds it several times."""
    path: str
    """Ours: `encoder/layers/…/kernel[0]`; of a fused tensor `…/{query,key,value}/kernel[0]`."""
    axes: str
    """Empty: they are the same."""


def entries(recording: Recording, leaves: dict[str, np.ndarray]) -> list[Entry]:
    """Returns a line for each tensor that leaves are made of.

    Raises:
      DiscoverError: leaves that a map can't express, all together.
    """
    of_root: dict[Value, list[tuple[str, np.ndarray]]] = defaultdict(list)
    problems = []
    for path, elements in leaves.items():
        roots = recording.roots(elements)
        if len(roots) != 1 or not roots[0].names:
            made = ", ".join(" = ".join(root.names) or root.described() for root in roots)
            problems.append(f"{path} isn't one stored tensor, but made of {made}")
        else:
            of_root[roots[0]].append((path, elements))
    found = []
    for root, parts in of_root.items():
        entry = _entry(recording, root, parts)
        if entry is None:
            paths = ", ".join(path for path, _ in parts)
            problems.append(f"{root.names[0]} {list(root.array.shape)} is {paths} in an order that no axes express")
        else:
            found.append(entry)
    if problems:
        raise DiscoverError("; ".join(problems))
    return found


def _entry(recording: Recording, root: Value, parts: list[tuple[str, np.ndarray]]) -> Entry | None:
    own = recording.own(root)
    parts = sorted(parts, key=lambda part: int(part[1].min()))
    shapes = {part[1].shape for part in parts}
    if len(shapes) != 1 or sum(part[1].size for part in parts) != own.size:
        return None
    path = parts[0][0] if len(parts) == 1 else _fused(order := [part[0] for part in parts])
    if path is None:
        return None
    if len(parts) > 1:
        # the names in a path's braces stand in the order in which the tensor holds them
        by_path = dict(parts)
        parts = [(name, by_path[name]) for name in order]
    elements = np.stack([part[1] for part in parts])
    if len(parts) == 1 and np.array_equal(elements[0], own):
        return Entry(root.names, path, "")
    letters = _letters(path, elements.ndim - 1)
    fused = [str(len(parts))] if len(parts) > 1 else []
    for equation in _equations(own.shape, dict(zip(letters, elements.shape[1:], strict=True)), fused):
        axes = Axes.parse(f"{equation} -> {' '.join(letters)}")
        if np.array_equal(axes.split(own, elements.shape[1:]), elements):
            return Entry(root.names, path, f"{equation} -> {' '.join(letters)}")
    return None


def _letters(path: str, count: int) -> Sequence[str]:
    """Returns the letters of a leaf's axes, as far as they have names."""
    *_, part, leaf = path.partition("[")[0].split("/")
    if "attention/" in path and not part.endswith("norm"):
        known = {"kernel": ("N", "H", "D") if part == "output" else ("D", "N", "H"), "bias": ("N", "H")}.get(leaf, ())
        if len(known) == count:
            return known
    usual = {
        ("kernel", 2): ("I", "O"),
        ("embedding", 2): ("V", "D"),
    }.get((leaf, count))
    return usual or tuple("PQRS"[:count])


def _fused(paths: list[str]) -> str | None:
    """Returns `a/{b,c}/d` for a/b/d and a/c/d; None if they differ elsewhere."""
    split = [path.split("/") for path in paths]
    if len({len(parts) for parts in split}) != 1:
        return None
    differing = [number for number, parts in enumerate(zip(*split, strict=True)) if len(set(parts)) > 1]
    if len(differing) != 1:
        return None
    (at,) = differing
    joined = "{" + ",".join(parts[at] for parts in split) + "}"
    return "/".join([*split[0][:at], joined, *split[0][at + 1 :]])


def _equations(shape: tuple[int, ...], sizes: dict[str, int], fused: list[str]) -> Iterator[str]:
    """Yields left sides of equations, such as "(N H) D", for a tensor of this shape."""
    whole = [size for size in shape if size != 1]
    names = [*fused, *sizes]
    for order in permutations(names):
        for cuts in combinations(range(1, len(order)), max(len(whole) - 1, 0)):
            groups = [order[start:end] for start, end in zip((0, *cuts), (*cuts, len(order)), strict=True)]
            if [int(np.prod([sizes.get(name) or int(name) for name in group])) for group in groups] != whole:
                continue
            left = iter(group[0] if len(group) == 1 else f"({' '.join(group)})" for group in groups)
            yield " ".join("1" if size == 1 else next(left) for size in shape)


def common_prefix(names: Sequence[str]) -> str:
    return os.path.commonprefix(list(names))
