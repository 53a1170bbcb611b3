"""jax-transformer parity MODEL [options]: is a model the same function as a PyTorch one, and if not, where and why?"""

from __future__ import annotations

import gc
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jax_transformer.commands.checkpoint_options import CheckpointOptions
from jax_transformer.commands.parallel_text import check_writable, write_lines

if TYPE_CHECKING:
    from jax_transformer.parity.report.report import Report

FILE = tyro.conf.arg(metavar="FILE")


@dataclass(frozen=True)
class ParityOptions:
    """Tell whether a model computes the same as one in PyTorch, and if not, where they part and why.

    Without --reference, a checkpoint's own program is the reference: the published one, or transformers. Exit codes: 0
    the same; 1 diverged, and every cause is named; 2 a mistake of the user's; 3 inconclusive; 4 diverged, for a reason
    that isn't known.
    """

    model: tyro.conf.Positional[str] = ""
    """A model directory, a run directory, or a checkpoint: a torch file, or a directory of transformers. With
    --reference it may be left
    out: then the module's own weights are ported."""
    dialect: str | None = None
    """Whose names the checkpoint's are, and whose program is the reference. Needed where several fit."""
    reference: str | None = None
    """A PyTorch module of yours, as package.module:factory: a function without arguments that returns it in evaluation
    mode. It is called with (source_ids, decoder_input_ids), or by transformers' names where it takes these, and returns
    logits."""
    candidate: str | None = None
    """A JAX function of yours in place of the model here, as package.module:factory: a function without arguments that
    returns (params, inputs) → (logits, trace). It gets the model's parameters and a dict of source_ids and
    decoder_input_ids."""
    inputs: Annotated[str | None, FILE] = None
    """With --candidate and --reference and no model of this project: an .npz of the arguments of the module's forward,
    by name. The function gets the same, and the module's state_dict for parameters."""
    map: Annotated[str | None, FILE] = None
    """YAML that says which of the reference's names are which of ours, where no dialect does."""
    draft_map: Annotated[str | None, FILE] = None
    """Write a draft of such a map, guessed from shapes and order, to be read and edited; and compare nothing."""
    stages: str = "weights,inputs,masks,forward,loss,gradients,step,trajectory,decode"
    """What is compared."""
    dtypes: str = "float64,float32,bfloat16"
    """In what precision. float64 decides; the others are judged by their distance from it."""
    node: str | None = None
    """Look at this activation alone, in float64: its errors and their cause."""
    seed: int = 0
    """Of inputs and random weights."""
    json: Annotated[str | None, FILE] = None
    """Where to write the report as JSON."""
    html: Annotated[str | None, FILE] = None
    """Where to write the report as a page."""
    diff: Annotated[tuple[str, str] | None, tyro.conf.arg(metavar="CANDIDATE REFERENCE")] = None
    """Compare two .npz of named arrays, in execution order, instead of models."""
    truth: str | None = None
    """With --diff: the reference's arrays in float64, computed of weights and inputs rounded to the precision of the
    two: what lower precision is judged by."""
    tolerance: float | None = None
    """With --diff: the largest relative RMS of the difference that passes, in place of the gates: 1e-12 in float64."""
    checkpoint: tyro.conf.OmitArgPrefixes[CheckpointOptions] = field(default_factory=CheckpointOptions)


