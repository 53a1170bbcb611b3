"""jax-transformer presets [NAME]."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from jax_transformer.commands.parsing import parsed
from jax_transformer.config.files import dump_config
from jax_transformer.config.presets import MEASURED, PRESETS, get_preset

COLUMNS = 100


@dataclass(frozen=True)
class PresetsOptions:
    """List the presets of `train`, or print one with its config, which `train --config FILE` reads."""

    name: Annotated[str, tyro.conf.Positional] = ""
    """The preset to print. Empty: list them."""


def presets(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer presets ARGUMENTS`; returns the exit code."""
    name = parsed(PresetsOptions, arguments, "presets").name
    if name:
        config = get_preset(name)
        lines = _description(name).splitlines()
        print("\n".join(f"# {line}".rstrip() for line in lines))
        print(dump_config(config), end="")
        return 0
    width = max(map(len, PRESETS))
    for preset in PRESETS:
        measured = f" [{MEASURED[preset]}]" if preset in MEASURED else ""
        text = f"{preset:{width}s}  {_first_sentence(preset)}{measured}"
        print(textwrap.fill(text, COLUMNS, subsequent_indent=" " * (width + 2), break_on_hyphens=False))
    print("\njax-transformer presets NAME prints one; jax-transformer train NAME runs it.")
    return 0


def _description(name: str) -> str:
    return inspect.getdoc(PRESETS[name]) or ""


def _first_sentence(name: str) -> str:
    paragraph = " ".join(_description(name).partition("\n\n")[0].split())
    return re.split(r"(?<!al)\. ", paragraph)[0].rstrip(".") + "."
