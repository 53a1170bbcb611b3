"""Turn leaves, known as elements of stored tensors, into a map of names with axes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, permutations
from typing import Literal

import numpy as np

from jax_transformer.discover.problems import DiscoverError
from jax_transformer.mapping.axes import EACH, Axes
from jax_transformer.mapping.files import ParameterName
from jax_transformer.mapping.maps import NameMap
from jax_transformer.programs.trace import Recording, Value

Part = tuple[str, np.ndarray]
"""A leaf's path and its elements."""


def name_map(recording: Recording, leaves: Mapping[str, np.ndarray], prefix: str = "") -> NameMap:
    """Returns the map of the stored tensors that the leaves consist of, and of the unread ones.

    Args:
      leaves: elements by path, those of a layer with its number, as in `encoder/layers/…/kernel[0]`.
      prefix: precedes all names of the recorded module's tensors; the map omits it.

    Raises:
      DiscoverError: leaves that a map can't express, collected.
    """
    by_roots: dict[tuple[Value, ...], list[Part]] = defaultdict(list)
    problems, found, shared = [], dict[str, ParameterName](), dict[str, list[str]]()
    for path, elements in leaves.items():
        roots = recording.roots(elements)
        if not all(root.names for root in roots):
            made = ", ".join(root.described() for root in roots if not root.names)
            problems.append(f"{path} isn't stored, but computed ({made})")
        else:
            by_roots[roots].append((path, elements))
    for roots, parts in by_roots.items():
        if untrained := _untrained(roots, parts):
            problems.append(f"{untrained} is a buffer ({roots[0].names[0]}), which the module doesn't train")
            continue
        if tied := _tied(parts):
            shared.setdefault(" and ".join(path.partition("[")[0] for path in tied), []).append(roots[0].names[0])
            continue
        entry = _entry(recording, roots, parts)
        if entry is None:
            paths, held = ", ".join(path for path, _ in parts), ", ".join(root.names[0] for root in roots)
            problems.append(f"{held} {list(roots[0].array.shape)} is {paths} in an order that no axes express")
        else:
            found[entry[0].removeprefix(prefix)] = entry[1]
    for paths, names in shared.items():
        of = f" of {len(names)} layers" if len(names) > 1 else ""
        problems.append(f"{paths}{of} are one tensor ({', '.join(names)}), which no config trains as one")
    if problems:
        raise DiscoverError("; ".join(problems))
    read = {root for roots in by_roots for root in roots}
    unread = [value for value in recording.values if value.names and value not in read]
    ignored = tuple(name.removeprefix(prefix) for value in unread for name in value.names)
    return NameMap({}, {name: _without(parameter, prefix) for name, parameter in found.items()}, ignored)


def _untrained(roots: tuple[Value, ...], parts: list[Part]) -> str | None:
    """Returns a leaf that a model trains and that is made of buffers."""
    is_kept = any(root.op == "buffer" for root in roots)
    return next((path for path, _ in parts if is_kept and not path.startswith("constants/")), None)


def _tied(parts: list[Part]) -> list[str]:
    """Returns trained leaves that are the same elements. A model holds them as separate parameters and trains each."""
    same: dict[bytes, list[str]] = defaultdict(list)
    for path, elements in parts:
        if not path.startswith("constants/"):
            same[elements.tobytes()].append(path)
    return next((paths for paths in same.values() if len(paths) > 1), [])


def _without(parameter: ParameterName, prefix: str) -> ParameterName:
    return replace(parameter, copies=tuple(name.removeprefix(prefix) for name in parameter.copies))


def _entry(recording: Recording, roots: tuple[Value, ...], parts: list[Part]) -> tuple[str, ParameterName] | None:
    """Returns a tensor's name and its map entry; None if no axes express it."""
    if len(roots) > 1:
        return _entry_of_heads(recording, roots, parts)
    (root,) = roots
    own = recording.own(root)
    copies: dict[bytes, list[Part]] = defaultdict(list)
    for part in sorted(parts, key=lambda part: int(part[1].min())):
        copies[part[1].tobytes()].append(part)
    distinct = [same[0] for same in copies.values()]
    if len(copies) > 1 and len(parts) > len(copies):
        return None
    if sum(part[1].size for part in distinct) != own.size or len({part[1].shape for part in distinct}) != 1:
        return None
    path = _joined([path for path, _ in (distinct if len(distinct) > 1 else parts)])
    if path is None:
        return None
    axes = _axes(own, np.stack([part[1] for part in distinct]), path)
    return None if axes is None else (root.names[0], ParameterName(path, axes or None, root.names[1:]))


def _entry_of_heads(
    recording: Recording, roots: tuple[Value, ...], parts: list[Part]
) -> tuple[str, ParameterName] | None:
    """Returns the entry of tensors that each hold one head, numbered {n}."""
    name = _numbered([root.names[0] for root in roots])
    if len(parts) != 1 or name is None or len({root.array.shape for root in roots}) != 1:
        return None
    path, elements = parts[0]
    letters = list(_letters(path, elements.ndim))
    if "N" not in letters or elements.shape[letters.index("N")] != len(roots):
        return None
    at = letters.index("N")
    others = [letter for letter in letters if letter != "N"]
    heads = np.moveaxis(elements, at, 0)
    for equation in _equations(roots[0].array.shape, dict(zip(others, heads.shape[1:], strict=True)), []):
        axes = Axes.parse(f"{equation} -> {' '.join(others)}")
        if all(
            np.array_equal(axes.split([recording.own(root)], heads.shape[1:])[0], head)
            for root, head in zip(roots, heads, strict=True)
        ):
            right = " ".join(EACH if letter == "N" else letter for letter in letters)
            return name, ParameterName(path, Axes.parse(f"{EACH} {equation} -> {right}"))
    return None


def _numbered(names: list[str]) -> str | None:
    """Returns the names with {n} for the number that counts them from 0; None if they differ otherwise."""
    for match in re.finditer(r"(?<![^.])\d+(?![^.])", names[0]):
        pattern = names[0][: match.start()] + EACH + names[0][match.end() :]
        if [pattern.replace(EACH, str(number)) for number in range(len(names))] == names:
            return pattern
    return None


def _axes(own: np.ndarray, leaves: np.ndarray, path: str) -> Axes | Literal[""] | None:
    """Returns the axes from a tensor to its leaves [P, …], "" if they are the same; None if none fit."""
    if len(leaves) == 1 and np.array_equal(leaves[0], own):
        return ""
    letters = _letters(path, leaves.ndim - 1)
    fused = [str(len(leaves))] if len(leaves) > 1 else []
    for equation in _equations(own.shape, dict(zip(letters, leaves.shape[1:], strict=True)), fused):
        axes = Axes.parse(f"{equation} -> {' '.join(letters)}")
        if np.array_equal(axes.split([own], leaves.shape[1:]), leaves):
            return axes
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


def _joined(paths: list[str]) -> str | None:
    """Returns `a/{b,c}/d` for a/b/d and a/c/d; None if they differ elsewhere."""
    if len(paths) == 1:
        return paths[0]
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
