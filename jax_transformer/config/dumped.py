"""Writes a run's config as YAML for people: what isn't a default first."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any

import yaml

from jax_transformer.config.described import changes, described
from jax_transformer.config.files import plain

DEFAULTS = "# defaults:"


def dump_described(config: Any) -> str:
    """Returns a run's config as YAML, the model's options named as `described` does: those that aren't a default, or
    that differ between its parts, first.

    Example:
      >>> from jax_transformer import RunConfig, TransformerConfig
      >>> from jax_transformer.config.dumped import dump_described
      >>> text = dump_described(RunConfig(model=TransformerConfig(num_heads=4)))
      >>> text.splitlines()[:4]
      ['model:', '  num_heads: 4', '  # defaults:', '  source_vocab_size: 0']
    """
    changed, options = changes(config.model), described(config.model)
    first = {name: value for name, value in options.items() if name in changed or "." in name}
    rest = {name: value for name, value in options.items() if name not in first}
    blocks = [_yaml(_nested(first)) if first else "", f"{DEFAULTS}\n", _yaml(rest) if rest else ""]
    others = _yaml({name: value for name, value in plain(dataclasses.asdict(config)).items() if name != "model"})
    return f"model:\n{textwrap.indent(''.join(blocks), '  ')}{others}"


def _yaml(values: Any) -> str:
    return str(yaml.safe_dump(plain(values), sort_keys=False, allow_unicode=True))


def _nested(options: dict[str, Any]) -> dict[str, Any]:
    """Returns options by path as mappings in mappings, kinds first."""
    nested: dict[str, Any] = {}
    for path, value in sorted(options.items(), key=lambda item: not item[0].endswith(".kind")):
        *parts, name = path.split(".")
        inner = nested
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[name] = value
    return nested
