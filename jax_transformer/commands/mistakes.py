"""Say in one line what is wrong with the arguments of a command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING

from jax_transformer.commands.options import Option
from jax_transformer.commands.words import FREE_TEXT, known_word
from jax_transformer.runtime.trees import nearest

NAMED = {"INT": "a whole number", "FLOAT": "a number", "STR": "a value"}
NUMBERS = {"INT": int, "FLOAT": float}
NUMERIC = re.compile(r"-(\d|\.\d|inf$|nan$)")


def mistake(
    arguments: Sequence[str], options: Iterable[Option], command: str, *, takes_none: bool = False
) -> str | None:
    """Returns the first mistake in arguments that were refused: what was expected, what came, and what to do.

    None: the reason is none that this knows.

    Args:
      options: the options and arguments of the command.
      command: its name, such as translate.
      takes_none: whether the word None unsets an option that may be unset.
    """
    known = list(options)
    named = {name: one for one in known if one.name.startswith("--") for name in (one.name, *one.aliases)}
    flags = {f"--{_prefixed('no-', name)}": one for name, one in named.items() if one.most == 0}
    free, given, before = [], set(), ""
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "--":
            free += words
            break
        if not _is_option(word):
            if before:
                return f"{before} takes no value; received {word}"
            free.append(word)
            continue
        name, has_value, value = word.partition("=")
        name = name.replace("_", "-")
        one = named.get(name) or flags.get(name)
        if one is None:
            return _unknown(name, named, command)
        values = [value] if has_value else []
        while words and not _is_option(words[0]) and len(values) != one.most:
            values.append(words.pop(0))
        given.add(one.name)
        found = _wrong(one, name, values, takes_none=takes_none)
        if found is not None:
            return found
        before = name if one.most == 0 else ""
    return _wrong_places([one for one in known if not one.name.startswith("--")], free, command) or _missing(
        [one for one in known if one.default is MISSING and one.name not in given], len(free), command
    )


def _prefixed(prefix: str, name: str) -> str:
    """Returns an option's name with a word before its last part: train.no-x, of --train.x."""
    group, dot, last = name.removeprefix("--").rpartition(".")
    return f"{group}{dot}{prefix}{last}"


def _is_option(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not NUMERIC.match(word)


def _unknown(name: str, named: Iterable[str], command: str) -> str:
    answer = known_word(name, command, named)
    if answer:
        return f"{name}: no such option of {command}; {answer}"
    near = nearest(name.removeprefix("--"), [one.removeprefix("--") for one in named]).replace(": ", ": --")
    help_of = "train --help-all" if command.startswith("train") else f"{command} --help"
    return f"{name}: no such option of {command}{near or f'; jax-transformer {help_of} lists them'}"


def _wrong(one: Option, name: str, values: Sequence[str], *, takes_none: bool) -> str | None:
    """Returns what is wrong with the values of an option."""
    if one.most == 0 and values:
        return f"{name} takes no value; received {values[0]}"
    if len(values) < one.least:
        count = "a value" if one.least == 1 else f"{one.least} values"
        what = NAMED.get(one.kind) or (_choice(one) if one.kind.startswith("{") else f"{count}, {one.kind}")
        return f"{name}: expected {what}; received {' '.join(values) or 'none'}"
    for value in values:
        if not (_fits(value, one.kind) or (takes_none and one.may_be_unset and value == "None")):
            return f"{name}: expected {NAMED.get(one.kind) or _choice(one)}; received {value or 'an empty text'}"
    return None


def _choice(one: Option) -> str:
    return f"one of {', '.join(one.kind[1:-1].split(','))}"


def _fits(value: str, kind: str) -> bool:
    if kind.startswith("{"):
        return value in kind[1:-1].split(",")
    try:
        NUMBERS.get(kind, str)(value)
    except ValueError:
        return False
    return True


def _wrong_places(places: Sequence[Option], free: Sequence[str], command: str) -> str | None:
    """Returns what is wrong with the arguments that belong to no option."""
    for one, value in zip(places, free, strict=False):
        if not _fits(value, one.kind):
            return f"{command}: expected {one.name} to be {_choice(one)}; received {value}"
    if len(free) > len(places) and all(one.most == 1 for one in places):
        expected = " ".join([*(one.name for one in places), "options"])
        hint = f"; {FREE_TEXT[command]}" if command in FREE_TEXT else ""
        return f"{command}: expected {expected}; received {' '.join(free[len(places) :])} as well{hint}"
    return None


def _missing(required: Sequence[Option], filled: int, command: str) -> str | None:
    """Returns which required arguments and options are missing, of which `filled` places were given."""
    places = [one.name for one in required if not one.name.startswith("--")]
    missing = places[filled:] + [f"{one.name} {one.kind}" for one in required if one.name.startswith("--")]
    if not missing:
        return None
    return f"{command}: expected {' '.join(missing)}; received none; jax-transformer {command} --help explains"
