"""Reads the YAML settings of other programs: values alone, whatever classes they name."""

from __future__ import annotations

from typing import Any

import yaml

from jax_transformer.runtime.yaml_text import compose
from jax_transformer.storage.tensors import PortingError


class _Values(yaml.SafeLoader):
    """Takes the values of an object that a program tags with its class."""


def _values(loader: _Values, _: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return node.value


_Values.add_multi_constructor("", _values)


def read_settings(text: str, what: str) -> dict[str, Any]:
    """Returns the settings in a YAML text.

    Args:
      what: its name in messages.

    Raises:
      PortingError: it is no YAML, or no mapping; it exceeds the limits of `compose`.
    """
    compose(text, what, PortingError)
    try:
        settings = yaml.load(text, Loader=_Values)  # it makes values alone
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise PortingError(f"{what}: expected YAML; {' '.join(str(error).split())}") from None
    if not isinstance(settings, dict):
        raise PortingError(f"{what}: expected settings; received {type(settings).__name__}")
    return settings
