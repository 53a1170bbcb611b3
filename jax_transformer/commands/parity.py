"""jax-transformer parity MODEL [options]: is a model the same function as a PyTorch one, and if not, where and why?"""

from __future__ import annotations

import dataclasses
import inspect
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from jax_transformer.commands.checkpoint_options import CheckpointOptions
from jax_transformer.commands.decode_options import STOPPING_ARGUMENT
from jax_transformer.commands.parallel_text import check_writable, write_lines
from jax_transformer.commands.user_modules import load_factory, load_named
from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.config.parallel import MeshConfig
from jax_transformer.parity.rules import SEARCH_FIELDS

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jax_transformer.parallel.mesh import AnyMesh
    from jax_transformer.parity.report.report import Report
    from jax_transformer.proof import Certificate

FILE = tyro.conf.arg(metavar="FILE")
REPORTS = ("--json", "--html")
NAME = tyro.conf.arg(metavar="MODULE:NAME")


@dataclass(frozen=True)
class ProgramOptions:
    """Names programs of yours that run in place of the built-in ones in the stages loss, gradients, step, trajectory
    and decode."""

    train: Annotated[str | None, FILE] = None
    """The rule that --loss and --optimizer should follow: a config.yaml, or the directory of a run. Default: that of
    the run that MODEL is."""
    loss: Annotated[str | None, NAME] = None
    """A PyTorch loss of yours: (logits [B, T, V], labels [B, T]) → a scalar."""
    optimizer: Annotated[str | None, NAME] = None
    """A PyTorch optimizer of yours: a function module → an object with zero_grad() and step(). Its step does all that
    follows loss.backward(): clipping, the optimizer's step, the scheduler's."""
    decode: Annotated[str | None, NAME] = None
    """A PyTorch decoder of yours: (module, source_ids, start_id=, eos_id=, max_new_tokens=) → ids [B, T] without the
    start token, or (ids, scores [B])."""
    jax_loss: Annotated[str | None, NAME] = None
    """A JAX loss of yours on the model's side: (logits, labels) → losses [B, T]."""
    jax_optimizer: Annotated[str | None, NAME] = None
    """An optax.GradientTransformation of yours on the model's side, or a function without arguments that returns
    one."""
    beam_size: int | None = None
    """With --decode: the number of beams that it searches with. (Default: 1)"""
    max_new_tokens: int | None = None
    """With --decode: the most tokens that it decodes. (Default: 12)"""
    length_penalty: float | None = None
    """With --decode: the exponent of its length penalty. (Default: 1)"""
    semantics: Literal["huggingface", "gnmt"] | None = None
    """With --decode: its length penalty, n^p or ((5 + n) / 6)^p. (Default: huggingface)"""
    early_stopping: Annotated[bool | Literal["never"] | None, STOPPING_ARGUMENT] = None
    """With --decode: when a sentence is done. (Default: false)"""

    def options(self) -> dict[str, Any]:
        """Returns the options as `compare` takes them. Raises ValueError for a name that can't be found."""
        search = {name: getattr(self, name) for name in SEARCH_FIELDS if getattr(self, name) is not None}
        programs = {
            name: load_named(getattr(self, name), f"--{name.replace('_', '-')}")
            for name in ("loss", "optimizer", "decode", "jax_loss", "jax_optimizer")
        }
        if inspect.isfunction(programs["jax_optimizer"]):
            programs["jax_optimizer"] = load_factory(str(self.jax_optimizer), "--jax-optimizer")
        return {**programs, "train": self.train, "decoding": DecodingConfig(**search) if search else None}


