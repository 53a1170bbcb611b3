"""Maps another model's names of activations and parameters to ours; a porting table or a person writes the map.

```yaml
activations:
  enc.{i}.attn.wq: encoder.layers.{i}.self_attention.query
  enc.{i}.norm2: ["encoder.layers.{i}.feed_forward_norm", "encoder.layers.{i}.output"]
parameters:            # gradients have the same names
  enc.{i}.attn.wq.weight: {name: "encoder/layers/self_attention/query/kernel[{i}]", axes: "(N H) D -> D N H"}
  enc.{i}.norm1.gamma: encoder/layers/self_attention_norm/scale[{i}]
```

{i} matches a number. Axes are those of `mapping.axes.Axes`: the other model's left of the arrow, ours right of it,
without the layer axis. A tensor that fuses several of our parameters names them in braces:
`…/{query,key,value}/kernel[{i}]` with `(3 N H) D -> D N H`; without such axes, the braces name equal copies of it.
Several tensors that make one parameter are numbered {n}, in their names and in the axes, or named in braces:
`enc.{i}.{q,k,v}.weight` with `{n} H D -> D {n} H`. So are modules that each compute one head. Tied tensors form one
list. `ignore` lists tensors that the other model doesn't read, with {i} and {n} for numbers and * at the end for
anything:

```yaml
parameters:
  enc.{i}.heads.{n}.q.weight: {name: "encoder/layers/self_attention/query/kernel[{i}]", axes: "{n} H D -> D {n} H"}
  ["decoder.embed_tokens.weight", "decoder.output_projection.weight"]: target_embedding/embedding   # the head's last
  pos.pe: {name: "constants/{encoder,decoder}_positions", axes: "1 P D -> P D"}
ignore: ["dec.{i}.causal_mask", "criterion.*"]
```
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jax_transformer.mapping import files as name_files
from jax_transformer.mapping.axes import EACH
from jax_transformer.mapping.files import ParameterName
from jax_transformer.mapping.rules import NUMBER, Rule, Shapes, alternatives, matcher, numbered_name
from jax_transformer.runtime.files import read_text
from jax_transformer.runtime.limits import YAML_BYTES
from jax_transformer.runtime.trees import nearest
from jax_transformer.runtime.yaml_text import compose
from jax_transformer.storage.tensors import PortingError, Tensors


class RenamedArrays(NamedTuple):
    """Holds arrays under our names, in our order."""

    arrays: dict[str, np.ndarray]
    missing: dict[str, str]
    """Our names in the map → the other model's names that are missing."""


