"""Find the obstacles of a config to a format whose options have one level.

A checkpoint's config has one `norm_eps`, and a program may lack an option entirely. So a format names the options
that it can express, by their short names, and everything else is accepted only at its default: an option that is new in
the config is refused everywhere until a format says that it has it. Where a format has one field, all places of a model
must have one value.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.plan import plan
from jax_transformer.config.short_names import (
    STACKS,
    SUBLAYERS,
    flat,
    holders,
    is_of_decoder,
    is_used,
    option_at,
    option_names,
    part_at,
    short_names,
    with_values,
)
from jax_transformer.config.specs import Stem
from jax_transformer.config.validation import ConfigError

NO_PART_OF_THE_FUNCTION = ("compute", "encoder.dropout", "decoder.dropout")
"""Parts that decide how a model is computed and trained, not what function it is."""
FLAGS = ("output_norm", "context_norm")
"""Short names of a flag of each sublayer."""
FIRST_VALUES = ("initializer", "sublayer_scale_init")
"""Options that decide the first values of weights alone."""


@dataclass(frozen=True)
class Obstacle:
    """An option that a format can't express."""

    option: str
    """Its short name, or its path where the places of the short name have several values."""
    name: str
    """Its short name; the path, for an option that has none."""
    expected: str
    received: Any

    def __str__(self) -> str:
        return f"{self.option} must be {self.expected}; received {self.received!r}"


def obstacles(
    config: TransformerConfig,
    allowed: Mapping[str, Collection[Any]],
    elsewhere: Collection[str],
    *,
    may_differ: Callable[[str], bool] = lambda name: False,
) -> list[Obstacle]:
    """Lists the obstacles of a config to a format: for each option its place, the expected and the received value.

    Args:
      allowed: short name → the values that the format has for it.
      elsewhere: short names that the format has, and that something else checks.
      may_differ: whether the format has a field for each place of a short name.

    Example:
      >>> from jax_transformer import TransformerConfig
      >>> print(*obstacles(TransformerConfig(share_layers=True), {"activation": ("relu", "gelu")}, ["d_model"]))
      share_layers must be False; received True
    """
    unsaid = [
        Obstacle(path, path, repr(default), value)
        for path, value, default in options(config)
        if value != default and path not in _reached() and not path.startswith(NO_PART_OF_THE_FUNCTION)
    ]
    found = []
    for name in option_names():
        values = allowed.get(name)
        if values is None and not changes_the_function(name):
            continue
        if values is None and name not in elsewhere:
            values = (default_of(name),)
        found += _obstacles(config, name, values, may_differ=may_differ(name))
    return found + unsaid


def config_from(fields: Mapping[str, Any]) -> TransformerConfig:
    """Returns the config of fields by their short names, or by the paths of options, which prevail.

    Raises:
      ConfigError: a value that isn't allowed.

    Example:
      >>> from jax_transformer.porting.one_level import config_from
      >>> config_from({"norm_eps": 1e-3, "decoder.norm.eps": 1e-6}).encoder.norm.eps
      0.001
    """
    config = TransformerConfig.from_flat({name: value for name, value in fields.items() if "." not in name})
    return with_values(config, {path: value for path, value in fields.items() if "." in path})


def has_one_value(config: TransformerConfig, name: str) -> bool:
    """Returns whether all places of a short name have one value."""
    try:
        getattr(config, name)
    except ConfigError:
        return False
    return True


def is_readable(config: TransformerConfig, may_differ: Collection[str] = ()) -> bool:
    """Returns whether every option that changes the function, but these, has one value in all places of its short
    name."""
    names = (name for name in option_names() if changes_the_function(name) and name not in may_differ)
    return all(has_one_value(config, name) for name in names)


def is_one_level(config: TransformerConfig) -> bool:
    """Returns whether short names say all of a config."""
    unsaid = (path for path, value, default in options(config) if value != default and path not in _reached())
    return all(has_one_value(config, name) for name in option_names()) and next(unsaid, None) is None


def value_at(config: TransformerConfig, name: str) -> Any:
    """Returns the value of a short name, or of an option by its path, such as encoder.norm.eps."""
    place, dot, field = name.rpartition(".")
    return getattr(part_at(config, place), field, None) if dot else getattr(config, name)


def values_of(config: TransformerConfig, name: str) -> Any:
    """Returns the value of a short name or, where its places have several, each by its path."""
    return getattr(config, name) if has_one_value(config, name) else dict(_places(config, name))


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


def default_of(name: str) -> Any:
    """Returns the value of a short name in the default config."""
    return _defaults()[name]


@functools.cache
def _defaults() -> Mapping[str, Any]:
    return flat(TransformerConfig())


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
    found = {"share_embeddings", "initializer", "stem", *(f"stem.{field.name}" for field in dataclasses.fields(Stem))}
    for name in short_names():
        at = option_at(name)
        found |= set() if at is None else {f"{place}.{at.field}" for place in at.places}
    fields = {"encoder.embedding_scale", "decoder.embedding_scale"}
    flags = {f"{stack}.{name}.{field}" for stack in STACKS for name in SUBLAYERS for field in FLAGS}
    return frozenset(found | fields | flags)


def _obstacles(
    config: TransformerConfig, name: str, values: Collection[Any] | None, *, may_differ: bool
) -> list[Obstacle]:
    """Lists the places in which an option has none of these values (None: all are allowed), or another than in the
    first place."""
    try:
        received = getattr(config, name)
    except ConfigError:
        return _in_places(config, name, values, may_differ=may_differ)
    if values is None or received in values or not is_used(config, name):
        return []
    return [Obstacle(name, name, _listed(values), received)]


def _in_places(
    config: TransformerConfig, name: str, values: Collection[Any] | None, *, may_differ: bool
) -> list[Obstacle]:
    """Returns the places of an option whose value isn't one of these or, if they may not differ, the first one's."""
    held = _places(config, name)
    if name in FLAGS:
        values = None if values is None else (False,)
    if values is not None and (may_differ or len(values) == 1) and not is_of_decoder(name):
        return [Obstacle(path, name, _listed(values), own) for path, own in held if own not in values]
    first, value = held[0]
    expected = f"{value!r}, as {first} is: one {name} applies to all"
    return [Obstacle(path, name, expected, own) for path, own in held if own != value and not may_differ]


def _places(config: TransformerConfig, name: str) -> list[tuple[str, Any]]:
    """Returns the paths of an option, and its values."""
    stacks = {stack: getattr(config, stack) for stack in STACKS}
    if name in FLAGS:
        parts = [(f"{stack}.{part.name}", part.part) for stack, own in stacks.items() for part in plan(own)]
        return [(f"{path}.{name}", getattr(part, name)) for path, part in parts if hasattr(part, name)]
    if name == "norm_kind":
        return [(f"{stack}.norm.kind", getattr(own.norm, "kind", "none")) for stack, own in stacks.items()]
    if name == "feed_forward":
        return [(f"{stack}.feed_forward", own.feed_forward is not None) for stack, own in stacks.items()]
    at = option_at(name)
    assert at is not None  # as no other name in STRUCTURE has several values
    return [(f"{place}.{at.field}", getattr(part, at.field)) for place, part in holders(config, at)]


def _listed(values: Collection[Any]) -> str:
    return " or ".join(map(repr, values))
