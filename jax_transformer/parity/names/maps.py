"""What another model calls its activations and parameters, and what we call them: a map, written by a table or by hand.

```yaml
activations:
  enc.{i}.attn.wq: encoder.layers.{i}.self_attention.query
  enc.{i}.norm2: ["encoder.layers.{i}.feed_forward_norm", "encoder.layers.{i}.output"]
parameters:            # gradients have the same names
  enc.{i}.attn.wq.weight: {name: "encoder/layers/self_attention/query/kernel[{i}]", axes: "(N H) D -> D N H"}
  enc.{i}.norm1.gamma: encoder/layers/self_attention_norm/scale[{i}]
```

{i} stands for a number. Axes are those of `porting.rules.Axes`: the other's left of the arrow, ours right of it,
without the layers'. A
tensor in which several of ours are fused has them in braces: `…/{query,key,value}/kernel[{i}]` with `(3 N H) D -> D N
  H`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jax_transformer.parity.gates.arrays import Arrays, ParityError
from jax_transformer.parity.names import files as name_files
from jax_transformer.parity.names.files import NUMBER, ParameterName

Shapes = Mapping[str, tuple[int, ...]]


class Renamed(NamedTuple):
    """Arrays under our names, in our order."""

    arrays: dict[str, np.ndarray]
    missing: dict[str, str]
    """Our names that the map promises → the other's names that aren't there."""


@dataclass(frozen=True)
class NameMap:
    """From a reference's names to ours; on both sides {i} may stand for a number. Of what isn't in it nothing is
    said."""

    activations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """`PATH`, `PATH@input`, `PATH@logits`, `PATH@weights`, as `capture` has them → the names of our trace that this
    is."""
    parameters: Mapping[str, ParameterName] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> NameMap:
        """From a YAML file.

        Raises:
          ParityError: no such file; what can't be understood, with its line; two entries for one name.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ParityError(f"{path}: expected a YAML file that maps names; {error}") from None
        return cls(*name_files.parse(text, str(path)))

    def text(self) -> str:
        """As YAML, layers that are called alike in one line."""
        return name_files.text(self.activations, self.parameters)

    def write(self, path: str | os.PathLike[str]) -> None:
        """As a YAML file."""
        Path(path).write_text(self.text(), encoding="utf-8")

    def rename(self, captured: Arrays, like: Shapes) -> Renamed:
        """Activations of the reference (or their gradients) under our names and in our shapes.

        Shapes may differ in how axes are grouped: [B, T, D] becomes [B, T, N, H], and [B·N, Q, K] [B, N, Q, K]. Of an
        attention's logits and weights that aren't found in a module itself, the only ones in a module within it are
        taken.

        Args:
          like: the shapes of our trace, by name, in order of execution.

        Raises:
          ParityError: names that our trace hasn't; two entries for one of ours; shapes that differ otherwise.
        """
        arrays: dict[str, np.ndarray] = {}
        missing: dict[str, str] = {}
        problems: list[str] = []
        for _, theirs, ours in _pairs(self.activations, captured, like):
            found = _found(theirs, captured)
            for name in ours:
                array = None if found is None else _regrouped(captured[found], like[name])
                if found is None:
                    missing[name] = theirs
                elif array is None:
                    problems.append(
                        f"{found} {captured[found].shape} is no {name} {tuple(like[name])}: more than the grouping of "
                        "axes differs"
                    )
                else:
                    arrays[name] = array
        return _renamed(arrays, missing, like, problems)

    def rename_parameters(self, tensors: Arrays, like: Shapes) -> Renamed:
        """Parameters of the reference (or their gradients) under our names and in our axes.

        Args:
          like: the shapes of our parameters, by path, of those of a layer with its number:
            `encoder/layers/…/kernel[0]`.

        Raises:
          ParityError: as rename.
        """
        arrays: dict[str, np.ndarray] = {}
        missing: dict[str, str] = {}
        problems: list[str] = []
        names = {key: parameter.names for key, parameter in self.parameters.items()}
        for key, theirs, ours in _pairs(names, tensors, like):
            axes, shape = self.parameters[key].axes, tuple(like[ours[0]])
            if theirs not in tensors:
                missing |= dict.fromkeys(ours, theirs)
            elif axes is not None and len(axes.jax) != len(shape):
                problems.append(f"{key}: {' '.join(axes.jax)} are not the axes of {ours[0]} {shape}")
            elif tensors[theirs].shape != (expected := axes.torch_shape(shape) if axes else shape):
                problems.append(
                    f"{theirs}: for {ours[0]} {shape} expected {expected}; received {tensors[theirs].shape}"
                )
            else:
                tensor = np.asarray(tensors[theirs])
                arrays |= zip(ours, axes.split(tensor, shape) if axes else tensor[None], strict=True)
        return _renamed(arrays, missing, like, problems)


