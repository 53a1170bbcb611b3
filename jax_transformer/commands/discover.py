"""jax-transformer discover MODULE -o DIRECTORY: read, port and prove a PyTorch encoder-decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from jax_transformer.commands.parsing import parsed
from jax_transformer.commands.user_modules import load_factory

if TYPE_CHECKING:
    from torch import nn

    from jax_transformer.comparison.report.report import Report
    from jax_transformer.discover import Discovery

REFUSED = 1
"""The exit code for a module that no config expresses."""


@dataclass(frozen=True)
class DiscoverOptions:
    """Read the architecture of an encoder-decoder in PyTorch, make a model of it with its weights, and prove it.

    Writes a directory with model/ (a model directory), config.yaml, map.yaml, adapter.py and report.html. Exit codes: 0
    the model computes what the module does; 1 the module computes something that no config expresses, which is named;
    2 a mistake in the call; 3 and 4 as of parity.
    """

    module: tyro.conf.Positional[str]
    """The module, as package.module:factory: a function without arguments that returns it, with its weights."""
    output: Annotated[str, tyro.conf.arg(aliases=["-o"])]
    """Directory to write; it must not exist, or be empty."""
    source_pad_id: int | None = None
    """The id of padding in the source, if the module doesn't define it."""
    target_pad_id: int | None = None
    """The id of padding in the target, if the module doesn't define it."""
    decoder_start_id: int | None = None
    """The id that targets begin with, to compare decoded tokens too, and for the model to translate."""
    eos_id: int | None = None
    """The id that sentences end with, likewise."""
    longest: int | None = None
    """The most tokens of the sentences on which logits are compared. Default: all that the model and the module accept,
    up to 1024 if nothing limits them, and no more than about a gigabyte and a minute allow; the verdict names the
    lengths left out and their cost."""
    stages: str | None = None
    """Comma-separated stages of the parity run that proves it. Default: all; decode only if both ids are given."""
    verbose: bool = False
    """Print every conclusion, and passing rows of the parity run."""


def discover(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer discover ARGUMENTS`; returns the exit code.

    Raises:
      ValueError: there is no such module; no way to call it was found, or it can't be run; the directory can't be
        written.
    """
    options = parsed(DiscoverOptions, arguments, "discover")
    if options.longest is not None and options.longest < 1:
        raise ValueError(f"--longest: expected at least 1 token; received {options.longest}")
    target = Path(options.output)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"--output {target}: expected a new directory; received one that holds files")
    if not target.absolute().parent.is_dir():
        raise ValueError(f"--output {target}: there is no directory {target.absolute().parent}")
    from jax_transformer.discover import CallError, CannotRun, Differs, DiscoverError, conclusion_lines
    from jax_transformer.discover import discover as discovered
    from jax_transformer.programs.calling import as_module

    built = load_factory(options.module, "MODULE")
    try:
        module = as_module(built).eval()
    except ValueError as error:
        raise ValueError(f"{options.module}: {error}") from None
    try:
        found = discovered(
            built,
            options.module,
            source_pad_id=options.source_pad_id,
            target_pad_id=options.target_pad_id,
            decoder_start_id=options.decoder_start_id,
            eos_id=options.eos_id,
            rebuild=lambda: load_factory(options.module, "MODULE"),
            longest=options.longest,
        )
    except CallError as error:
        raise ValueError(f"{error}{_drafted(target, error.adapter)}") from None
    except CannotRun as error:
        raise ValueError(f"{options.module}: {error}") from None
    except DiscoverError as error:
        if error.call is not None:
            _show_call(error.call.lines, error.call.notes)
        label = "read:    " if isinstance(error, Differs) else "found:   "
        for line in conclusion_lines(error.found, every_layer=options.verbose):
            print(f"{label} {line}")
        said = "refused" if isinstance(error, Differs) else "no config expresses it"
        print(f"{options.module}: {said}: {error}")
        return REFUSED
    _show(found, verbose=options.verbose)
    report = _prove(found, module, options)
    report.show(verbose=options.verbose)
    _write(found, report, options.module, target)
    _conclude(found, report)
    return report.exit_code


def _drafted(target: Path, adapter: str) -> str:
    """Writes the draft of an adapter, if there is one, and returns the lines that announce it."""
    if not adapter:
        return ""
    target.mkdir(exist_ok=True)
    (target / "adapter.py").write_text(adapter, encoding="utf-8")
    return f" ({target}/adapter.py is a draft: complete it, and discover its build into another directory)"


def _show_call(lines: Sequence[str], notes: Sequence[str]) -> None:
    """Prints the call of the module and the assumptions: its masks, and the meaning of True in them."""
    print("call:     " + "\n          ".join(lines))
    for note in notes:
        print(f"note:     {note}")


def _show(found: Discovery, *, verbose: bool) -> None:
    """Prints the findings, every choice with its residual and the runner-up."""
    from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS

    _show_call(found.call.lines, found.notes)
    for line in found.conclusion_lines(every_layer=verbose):
        print(f"found:    {line}")
    for check in found.checks:
        rounding = "" if check.gate <= FLOAT64_RELATIVE_RMS else f", where rounding explains {check.gate:.1e}"
        took = f" in {check.seconds:.0f} s" if check.seconds >= 1 else ""
        print(f"checked:  {check}: logits differ by {check.residual:.1e} of their RMS (float64{rounding}){took}")


def _conclude(found: Discovery, report: Report) -> None:
    """Prints the verdict, and names the checks that ran and those that didn't."""
    same = "the same" if report.verdict == "passed" else f"{report.verdict}, see above; the same logits"
    print(f"verdict:  {same} on {found.reach}")


def _prove(found: Discovery, module: nn.Module, options: DiscoverOptions) -> Report:
    """Runs the parity command's comparison of the model with the module in its adapter."""
    from jax_transformer.discover.comparison import prove

    stages = None if options.stages is None else [name.strip() for name in options.stages.split(",")]
    return prove(found, module, options.module, stages)


def _write(found: Discovery, report: Report, factory: str, target: Path) -> None:
    """Writes all files under a temporary name first, then in their place."""
    from jax_transformer.discover import write_discovery

    write_discovery(found, report, factory, target)
    print(f"wrote:    {target}/ (model/, config.yaml, map.yaml, adapter.py, report.html)")