@dataclass(frozen=True)
class ParityOptions:
    """Compare a model with one in PyTorch on the same weights and inputs, and name where and why they differ.

    Without --reference, the reference is the program that the checkpoint comes from: the published one, or
    transformers. Exit codes: 0 the same; 1 diverged, every cause named; 2 a mistake in the call; 3 inconclusive;
    4 diverged for an unknown reason.
    """

    model: tyro.conf.Positional[str] = ""
    """A model directory, a run directory, or a checkpoint: a torch file, or a directory of transformers; or the name of
    a model on the Hub. May be left out with --reference: the module's own weights are ported. If it is a model of
    transformers, its config tells what options would."""
    dialect: str | None = None
    """The dialect of the checkpoint's names, whose program is the reference. Needed if several fit."""
    reference: str | None = None
    """A PyTorch module of yours, as package.module:factory: a function without arguments that returns the module in
    evaluation mode. Its forward takes ids of source and target, [B, T] or [T, B], in the order that the names of its
    arguments tell (src, tgt, trg, input_ids, …; else source first), and returns logits, log-probabilities or
    probabilities, alone or in a tuple, dict or object. Write an adapter for others, such as one that takes masks."""
    candidate: str | None = None
    """A JAX function of yours that replaces the model, as package.module:factory: a function without arguments that
    returns (params, inputs) → (logits, trace). It receives the model's parameters and a dict of source_ids and
    decoder_input_ids."""
    inputs: Annotated[str | None, FILE] = None
    """With --candidate and --reference and no model: an .npz with the arguments of the module's forward, by name. The
    function receives them too, and the module's state_dict as its parameters."""
    map: Annotated[str | None, FILE] = None
    """A YAML file that maps the reference's names to the model's, for names of no dialect."""
    draft_map: Annotated[str | None, FILE] = None
    """Write a draft of such a map, guessed from shapes and order, for you to edit; compare nothing."""
    stages: str | None = None
    """Comma-separated stages to compare. Default: all of
    weights,inputs,masks,forward,loss,gradients,step,trajectory,decode; with --inputs, of inputs,forward,gradients.
    If asked for, also resume: each side continues the training that the other began; and witness: CTranslate2 scores
    the same sentences. With --prove, of forward,loss,gradients,steps; with --inputs, of forward,gradients."""
    prove: bool = False
    """Prove that both sides are one function for all weights, and compare nothing in floats. Exit codes: 0 proven;
    1 refuted, at an operation that is named; 3 unknown; 4 refuted. Without it, comparisons end with a proof of forward,
    loss and gradients; --no-prove leaves that out."""
    certificate: Annotated[str | None, FILE] = None
    """With --prove: write the certificate, as JSON."""
    verify: Annotated[str | None, FILE] = None
    """Make a certificate's proof again, and check that the programs and the verdict are the same."""
    dtypes: str = "float64,float32,bfloat16"
    """Comma-separated precisions. float64 decides; the others are judged by their distance from it."""
    node: str | None = None
    """Compare this activation alone, in float64."""
    seed: int = 0
    """Seed of the inputs and random weights."""
    allow: str | None = None
    """Comma-separated differences that don't count: fully-masked, what an attention gives a query that sees no key;
    inner-padding, what depends on padding before a token."""
    verbose: bool = False
    """Print passing rows, versions and checksums, too."""
    json: Annotated[str | None, FILE] = None
    """Write the whole report as JSON."""
    html: Annotated[str | None, FILE] = None
    """Write the whole report as an HTML page."""
    diff: Annotated[tuple[str, str] | None, tyro.conf.arg(metavar="CANDIDATE REFERENCE")] = None
    """Compare two .npz files of named arrays, in execution order, instead of models."""
    truth: str | None = None
    """With --diff: an .npz of the reference's arrays in float64, computed from weights and inputs rounded to the lower
    precision. Lower precision is judged by it."""
    tolerance: float | None = None
    """With --diff: the largest relative RMS of the difference that passes. Default: the dtype's gate, 1e-12 in
    float64."""
    programs: tyro.conf.OmitArgPrefixes[ProgramOptions] = field(default_factory=ProgramOptions)
    checkpoint: tyro.conf.OmitArgPrefixes[CheckpointOptions] = field(default_factory=CheckpointOptions)
    parallel: MeshConfig = field(default=MeshConfig(data=1))


