"""Pairs the layers of two programs: by patterns that are given, or by lists of layers of one kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.parity.layerwise.calls import Layer

Patterns = Mapping[str, str | Callable[..., Any]]
"""The reference's paths → the candidate's, or functions; `{}` is a number: `model.layers.{}` → `layers.{}`."""


class Pairs(NamedTuple):
    """Holds the layers that are compared, the reference's → the candidate's."""

    paths: Mapping[str, str]
    remark: str
    """How they were paired, or why none is."""


def paired(
    patterns: Patterns | None, candidate: Sequence[Layer], reference: Sequence[Layer], names: tuple[str, str]
) -> Pairs:
    """Pairs the layers of two programs.

    Args:
      patterns: None: lists of layers, in order, if both programs have as many of the same lengths.
      candidate, reference: all their layers.
      names: of the programs.

    Raises:
      ParityError: a pattern names no layer.
    """
    if patterns is not None:
        return Pairs(_given(patterns, candidate, reference, names), "layers: as given")
    ours, theirs = _lists(candidate), _lists(reference)
    if not theirs or [len(each) for each in ours] != [len(each) for each in theirs]:
        counts = [", ".join(str(len(each)) for each in both) or "none" for both in (ours, theirs)]
        found = f"lists of layers in {names[0]}: {counts[0]}; in {names[1]}: {counts[1]}"
        return Pairs({}, f"no layers were compared ({found}): name them in layers")
    paths = {
        theirs_path: ours_path
        for ours_list, theirs_list in zip(ours, theirs, strict=True)
        for ours_path, theirs_path in zip(ours_list, theirs_list, strict=True)
    }
    first = next(iter(paths))
    return Pairs(paths, f"layers: {len(paths)} pairs, in order, from {first} and {paths[first]} on")


def _given(
    patterns: Patterns, candidate: Sequence[Layer], reference: Sequence[Layer], names: tuple[str, str]
) -> dict[str, str]:
    found: dict[str, str] = {}
    known = {layer.path for layer in candidate}
    for theirs, ours in patterns.items():
        own = ours if isinstance(ours, str) else f"{ours.__module__}:{ours.__name__}#{{}}"
        pattern = re.compile(r"(\d+)".join(re.escape(part) for part in theirs.split("{}")))
        matches = [match for layer in reference if (match := pattern.fullmatch(layer.path))]
        matches = sorted(matches, key=lambda match: [int(number) for number in match.groups()])
        if not matches:
            raise ParityError(f"layers: {names[1]} has no layer {theirs}; it has {_some(reference)}")
        for match in matches:
            numbers = match.groups()
            path = own.format(*numbers) if own.count("{}") <= len(numbers) else own.format(*([0] * own.count("{}")))
            if known and ":" not in path and path not in known:
                raise ParityError(f"layers: {names[0]} has no layer {path}; it has {_some(candidate)}")
            found[match.string] = path
    return found


def _some(layers: Sequence[Layer]) -> str:
    shown = [layer.path for layer in layers[:4]]
    return f"{', '.join(shown)}{' …' if len(layers) > 4 else ''}" if shown else "none that can be listed"


def _lists(layers: Sequence[Layer]) -> list[list[str]]:
    """Returns the outermost lists of layers of one kind: paths that differ in their last number alone."""
    groups: dict[tuple[str, str], dict[int, str]] = {}
    for layer in layers:
        parent, _, last = layer.path.rpartition(".")
        if last.isdecimal():
            groups.setdefault((parent, layer.kind), {})[int(last)] = layer.path
    several = {key: group for key, group in groups.items() if len(group) > 1}
    starts = [path + "." for group in several.values() for path in group.values()]
    outermost = {
        key: group
        for key, group in several.items()
        if not any(path.startswith(start) for path in group.values() for start in starts)
    }
    return [[group[number] for number in sorted(group)] for _, group in sorted(outermost.items(), key=_by_name)]


def _by_name(item: tuple[tuple[str, str], Any]) -> tuple[bool, str]:
    """Orders lists as they usually run: an encoder's before a decoder's."""
    return "decoder" in item[0][0], item[0][0]
