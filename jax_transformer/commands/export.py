"""jax-transformer export MODEL DIRECTORY --to TARGET [options]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import tyro


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Export a model for programs that run without this package."""

    model: tyro.conf.Positional[str]
    """Model directory, or run directory that contains one."""
    directory: tyro.conf.Positional[str]
    """Directory to write: a name that is free, or an empty directory."""
    to: Literal["stablehlo"]
    """stablehlo: programs that JAX runs on CPUs, GPUs and TPUs, with a script that translates by them."""
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
    """Token that the script puts before every sentence, such as <2de>."""
    target_tag: str = ""
    """Token that every translation begins with, such as deu_Latn."""


def export(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer export ARGUMENTS`; returns the exit code."""
    options = tyro.cli(ExportOptions, args=arguments, prog="jax-transformer export")
    return TARGETS[options.to](options)


def _stablehlo(options: ExportOptions) -> int:
    from pathlib import Path

    from jax_transformer.commands.decode_options import load
    from jax_transformer.exporting.stablehlo import check_free, export_stablehlo

    check_free(Path(options.directory))
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
    for program in programs:
        print(f"{program.name + ':':13}{program.num_bytes:>9,} bytes in {program.seconds:.1f} s")
    print(f"platforms:   {', '.join(options.platforms)}")
    print(f"translate with it: python {options.directory}/run.py < SOURCE")
    return 0


TARGETS: dict[str, Callable[[ExportOptions], int]] = {"stablehlo": _stablehlo}
