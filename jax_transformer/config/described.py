"""Names the options of a config for people: by a short name where all its places agree, otherwise by path."""

from __future__ import annotations

import dataclasses
from typing import Any

from jax_transformer.config.short_names import (
    STACKS,
    STRUCTURE,
    SUBLAYERS,
    ShortNames,
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


def described(config: ShortNames) -> dict[str, Any]:
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


def changes(config: ShortNames) -> dict[str, Any]:
    """Returns the options that aren't a default, as `described` names them.

    Example:
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.config.described import changes
      >>> changes(TransformerConfig(num_heads=4, decoder_norm_placement="pre", position_kind="rotary"))
      {'num_heads': 4, 'position_kind': 'rotary', 'decoder_norm_placement': 'pre'}
    """
    usual = type(config)()
    return {name: value for name, value in described(config).items() if value != value_of(usual, name)}


def differences(ours: ShortNames, theirs: ShortNames) -> dict[str, tuple[Any, Any]]:
    """Returns the options in which two configs differ, with the value of each. An option that one of them doesn't have
    is left out: another one, such as position_kind, says why."""
    names = dict.fromkeys([*described(ours), *described(theirs)])
    pairs = {name: (value_of(ours, name, MISSING), value_of(theirs, name, MISSING)) for name in names}
    return {name: pair for name, pair in pairs.items() if MISSING not in pair and pair[0] != pair[1]}


def value_of(config: ShortNames, name: str, missing: Any = None) -> Any:
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


def _structure(config: ShortNames, name: str) -> dict[str, Any]:
    """Returns the values of a name that chooses parts; an open one, of the decoder, is left out."""
    try:
        value = read(config, name)
    except ConfigError:
        return _by_path(config, name)
    return {} if value is None else {name: value}


def _by_path(config: ShortNames, name: str) -> dict[str, Any]:
    """Returns the values of a name that chooses parts, where stacks differ."""
    if name in ("norm_kind", "feed_forward"):
        part = name.removesuffix("_kind")
        parts = {f"{stack}.{part}": part_at(config, f"{stack}.{part}") for stack in STACKS}
        absent = {path: None for path, one in parts.items() if one is None}
        return absent | {f"{path}.kind": one.kind for path, one in parts.items() if hasattr(one, "kind")}
    places = (f"{stack}.{sublayer}" for stack in STACKS for sublayer in SUBLAYERS)
    parts = {place: part_at(config, place) for place in places}
    return {f"{place}.{name}": getattr(part, name) for place, part in parts.items() if hasattr(part, name)}
