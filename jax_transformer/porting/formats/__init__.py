"""Formats of other programs: the files around a checkpoint's tensors, and what they say of the model. One file each.

A dialect says how tensors are called (porting/dialects); a format opens what holds them. Nothing in a file is executed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jax_transformer.porting.formats.foreign import Foreign

if TYPE_CHECKING:
    from jax_transformer.storage.model_directory import Model

PATHS = ("t5x", "marian", "joeynmt", "sockeye")
"""The modules that open a path: `is_one(path)` recognises it, `opened(path)` reads it."""
CONTENTS = ("fairseq", "opennmt", "openai_whisper")
"""The modules that read what a torch file holds next to its tensors: `stated(path, content)`; None: not its own."""


def is_format(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is a checkpoint in one of the formats that aren't a single file of tensors."""
    return any(_module(name).is_one(Path(path)) for name in PATHS)


def open_format(path: str | os.PathLike[str]) -> Foreign | None:
    """Opens a checkpoint in another program's format; None for a path that is none.

    Raises:
      PortingError: the checkpoint is incomplete or malformed, or of a model that no config expresses.
    """
    for name in PATHS:
        module = _module(name)
        if module.is_one(Path(path)):
            found: Foreign = module.opened(Path(path))
            return found
    return None


def read_settings_of(path: str, content: Mapping[str, Any]) -> Foreign | None:
    """Reads what a torch file's dict says of the model next to its tensors; None where no known program wrote it.

    Raises:
      PortingError: they describe a model that no config expresses.
    """
    found = (_module(name).stated(path, content) for name in CONTENTS)
    return next((stated for stated in found if stated is not None), None)


def writer_of(dialect: str, path: str | os.PathLike[str]) -> Callable[[Model, Mapping[str, Any], Path], None] | None:
    """Returns the function that writes tensors of a dialect in its program's format; None where the path or the dialect
    has none."""
    for name in PATHS:
        module = _module(name)
        if dialect == module.DIALECT and module.is_destination(Path(path)):
            write: Callable[[Model, Mapping[str, Any], Path], None] = module.write
            return write
    return None


def _module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}")
