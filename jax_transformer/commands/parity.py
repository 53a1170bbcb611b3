"""jax-transformer parity MODEL [options]: is a model the same function as a PyTorch one, and if not, where and why?"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from jax_transformer.commands.parallel_text import check_writable, write_lines
from jax_transformer.commands.parity_options import ParityOptions, ProgramOptions, check_proof, check_verification
from jax_transformer.commands.parsing import parsed
from jax_transformer.commands.user_modules import load_factory
from jax_transformer.config.parallel import MeshConfig
from jax_transformer.runtime.json_text import indented_json

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from jax_transformer.comparison.report.report import Report
    from jax_transformer.parallel.mesh import AnyMesh
    from jax_transformer.parity.sides.options import Side
    from jax_transformer.proof import Certificate

REPORTS = ("--json", "--html")
FROZEN = ".frozen"
"""The end of the name of a frozen reference."""
WRITTEN = ("--certificate", "--witness", "--json")


def parity(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer parity ARGUMENTS`; returns the exit code.

    Raises:
      ValueError: the sides can't be compared; a file can't be read or written.
    """
    options = parsed(ParityOptions, arguments, "parity")
    if options.verify is not None:
        return _verify(options)
    _check(options)
    if options.draft_map is not None:
        return _draft_map(options)
    if options.prove:
        return _prove(options, arguments)
    report = _compare(options, proves="--no-prove" not in arguments)
    if options.diff is None and options.inputs is None and options.node is None and not _has_frozen(options):
        report = report.with_replays(f"jax-transformer parity {shlex.join(_without(arguments, REPORTS))}")
    report.show(verbose=options.verbose)
    if options.json is not None:
        write_lines(options.json, report.to_json().splitlines())
    if options.html is not None:
        report.to_html(options.html)
    return report.exit_code


def _check(options: ParityOptions) -> None:
    """Raises ValueError for options that contradict one another, and for reports that couldn't be written."""
    for name in ("certificate", "witness"):
        if getattr(options, name) is not None and not options.prove:
            raise ValueError(f"--{name}: expected --prove, whose {name} it names")
    if options.prove:
        check_proof(options)
    if options.diff is not None and (options.model or options.reference or options.candidate):
        raise ValueError("--diff compares two files: expected no model, --reference or --candidate")
    if options.diff is not None and options.programs != ProgramOptions():
        raise ValueError("--diff compares two files: expected no --loss, --optimizer or --decode")
    if options.diff is not None and not all(path.endswith(".npz") for path in options.diff):
        raise ValueError(f"--diff: expected two .npz files of named arrays; received {' '.join(options.diff)}")
    if options.inputs is not None and (options.model or not (options.candidate and options.reference)):
        raise ValueError("--inputs: expected --candidate and --reference, and no model")
    if not (options.diff or options.model or options.reference or options.draft_map):
        raise ValueError(
            "parity: expected a model directory or a checkpoint, --reference or --diff; received none of them"
        )
    for path in (options.json, options.html, options.draft_map, options.certificate, options.witness):
        if path is not None:
            check_writable(path)


def _prove(options: ParityOptions, arguments: Sequence[str]) -> int:
    """Proves the programs of the options, prints the certificate and writes it; returns the exit code."""
    certificate = dataclasses.replace(_certificate(options, options.inputs), command=_without(arguments, WRITTEN))
    print("\n".join(certificate.lines(verbose=options.verbose)))
    if options.certificate is not None:
        write_lines(options.certificate, certificate.to_json().splitlines())
    if options.json is not None:
        from jax_transformer.comparison.report.summary import summary_of

        write_lines(options.json, indented_json(summary_of(certificate)).splitlines())
    if options.witness is not None:
        _write_witness(options.witness, certificate)
    return certificate.exit_code


def _write_witness(path: str, certificate: Certificate) -> None:
    if certificate.witness is not None:
        certificate.witness.save(path)
        print(f"{path}: {certificate.witness.facts['weights']}, which show the difference in float64")
    elif certificate.verdict == "refuted":
        print(f"{path}: not written: no weights were found that show the difference in float64")
    else:
        print(f"{path}: not written: a witness is of two functions, and the verdict is {certificate.verdict}")


def _verify(options: ParityOptions) -> int:
    """Proves the claims of a certificate again for the programs of the command, and compares; returns the exit
    code. The file may be a stranger's: nothing that it names is imported or run."""
    from jax_transformer.proof.certificate import NOT_COMPARED, UNLOCATED, Certificate
    from jax_transformer.runtime.files import read_text
    from jax_transformer.runtime.limits import CERTIFICATE_BYTES

    assert options.verify is not None
    path = options.verify
    check_verification(options)
    try:
        text = read_text(path, CERTIFICATE_BYTES)
    except UnicodeDecodeError:
        raise ValueError(f"{path}: expected a certificate, JSON in UTF-8; received other bytes") from None
    before = Certificate.from_json(text, path)
    now = _certificate(*_as_claimed(options, before))
    different = before.changes(now)
    if different:
        print("\n".join(f"  ✗ {line}" for line in different))
        print(f"{path}: does not hold: {len(different)} differences{_other_versions(before, now)}")
        return UNLOCATED
    print("\n".join(now.lines(verbose=options.verbose)))
    print(f"{path}: holds: {now.verdict}, the same programs at the same points. Not compared: {NOT_COMPARED}")
    return now.exit_code


