"""Read the options of a command, and print its help."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING
from typing import Annotated, Any, TypeVar

import tyro

from jax_transformer.commands.mistakes import mistake
from jax_transformer.commands.options import Option, divided, docs_of, options_of

Kind = TypeVar("Kind")
MARKERS = (tyro.conf.DisallowNone, tyro.conf.PositionalMetavarFromFieldName)
"""An option that isn't set is left out, rather than None; arguments are called by their names."""


def parsed(kind: type[Kind], arguments: Sequence[str], command: str) -> Kind:
    """Returns the options of a command as an instance of a dataclass.

    Args:
      kind: with a docstring, and a text under each field.
      command: the command's name, without the program's.

    Raises:
      ValueError: a mistake in the arguments.
      SystemExit: --help.
    """
    shown = read(_shown(kind), arguments, command, options_of(kind), config=MARKERS)
    options: Kind = _as_given(kind, shown)
    return options


def read(
    kind: Any,
    arguments: Sequence[str],
    command: str,
    options: Iterable[Option],
    *,
    takes_none: bool = False,
    **how: Any,
) -> Any:
    """Returns what `tyro.cli` reads from the arguments of a command. Says a mistake in one line.

    Args:
      options: the options that there are, by which a mistake is found.
      takes_none: whether the word None unsets an option that may be unset.
      how: other arguments of `tyro.cli`.

    Raises:
      ValueError: a mistake in the arguments.
      SystemExit: --help; a mistake that only tyro finds, which it then has described on standard error.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, args=list(arguments), prog=f"jax-transformer {command}", **how)
    except SystemExit as stop:
        found = mistake(arguments, options, command, takes_none=takes_none) if stop.code else None
        if found is not None:
            raise ValueError(found) from None
        sys.stderr.write(said.getvalue())
        raise


def _shown(kind: Any) -> Any:
    """Returns a subclass whose help leaves out defaults that are None, or that the text says; in its groups, too."""
    hints = typing.get_type_hints(kind, include_extras=True)
    docs, fields = docs_of(kind), []
    for one in dataclasses.fields(kind):
        (plain, markers), text = divided(hints[one.name]), docs.get(one.name, "")
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
    kinds = {name: divided(hint)[0] for name, hint in typing.get_type_hints(kind, include_extras=True).items()}
    return kind(
        **{
            name: _as_given(kinds[name], value) if dataclasses.is_dataclass(kinds[name]) else value
            for name, value in values.items()
        }
    )


def _hint(text: str) -> Callable[[str], str]:
    """Returns what makes of an option's default the words that follow the option's text."""
    return lambda default: "" if default in ("None", "none", "''") or "(Default: " in text else f"(default: {default})"
