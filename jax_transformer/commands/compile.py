"""jax-transformer compile [PRESET] --target TARGET [options]: compile programs for devices that aren't here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from jax_transformer.commands.model_options import parse_run
from jax_transformer.commands.parallel_text import check_writable, write_lines
from jax_transformer.commands.run_options import first_config, take_option, take_preset
from jax_transformer.compiling.targets import EXAMPLES, DoesNotFit, Target, devices_of, prepare_environment, quiet
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import RunConfig

if TYPE_CHECKING:
    from jax_transformer.compiling.report import CompileReport

VOCABULARY = 32_000
DESCRIPTION = f"""Compile a training step, an evaluation step or a search with XLA's own compiler for a TPU, GPU or CPU.

The devices needn't be there. Reports the memory of each device, the time of compilation, the floating-point operations,
the communication, and the least time that a step can take. Exit codes: 0 it fits; 1 it doesn't fit or compile; 2 a
mistake in the call.

usage: jax-transformer compile [PRESET] [--config FILE] --target TARGET [options of train]

TARGET is one such as {EXAMPLES}."""


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """Compile a program for devices that aren't here."""

    target: str = ""
    """The devices, such as tpu:v5e:4x4 or nvidia:h100:8."""
    program: Literal["train", "evaluate", "decode"] = "train"
    """What to compile."""
    rows: int | None = None
    """Rows of the batch, on all devices together. (Default: data.batch_tokens / data.max_length)"""
    source_length: int | None = None
    """Source tokens of a row. (Default: data.max_length)"""
    target_length: int | None = None
    """Target tokens of a row; with decode, the most that are decoded. (Default: data.max_length)"""
    beam_size: int = 1
    """With decode: the number of beams."""
    vocabulary: int | None = None
    """The size of the vocabulary if neither the model nor data.vocab_size gives it. (Default: 32000)"""
    largest_batch: bool = False
    """Look for the largest batch that fits, and report it."""
    json: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the report as JSON."""


def compile(arguments: Sequence[str]) -> int:  # named as the command is
    """Runs `jax-transformer compile ARGUMENTS`; returns the exit code.

    Raises:
      ValueError: an unknown target, or one whose compiler isn't installed; sizes that the mesh doesn't divide.
    """
    config_file, arguments = take_option(list(arguments), "--config")
    preset, arguments = take_preset(arguments)
    config, options = parse_run(
        first_config(preset, config_file), arguments, "compile", DESCRIPTION, CompileOptions(), already=["--config"]
    )
    if not options.target:
        raise ValueError(f"compile: expected --target, one such as {EXAMPLES}; received none")
    target = Target.parse(options.target)
    if options.json is not None:
        check_writable(options.json)
    prepare_environment(target)
    try:
        with quiet():
            report = _compiled(config, options, target)
    except DoesNotFit as reason:
        print(f"doesn't fit: {reason}")
        return 1
    for line in report.lines():
        print(line)
    if options.json is not None:
        write_lines(options.json, json.dumps(report.to_dict(), indent=2).splitlines())
    if report.fits:
        return 0
    print(f"doesn't fit: {target} has {(report.memory or 0) / 1e9:.2f} GB of memory on each device")
    return 1


def _compiled(config: RunConfig, options: CompileOptions, target: Target) -> CompileReport:
    from jax_transformer.compiling.programs import Shape, lower
    from jax_transformer.compiling.report import compile_program, largest_batch
    from jax_transformer.parallel.mesh import make_mesh
    from jax_transformer.parallel.placement import row_shards

    mesh = make_mesh(config.parallel, devices_of(target))
    model, data, train = _model(config, options), config.data, config.train
    multiple = row_shards(mesh) * (train.accumulate if options.program == "train" else 1)
    source, goal = options.source_length or data.max_length, options.target_length or data.max_length
    rows = options.rows or max(data.batch_tokens // max(source, goal) // multiple, 1) * multiple
    if rows % multiple:
        raise ValueError(
            f"rows: expected a multiple of {multiple}, among which devices and parts divide them; received {rows}"
        )

    def compile_rows(rows: int) -> CompileReport:
        shape = Shape(rows, source, goal)
        return compile_program(
            target,
            options.program,
            shape,
            mesh,
            lambda: lower(options.program, model, train, shape, mesh, options.beam_size),
            wide=model.compute.dtype == "float32",
        )

    return largest_batch(compile_rows, multiple, rows) if options.largest_batch else compile_rows(rows)


def _model(config: RunConfig, options: CompileOptions) -> TransformerConfig:
    """Returns the model with the sizes of its vocabularies, which training takes from the data."""
    model, size = config.model, options.vocabulary or config.data.vocab_size or VOCABULARY
    return model.replace(
        source_vocab_size=model.source.vocab_size or size, target_vocab_size=model.target.vocab_size or size
    )
