"""Reads YAML that comes from outside: its size, its depth and its aliases have bounds."""

from __future__ import annotations

import yaml

from jax_transformer.runtime.limits import YAML_BYTES, YAML_VALUES


def compose(text: str, what: str, error: type[ValueError], expected: str = "YAML") -> yaml.Node | None:
    """Returns the nodes of a YAML text; None for an empty one.

    Args:
      text: the YAML.
      what: its name in messages.
      error: the class to raise.
      expected: what messages call it.

    Raises:
      ValueError: of the class `error`: it is no YAML; it is nested too deeply; an alias refers to a value that contains
        for; it has more values than YAML_VALUES, aliases written out.
    """
    YAML_BYTES.check(len(text), what, error)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = 0 if node is None else _values(node, {})
    except yaml.YAMLError as found:
        raise error(f"{what}: expected {expected}; {' '.join(str(found).split())}") from None
    except RecursionError:
        raise error(f"{what}: expected {expected}; received values nested too deeply") from None
    YAML_VALUES.check(values, what, error)
    return node


def _values(node: yaml.Node, counted: dict[int, int | None]) -> int:
    """Returns the number of values in a node, aliases written out. `counted` holds the numbers of nodes seen before."""
    key = id(node)
    if key in counted:
        found = counted[key]
        if found is None:
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: an alias refers to a value that contains it")
        return found
    counted[key] = None
    if isinstance(node, yaml.MappingNode):
        inner = [part for pair in node.value for part in pair]
    else:
        inner = node.value if isinstance(node, yaml.SequenceNode) else []
    counted[key] = found = 1 + sum(_values(part, counted) for part in inner)
    return found
