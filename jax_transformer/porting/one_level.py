"""Why a format whose options have one level can't hold a config.

A checkpoint's config has one `norm_eps`, and a program may lack an option altogether. So a format names the options
that it can express, by their short names, and everything else is accepted only at its default: an option that is new in
the config is refused everywhere until a format says that it has it. Where a format has one field, all places of a model
must have one value.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.short_names import (
    STACKS,
    STRUCTURE,
    SUBLAYERS,
    holders,
    is_of_decoder,
    is_used,
    option_at,
    option_names,
    short_names,
)
from jax_transformer.config.validation import ConfigError

NO_PART_OF_THE_FUNCTION = ("compute", "encoder.dropout", "decoder.dropout")
"""Parts that decide how a model is computed and trained, not what function it is."""
FIRST_VALUES = ("initializer", "sublayer_scale_init")
"""Options that decide the first values of weights alone."""


def obstacles(config: TransformerConfig, allowed: Mapping[str, Collection[Any]], others: Collection[str]) -> list[str]:
    """Returns why a format can't hold a config, one line for each option: where, what is expected and what is received.

    Args:
      allowed: short name → the values that the format has for it.
      others: short names that the format has, and that something else checks. All places must have one value.

    Example:
      >>> from jax_transformer import TransformerConfig
      >>> obstacles(TransformerConfig(share_layers=True), {"activation": ("relu", "gelu")}, ["d_model"])
      ['share_layers must be False; received True']
    """
    problems = []
    for name in option_names():
        values = allowed.get(name)
        if values is None and not changes_the_function(name):
            continue
        if values is None and name not in others:
            values = (default_of(name),)
        problems += _obstacles(config, name, values)
    return problems + [
        f"{path} must be {default!r}; received {value!r}"
        for path, value, default in options(config)
        if value != default and path not in _reached() and not path.startswith(NO_PART_OF_THE_FUNCTION)
    ]


def has_one_value(config: TransformerConfig, name: str) -> bool:
    """Returns whether all places of a short name have one value."""
    try:
        getattr(config, name)
    except ConfigError:
        return False
    return True


def is_readable(config: TransformerConfig) -> bool:
    """Returns whether every option that changes the function has one value in all places of its short name."""
    return all(has_one_value(config, name) for name in option_names() if changes_the_function(name))


def is_one_level(config: TransformerConfig) -> bool:
    """Returns whether short names say all of a config."""
    unsaid = (path for path, value, default in options(config) if value != default and path not in _reached())
    return all(has_one_value(config, name) for name in option_names()) and next(unsaid, None) is None


def values_of(config: TransformerConfig, name: str) -> Any:
    """Returns the value of a short name or, where its places have several, each by its path."""
    at = option_at(name) if name in short_names() else None
    if at is None or has_one_value(config, name):
        return getattr(config, name)
    return {f"{place}.{at.field}": getattr(part, at.field) for place, part in holders(config, at)}


def shown(value: Any) -> str:
    """Shows what `values_of` returns."""
    return ", ".join(f"{path}={own!r}" for path, own in value.items()) if isinstance(value, dict) else repr(value)


def changes_the_function(name: str) -> bool:
    """Returns whether the function that a model is depends on the option of a short name.

    Example:
      >>> [name for name in ("norm_eps", "dropout_rate", "initializer", "remat") if changes_the_function(name)]
      ['norm_eps']
    """
    if name in FIRST_VALUES or name not in short_names():
        return name not in FIRST_VALUES
    at = option_at(name)
    return at is None or not all(place in NO_PART_OF_THE_FUNCTION for place in at.places)


@functools.cache
def default_of(name: str) -> Any:
    """Returns the value of a short name in the default config."""
    return getattr(TransformerConfig(), name)


def options(config: TransformerConfig) -> Iterator[tuple[str, Any, Any]]:
    """Yields every option of the parts that the config has: its path, its value, and the default of such a part."""
    yield from _options(config, "")


def _options(part: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if dataclasses.is_dataclass(value):
            yield from _options(value, f"{prefix}{field.name}.")
        elif field.init and not dataclasses.is_dataclass(field.default):  # else a part that the config lacks
            yield f"{prefix}{field.name}", value, field.default


@functools.cache
def _reached() -> frozenset[str]:
    """Returns the paths of the options that short names say."""
    found = {"share_embeddings", "initializer"}
    for name in short_names():
        at = option_at(name)
        found |= set() if at is None else {f"{place}.{at.field}" for place in at.places}
    fields = {"encoder.embedding_scale", "decoder.embedding_scale"}
    flags = {f"{stack}.{name}.{field}" for stack in STACKS for name in SUBLAYERS for field in STRUCTURE}
    return frozenset(found | fields | flags)


def _obstacles(config: TransformerConfig, name: str, values: Collection[Any] | None) -> list[str]:
    """Returns why an option has none of these values, or (None) not the same in all places."""
    try:
        received = getattr(config, name)
    except ConfigError as error:
        return _differing(config, name, values) or [str(error)]
    if values is None or received in values or not is_used(config, name):
        return []
    return [f"{name} must be {' or '.join(map(repr, values))}; received {received!r}"]


def _differing(config: TransformerConfig, name: str, values: Collection[Any] | None) -> list[str]:
    """Returns a line for each place whose value isn't the one that the others have, or should have."""
    at = option_at(name)
    if at is None:
        return []
    held = [(f"{place}.{at.field}", getattr(part, at.field)) for place, part in holders(config, at)]
    first, value = held[0]
    if values is not None and len(values) == 1 and not is_of_decoder(name):
        (value,) = values
        return [f"{path} must be {value!r}; received {own!r}" for path, own in held if own != value]
    return [
        f"{path} must be {value!r}, as {first} is: one {name} stands for all; received {own!r}"
        for path, own in held
        if own != value
    ]
