"""Pages of all commands and options, for the site."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterator
from dataclasses import MISSING
from typing import Any

from jax_transformer.commands.completion import KINDS_OF_COMMANDS
from jax_transformer.commands.options import Option, options_of, taken
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.option_docs import option_doc
from jax_transformer.config.run import RunConfig
from jax_transformer.config.short_names import ModelOptions


def commands_in_markdown() -> str:
    """Returns a section for each command with its arguments and options."""
    return "\n\n".join(_section(name, kind) for name, kind in sorted(KINDS_OF_COMMANDS.items()))


def run_options_in_markdown() -> str:
    """Returns a table of the options of a run, for `train`, `compile` and files of `--config`."""
    own = [one for one in options_of(RunConfig) if not one.name.startswith("--model.")]
    groups = dict.fromkeys(one.name.partition(".")[0].removeprefix("--") for one in own if "." in one.name)
    parts = [("model", list(_of_the_model()))]
    parts += [(group, [one for one in own if one.name.startswith(f"--{group}.")]) for group in groups]
    parts += [("the run", [one for one in own if "." not in one.name])]
    return "\n\n".join(f"## Of {group}\n\n{_table(options)}" for group, options in parts)


def _of_the_model() -> Iterator[Option]:
    default, kinds = TransformerConfig(), typing.get_type_hints(ModelOptions)
    for name in kinds:
        if not dataclasses.is_dataclass(value := getattr(default, name)):
            yield Option(f"--model.{name.replace('_', '-')}", taken(kinds[name]), value, option_doc(name))


def _section(name: str, kind: Any) -> str:
    return f"## {name}\n\n{inspect.cleandoc(kind.__doc__ or '')}\n\n{_table(list(options_of(kind)))}"


def _table(options: list[Option]) -> str:
    if not options:
        return ""
    rows = (f"| `{f'{one.name} {one.kind}'.strip()}` | {_text(one)} |" for one in options)
    return "\n".join(["| option | |", "|---|---|", *rows])


def _text(one: Option) -> str:
    text = " ".join(one.text.replace("|", "\\|").split())
    if one.default is MISSING:
        return f"{text} (required)"
    if one.default in (None, "", (), False) or "(Default: " in text:
        return text
    shown = " ".join(map(str, one.default)) if isinstance(one.default, tuple) else str(one.default)
    return f"{text} Default: `{shown}`."