def parity(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer parity ARGUMENTS`; returns the exit code.

    Raises:
      ValueError: what can't be compared; files that can't be read, or written.
    """
    options = tyro.cli(ParityOptions, args=list(arguments), prog="jax-transformer parity")
    _check(options)
    if options.draft_map is not None:
        from jax_transformer.commands.parity_maps import draft_map

        return draft_map(options)
    report = _report(options, arguments)
    from rich.console import Console

    from jax_transformer.parity.report.console import show

    show(report, Console(soft_wrap=not sys.stdout.isatty(), highlight=False))
    _write(report, options)
    return report.exit_code


def _report(options: ParityOptions, arguments: Sequence[str]) -> Report:
    if options.diff is not None:
        return _compare_files(options)
    return _compare_any(options) if options.inputs is not None else _compare_models(options, arguments)


def _check(options: ParityOptions) -> None:
    """Raises ValueError for options that can't be meant."""
    if options.tolerance is not None and not options.tolerance >= 0:
        raise ValueError(f"--tolerance must be at least 0; received {options.tolerance}")
    of_files = [name for name in ("truth", "tolerance") if getattr(options, name) is not None]
    if options.diff is None and of_files:
        raise ValueError(f"--{of_files[0]} is for --diff; models are judged by the gates")
    if options.diff is not None and (options.model or options.reference or options.candidate):
        raise ValueError("--diff compares two files: expected no model, --reference or --candidate beside it")
    if options.inputs is not None and (options.model or not (options.candidate and options.reference)):
        raise ValueError("--inputs is for --candidate and --reference without a model, whose inputs are made")
    for path in (options.json, options.html, options.draft_map):
        if path is not None:
            check_writable(path)


def _chosen(text: str, known: Sequence[str], option: str) -> list[str]:
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        raise ValueError(f"{option}: expected some of {', '.join(known)}, with commas between them; received {text!r}")
    return chosen


def _compare_files(options: ParityOptions) -> Report:
    from jax_transformer.data.text_files import hash_file
    from jax_transformer.parity.gates.arrays import read_arrays
    from jax_transformer.parity.gates.stages import compare_stage
    from jax_transformer.parity.report.report import Report, depth_of

    assert options.diff is not None
    candidate, reference = (read_arrays(path) for path in options.diff)
    truth = None if options.truth is None else read_arrays(options.truth).arrays
    stage = compare_stage(
        "arrays",
        candidate.arrays,
        reference.arrays,
        truth=truth,
        tolerance=options.tolerance,
        dtypes=reference.notes.get("widened"),
    )
    notes = {
        f"{side}_{name}": value
        for side, kept in (("candidate", candidate), ("reference", reference))
        for name, value in kept.notes.items()
        if name != "widened"
    }
    hashes = {path: hash_file(path) for path in options.diff}
    return Report(*options.diff, stages=(stage,), environment=notes, sha256=hashes, depth=depth_of(stage))


def _compare_any(options: ParityOptions) -> Report:
    """A function and a module of the user's, on inputs of the user's."""
    from jax_transformer.data.text_files import hash_file
    from jax_transformer.parity import run_any as any_pair
    from jax_transformer.parity.gates.arrays import read_arrays
    from jax_transformer.parity.names.maps import NameMap
    from jax_transformer.parity.pairing import check_module, made_by

    assert options.inputs is not None
    assert options.candidate is not None
    assert options.reference is not None
    inputs, module = read_arrays(options.inputs).arrays, made_by(options.reference, "--reference")
    check_module(module, options.reference)
    function, names = made_by(options.candidate, "--candidate"), NameMap.read(options.map) if options.map else NameMap()
    pair = any_pair.AnyPair(options.candidate, function, options.reference, module, inputs, names)
    stages = (
        any_pair.STAGES
        if options.stages == ParityOptions.stages
        else _chosen(options.stages, any_pair.STAGES, "--stages")
    )
    dtypes: Any = _chosen(options.dtypes, ("float64", "float32", "bfloat16"), "--dtypes")
    return any_pair.run(pair, stages=stages, dtypes=dtypes, sha256={options.inputs: hash_file(options.inputs)})


def _compare_models(options: ParityOptions, arguments: Sequence[str]) -> Report:
    from jax_transformer.parity.run import run
    from jax_transformer.parity.run_results import DTYPES, STAGES

    stages, dtypes = _chosen(options.stages, STAGES, "--stages"), _chosen(options.dtypes, DTYPES, "--dtypes")
    from jax_transformer.parity.pairing import prepare
    from jax_transformer.parity.report.environment import surroundings
    from jax_transformer.runtime.allocator import give_back_freed_memory

    pair, hashes, notes = prepare(options)
    if pair.is_large:
        give_back_freed_memory()
    command = f"jax-transformer parity {shlex.join(_without_files(arguments))}"
    dtypes_: Any = dtypes
    return run(
        pair,
        stages=stages,
        dtypes=dtypes_,
        seed=options.seed,
        progress=_progress(pair.is_large),
        node=options.node,
        command=command,
        environment=surroundings(pair) | notes,
        sha256=hashes,
    )


def _without_files(arguments: Sequence[str]) -> list[str]:
    """The arguments less those that name files to write, which a replay would write over."""
    pairs = zip(["", *arguments], arguments, strict=False)
    return [word for before, word in pairs if before not in REPORTS and word.partition("=")[0] not in REPORTS]


REPORTS = ("--json", "--html")


def _progress(is_large: bool) -> Any:
    """Gives back what the last stage made of a large model and freed; tells on a terminal what is done next."""
    from jax_transformer.runtime.allocator import trim

    def progress(what: str) -> None:
        if is_large:
            gc.collect()  # the graphs of PyTorch's gradients have cycles
            trim()
        if sys.stderr.isatty():
            print(f"\r\033[K{what} …", end="\r", file=sys.stderr, flush=True)

    return progress


def _write(report: Report, options: ParityOptions) -> None:
    text = report.to_json()
    if options.json is not None:
        write_lines(options.json, text.splitlines())
    if options.html is not None:
        from pathlib import Path

        from jax_transformer.pages.page import write_page
        from jax_transformer.pages.parity import render

        write_page(Path(options.html), render(json.loads(text)))
