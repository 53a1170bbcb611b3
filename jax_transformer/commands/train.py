"""jax-transformer train [PRESET] [options]."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jax_transformer.buckets import joined, local_file
from jax_transformer.commands.model_options import parse_run
from jax_transformer.commands.options import options_of
from jax_transformer.commands.parsing import read
from jax_transformer.commands.run_options import (
    DEFAULT_PRESET,
    first_config,
    take_flag,
    take_option,
    take_preset,
    take_processes,
)
from jax_transformer.commands.user_modules import load_factory
from jax_transformer.commands.verbosity import is_quiet
from jax_transformer.config.parallel import ParallelConfig, ProcessConfig
from jax_transformer.config.presets import PRESETS
from jax_transformer.config.run import RunConfig
from jax_transformer.runtime.allocator import keep_freed_memory

if TYPE_CHECKING:
    from jax_transformer.parallel.processes import Processes
    from jax_transformer.training.callbacks import Callback

SCREEN = f"""usage: jax-transformer train [PRESET] [options]
       jax-transformer train --resume RUN

Train a model. Without a preset: {DEFAULT_PRESET}, on the embedded phrasebook. `jax-transformer presets` lists others.

text
  --data.train FILE…            two parallel files, or a table: .tsv, .csv, .jsonl, .parquet; .gz too
  --data.valid FILE…            the same for validation, or --data.valid-pairs N taken out of the training pairs
  --data.dataset NAME           a Hugging Face dataset instead
  --data.tokenizer KIND         bpe, words, …; --data.vocab-size N
  --data.batch-tokens N         size of a batch: rows times the padded length
model
  --init-from MODEL             fine-tune a model directory, a run, or a name on the Hub
  --model.d-model N             width; --model.num-heads, --model.d-ff, --model.num-encoder-layers, …
  --model.dropout-rate RATE
  --model.compute-dtype DTYPE   bfloat16 for GPUs and TPUs
training
  --train.max-steps N           or --train.max-epochs N
  --train.learning-rate RATE    the peak; --train.warmup-steps N, --train.schedule NAME, --train.optimizer NAME
  --train.evaluate-every N      steps; --train.patience N stops early, --train.average-checkpoints N
  --train.seed N
run
  --run-dir DIR                 where it is written; runs/PRESET unless given; gs://, s3:// and hf:// too
  --config FILE                 YAML with any of these fields; options override it
  --resume RUN                  go on with a stopped run, bit for bit
  --live                        a page that shows the run from its first step; its path is printed
  --dry-run                     print config, batches and memory, and train nothing
  --parallel.data N             devices; --parallel.fsdp N, --parallel.tensor N

--help-all lists every option."""

TRAIN = (
    "--config",
    "--resume",
    "--from-step",
    "--dry-run",
    "--live",
    "--profile",
    "--callbacks",
    "--help",
    "--help-all",
)
"""Options of `train` that are no options of a run."""

TRAIN_HELP = f"""Train a model.

usage: jax-transformer train [PRESET] [--config FILE] [--dry-run] [--live] [--profile] [options]
       jax-transformer train --resume RUN [--from-step N] [--live] [--profile] [--callbacks …] [--parallel.* options]
       jax-transformer launch --processes N -- train …

