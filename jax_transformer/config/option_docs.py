"""The text of each option of a config: what `help(TransformerConfig)` and the command's help say."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
import typing
from typing import Any

from jax_transformer.config.field_docs import field_docs
from jax_transformer.config.short_names import ShortNames, is_of_decoder, option_at, short_names
from jax_transformer.config.specs import ModelParts


def option_doc(name: str) -> str:
    """Returns the text of a part or a short name, on one line.

    Example:
      >>> from jax_transformer.config.option_docs import option_doc
      >>> option_doc("d_ff")
      'Units of the hidden layer (F).'
    """
    own = field_docs(ShortNames).get(name) or field_docs(ModelParts).get(name)
    if own is not None:
        return own
    if is_of_decoder(name):
        return f"{name.removeprefix('decoder_')} of the decoder. null: as in the encoder."
    at = option_at(name)
    assert at is not None
    return next(text for part in at.classes() if (text := field_docs(part).get(at.field)) is not None)


class DocWithOptions:
    """Holds the docstring of the model's config, followed by all options, which are read when someone asks."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def __get__(self, instance: Any, owner: Any = None) -> str | None:
        if self.text is None:  # with python -OO
            return None
        default = owner()
        parts = [one.name for one in dataclasses.fields(owner)]
        kinds = {**typing.get_type_hints(owner), **short_names()}
        listed = [_listed(name, kinds[name], getattr(default, name)) for name in (*parts, *short_names())]
        return "\n".join([inspect.cleandoc(self.text), "", "Parts, and short names with their defaults:", *listed])


def _listed(name: str, kind: Any, default: Any) -> str:
    is_part = dataclasses.is_dataclass(default)
    head = f"  {name}: {_type(kind)}" + ("" if is_part else f" = {default!r}")
    text = option_doc(name).replace("null", "None")  # which files say
    return "\n".join([head, *textwrap.wrap(text, 110, initial_indent="    ", subsequent_indent="    ")])


def _type(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind).replace("typing.", "")
