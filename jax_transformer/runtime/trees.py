"""Flattens nested dicts of arrays to leaves by path: {"encoder": {"norm": …}} has the leaf "encoder/norm"."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens a nested dict to {"a/b/c": leaf}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}/") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Nests {"a/b/c": leaf} as a dict: the inverse of flatten."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, last = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree


def map_leaves(function: Callable[[Any], Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tree with function(leaf) in place of each leaf."""
    return {
        key: map_leaves(function, value) if isinstance(value, Mapping) else function(value)
        for key, value in tree.items()
    }


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Returns " (nearest: …)" with the candidate most like `name`, or "". Names are compared without their numbers,
    which then decide."""
    numbers = re.findall(r"\d+", name)

    def equal_numbers(candidate: str) -> int:
        return sum(a == b for a, b in zip(re.findall(r"\d+", candidate), numbers, strict=False))

    by_pattern: dict[str, list[str]] = {}
    for candidate in candidates:
        by_pattern.setdefault(re.sub(r"\d+", "#", candidate), []).append(candidate)
    close = difflib.get_close_matches(re.sub(r"\d+", "#", name), by_pattern, n=1)
    return f" (nearest: {max(by_pattern[close[0]], key=equal_numbers)})" if close else ""
