"""Read the options of a command, and print its help."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import tyro

from jax_transformer.config.field_docs import field_docs

Kind = TypeVar("Kind")
MARKERS = (tyro.conf.DisallowNone, tyro.conf.PositionalMetavarFromFieldName)
"""An option that isn't set is left out, rather than None; arguments are called by their names."""

POSITIONAL, SUPPRESSED, WITHOUT_PREFIX = (
    typing.get_args(kind[int])[1] for kind in (tyro.conf.Positional, tyro.conf.Suppress, tyro.conf.OmitArgPrefixes)
)


def parsed(kind: type[Kind], arguments: Sequence[str], command: str) -> Kind:
    """Returns the options of a command as an instance of a dataclass.

    Args:
      kind: with a docstring, and a text under each field.
      command: the command's name, without the program's.

    Raises:
      SystemExit: an option that tyro refuses; --help.
    """
    shown = tyro.cli(_shown(kind), args=list(arguments), prog=f"jax-transformer {command}", config=MARKERS)
    options: Kind = _as_given(kind, shown)
    return options


class Option(NamedTuple):
    """Describes an option or an argument of a command."""

    name: str
    """--beam-size; or MODEL, of an argument."""
    kind: str
    """What it takes, such as INT or {bash,zsh,fish}; empty for a flag."""
    default: Any
    """What holds if it isn't given; MISSING: it is required."""
    text: str


def options_of(kind: type) -> Iterator[Option]:
    """Yields the arguments and options of a command."""
    yield from _leaves(kind, "")


def option_names(kind: type) -> list[str]:
    """Returns the options of a command, such as --beam-size; not that a flag may be turned off."""
    return ["--help", *(one.name for one in options_of(kind) if one.name.startswith("--"))]


def _leaves(kind: Any, prefix: str) -> Iterator[Option]:
    hints, docs = typing.get_type_hints(kind, include_extras=True), _docs(kind)
    for one in dataclasses.fields(kind):
        plain, markers = _divided(hints[one.name])
        if SUPPRESSED in markers:
            continue
        if dataclasses.is_dataclass(plain):
            yield from _leaves(plain, prefix if WITHOUT_PREFIX in markers else f"{prefix}{one.name}.")
            continue
        name = (prefix + one.name).replace("_", "-")
        name, takes = (name.upper(), "") if POSITIONAL in markers else (f"--{name}", taken(plain, markers))
        default = one.default if one.default_factory is MISSING else one.default_factory()
        yield Option(name, takes, default, docs.get(one.name, ""))


def _divided(hint: Any) -> tuple[Any, tuple[Any, ...]]:
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
        return taken(kinds[0])
    return "" if plain is bool else "|".join(str(getattr(one, "__name__", one)).upper() for one in kinds)


def _docs(kind: Any) -> dict[str, str]:
    return {name: text for base in reversed(kind.__mro__[:-1]) for name, text in field_docs(base).items()}


def _shown(kind: Any) -> Any:
    """Returns a subclass whose help leaves out defaults that are None, or that the text says; in its groups, too."""
    hints = typing.get_type_hints(kind, include_extras=True)
    docs, fields = _docs(kind), []
    for one in dataclasses.fields(kind):
        (plain, markers), text = _divided(hints[one.name]), docs.get(one.name, "")
        given: dict[str, Any] = {"default": one.default, "default_factory": one.default_factory}
        if dataclasses.is_dataclass(plain) and one.default_factory is plain:
            group = _shown(plain)
            hint, given["default_factory"] = Annotated[(group, *markers)] if markers else group, group
        else:
            more = tyro.conf.arg(help=text or None, help_behavior_hint=_hint(text))
            hint = hints[one.name] if dataclasses.is_dataclass(plain) else Annotated[hints[one.name], more]
        given = {name: value for name, value in given.items() if value is not MISSING}
        fields.append((one.name, hint, dataclasses.field(**given)))
    return dataclasses.make_dataclass(
        kind.__name__, fields, bases=(kind,), namespace={"__doc__": kind.__doc__}, frozen=True, kw_only=True
    )


def _as_given(kind: Any, shown: Any) -> Any:
    """Returns what an instance of `_shown(kind)` holds as one of the kind itself, whose groups are of their kinds."""
    values = {one.name: getattr(shown, one.name) for one in dataclasses.fields(kind)}
    kinds = {name: _divided(hint)[0] for name, hint in typing.get_type_hints(kind, include_extras=True).items()}
    return kind(
        **{
            name: _as_given(kinds[name], value) if dataclasses.is_dataclass(kinds[name]) else value
            for name, value in values.items()
        }
    )


def _hint(text: str) -> Callable[[str], str]:
    """Returns what makes of an option's default the words that follow the option's text."""
    return lambda default: "" if default in ("None", "none", "''") or "(Default: " in text else f"(default: {default})"
