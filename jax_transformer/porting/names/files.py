"""Read and write maps of names as YAML; errors name the line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from jax_transformer.porting.axes import Axes
from jax_transformer.storage.tensors import PortingError

NUMBER = "{i}"
"""The placeholder for a number in names; the same number everywhere in an entry."""


@dataclass(frozen=True)
class ParameterName:
    """Holds our name of a parameter, and how the axes of the reference's tensor become ours.

    Raises:
      PortingError: the axes fuse another number of parameters than there are names.
    """

    name: str
    """`encoder/layers/self_attention/query/kernel[{i}]`; of a fused tensor, `…/{query,key,value}/kernel[{i}]`."""
    axes: Axes | None = None
    """None: the axes are the same."""

    def __post_init__(self) -> None:
        fused = int((self.axes.fused if self.axes else None) or 1)
        if fused != len(self.names):
            raise PortingError(
                f"expected as many names as the axes fuse, {fused}; received {len(self.names)}: {self.name}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the name, or the names of fused parameters."""
        match = re.search(r"\{([^{}]*,[^{}]*)\}", self.name)
        if match is None:
            return (self.name,)
        return tuple(
            self.name[: match.start()] + part.strip() + self.name[match.end() :] for part in match[1].split(",")
        )


Activations = dict[str, tuple[str, ...]]
Parameters = dict[str, ParameterName]


def parse(text: str, what: str) -> tuple[Activations, Parameters]:
    """Parses both parts of a map.

    Args:
      text: the YAML.
      what: its name in error messages.

    Raises:
      PortingError: it is no YAML, or of another structure; axes are malformed; {i} is on one side only; a name has two
        entries.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise PortingError(
            f"{what}: expected YAML (between brackets, names in quotes); {' '.join(str(error).split())}"
        ) from None
    reader = _Reader(what)
    parts = reader.entries(node, "the keys 'activations' and 'parameters'")
    for name, key, _ in parts:
        if name not in ("activations", "parameters"):
            raise reader.error(key, f"expected 'activations' or 'parameters'; received {name!r}")
    nodes = {name: value for name, _, value in parts}
    activations = reader.part(nodes.get("activations"), reader.activation, lambda names: names)
    parameters = reader.part(nodes.get("parameters"), reader.parameter, lambda parameter: parameter.names)
    return activations, parameters


class _Reader:
    """Reads the YAML nodes of one file."""

    def __init__(self, what: str) -> None:
        self.what = what

    def error(self, node: yaml.Node, message: str) -> PortingError:
        return PortingError(f"{self.what}, line {node.start_mark.line + 1}: {message}")

    def entries(self, node: yaml.Node | None, expected: str) -> list[tuple[str, yaml.Node, yaml.Node]]:
        """Returns key, key's node and value's node of each entry; nothing for an empty node."""
        if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
            return []
        if not isinstance(node, yaml.MappingNode):
            raise self.error(node, f"expected {expected}; received {_short(node)}")
        lines: dict[str, int] = {}
        for key, _ in node.value:
            name = self.scalar(key)
            if name in lines:
                raise self.error(key, f"two entries for {name}, the first in line {lines[name]}")
            lines[name] = key.start_mark.line + 1
        return [(key.value, key, value) for key, value in node.value]

    def scalar(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            raise self.error(node, f"expected a name; received {_short(node)}")
        return str(node.value)

    def part(
        self, node: yaml.Node | None, read: Callable[[yaml.Node], Any], names: Callable[[Any], tuple[str, ...]]
    ) -> dict[str, Any]:
        """Reads one of the two maps, which has each of our names once."""
        found: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for name, _, value in self.entries(node, "entries 'their name: our name'"):
            found[name] = read(value)
            for ours in names(found[name]):
                if (NUMBER in ours) != (NUMBER in name):
                    raise self.error(value, f"expected {NUMBER} on both sides or on neither; received {name}: {ours}")
                if ours in lines:
                    raise self.error(value, f"two entries for our {ours}, the first in line {lines[ours]}")
                lines[ours] = value.start_mark.line + 1
        return found

    def activation(self, node: yaml.Node) -> tuple[str, ...]:
        """Reads one name or several."""
        if isinstance(node, yaml.SequenceNode) and node.value:
            return tuple(self.scalar(part) for part in node.value)
        return (self.scalar(node),)

    def parameter(self, node: yaml.Node) -> ParameterName:
        """Reads a name, or a name with axes."""
        is_whole = isinstance(node, yaml.MappingNode)
        fields = (
            {name: self.scalar(value) for name, _, value in self.entries(node, "")}
            if is_whole
            else {"name": self.scalar(node)}
        )
        if set(fields) - {"name", "axes"} or "name" not in fields:
            raise self.error(
                node, f"expected 'name' and, if they differ, 'axes'; received {', '.join(fields) or 'neither'}"
            )
        try:
            return ParameterName(fields["name"], Axes.parse(fields["axes"]) if "axes" in fields else None)
        except ValueError as error:
            raise self.error(node, str(error)) from None


def _short(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return repr(node.value) if node.value else "nothing"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


# --- writing

Entry = tuple[str, tuple[str, ...]]


def text(activations: Mapping[str, tuple[str, ...]], parameters: Mapping[str, ParameterName]) -> str:
    """Writes a map as YAML, with one line for entries that differ only in the layer's number."""
    lines = ["activations:" if activations else "activations: {}"]
    lines += [activation_line(key, names) for key, names in fold(activations.items())]
    lines += ["parameters:" if parameters else "parameters: {}"]
    lines += [
        parameter_line(key, *value) for key, value in fold((key, _written(value)) for key, value in parameters.items())
    ]
    return "\n".join(lines) + "\n"


def activation_line(key: str, names: tuple[str, ...]) -> str:
    return (
        f"  {_quoted(key)}: {_quoted(names[0]) if len(names) == 1 else '[' + ', '.join(map(json.dumps, names)) + ']'}"
    )


def parameter_line(key: str, name: str, axes: str = "") -> str:
    """Returns the line of a parameter; `axes` is the equation, empty if the axes are the same."""
    return f"  {_quoted(key)}: " + (
        f"{{name: {json.dumps(name)}, axes: {json.dumps(axes)}}}" if axes else _quoted(name)
    )


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
    """Returns the name and, if there are any, the axes."""
    axes = parameter.axes
    if axes is None:
        return (parameter.name,)
    left = (" ".join(group) if len(group) == 1 else f"({' '.join(group)})" for group in axes.torch)
    return parameter.name, f"{' '.join(left)} -> {' '.join(axes.jax)}"


def _quoted(name: str) -> str:
    """Returns the name as YAML writes it outside of brackets."""
    return name if re.fullmatch(r"[A-Za-z0-9_.][A-Za-z0-9_./@#{}\[\]-]*", name) else json.dumps(name)