class _Pair(NamedTuple):
    """One array of the reference: the entry's key, the name, and ours of all that it is."""

    key: str
    theirs: str
    ours: tuple[str, ...]


def _pairs(entries: Mapping[str, tuple[str, ...]], theirs: Collection[str], ours: Collection[str]) -> list[_Pair]:
    """Every entry, with each number that {i} stands for on either side.

    Raises:
      ParityError: names that ours hasn't; {i} that stands for nothing; two entries for one of our names.
    """
    pairs, problems = [], []
    first: dict[str, str] = {}
    for key, patterns in entries.items():
        numbers = (
            _numbers(key, theirs).union(*(_numbers(pattern, ours) for pattern in patterns)) if NUMBER in key else {0}
        )
        if not numbers:
            problems.append(f"{key}: {', '.join(patterns)}: neither side has such names{_nearest(patterns[0], ours)}")
        for i in sorted(numbers):
            pair = _Pair(
                key, key.replace(NUMBER, str(i)), tuple(pattern.replace(NUMBER, str(i)) for pattern in patterns)
            )
            for name in pair.ours:
                if name not in ours:
                    problems.append(f"{pair.theirs}: {name}: ours has no such name{_nearest(name, ours)}")
                elif name in first:
                    problems.append(f"two entries for our {name}: {first[name]} and {key}")
                first.setdefault(name, key)
            pairs.append(pair)
    _raise(problems)
    return pairs


def _numbers(pattern: str, names: Collection[str]) -> set[int]:
    """What {i} stands for in those of the names that are like the pattern."""
    before, *after = (re.escape(part) for part in pattern.split(NUMBER))
    expression = re.compile(
        before + "".join(("(?P<i>0|[1-9][0-9]*)" if n == 0 else "(?P=i)") + part for n, part in enumerate(after))
    )
    return {int(match["i"]) for match in map(expression.fullmatch, names) if match and after}


def _found(name: str, captured: Collection[str]) -> str | None:
    """The name, or of a softmax the only one of a module within this one."""
    path, at, what = name.partition("@")
    if name in captured or what not in ("logits", "weights"):
        return name if name in captured else None
    within = [other for other in captured if other.startswith(f"{path}.") and other.endswith(at + what)]
    return within[0] if len(within) == 1 else None


def _regrouped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    return array.reshape(shape) if differ_in_grouping(array.shape, shape) else None


def differ_in_grouping(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Whether one of the two shapes is the other with neighbouring axes merged (or is the same, but for axes of length
    1)."""
    ends = [{int(np.prod(shape[:n])) for n in range(len(shape) + 1)} for shape in (first, second)]
    return int(np.prod(first)) == int(np.prod(second)) and (ends[0] <= ends[1] or ends[1] <= ends[0])


def _renamed(arrays: dict[str, np.ndarray], missing: dict[str, str], like: Shapes, problems: list[str]) -> Renamed:
    """All in our order. Raises ParityError if there are problems."""
    _raise(problems)
    return Renamed(
        {name: arrays[name] for name in like if name in arrays},
        {name: missing[name] for name in like if name in missing},
    )


def _raise(problems: list[str]) -> None:
    if problems:
        raise ParityError("\n  - ".join(["names that don't fit:", *problems]))


def _nearest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f" (nearest: {close[0]})" if close else ""