def parity(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer parity ARGUMENTS`; returns the exit code.

    Raises:
      ValueError: the sides can't be compared; a file can't be read or written.
    """
    options = tyro.cli(ParityOptions, args=list(arguments), prog="jax-transformer parity")
    if options.verify is not None:
        return _verify(options.verify, arguments)
    _check(options)
    if options.draft_map is not None:
        return _draft_map(options)
    if options.prove:
        return _prove(options, arguments)
    report = _compare(options, proves="--no-prove" not in arguments)
    if options.diff is None and options.inputs is None and options.node is None:
        report = report.with_replays(f"jax-transformer parity {shlex.join(_without_files(arguments))}")
    report.show(verbose=options.verbose)
    if options.json is not None:
        write_lines(options.json, report.to_json().splitlines())
    if options.html is not None:
        report.to_html(options.html)
    return report.exit_code


def _check(options: ParityOptions) -> None:
    """Raises ValueError for options that contradict one another, and for reports that couldn't be written."""
    if options.certificate is not None and not options.prove:
        raise ValueError("--certificate: expected --prove, whose certificate it names, beside it")
    if options.prove and (options.diff or options.json or options.html or options.node or options.draft_map):
        raise ValueError(
            "--prove compares nothing in floats: expected no --diff, --json, --html, --node or --draft-map"
        )
    if options.prove and options.programs != ProgramOptions():
        raise ValueError("--prove takes the built-in loss and optimizer: expected no --loss, --optimizer or --decode")
    if options.diff is not None and (options.model or options.reference or options.candidate):
        raise ValueError("--diff compares two files: expected no model, --reference or --candidate beside it")
    if options.diff is not None and options.programs != ProgramOptions():
        raise ValueError("--diff compares two files: expected no --loss, --optimizer or --decode beside it")
    if options.diff is not None and not all(path.endswith(".npz") for path in options.diff):
        raise ValueError(f"--diff: expected two .npz files of named arrays; received {' '.join(options.diff)}")
    if options.inputs is not None and (options.model or not (options.candidate and options.reference)):
        raise ValueError("--inputs: expected --candidate and --reference beside it, and no model")
    if not (options.diff or options.model or options.reference or options.draft_map):
        raise ValueError(
            "parity: expected a model directory or a checkpoint, --reference or --diff; received none of them"
        )
    for path in (options.json, options.html, options.draft_map, options.certificate):
        if path is not None:
            check_writable(path)


def _prove(options: ParityOptions, arguments: Sequence[str]) -> int:
    """Proves what the options name, prints the certificate and writes it; returns the exit code."""
    certificate = dataclasses.replace(_certificate(options), command=_command(arguments))
    print(certificate)
    if options.certificate is not None:
        write_lines(options.certificate, certificate.to_json().splitlines())
    return certificate.exit_code


def _verify(path: str, arguments: Sequence[str]) -> int:
    """Makes a certificate again by its command; returns the exit code."""
    from jax_transformer.proof.certificate import UNLOCATED, Certificate, changes
    from jax_transformer.runtime.limits import JSON_BYTES, read_text

    if len(arguments) != (1 if arguments[0].startswith("--verify=") else 2):
        raise ValueError("--verify: expected a certificate, and no other option: the certificate has its command")
    before = Certificate.from_json(read_text(path, JSON_BYTES), path)
    if not before.command:
        raise ValueError(f"{path}: expected a certificate of the command; a program of Python made this one")
    print(f"jax-transformer parity {shlex.join(before.command)}")
    options = tyro.cli(ParityOptions, args=list(before.command), prog="jax-transformer parity")
    _check(options)
    now = _certificate(options)
    different = changes(before, now)
    for line in different:
        print(f"  ✗ {line}")
    if different:
        print(f"{path}: does not hold: {len(different)} differences")
        return UNLOCATED
    print(f"{path}: holds: {now.verdict}, the same programs at the same points")
    return now.exit_code


def _certificate(options: ParityOptions) -> Certificate:
    """Calls `prove` with what the options name."""
    from jax_transformer.parity.proving import prove

    stages = None if options.stages is None else _split(options.stages)
    candidate, reference = _sides(options)
    return prove(candidate, reference, stages=stages, mesh=_traced_mesh(options.parallel), **_what(options))


def _command(arguments: Sequence[str]) -> tuple[str, ...]:
    """Returns the arguments without the certificate's file."""
    pairs = zip(["", *arguments], arguments, strict=False)
    file = "--certificate"
    return tuple(word for before, word in pairs if before != file and word.partition("=")[0] != file)


def _compare(options: ParityOptions, *, proves: bool) -> Report:
    """Calls `compare` with what the options name.

    Args:
      proves: whether a proof ends the comparison of models, unless other stages are named.
    """
    from jax_transformer.parity.api import compare

    if options.diff is not None:
        return compare(*options.diff, truth=options.truth, tolerance=options.tolerance)
    candidate, reference = _sides(options)
    return compare(
        candidate,
        reference,
        stages=_stages(options, proves=proves),
        dtypes=_split(options.dtypes),
        node=options.node,
        allow=None if options.allow is None else _split(options.allow),
        truth=options.truth,
        tolerance=options.tolerance,
        mesh=_mesh(options.parallel),
        **options.programs.options(),
        **_what(options),
    )


def _what(options: ParityOptions) -> dict[str, Any]:
    """Returns what proofs and comparisons are told alike."""
    return {
        "model": options.model or None if options.candidate else None,
        "inputs": options.inputs,
        "names": options.map,
        "seed": options.seed,
        "dialect": options.dialect,
        "candidate_name": options.candidate,
        "reference_name": options.reference,
        "progress": _print_progress,
        **options.checkpoint.hints(),
    }


def _stages(options: ParityOptions, *, proves: bool) -> list[str] | None:
    """Returns the stages to compare; None: all of the usual ones."""
    if options.stages is not None:
        return _split(options.stages)
    if not proves or options.inputs is not None or options.node is not None:
        return None
    from jax_transformer.parity.run_results import STAGES

    return [*STAGES, "proof"]


def _sides(options: ParityOptions) -> tuple[Any, Any]:
    """Returns the candidate and the reference."""
    function = load_factory(options.candidate, "--candidate") if options.candidate else None
    if options.candidate and not callable(function):
        kind = type(function).__name__
        raise ValueError(
            f"--candidate {options.candidate}: expected a function (params, inputs) → (logits, trace); received {kind}"
        )
    module = _module(options.reference) if options.reference else None
    candidate, reference = (options.model, module) if options.model else (module, None)
    if function is not None:
        return function, module
    return candidate, reference


def _mesh(config: MeshConfig) -> Mesh | None:
    """Returns the devices that the model computes on. None: one."""
    if config == MeshConfig(data=1):
        return None
    from jax_transformer.parallel.mesh import make_mesh

    return make_mesh(config)


def _traced_mesh(config: MeshConfig) -> AnyMesh | None:
    """Returns the devices that the model is traced for, which needn't be there. None: one."""
    if config == MeshConfig(data=1) or -1 in (config.data, config.fsdp, config.tensor):
        return _mesh(config)
    from jax_transformer.parallel.mesh import make_abstract_mesh

    return make_abstract_mesh(config)


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _without_files(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments without the reports, which a replay would overwrite."""
    pairs = zip(["", *arguments], arguments, strict=False)
    return [word for before, word in pairs if before not in REPORTS and word.partition("=")[0] not in REPORTS]


def _print_progress(work: str) -> None:
    """Shows on a terminal which piece of work begins."""
    if sys.stderr.isatty():
        print(f"\r\033[K{work} …", end="\r", file=sys.stderr, flush=True)


def _draft_map(options: ParityOptions) -> int:
    """Writes a draft of a map of names; returns the exit code."""
    if not (options.model and options.reference and options.draft_map):
        raise ValueError(
            "--draft-map: expected a model, whose names are mapped to, and --reference, whose names are mapped"
        )
    from jax_transformer.parity.api import draft_map

    hints = options.checkpoint.hints()
    draft = draft_map(options.model, _module(options.reference), dialect=options.dialect, **hints)
    write_lines(options.draft_map, draft.splitlines())
    print(
        f"{options.draft_map}: a draft of a map for {options.reference}, guessed from shapes, order and words. Read it "
        "and edit it: unsure lines are commented out. Then pass it with --map."
    )
    return 0


def _module(name: str) -> Any:
    """Returns the module that a factory makes. Raises ValueError if it isn't one in evaluation mode."""
    from jax_transformer.parity.pairing import check_module

    module = load_factory(name, "--reference")
    check_module(module, name)
    return module
