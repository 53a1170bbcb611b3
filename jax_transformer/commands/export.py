"""jax-transformer export MODEL DIRECTORY --to TARGET."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jax_transformer.exporting.options import ExportError, ExportOptions, Quantization

if TYPE_CHECKING:
    from jax_transformer.storage.model_directory import Model

Export = Callable[["Model", Path, ExportOptions], list[str]]
"""(model, directory to write, options) → the lines to print."""


def _ctranslate2(model: Model, path: Path, options: ExportOptions) -> list[str]:
    from jax_transformer.exporting.ctranslate2 import export_ctranslate2

    return export_ctranslate2(model, path, options)


def _transformers(model: Model, path: Path, options: ExportOptions) -> list[str]:
    from jax_transformer.exporting.transformers import export_transformers

    return export_transformers(model, path, options)


TARGETS: dict[str, Export] = {"ctranslate2": _ctranslate2, "transformers": _transformers}
"""Name of a target → what writes a model for it. The functions import their libraries."""
OWN_OPTIONS: dict[str, str] = {"quantization": "ctranslate2"}
"""Option → the only target that it applies to."""


@dataclass(frozen=True)
class ExportCommand:
    """Write a model for another program that serves it."""

    model: tyro.conf.Positional[str]
    """Model directory, or a run directory that contains one."""
    directory: tyro.conf.Positional[str]
    """Directory to write. It must not exist, or be empty."""
    to: Annotated[str, tyro.conf.arg(metavar="{" + ",".join(TARGETS) + "}")]
    """The program."""
    quantization: Quantization | None = None
    """ctranslate2: how weights are stored. (Default: float32)"""


def export(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer export ARGUMENTS`; returns the exit code.

    Raises:
      ValueError: the target can't compute what the model computes; a path or an option is wrong. Nothing is written.
    """
    command = tyro.cli(ExportCommand, args=list(arguments), prog="jax-transformer export")
    if command.to not in TARGETS:
        raise ExportError(f"--to must be one of {', '.join(TARGETS)}; received {command.to!r}")
    for name, target in OWN_OPTIONS.items():
        if getattr(command, name) is not None and command.to != target:
            raise ExportError(f"--{name} is an option of --to {target}; received it with --to {command.to}")
    from jax_transformer.exporting.directories import check_free
    from jax_transformer.storage.model_directory import load_model

    path = Path(command.directory)
    check_free(path)
    model = load_model(command.model, mapped=True)
    lines = TARGETS[command.to](model, path, ExportOptions(quantization=command.quantization))
    print(f"model:    {command.directory}, for {command.to}")
    for line in lines:
        print(line)
    return 0
