"""Read the options of a command, and print its help."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, TypeVar

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
    options: Kind = tyro.cli(_shown(kind), args=list(arguments), prog=f"jax-transformer {command}", config=MARKERS)
    return options


def option_names(kind: type) -> list[str]:
    """Returns the options of a command, such as --beam-size; not that a flag may be turned off."""
    return ["--help", *(f"--{name.replace('_', '-')}" for name in _leaves(kind, ""))]


def _leaves(kind: Any, prefix: str) -> Iterator[str]:
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        markers: tuple[Any, ...] = getattr(hint, "__metadata__", ())
        plain = typing.get_args(hint)[0] if markers else hint
        if POSITIONAL in markers or SUPPRESSED in markers:
            continue
        if dataclasses.is_dataclass(plain):
            yield from _leaves(plain, prefix if WITHOUT_PREFIX in markers else f"{prefix}{name}.")
        else:
            yield prefix + name


def _shown(kind: Any) -> Any:
    """Returns a subclass whose help leaves out defaults that are None, or that the text says."""
    hints = typing.get_type_hints(kind, include_extras=True)
    docs = {name: text for base in reversed(kind.__mro__[:-1]) for name, text in field_docs(base).items()}
    fields = []
    for one in dataclasses.fields(kind):
        hint, text = hints[one.name], docs.get(one.name, "")
        if one.name in docs:  # no group of options
            hint = Annotated[hint, tyro.conf.arg(help=text, help_behavior_hint=_hint(text))]
        given: dict[str, Any] = {"default": one.default, "default_factory": one.default_factory}
        given = {name: value for name, value in given.items() if value is not dataclasses.MISSING}
        fields.append((one.name, hint, dataclasses.field(**given)))
    return dataclasses.make_dataclass(
        kind.__name__, fields, bases=(kind,), namespace={"__doc__": kind.__doc__}, frozen=True, kw_only=True
    )


def _hint(text: str) -> Callable[[str], str]:
    """Returns what makes of an option's default the words that follow the option's text."""
    return lambda default: "" if default in ("None", "none", "''") or "(Default: " in text else f"(default: {default})"