PRESET is one of {", ".join(PRESETS)}; without one, {DEFAULT_PRESET}.
--config FILE.yaml sets the fields it names; options override it.
--resume RUN continues an interrupted run from its latest checkpoint, on the same devices or different ones.
--from-step N continues it from the checkpoint of step N and deletes later ones.
--dry-run prints the config, parameters, batches and memory without training.
--live keeps the run's report.html up to date from the first step on, and the page reloads itself. `jax-transformer
report RUN --watch` does the same for a run that trains elsewhere.
--profile writes a trace of some steps to the run's profile/.
--callbacks package.module:factory passes the run's records to what your function returns: a
jax_transformer.training.Callback, or a list of them. Not kept in config.yaml: name it again to resume.
--parallel.coordinator HOST:PORT --parallel.processes N --parallel.process-id K make this process K of N, of which
process 0 runs on HOST. On TPU pods, under SLURM, Open MPI and Kubernetes they are found; --parallel.processes 1 doesn't
look for them."""


@dataclass(frozen=True, kw_only=True)
class TrainCall:
    """Holds the parsed command line of `jax-transformer train`."""

    config: RunConfig
    name: str
    resume: bool
    from_step: int | None
    """The checkpoint to resume from. None: the latest."""
    parallel: ParallelConfig | None
    """The mesh to resume on. None: the run's own."""
    processes: ProcessConfig
    callbacks: str | None
    """The user's function that makes callbacks, as package.module:factory."""
    dry_run: bool
    profile: bool
    live: bool


def parse(arguments: Sequence[str]) -> TrainCall:
    """Parses the arguments of `jax-transformer train`.

    Raises:
      ValueError: a mistake in them.
      SystemExit: --help.
    """
    arguments = ["--help" if argument == "--help-all" else argument for argument in arguments]
    config_file, arguments = take_option(arguments, "--config")
    resumed, arguments = take_option(arguments, "--resume")
    from_step, arguments = take_option(arguments, "--from-step")
    dry_run, arguments = take_flag(arguments, "--dry-run")
    profile, arguments = take_flag(arguments, "--profile")
    live, arguments = take_flag(arguments, "--live")
    callbacks, arguments = take_option(arguments, "--callbacks")
    processes, arguments = take_processes(arguments)
    preset, arguments = take_preset(arguments)
    parallel = None
    if from_step is not None and (resumed is None or not from_step.isdecimal()):
        what = "a step's number" if resumed is not None else "--resume RUN before it"
        raise ValueError(f"--from-step: expected {what}; received --from-step {from_step}")
    if resumed is not None:
        others = [preset, config_file and f"--config {config_file}", "--dry-run" if dry_run else None]
        parallel = _parallel_of_resumed(resumed, [other for other in others if other], arguments)
        config = RunConfig(run_dir=resumed)
    else:
        config = first_config(preset, config_file)
        config, _ = parse_run(config, arguments, "train", TRAIN_HELP, already=TRAIN)
    return TrainCall(
        config=config,
        name=preset or DEFAULT_PRESET,
        resume=resumed is not None,
        from_step=None if from_step is None else int(from_step),
        parallel=parallel,
        processes=processes,
        callbacks=callbacks,
        dry_run=dry_run,
        profile=profile,
        live=live,
    )


def train(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer train ARGUMENTS`; returns the exit code, which is 130 after Ctrl-C."""
    if {"-h", "--help"} & {*arguments}:
        print(SCREEN)
        return 0
    call = parse(arguments)
    os.environ.setdefault("USE_TORCH", "0")  # read by datasets, which else imports an installed PyTorch for each stream
    from jax_transformer.parallel.processes import join_processes

    processes = join_processes(call.processes)
    with _silent_unless(processes.is_first), processes.together():
        return _described(call, processes) if call.dry_run else _trained(call, processes)


@contextlib.contextmanager
def _silent_unless(prints: bool) -> Iterator[None]:
    if prints:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


@dataclass(frozen=True, kw_only=True)
class _ResumeOptions:
    parallel: ParallelConfig


def _parallel_of_resumed(run: str, others: list[str], arguments: list[str]) -> ParallelConfig | None:
    """Returns the mesh to continue a run on, given the options next to --resume; None: the run's own.

    Raises:
      ValueError: options other than the mesh's.
    """
    if others or any(name.startswith("--") and not name.startswith("--parallel.") for name in arguments):
        raise ValueError(
            "--resume takes no other options than --from-step, --live, --callbacks and --parallel.* (a run continues "
            f"with its own config.yaml); received {' '.join([*others, *arguments])}"
        )
    if not arguments:
        return None
    from jax_transformer.config.files import load_config

    try:
        file = local_file(joined(run, "config.yaml"))
    except FileNotFoundError:
        file = Path(run, "config.yaml")
    own = load_config(file, RunConfig()).parallel if file.exists() else ParallelConfig()
    default = _ResumeOptions(parallel=own)
    options = options_of(_ResumeOptions)
    resumed: _ResumeOptions = read(_ResumeOptions, arguments, "train --resume RUN", options, default=default)
    return resumed.parallel


def _callbacks(call: TrainCall, processes: Processes) -> list[Callback]:
    """Returns the callbacks that the user's function makes, in process 0. Raises ValueError if it can't be used."""
    if call.callbacks is None or not processes.is_first:
        return []
    from jax_transformer.training.journal import check_kinds

    made = load_factory(call.callbacks, "--callbacks")
    callbacks = list(made) if isinstance(made, (list, tuple)) else [made]
    try:
        check_kinds(callbacks)
    except ValueError as error:
        raise ValueError(f"--callbacks {call.callbacks}: {error}") from None
    return callbacks


def _described(call: TrainCall, processes: Processes) -> int:
    from jax_transformer.training.loop import describe_run

    _callbacks(call, processes)
    for line in describe_run(call.config, processes):
        print(line, flush=True)
    return 0


def _trained(call: TrainCall, processes: Processes) -> int:
    keep_freed_memory()
    callbacks = _callbacks(call, processes)
    from jax_transformer.training.interruption import Interrupted
    from jax_transformer.training.loop import train as train_run

    try:
        with _silent_unless(not is_quiet()):
            result = train_run(
                call.config,
                name=call.name,
                resume=call.resume,
                from_step=call.from_step,
                profile=call.profile,
                parallel=call.parallel,
                processes=processes,
                callbacks=callbacks,
                live=call.live,
            )
    except Interrupted as stopped:
        print(stopped)
        return 130
    for sample in result.samples:
        print(f"\n  source      {sample.source}\n  reference   {sample.reference}\n  translation {sample.translation}")
    print()
    for split, scores in result.scores.items():
        print(f"{split}: {scores.summary()}")
    for scores in list(result.scores.values())[-1:]:  # none in pretraining
        print(f"  {scores.bleu_signature}\n  {scores.chrf_signature}")
    programs = f"{result.programs} training programs"
    print(f"{result.seconds:.0f} s, including {result.compile_seconds:.0f} s to compile {programs}")
    if call.profile:
        trace = result.run / "profile"
        print(
            f"trace: {trace} (view it with `xprof` or ui.perfetto.dev)"
            if trace.exists()
            else "trace: none, the run had too few steps"
        )
    made_of = (
        f"step {result.step}" if len(result.steps) == 1 else f"the mean of steps {', '.join(map(str, result.steps))}"
    )
    model = joined(result.place, result.model.name)
    print(f"run:    {result.place}\nmodel:  {model} ({made_of})\nreport: {joined(result.place, result.report.name)}")
    print(f"translate with it: jax-transformer translate {model}")
    return 0