def _as_claimed(options: ParityOptions, claimed: Certificate) -> tuple[ParityOptions, Any]:
    """Returns the options with a certificate's stages, seed and allowed differences, and the inputs: those of the
    command, or the certificate's own.

    Raises:
      ValueError: the command names no programs, or programs of another kind than the certificate's.
    """
    path = str(options.verify)
    if not (options.model or options.reference):
        raise ValueError(
            f"--verify {path}: expected the programs, named as for --prove: MODEL and --reference, or "
            "--candidate and --reference. Nothing that a certificate names is run"
        )
    if claimed.kind == "programs" and (options.model or not (options.candidate and options.reference)):
        raise ValueError(
            f"{path}: expected --candidate and --reference, and no model, with a certificate of two programs on inputs"
        )
    if claimed.kind == "models" and options.inputs is not None:
        raise ValueError(f"{path}: expected no --inputs with a certificate of models: its ids follow from its seed")
    kinds = dict.fromkeys(stage.name.split(" ")[0] for stage in claimed.stages)
    stages = ",".join("steps" if name == "step" else name for name in kinds)
    given = dataclasses.replace(options, stages=stages, seed=claimed.seed, allow=",".join(claimed.allowed) or None)
    has_inputs = claimed.kind == "models" or options.inputs is not None
    return given, options.inputs if has_inputs else claimed.arrays(path)


def _other_versions(before: Certificate, now: Certificate) -> str:
    """Names the versions of a certificate that differ from the installed ones; "" if none does."""
    here = {name: version for name, version in now.environment.items() if before.environment.get(name) != version}
    listed = ", ".join(f"{name} {version}" for name, version in here.items())
    return f". It was made by other versions than are here: {listed}" if listed else ""


def _certificate(options: ParityOptions, inputs: Any) -> Certificate:
    """Calls `prove` with the programs of the options, on these inputs."""
    from jax_transformer.parity.proofs.api import prove

    stages = None if options.stages is None else _split(options.stages)
    shared = {**_shared_options(options), "inputs": inputs, "mesh": _traced_mesh(options.parallel)}
    return prove(*_sides(options), stages=stages, **shared)


def _without(arguments: Sequence[str], files: Collection[str]) -> tuple[str, ...]:
    """Returns the arguments without some options that name files, which a repetition would overwrite."""
    pairs = zip(["", *arguments], arguments, strict=False)
    return tuple(word for before, word in pairs if before not in files and word.partition("=")[0] not in files)


def _compare(options: ParityOptions, *, proves: bool) -> Report:
    """Calls `compare` with the sides of the options.

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
        dtypes=None if options.dtypes is None else _split(options.dtypes),
        node=options.node,
        truth=options.truth,
        tolerance=options.tolerance,
        mesh=_mesh(options.parallel),
        decoding=options.programs.decoding(),
        **options.numbers.changes(),
        **_shared_options(options),
    )


def _shared_options(options: ParityOptions) -> dict[str, Any]:
    """Returns the options that proofs and comparisons share."""
    return {
        "model": options.model or None if options.candidate else None,
        "inputs": options.inputs,
        "names": options.map,
        "seed": options.seed,
        "allow": None if options.allow is None else _split(options.allow),
        "dialect": options.dialect,
        "train": options.programs.train,
        "progress": _print_progress,
        **options.checkpoint.hints(),
    }


def _stages(options: ParityOptions, *, proves: bool) -> list[str] | None:
    """Returns the stages to compare; None: all of the usual ones."""
    if options.stages is not None:
        return _split(options.stages)
    if _has_frozen(options) or not proves or options.inputs is not None or options.node is not None:
        return None
    from jax_transformer.parity.run_results import STAGES

    return [*STAGES, "proof"]


def _sides(options: ParityOptions) -> tuple[Side, Side]:
    """Returns the candidate and the reference, with their programs."""
    from jax_transformer.frozen.record import Frozen
    from jax_transformer.parity.sides.options import Side

    function = _loaded(options.candidate, "--candidate") if options.candidate else None
    is_frozen = isinstance(function, Frozen) or (options.candidate or "").endswith(FROZEN)
    if options.candidate and not (callable(function) or isinstance(function, Side) or is_frozen):
        kind = type(function).__name__
        raise ValueError(
            f"--candidate {options.candidate}: expected a function (params, inputs) → (logits, trace); received {kind}"
        )
    module = _module(options.reference) if options.reference else None
    candidate, reference = (options.model, module) if options.model else (module, None)
    if function is not None:
        candidate, reference = function, module
    ours, theirs = options.programs.by_side()
    for programs, device in ((ours, options.numbers.candidate_device), (theirs, options.numbers.reference_device)):
        programs |= {} if device is None else {"device": device}
    return _side(candidate, options.candidate, **ours), _side(reference, options.reference, **theirs)


def _side(program: Any, name: str | None, **programs: Any) -> Side:
    """Returns a side; one that a factory returned, with its weights."""
    from jax_transformer.parity.sides.options import as_side

    return dataclasses.replace(as_side(program), name=name, **programs)


def _loaded(name: str, option: str) -> Any:
    """Returns what a factory returns, or a frozen reference's path as it is."""
    return name if name.endswith(FROZEN) else load_factory(name, option)


def _has_frozen(options: ParityOptions) -> bool:
    return any(name is not None and name.endswith(FROZEN) for name in (options.candidate, options.reference))


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
    """Calls a factory, and returns its PyTorch module, or JAX program with weights. Raises ValueError if the result is
    neither, or a module in training mode."""
    from jax_transformer.comparison.capture import check_module
    from jax_transformer.parity.sides.options import as_side

    module = _loaded(name, "--reference")
    side = as_side(module)
    if side.kind not in ("weighted", "frozen"):
        check_module(side.program, name)
    return module
