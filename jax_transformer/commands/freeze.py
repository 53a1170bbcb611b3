"""jax-transformer freeze MODULE:FACTORY --inputs FILE --out FILE: keeps what a program computes in one file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from jax_transformer.commands.parallel_text import check_writable
from jax_transformer.commands.parsing import parsed
from jax_transformer.commands.user_modules import load_factory

FILE = tyro.conf.arg(metavar="FILE")


@dataclass(frozen=True)
class FreezeOptions:
    """Keep what a program computes on a batch in one file without code: weights, activations, gradients, steps, and the
    program as data. `jax-transformer parity --reference FILE` compares with it, without the program's framework."""

    program: tyro.conf.Positional[str] = ""
    """A program of yours, as package.module:factory: a function without arguments that returns a PyTorch module in
    evaluation mode, an NNX or Equinox module, or a Side with its weights."""
    inputs: Annotated[str | None, FILE] = None
    """An .npz with the program's arguments, by name."""
    out: Annotated[str | None, FILE] = None
    """The file to write; its name ends in .frozen."""
    optimizer: Literal["sgd", "adam", "adamw"] | None = None
    """Keep three steps of this optimizer, too."""
    learning_rate: float | None = None
    """Its learning rate. (Default: 0.1 for sgd, 0.001 for the others)"""
    seed: int | None = None
    """PyTorch's seed before each run, for a module that draws random numbers. Without one, such a module is refused."""
    lower: bool = True
    """Keep the program as data, with which maps of weights are found and proofs made."""
    inspect: Annotated[str | None, FILE] = None
    """Print what such a file holds; run nothing."""


def freeze(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer freeze ARGUMENTS`; returns the exit code.

    Raises:
      ValueError: the program can't be run on the inputs; a file can't be read or written.
    """
    options = parsed(FreezeOptions, arguments, "freeze")
    if options.inspect is not None:
        if options.program or options.out or options.inputs:
            raise ValueError("--inspect: expected no program, --inputs or --out with it: it reads one file")
        from jax_transformer.frozen.record import Frozen

        print("\n".join(Frozen.read(options.inspect).lines()))
        return 0
    if not (options.program and options.inputs and options.out):
        raise ValueError("freeze: expected a program, package.module:factory, --inputs FILE and --out FILE")
    from jax_transformer.frozen.record import SUFFIX

    if not options.out.endswith(SUFFIX):
        raise ValueError(f"--out {options.out}: expected a name that ends in {SUFFIX}")
    check_writable(options.out)
    from jax_transformer.parity.freezing import freeze as freeze_side
    from jax_transformer.parity.sides.options import as_side

    side = dataclasses.replace(as_side(load_factory(options.program, "freeze")), name=options.program)
    made = freeze_side(
        side,
        options.inputs,
        options.out,
        optimizer=options.optimizer,
        learning_rate=options.learning_rate,
        seed=options.seed,
        lowers=options.lower,
    )
    print(f"{options.out}: {next(made.lines())}; jax-transformer freeze --inspect {options.out} prints the rest")
    return 0
