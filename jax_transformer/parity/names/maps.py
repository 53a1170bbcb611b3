"""Maps from another model's names of activations and parameters to ours, written by a porting table or by hand.

```yaml
activations:
  enc.{i}.attn.wq: encoder.layers.{i}.self_attention.query
  enc.{i}.norm2: ["encoder.layers.{i}.feed_forward_norm", "encoder.layers.{i}.output"]
parameters:            # gradients have the same names
  enc.{i}.attn.wq.weight: {name: "encoder/layers/self_attention/query/kernel[{i}]", axes: "(N H) D -> D N H"}
  enc.{i}.norm1.gamma: encoder/layers/self_attention_norm/scale[{i}]
```

{i} stands for a number. Axes are those of `porting.rules.Axes`: the other model's left of the arrow, ours right of it,
without the layer axis. A tensor that fuses several of our parameters names them in braces:
`…/{query,key,value}/kernel[{i}]` with `(3 N H) D -> D N H`.
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
    """Holds arrays under our names, in our order."""

    arrays: dict[str, np.ndarray]
    missing: dict[str, str]
    """Our names in the map → the other model's names that are missing."""


@dataclass(frozen=True)
class NameMap:
    """Maps a reference's names to ours; on both sides {i} may stand for a number. Names that aren't in it are ignored.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.parity import NameMap
      >>> names = NameMap({"enc.{i}.ln": ("encoder.layers.{i}.self_attention_norm",)})
      >>> captured = {"enc.0.ln": np.ones((2, 3)), "enc.1.ln": np.zeros((2, 3))}
      >>> ours = {f"encoder.layers.{i}.self_attention_norm": (2, 3) for i in range(2)}
      >>> list(names.rename(captured, ours).arrays)
      ['encoder.layers.0.self_attention_norm', 'encoder.layers.1.self_attention_norm']
    """

    activations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names as of `capture` (`PATH`, `PATH@input`, `PATH@logits`, `PATH@weights`) → names in our trace."""
    parameters: Mapping[str, ParameterName] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> NameMap:
        """Reads a map from a YAML file.

        Raises:
          ParityError: there is no such file; a line can't be parsed; a name has two entries.
        """
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ParityError(f"{path}: expected a YAML file that maps names; {error}") from None
        return cls(*name_files.parse(text, str(path)))

    def text(self) -> str:
        """Returns the map as YAML, with one line for layers with the same names."""
        return name_files.text(self.activations, self.parameters)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the map to a YAML file."""
        Path(path).write_text(self.text(), encoding="utf-8")

    def rename(self, captured: Arrays, like: Shapes) -> Renamed:
        """Returns the reference's activations (or their gradients) under our names and in our shapes.

        Shapes may differ in the grouping of axes: [B, T, D] becomes [B, T, N, H], and [B·N, Q, K] becomes [B, N, Q, K].
        Or the first two axes have changed places: [T, B, D] becomes [B, T, D].
        If a module has no attention logits or weights itself, the only ones inside it are taken.

        Args:
          captured: the reference's arrays by its names.
          like: the shapes of our trace by name, in execution order.

        Raises:
          ParityError: our trace lacks a name; one of our names has two entries; shapes differ otherwise.
        """
        arrays: dict[str, np.ndarray] = {}
        missing: dict[str, str] = {}
        problems: list[str] = []
        for _, theirs, ours in _pairs(self.activations, captured, like):
            found = _captured_name(theirs, captured)
            for name in ours:
                array = None if found is None else regrouped(captured[found], like[name])
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
        """Returns the reference's parameters (or their gradients) under our names and in our axes.

        Args:
          tensors: the reference's tensors by its names.
          like: the shapes of our parameters by path, layers one by one: `encoder/layers/…/kernel[0]`.

        Raises:
          ParityError: as of `rename`.
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
    """Holds one array of the reference: the entry's key, its name, and all our names for it."""

    key: str
    theirs: str
    ours: tuple[str, ...]


def _pairs(entries: Mapping[str, tuple[str, ...]], theirs: Collection[str], ours: Collection[str]) -> list[_Pair]:
    """Returns every entry with each number that {i} stands for on either side.

    Raises:
      ParityError: ours lacks a name; {i} stands for no number; one of our names has two entries.
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
    """Returns the numbers that {i} stands for in the names that match the pattern."""
    before, *after = (re.escape(part) for part in pattern.split(NUMBER))
    expression = re.compile(
        before + "".join(("(?P<i>0|[1-9][0-9]*)" if n == 0 else "(?P=i)") + part for n, part in enumerate(after))
    )
    return {int(match["i"]) for match in map(expression.fullmatch, names) if match and after}


def _captured_name(name: str, captured: Collection[str]) -> str | None:
    """Returns the name if it was captured, or the only softmax inside this module."""
    path, at, what = name.partition("@")
    if name in captured or what not in ("logits", "weights"):
        return name if name in captured else None
    within = [other for other in captured if other.startswith(f"{path}.") and other.endswith(at + what)]
    return within[0] if len(within) == 1 else None


def regrouped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Returns the array in this shape; None if more differs than the grouping of axes and the order of the first two:
    programs have [B, T, D] or [T, B, D]."""
    if differ_in_grouping(array.shape, shape):
        return array.reshape(shape)
    if array.ndim == 3 and differ_in_grouping(array.swapaxes(0, 1).shape, shape):
        return array.swapaxes(0, 1).reshape(shape)
    return None


def differ_in_grouping(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Returns whether one shape is the other with neighbouring axes merged, or differs in axes of length 1 alone."""
    ends = [{int(np.prod(shape[:n])) for n in range(len(shape) + 1)} for shape in (first, second)]
    return int(np.prod(first)) == int(np.prod(second)) and (ends[0] <= ends[1] or ends[1] <= ends[0])


def _renamed(arrays: dict[str, np.ndarray], missing: dict[str, str], like: Shapes, problems: list[str]) -> Renamed:
    """Returns everything in our order. Raises ParityError if there are problems."""
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
