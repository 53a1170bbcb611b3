"""Reads and writes maps of names as YAML; errors name the line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import yaml

from jax_transformer.mapping.axes import EACH, Axes
from jax_transformer.mapping.rules import NUMBER, alternatives, is_numbered
from jax_transformer.storage.tensors import PortingError

OF_HEADS = re.compile(r"_attention\.(query|key|value|logits|weights|(scaled_|normed_)?context)$")
"""Our activations with an axis of heads: modules of single heads, numbered {n}, make one together."""
PARTS = ("activations", "parameters", "ignore")


@dataclass(frozen=True)
class ParameterName:
    """Holds our name of a parameter, and how the axes of the reference's tensor become ours.

    Raises:
      PortingError: the axes fuse a different number of parameters than there are names.
    """

    name: str
    """`encoder/layers/self_attention/query/kernel[{i}]`; of a fused tensor, `…/{query,key,value}/kernel[{i}]`, which
    without such axes names equal copies."""
    axes: Axes | None = None
    """None: the axes are the same."""
    copies: tuple[str, ...] = ()
    """The reference's other names of it: tied tensors, equal to the first."""

    def __post_init__(self) -> None:
        fused = self.axes.fused if self.axes else None
        if fused and int(fused) != len(self.names):
            raise PortingError(
                f"expected as many names as the axes fuse, {fused}; received {len(self.names)}: {self.name}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the name, or the names in braces."""
        return alternatives(self.name)

    @property
    def counts(self) -> bool:
        """Returns whether several of the reference's tensors, numbered {n}, make it."""
        return self.axes is not None and self.axes.counts


Activations = dict[str, tuple[str, ...]]
Parameters = dict[str, ParameterName]


def read(node: yaml.Node | None, what: str) -> tuple[Activations, Parameters, tuple[str, ...]]:
    """Reads the parts of a map: activations, parameters, and the names to ignore.

    Args:
      node: the YAML; None for an empty one.
      what: its name in error messages.

    Raises:
      PortingError: it has another structure; axes are malformed; {i} or {n} is on one side only; a name
        has two entries.
    """
    reader = _Reader(what)
    parts = reader.entries(node, f"the keys {_listed(PARTS)}")
    for (name, *_), key, _ in parts:
        if name not in PARTS:
            raise reader.error(key, f"expected {_listed(PARTS, 'or')}; received {name!r}")
    nodes = {names[0]: value for names, _, value in parts}
    return (
        reader.activations(nodes.get("activations")),
        reader.parameters(nodes.get("parameters")),
        reader.ignored(nodes.get("ignore")),
    )


class _Reader:
    """Reads the YAML nodes of one file."""

    def __init__(self, what: str) -> None:
        self.what = what

    def error(self, node: yaml.Node, message: str) -> PortingError:
        return PortingError(f"{self.what}, line {node.start_mark.line + 1}: {message}")

    def entries(
        self, node: yaml.Node | None, expected: str, *, lists: bool = False
    ) -> list[tuple[tuple[str, ...], yaml.Node, yaml.Node]]:
        """Returns key, key's node and value's node of each entry; nothing for an empty node. Keys are one name, or with
        `lists` also a list of them."""
        node = _given(node)
        if node is None:
            return []
        if not isinstance(node, yaml.MappingNode):
            raise self.error(node, f"expected {expected}; received {_short(node)}")
        found, lines = [], dict[str, int]()
        for key, value in node.value:
            names = self.names(key) if lists else (self.scalar(key),)
            for name in names:
                if name in lines:
                    raise self.error(key, f"two entries for {name}, the first in line {lines[name]}")
                lines[name] = key.start_mark.line + 1
            found.append((names, key, value))
        return found

    def scalar(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            raise self.error(node, f"expected a name; received {_short(node)}")
        return str(node.value)

    def names(self, node: yaml.Node) -> tuple[str, ...]:
        """Reads one name or several."""
        if isinstance(node, yaml.SequenceNode) and node.value:
            return tuple(self.scalar(part) for part in node.value)
        return (self.scalar(node),)

    def activations(self, node: yaml.Node | None) -> Activations:
        entries = self.entries(node, "entries 'their name: our name'")
        found = {name: self.names(value) for (name,), _, value in entries}
        once = _Once(self, "name both in a list")
        for (name,), _, value in entries:
            for ours in found[name]:
                once.check(value, ours, (name,))
                if EACH in name and not OF_HEADS.search(ours):
                    raise self.error(value, f"expected an activation of single heads with {EACH}; received {ours}")
        return found

    def parameters(self, node: yaml.Node | None) -> Parameters:
        found: Parameters = {}
        once = _Once(self, "list tied tensors together: [first, second]: ours")
        for names, _, value in self.entries(node, "entries 'their name: our name'", lists=True):
            parameter = self.parameter(value, names[1:])
            for ours in parameter.names:
                once.check(value, ours, names)
            if any(is_numbered(name) != parameter.counts for name in names):
                raise self.error(
                    value, f"expected {EACH} in names and axes, or in neither; received {', '.join(names)}: {ours}"
                )
            found[names[0]] = parameter
        return found

    def parameter(self, node: yaml.Node, copies: tuple[str, ...]) -> ParameterName:
        """Reads a name, or a name with axes."""
        is_whole = isinstance(node, yaml.MappingNode)
        fields = (
            {name: self.scalar(value) for (name,), _, value in self.entries(node, "")}
            if is_whole
            else {"name": self.scalar(node)}
        )
        if set(fields) - {"name", "axes"} or "name" not in fields:
            raise self.error(
                node, f"expected 'name' and, if they differ, 'axes'; received {', '.join(fields) or 'neither'}"
            )
        try:
            return ParameterName(fields["name"], Axes.parse(fields["axes"]) if "axes" in fields else None, copies)
        except ValueError as error:
            raise self.error(node, str(error)) from None

    def ignored(self, node: yaml.Node | None) -> tuple[str, ...]:
        """Reads one name or several, which may end with *."""
        node = _given(node)
        if node is None:
            return ()
        names = self.names(node)
        for name in names:
            if "*" in name[:-1]:
                raise self.error(node, f"ignore: expected * at the end of a name alone; received {name!r}")
        return names


class _Once:
    """Checks that each of our names has one entry, and that {i} is on both sides of it."""

    def __init__(self, reader: _Reader, hint: str) -> None:
        self.reader, self.hint = reader, hint
        self.lines: dict[str, int] = {}

    def check(self, node: yaml.Node, ours: str, theirs: tuple[str, ...]) -> None:
        for name in theirs:
            if (NUMBER in ours) != (NUMBER in name):
                raise self.reader.error(node, f"expected {NUMBER} on both sides or on neither; received {name}: {ours}")
        if ours in self.lines:
            raise self.reader.error(
                node, f"two entries for our {ours}, the first in line {self.lines[ours]} ({self.hint})"
            )
        self.lines[ours] = node.start_mark.line + 1


def _given(node: yaml.Node | None) -> yaml.Node | None:
    """Returns the node, or None for an empty one."""
    return None if isinstance(node, yaml.ScalarNode) and not node.value else node


def _listed(names: tuple[str, ...], last: str = "and") -> str:
    *others, end = map(repr, names)
    return f"{', '.join(others)} {last} {end}"


def _short(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return repr(node.value) if node.value else "nothing"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


# --- writing

Entry = tuple[str, tuple[str, ...]]


def text(
    activations: Mapping[str, tuple[str, ...]], parameters: Mapping[str, ParameterName], ignored: tuple[str, ...] = ()
) -> str:
    """Writes a map as YAML, with one line for entries that differ only in the layer's number."""
    lines = ["activations:" if activations else "activations: {}"]
    lines += [activation_line(key, names) for key, names in fold(activations.items())]
    lines += ["parameters:" if parameters else "parameters: {}"]
    lines += [
        parameter_line(key, *value) for key, value in fold((key, _written(value)) for key, value in parameters.items())
    ]
    lines += [f"ignore: {_list(ignored)}"] if ignored else []
    return "\n".join(lines) + "\n"


def activation_line(key: str, names: tuple[str, ...]) -> str:
    return f"  {_quoted(key)}: {_quoted(names[0]) if len(names) == 1 else _list(names)}"


def parameter_line(key: str, name: str, axes: str = "", *copies: str) -> str:
    """Returns the line of a parameter; `axes` is the equation, empty if the axes are the same."""
    return f"  {_list((key, *copies)) if copies else _quoted(key)}: " + (
        f"{{name: {json.dumps(name)}, axes: {json.dumps(axes)}}}" if axes else _quoted(name)
    )


def _list(names: tuple[str, ...]) -> str:
    return f"[{', '.join(map(json.dumps, names))}]"


def fold(entries: Iterable[Entry]) -> list[Entry]:
    """Merges entries of all layers into one with {i}, if they differ only in the layer's number on both sides."""
    whole = list(entries)
    folded = [_folded(key, values) for key, values in whole]
    groups: dict[Entry, set[str]] = {}
    numbers: dict[str, set[str]] = {}
    for (_, values), template in zip(whole, folded, strict=True):
        if template is not None:
            groups.setdefault(template[0], set()).add(template[1])
        for value in values:
            for number in _LAYER.findall(value)[:1]:
                numbers.setdefault(_with_number(value, number), set()).add(number)
    result: dict[Entry, None] = {}
    for entry, template in zip(whole, folded, strict=True):
        is_whole = template is not None and len(groups[template[0]]) > 1
        if is_whole and all(groups[template[0]] == numbers.get(value, groups[template[0]]) for value in template[0][1]):  # type: ignore[index]
            result[template[0]] = None  # type: ignore[index]
        else:
            result[entry] = None
    return list(result)


_LAYER = re.compile(r"(?:(?<=layers\.)|(?<=\[))\d+(?=[.\]])")


def _with_number(value: str, number: str) -> str:
    """Returns our name with {i} for this layer's number."""
    return _LAYER.sub(lambda match: NUMBER if match[0] == number else match[0], value)


def _folded(key: str, values: tuple[str, ...]) -> tuple[Entry, str] | None:
    """Returns the entry with {i} for its layer's number, and the number.

    None if the entry isn't of one layer, or the other side's name lacks the number.
    """
    found = {number for value in values for number in _LAYER.findall(value)}
    if len(found) != 1 or not _LAYER.search(values[0]):
        return None
    (number,) = found
    template, count = re.subn(rf"(?<![^.]){number}(?![^.@#])", NUMBER, key, count=1)
    return ((template, tuple(_with_number(value, number) for value in values)), number) if count else None


def _written(parameter: ParameterName) -> tuple[str, ...]:
    """Returns the name, the axes if there are any, and the copies."""
    return parameter.name, "" if parameter.axes is None else str(parameter.axes), *parameter.copies


def _quoted(name: str) -> str:
    """Returns the name as YAML writes it outside of brackets."""
    return name if re.fullmatch(r"[A-Za-z0-9_.][A-Za-z0-9_./@#{}\[\]-]*", name) else json.dumps(name)