@dataclass(frozen=True)
class NameMap:
    """Maps a reference's names to ours; {i} matches a number on both sides. Ignores names that it lacks.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.porting import NameMap
      >>> names = NameMap({"enc.{i}.ln": ("encoder.layers.{i}.self_attention_norm",)})
      >>> captured = {"enc.0.ln": np.ones((2, 3)), "enc.1.ln": np.zeros((2, 3))}
      >>> ours = {f"encoder.layers.{i}.self_attention_norm": (2, 3) for i in range(2)}
      >>> list(names.rename(captured, ours).arrays)
      ['encoder.layers.0.self_attention_norm', 'encoder.layers.1.self_attention_norm']
    """

    activations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names in the form of `capture` (`PATH`, `PATH@input`, `PATH@logits`, `PATH@weights`) → names in our trace. {n}
    matches the numbers of modules that each compute one head."""
    parameters: Mapping[str, ParameterName] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    """Tensors that the reference doesn't read; * at the end matches anything."""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> NameMap:
        """Reads a map from a YAML file.

        Raises:
          PortingError: there is no such file; a line can't be parsed; a name has two entries.
        """
        try:
            text = read_text(path, YAML_BYTES, PortingError)
        except (OSError, UnicodeDecodeError) as error:
            raise PortingError(f"{path}: expected a YAML file that maps names; {error}") from None
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, what: str) -> NameMap:
        """Parses the map in a YAML text, which messages call `what`. Raises as `read` does."""
        node = compose(text, what, PortingError, "YAML (between brackets, names in quotes)")
        return cls(*name_files.read(node, what))

    def text(self) -> str:
        """Returns the map as YAML, with one line for layers with the same names."""
        return name_files.text(self.activations, self.parameters, self.ignored)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the map to a YAML file."""
        Path(path).write_text(self.text(), encoding="utf-8")

    def prefix_in(self, tensors: Collection[str]) -> str:
        """Finds the prefix, such as "module.", without which most of the map's parameters are among the tensors; "" if
        there is none."""
        return _best_prefix(self.parameters, tensors)[0]

    def knows(self, tensors: Collection[str]) -> bool:
        """Returns whether at least half of the map's parameters are among the tensors, under whatever prefix."""
        wanted = {_alike(alternatives(name)[0]) for name in self.parameters}
        return 2 * _best_prefix(self.parameters, tensors)[1] >= len(wanted)

    def under(self, prefix: str, modules: Collection[str] = ()) -> NameMap:
        """Returns the map with a prefix before all names of the reference.

        Args:
          prefix: such as "module."; patterns to ignore also keep their form without it.
          modules: the paths of the reference's submodules. `output` is the reference's own output unless one of them
            has this name.
        """
        if not prefix:
            return self

        def placed(name: str) -> str:
            is_own = re.match(r"output(?![^.@#])", name) and f"{prefix}output" not in modules
            return name if is_own else prefix + name

        def moved(parameter: ParameterName) -> ParameterName:
            return replace(parameter, copies=tuple(prefix + name for name in parameter.copies))

        return NameMap(
            {placed(name): ours for name, ours in self.activations.items()},
            {prefix + name: moved(parameter) for name, parameter in self.parameters.items()},
            (*(prefix + name for name in self.ignored), *self.ignored),
        )

    def ignores(self, tensors: Iterable[str]) -> list[str]:
        """Lists the tensors that the map ignores."""
        known = matcher(self.ignored)
        return [name for name in tensors if known.fullmatch(name)]

    def rules(self) -> list[Rule]:
        """Returns the parameters as the rules of a porting table."""
        groups: dict[tuple[str, str], tuple[list[tuple[str, ...]], dict[int, tuple[str, ...]]]] = {}
        for first, parameter in self.parameters.items():
            match = _LAYER.fullmatch(parameter.name)
            path, layer = (parameter.name, None) if match is None else match.groups()
            whole, by_layer = groups.setdefault((path, str(parameter.axes or "")), ([], {}))
            names = (first, *parameter.copies)
            if layer is None or not layer.isdigit():
                whole.append(names)
            else:
                by_layer[int(layer)] = names
        return [
            Rule(names, path, axes, by_layer=by_layer)
            for (path, axes), (whole, by_layer) in groups.items()
            for names in whole or [()]
        ]

    def rename(self, captured: Tensors, like: Shapes) -> RenamedArrays:
        """Returns the reference's activations (or their gradients) under our names and in our shapes.

        Shapes may differ in the grouping of axes: [B, T, D] becomes [B, T, N, H], and [B·N, Q, K] becomes [B, N, Q, K].
        Or axes are in another order: [T, B, D] and [B, D, T] become [B, T, D], [Q, K, B, N] becomes [B, N, Q, K].
        Programs that pad every sentence to one length have more tokens; the first are taken.
        If a module has no attention logits or weights of its own, the only ones inside it are taken.

        Args:
          captured: the reference's arrays by its names.
          like: the shapes of our trace by name, in execution order.

        Raises:
          PortingError: our trace lacks a name; one of our names has two entries; shapes differ otherwise.
        """
        arrays: dict[str, np.ndarray] = {}
        missing: dict[str, str] = {}
        problems: list[str] = []
        sizes = {size for shape in like.values() for size in shape}
        for _, theirs, ours in _pairs(self.activations, captured, like):
            for name in ours:
                found, seen = _seen(theirs, captured, name, tuple(like[name]))
                array = None if seen is None else _shaped(seen, tuple(like[name]), sizes)
                if seen is None:
                    missing[name] = found
                elif array is None:
                    problems.append(
                        f"{found} {seen.shape} is no {name} {tuple(like[name])}: more than the grouping of axes differs"
                    )
                else:
                    arrays[name] = array
        return _renamed(arrays, missing, like, problems)

    def rename_parameters(self, tensors: Tensors, like: Shapes) -> RenamedArrays:
        """Returns the reference's parameters (or their gradients) under our names and in our axes.

        Args:
          tensors: the reference's tensors by its names.
          like: the shapes of our parameters by path, layers one by one: `encoder/layers/…/kernel[0]`.

        Raises:
          PortingError: as of `rename`.
        """
        arrays: dict[str, np.ndarray] = {}
        missing: dict[str, str] = {}
        problems: list[str] = []
        names = {key: parameter.names for key, parameter in self.parameters.items()}
        for key, theirs, ours in _pairs(names, tensors, like):
            axes, shape = self.parameters[key].axes, tuple(like[ours[0]])
            if axes is not None and len(axes.jax) != len(shape):
                problems.append(f"{key}: {axes.leaf_text} are not the axes of {ours[0]} {shape}")
                continue
            parts = [numbered_name(theirs, number) for number in range(axes.count(shape) if axes else 1)]
            expected = axes.torch_shape(shape) if axes else shape
            wrong = [name for name in parts if name in tensors and tensors[name].shape != expected]
            problems += [
                f"{name}: for {ours[0]} {shape} expected {expected}; received {tensors[name].shape}" for name in wrong
            ]
            if absent := [name for name in parts if name not in tensors]:
                missing |= dict.fromkeys(ours, absent[0])
            elif not wrong:
                whole = [np.asarray(tensors[name]) for name in parts]
                split = axes.split(whole, shape) if axes else np.stack(whole)
                arrays |= zip(ours, split if axes and axes.fused else [split[0]] * len(ours), strict=True)
        return _renamed(arrays, missing, like, problems)


