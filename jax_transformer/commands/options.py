"""The options of a command: their names, what they take, their defaults and texts."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Sequence
from dataclasses import MISSING
from types import NoneType
from typing import Any, Literal, NamedTuple

import tyro

from jax_transformer.config.field_docs import field_docs

POSITIONAL, SUPPRESSED, WITHOUT_PREFIX, APPENDED = (
    typing.get_args(kind[int])[1]
    for kind in (tyro.conf.Positional, tyro.conf.Suppress, tyro.conf.OmitArgPrefixes, tyro.conf.UseAppendAction)
)


class Option(NamedTuple):
    """Describes an option or an argument of a command."""

    name: str
    """--beam-size; or MODEL, of an argument."""
    kind: str
    """What it takes, such as INT or {bash,zsh,fish}; empty for a flag, and for an argument that takes any text."""
    default: Any
    """What holds if it isn't given; MISSING: it is required."""
    text: str
    least: int = 1
    """The fewest values that it takes; 0 for a flag."""
    most: int | None = 1
    """The most; None: any number."""
    aliases: tuple[str, ...] = ()
    """Other names, such as -o."""
    may_be_unset: bool = False
    """Whether None is a value of its type."""


def options_of(kind: type) -> Iterator[Option]:
    """Yields the arguments and options of a command."""
    yield from _leaves(kind, "")


def option_names(kind: type) -> list[str]:
    """Returns the options of a command, such as --beam-size; not that a flag may be turned off."""
    return ["--help", *(one.name for one in options_of(kind) if one.name.startswith("--"))]


def _leaves(kind: Any, prefix: str) -> Iterator[Option]:
    hints, docs = typing.get_type_hints(kind, include_extras=True), docs_of(kind)
    for one in dataclasses.fields(kind):
        plain, markers = divided(hints[one.name])
        if SUPPRESSED in markers:
            continue
        if dataclasses.is_dataclass(plain):
            yield from _leaves(plain, prefix if WITHOUT_PREFIX in markers else f"{prefix}{one.name}.")
            continue
        name = (prefix + one.name).replace("_", "-")
        is_named, takes = POSITIONAL not in markers, taken(plain, markers)
        name, takes = (f"--{name}", takes) if is_named else (name.upper(), takes if takes.startswith("{") else "")
        default = one.default if one.default_factory is MISSING else one.default_factory()
        aliases = tuple(alias for each in markers for alias in getattr(each, "aliases", None) or ())
        least, most = values_taken(plain, markers)
        yield Option(name, takes, default, docs.get(one.name, ""), least, most, aliases, may_be_unset(plain))


def values_taken(plain: Any, markers: Sequence[Any] = ()) -> tuple[int, int | None]:
    """Returns the fewest and the most values that an option of a type takes at once; None: any number."""
    kinds = [one for one in typing.get_args(plain) if typing.get_origin(one) is tuple] or [plain]
    if plain is bool and POSITIONAL not in markers:
        return 0, 0
    if typing.get_origin(kinds[0]) is not tuple or APPENDED in markers:
        return 1, 1
    parts = typing.get_args(kinds[0])
    return (0, None) if Ellipsis in parts else (len(parts), len(parts))


def may_be_unset(plain: Any) -> bool:
    """Returns whether None is a value of a type."""
    return NoneType in typing.get_args(plain)


def divided(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Returns a type, and tyro's markers of it."""
    markers: tuple[Any, ...] = getattr(hint, "__metadata__", ())
    return (typing.get_args(hint)[0] if markers else hint), markers


def taken(plain: Any, markers: Sequence[Any] = ()) -> str:
    """Returns what an option of a type takes, such as INT or {bash,zsh,fish}; "" for a flag."""
    given = [one.metavar for one in markers if getattr(one, "metavar", None)]
    if given:
        return str(given[0])
    kinds = [one for one in typing.get_args(plain) or [plain] if one is not NoneType and one is not Ellipsis]
    if typing.get_origin(plain) is Literal:
        return "{" + ",".join(map(str, kinds)) + "}"
    if len(kinds) == 1 and kinds[0] is not plain:
        return taken(kinds[0]) or "{True,False}"
    return "" if plain is bool else "|".join(str(getattr(one, "__name__", one)).upper() for one in kinds)


def docs_of(kind: Any) -> dict[str, str]:
    """Returns the text under each field of a dataclass, those of its bases included."""
    return {name: text for base in reversed(kind.__mro__[:-1]) for name, text in field_docs(base).items()}
