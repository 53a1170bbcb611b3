"""jax-transformer export MODEL DIRECTORY --to TARGET [options]."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import tyro

from jax_transformer.commands.parsing import parsed
from jax_transformer.exporting.options import ExportError, Quantization


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Write a model for another program that serves it, or for JAX alone."""

    model: tyro.conf.Positional[str]
    """Model directory, a run directory that contains one, or a name on the Hub."""
    directory: tyro.conf.Positional[str]
    """Directory to write: a name that is free, or an empty directory."""
    to: Literal["ctranslate2", "transformers", "stablehlo"]
    """ctranslate2: a directory for CTranslate2's Translator. transformers: a directory for from_pretrained. stablehlo:
    programs that JAX runs on CPUs, GPUs and TPUs, with a script that translates by them."""
    quantization: Quantization = "float32"
    """ctranslate2: how weights are stored."""
    platforms: tuple[str, ...] = ("cpu", "cuda", "tpu")
    """stablehlo: where the programs run: cpu, cuda, rocm, tpu."""
    batch: int | None = None
    """stablehlo: rows of a batch. (Default: any number)"""
    length: int | None = None
    """stablehlo: tokens of a source, padding included. (Default: any number that the model takes)"""
    max_new_tokens: int | None = None
    """stablehlo: most tokens to decode. (Default: as the model says)"""
    beam_size: int = 1
    """stablehlo: with 2 or more, export a beam search as well, by which run.py translates."""
    source_tag: str = ""
    """stablehlo: token that the script puts before every sentence, such as <2de>."""
    target_tag: str = ""
    """stablehlo: token that every translation begins with, such as deu_Latn."""


FOR_ALL = ("model", "directory", "to")
OF_TARGET: dict[str, tuple[str, ...]] = {
    "ctranslate2": ("quantization",),
    "transformers": (),
    "stablehlo": ("platforms", "batch", "length", "max_new_tokens", "beam_size", "source_tag", "target_tag"),
}
"""The options that apply to each target alone."""


def export(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer export ARGUMENTS`; returns the exit code.

    Raises:
      ValueError: the target can't compute what the model computes; a path or an option is wrong. Nothing is written.
    """
    options = parsed(ExportOptions, arguments, "export")
    for field in dataclasses.fields(options):
        if getattr(options, field.name) != field.default and field.name not in (*FOR_ALL, *OF_TARGET[options.to]):
            (target,) = (name for name, own in OF_TARGET.items() if field.name in own)
            name = field.name.replace("_", "-")
            raise ExportError(f"--{name} is an option of --to {target}; received it with --to {options.to}")
    from jax_transformer.runtime.directories import check_free

    check_free(options.directory, ExportError)
    lines = TARGETS[options.to](options)
    print(f"model:    {options.directory}, for {options.to}")
    for line in lines:
        print(line)
    return 0


def _ctranslate2(options: ExportOptions) -> list[str]:
    from jax_transformer.exporting.ctranslate2 import export_ctranslate2
    from jax_transformer.storage.model_directory import load_model

    return export_ctranslate2(load_model(options.model, mapped=True), options.directory, options.quantization)


def _transformers(options: ExportOptions) -> list[str]:
    from jax_transformer.exporting.transformers import export_transformers
    from jax_transformer.storage.model_directory import load_model

    return export_transformers(load_model(options.model, mapped=True), options.directory)


def _stablehlo(options: ExportOptions) -> list[str]:
    from jax_transformer.commands.decode_options import load
    from jax_transformer.exporting.stablehlo import export_stablehlo

    programs = export_stablehlo(
        load(options.model, options.source_tag),
        options.directory,
        platforms=options.platforms,
        batch=options.batch,
        source_length=options.length,
        max_new_tokens=options.max_new_tokens,
        beam_size=options.beam_size,
        source_tag=options.source_tag,
        target_tag=options.target_tag,
    )
    return [
        *(f"{one.name + ':':13}{one.num_bytes:>9,} bytes in {one.seconds:.1f} s" for one in programs),
        f"platforms:   {', '.join(options.platforms)}",
        f"translate with it: python {options.directory}/run.py < SOURCE",
    ]


TARGETS: dict[str, Callable[[ExportOptions], list[str]]] = {
    "ctranslate2": _ctranslate2,
    "transformers": _transformers,
    "stablehlo": _stablehlo,
}
"""Name of a target → the function that writes a model for it, and returns the lines to print. The functions import
their libraries."""