def _best_prefix(patterns: Iterable[str], tensors: Collection[str]) -> tuple[str, int]:
    """Returns the prefix, the shortest of equally good ones, without which most patterns are among the tensors, and how
    many are. Numbers are taken for alike."""
    wanted = {_alike(alternatives(pattern)[0]) for pattern in patterns}
    alike = {name: _alike(name) for name in tensors}

    def found(prefix: str) -> int:
        start = len(_alike(prefix))
        return len(wanted & {short[start:] for name, short in alike.items() if name.startswith(prefix)})

    best = max(prefixes(tensors), key=found)
    return best, found(best)


def _alike(name: str) -> str:
    """Returns the name with one sign for numbers and their placeholders."""
    return re.sub(r"\{[in]\}|[0-9]+", "#", name)


_LAYER = re.compile(r"(.*)\[(\{i\}|\d+)\]")


class _Pair(NamedTuple):
    """Holds one array of the reference: the entry's key, its name, and all our names for it."""

    key: str
    theirs: str
    ours: tuple[str, ...]


def _pairs(entries: Mapping[str, tuple[str, ...]], theirs: Collection[str], ours: Collection[str]) -> list[_Pair]:
    """Expands every entry with each number that {i} matches on either side.

    Raises:
      PortingError: ours lacks a name; {i} matches no number; one of our names has two entries.
    """
    pairs, problems = [], []
    first: dict[str, str] = {}
    for key, patterns in entries.items():
        numbers = (
            _numbers(key, theirs).union(*(_numbers(pattern, ours) for pattern in patterns)) if NUMBER in key else {0}
        )
        if not numbers:
            problems.append(f"{key}: {', '.join(patterns)}: neither side has such names{nearest(patterns[0], ours)}")
        for i in sorted(numbers):
            pair = _Pair(
                key, key.replace(NUMBER, str(i)), tuple(pattern.replace(NUMBER, str(i)) for pattern in patterns)
            )
            for name in pair.ours:
                if name not in ours:
                    problems.append(f"{pair.theirs}: {name}: ours has no such name{nearest(name, ours)}")
                elif name in first:
                    problems.append(f"two entries for our {name}: {first[name]} and {key}")
                first.setdefault(name, key)
            pairs.append(pair)
    _raise(problems)
    return pairs


