"""Names the options of a config for people: by a short name where all its places agree, otherwise by path."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any

import yaml

from jax_transformer.config.files import plain
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.short_names import (
    STACKS,
    STRUCTURE,
    SUBLAYERS,
    is_of_decoder,
    named_values,
    option_at,
    option_names,
    part_at,
    read,
    short_names,
)
from jax_transformer.config.validation import ConfigError

MISSING: Any = object()
DEFAULTS = "# defaults:"


def described(config: TransformerConfig) -> dict[str, Any]:
    """Returns every option that the config has.

    Example:
      >>> import dataclasses
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.config.described import described
      >>> from jax_transformer.config.specs import LayerNorm
      >>> config = TransformerConfig(norm_eps=1e-6)
      >>> described(config)["norm_eps"]
      1e-06
      >>> other = dataclasses.replace(config.decoder, norm=LayerNorm(eps=0.1))
      >>> options = described(dataclasses.replace(config, decoder=other))
      >>> options["encoder.norm.eps"], options["decoder.norm.eps"]
      (1e-06, 0.1)
    """
    found: dict[str, Any] = {}
    for name in option_names():
        if name in STRUCTURE:
            found |= _structure(config, name)
        elif name not in short_names():
            found[name] = getattr(config, name)
        elif not is_of_decoder(name):
            found |= named_values(config, name)
    return found


def changes(config: TransformerConfig) -> dict[str, Any]:
    """Returns the options that aren't a default, as `described` names them.

    Example:
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.config.described import changes
      >>> changes(TransformerConfig(num_heads=4, decoder_norm_placement="pre", position_kind="rotary"))
      {'num_heads': 4, 'position_kind': 'rotary', 'decoder_norm_placement': 'pre'}
    """
    usual = TransformerConfig()
    return {name: value for name, value in described(config).items() if value != value_of(usual, name)}


def differences(ours: TransformerConfig, theirs: TransformerConfig) -> dict[str, tuple[Any, Any]]:
    """Returns the options in which two configs differ, with the value of each. An option that one of them doesn't have
    is left out: another one, such as position_kind, says why."""
    names = dict.fromkeys([*described(ours), *described(theirs)])
    pairs = {name: (value_of(ours, name, MISSING), value_of(theirs, name, MISSING)) for name in names}
    return {name: pair for name, pair in pairs.items() if MISSING not in pair and pair[0] != pair[1]}


def dump_described(config: Any) -> str:
    """Returns a run's config as YAML, the model's options named as `described` does: those that aren't a default, or
    that differ between its parts, first.

    Example:
      >>> from jax_transformer import RunConfig, TransformerConfig
      >>> from jax_transformer.config.described import dump_described
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


def value_of(config: TransformerConfig, name: str, missing: Any = None) -> Any:
    """Returns the value of an option, given its short name or path; `missing` where the config has no such part, or
    several values of that name."""
    if name in short_names():
        at = option_at(name)
        if missing is MISSING and at is not None and not is_of_decoder(name) and not named_values(config, name):
            return missing
        try:
            return read(config, name)
        except ConfigError:
            return missing
    place, _, field = name.rpartition(".")
    part = part_at(config, place) if place else config
    value = getattr(part, field, missing)
    return "given" if dataclasses.is_dataclass(value) else value


def _structure(config: TransformerConfig, name: str) -> dict[str, Any]:
    """Returns the values of a name that chooses parts; an open one, of the decoder, is left out."""
    try:
        value = read(config, name)
    except ConfigError:
        return _by_path(config, name)
    return {} if value is None else {name: value}


def _by_path(config: TransformerConfig, name: str) -> dict[str, Any]:
    """Returns the values of a name that chooses parts, where stacks differ."""
    if name in ("norm_kind", "feed_forward"):
        part = name.removesuffix("_kind")
        parts = {f"{stack}.{part}": part_at(config, f"{stack}.{part}") for stack in STACKS}
        absent = {path: None for path, one in parts.items() if one is None}
        return absent | {f"{path}.kind": one.kind for path, one in parts.items() if hasattr(one, "kind")}
    places = (f"{stack}.{sublayer}" for stack in STACKS for sublayer in SUBLAYERS)
    parts = {place: part_at(config, place) for place in places}
    return {f"{place}.{name}": getattr(part, name) for place, part in parts.items() if hasattr(part, name)}
