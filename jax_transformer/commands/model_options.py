"""The options of a run on the command line: short names of the model's, and paths of its parts."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import tyro

from jax_transformer.commands.options import Option, divided, may_be_unset, options_of, taken, values_taken
from jax_transformer.commands.parsing import read
from jax_transformer.config.field_docs import field_docs
from jax_transformer.config.files import set_in
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.option_docs import option_doc
from jax_transformer.config.run import RunConfig
from jax_transformer.config.short_names import short_names
from jax_transformer.config.validation import ConfigError

MODEL = "--model."
PARTS = ("source", "target", "encoder", "decoder", "head", "compute")


def parse_run(
    default: RunConfig,
    arguments: list[str],
    command: str,
    description: str,
    more: Any = None,
    *,
    already: Sequence[str] = (),
) -> tuple[RunConfig, Any]:
    """Returns the config of a run that a command line sets, and the command's other options.

    `--model.num-heads 4` sets a short name, `--model.decoder.feed-forward.width 512` a field of one part.

    Args:
      default: what isn't set.
      command: the command's name, without the program's.
      more: the command's other options, an instance of a dataclass. None: there are none.
      already: options that the command has taken out of the arguments, which a misspelt one may mean.

    Raises:
      ConfigError: a value that isn't allowed.
      ValueError: another mistake in the arguments.
      SystemExit: --help.
    """
    model, arguments = _with_parts(default.model, arguments)
    shown = {name: _shown(model, name) for name in _names()}
    kept = {one.name: getattr(default, one.name) for one in dataclasses.fields(RunConfig) if one.name != "model"}
    command_kind: Any = type(more)
    kind: Any = _run_class() if more is None else _with_more(command_kind)
    given = kind(model=_model_class()(**shown), **kept, **({} if more is None else {"more": more}))
    options = [*options_of_run(), *(Option(name, "", None, "") for name in already)]
    options += () if more is None else options_of(command_kind)
    parsed = read(kind, arguments, command, options, takes_none=True, default=given, description=description)
    values = {name: getattr(parsed.model, name) for name in _names()}
    changed = {
        name: value for name, value in values.items() if value != shown[name] or _is_given(model, name, arguments)
    }
    made = dataclasses.replace(model, **changed)
    return RunConfig(model=made, **{name: getattr(parsed, name) for name in kept}), getattr(parsed, "more", None)


@functools.cache
def options_of_run() -> tuple[Option, ...]:
    """Returns the options of a run, such as --train.learning-rate; without the paths of a model's parts."""
    return (*_model_options(), *(one for one in options_of(RunConfig) if not one.name.startswith(MODEL)))


@functools.cache
def run_options() -> frozenset[str]:
    """Returns the names of the options of a run."""
    return frozenset(one.name for one in options_of_run())


def _model_options() -> Iterator[Option]:
    hints = _hints()
    for name in _names():
        plain, _ = divided(hints[name])
        dashed, (least, most) = f"{MODEL}{name.replace('_', '-')}", values_taken(plain)
        yield Option(dashed, taken(plain), None, option_doc(name), least, most, may_be_unset=may_be_unset(plain))


def _shown(model: TransformerConfig, name: str) -> Any:
    """Returns an option's value; where places have several values, the default."""
    try:
        return getattr(model, name)
    except ConfigError:
        return getattr(TransformerConfig(), name)


def _is_given(model: TransformerConfig, name: str, arguments: list[str]) -> bool:
    """Returns whether arguments set an option whose places have several values: even to the default."""
    dashed = name.replace("_", "-")
    flags = {argument.partition("=")[0].replace("_", "-") for argument in arguments}
    if not flags & {f"{MODEL}{dashed}", f"{MODEL}no-{dashed}"}:
        return False
    try:
        getattr(model, name)
    except ConfigError:
        return True
    return False


def _with_parts(model: TransformerConfig, arguments: list[str]) -> tuple[TransformerConfig, list[str]]:
    """Returns the model with the fields that are named by the paths of their parts, and the other arguments."""
    others: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        name, has_value, value = argument.partition("=")
        path = name.removeprefix(MODEL).replace("-", "_")
        if not name.startswith(MODEL) or path.split(".")[0] not in PARTS:
            others.append(argument)
            continue
        if not has_value:
            value = next(remaining, "--")
        if value.startswith("--"):
            raise ConfigError(f"{name} expects a value; received none")
        model = set_in(model, path, value, "the command line")
    return model, others


@functools.cache
def _names() -> tuple[str, ...]:
    own = [one.name for one in dataclasses.fields(TransformerConfig) if one.name not in PARTS]
    return (*short_names(), *own)


@functools.cache
def _hints() -> dict[str, Any]:
    return {**typing.get_type_hints(TransformerConfig), **short_names()}


@functools.cache
def _model_class() -> type:
    """Returns a dataclass with the short names as fields, each with the text of the option that it stands for."""
    hints = _hints()
    return dataclasses.make_dataclass(
        "ModelOptions",
        [(name, Annotated[hints[name], tyro.conf.arg(help=option_doc(name))]) for name in _names()],
        kw_only=True,
    )


@functools.cache
def _run_class() -> type:
    hints, docs = typing.get_type_hints(RunConfig), field_docs(RunConfig)
    fields = [
        (one.name, Annotated[hints[one.name], tyro.conf.arg(help=docs.get(one.name))])
        for one in dataclasses.fields(RunConfig)
        if one.name != "model"
    ]
    return dataclasses.make_dataclass("RunOptions", [("model", _model_class()), *fields], kw_only=True)


@functools.cache
def _with_more(more: type) -> type:
    hidden: Any = Annotated[more, tyro.conf.OmitArgPrefixes]
    return dataclasses.make_dataclass("Options", [("more", hidden)], bases=(_run_class(),), kw_only=True)