def _numbers(pattern: str, names: Collection[str]) -> set[int]:
    """Returns the numbers that {i} matches in the names that fit the pattern."""
    if len(several := alternatives(pattern)) > 1:
        return set().union(*(_numbers(each, names) for each in several))
    before, *after = (re.escape(part).replace(r"\{n\}", "[0-9]+") for part in pattern.split(NUMBER))
    expression = re.compile(
        before + "".join(("(?P<i>0|[1-9][0-9]*)" if n == 0 else "(?P=i)") + part for n, part in enumerate(after))
    )
    return {int(match["i"]) for match in map(expression.fullmatch, names) if match and after}


def _seen(theirs: str, captured: Tensors, ours: str, shape: tuple[int, ...]) -> tuple[str, np.ndarray | None]:
    """Returns the name under which an activation was captured, and the array; None if it is missing. Stacks activations
    of single heads, numbered {n}, along our axis of heads."""
    if EACH not in theirs:
        found = _captured_name(theirs, captured)
        return (theirs, None) if found is None else (found, captured[found])
    axis = 1 if ours.endswith((".logits", ".weights")) else 2
    heads = []
    for number in range(shape[axis]):
        part = theirs.replace(EACH, str(number))
        found = _captured_name(part, captured)
        if found is None:
            return part, None
        head = regrouped(captured[found], (*shape[:axis], *shape[axis + 1 :]))
        if head is None:
            return found, captured[found]
        heads.append(head)
    return theirs, np.stack(heads, axis)


def _captured_name(name: str, captured: Collection[str]) -> str | None:
    """Returns the name if it was captured, or the only softmax inside this module."""
    path, at, what = name.partition("@")
    if name in captured or what not in ("logits", "weights"):
        return name if name in captured else None
    within = [other for other in captured if other.startswith(f"{path}.") and other.endswith(at + what)]
    return within[0] if len(within) == 1 else None


def _shaped(array: np.ndarray, shape: tuple[int, ...], sizes: set[int]) -> np.ndarray | None:
    """Returns the array in this shape, of more tokens the first ones; None if it doesn't fit.

    Args:
      sizes: the sizes of our activations, none of which is the length that a program pads to.
    """
    whole = regrouped(array, shape)
    for axes in ((1,), (2,), (3,), (2, 3)) if whole is None else ():
        for length in sorted(set(array.shape) - sizes):
            longer = tuple(length if axis in axes else size for axis, size in enumerate(shape))
            if longer > shape and (padded := regrouped(array, longer)) is not None:
                return padded[tuple(slice(size) for size in shape)]
    return whole


def regrouped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Returns the array in this shape; None if more differs than the grouping of axes and their order.

    Programs have [B, T, D], [T, B, D], or [B, D, T] where they convolve, and any order of [B, N, Q, K]. Of axes of one
    length the first stays the first.
    """
    orders: dict[int, list[tuple[int, ...]]] = {3: [(0, 1, 2), (1, 0, 2), (0, 2, 1)], 4: [*permutations(range(4))]}
    for order in orders.get(array.ndim, [tuple(range(array.ndim))]):
        found = array.transpose(order)
        if differ_in_grouping(found.shape, shape):
            return found.reshape(shape)
    return None


def differ_in_grouping(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Returns whether one shape is the other with neighbouring axes merged, or differs in axes of length 1 alone."""
    ends = [{int(np.prod(shape[:n])) for n in range(len(shape) + 1)} for shape in (first, second)]
    return int(np.prod(first)) == int(np.prod(second)) and (ends[0] <= ends[1] or ends[1] <= ends[0])


def _renamed(
    arrays: dict[str, np.ndarray], missing: dict[str, str], like: Shapes, problems: list[str]
) -> RenamedArrays:
    """Returns everything in our order. Raises PortingError if there are problems."""
    _raise(problems)
    return RenamedArrays(
        {name: arrays[name] for name in like if name in arrays},
        {name: missing[name] for name in like if name in missing},
    )


def _raise(problems: list[str]) -> None:
    if problems:
        raise PortingError("names that don't fit", problems)


def prefixes(names: Collection[str]) -> list[str]:
    """Returns "" and the names of modules that the names begin with, each with its dot, the shortest first."""
    found = {""}
    for name in names:
        modules = name.split(".")[:-1]
        found |= {"".join(f"{module}." for module in modules[:count]) for count in range(1, 4)}
    return sorted(found, key=lambda prefix: (prefix.count("."), prefix))
