"""The command: jax-transformer train | average | translate | evaluate | port | report | plot.

Exit codes: 0 done; 2 a mistake of the user's, told in one message; 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from jax_transformer.allocator import keep_freed_memory
from jax_transformer.compilation_cache import use_compilation_cache
from jax_transformer.plot_command import plot
from jax_transformer.port_command import port
from jax_transformer.presets import PRESETS, get_preset
from jax_transformer.run_config import RunConfig

if TYPE_CHECKING:
    from jax_transformer.decoding.decoding_config import DecodingConfig
    from jax_transformer.model_directory import Model

DEFAULT_PRESET = "demo"
TRAIN_HELP = f"""Train a model: jax-transformer train [PRESET] [--config FILE] [--resume RUN] [--dry-run] [--profile] [options]

PRESET is one of {", ".join(PRESETS)}; without one, {DEFAULT_PRESET}. --config FILE.yaml changes what it names, the options change the rest.
--resume RUN goes on with an interrupted run, exactly where its latest checkpoint stood, and takes no other option but --profile.
--dry-run only tells config, parameters, batches and memory. --profile writes a trace of some steps into the run's profile/."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (without the program's name); returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(USAGE)
        return 0
    if name not in COMMANDS:
        return _fail(f"unknown command {name!r}; expected one of {', '.join(COMMANDS)}")
    use_compilation_cache()
    try:
        return COMMANDS[name](arguments[1:])
    except (ValueError, OSError, ImportError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


# --- train


def _train(arguments: list[str]) -> int:
    config_file, arguments = _take_option(arguments, "--config")
    resumed, arguments = _take_option(arguments, "--resume")
    dry_run, arguments = _take_flag(arguments, "--dry-run")
    profile, arguments = _take_flag(arguments, "--profile")
    preset = arguments.pop(0) if arguments and not arguments[0].startswith("-") else None
    if resumed is not None:
        if arguments or preset or config_file or dry_run:
            given = " ".join(
                filter(None, [preset, config_file and f"--config {config_file}", "--dry-run" if dry_run else None, *arguments])
            )
            raise ValueError(f"--resume takes no other option (a run goes on with its own config.yaml); received {given}")
        return _run_training(RunConfig(run_dir=resumed), name="", resume=True, profile=profile)

    config = get_preset(preset or DEFAULT_PRESET)
    if config_file is not None:
        from jax_transformer.config_files import load_config

        config = load_config(config_file, config)
    config = tyro.cli(RunConfig, default=config, args=arguments, prog="jax-transformer train", description=TRAIN_HELP)
    if dry_run:
        from jax_transformer.training.loop import describe_run

        for line in describe_run(config):
            print(line, flush=True)
        return 0
    return _run_training(config, name=preset or DEFAULT_PRESET, resume=False, profile=profile)


def _run_training(config: RunConfig, *, name: str, resume: bool, profile: bool) -> int:
    keep_freed_memory()
    from jax_transformer.training.loop import Interrupted, train

    try:
        result = train(config, name=name, resume=resume, profile=profile)
    except Interrupted as stopped:
        print(stopped)
        return 130
    for sample in result.samples:
        print(f"\n  source      {sample.source}\n  reference   {sample.reference}\n  translation {sample.translation}")
    print()
    for split, scores in result.scores.items():
        print(f"{split}: {scores.summary()}")
    print(f"  {scores.bleu_signature}\n  {scores.chrf_signature}")
    print(f"{result.seconds:.0f} s, of which {result.compile_seconds:.0f} s compiled {result.programs} training programs")
    if profile:
        trace = result.run / "profile"
        print(
            f"trace: {trace} (look at it with `xprof` or ui.perfetto.dev)" if trace.exists() else "trace: none, the run had too few steps"
        )
    made_of = f"step {result.step}" if len(result.steps) == 1 else f"the mean of steps {', '.join(map(str, result.steps))}"
    print(f"run:    {result.run}\nmodel:  {result.model} ({made_of})\nreport: {result.report}")
    print(f"translate with it: jax-transformer translate {result.model}")
    return 0


def _take_option(arguments: list[str], name: str) -> tuple[str | None, list[str]]:
    """The value of `--name VALUE` or `--name=VALUE`, and the arguments without it."""
    for i, argument in enumerate(arguments):
        if argument.startswith(name + "="):
            return argument.removeprefix(name + "="), arguments[:i] + arguments[i + 1 :]
        if argument == name:
            if i + 1 == len(arguments):
                raise ValueError(f"{name} expects a value; received none")
            return arguments[i + 1], arguments[:i] + arguments[i + 2 :]
    return None, arguments


def _take_flag(arguments: list[str], name: str) -> tuple[bool, list[str]]:
    """Whether `name` is among the arguments, and the others."""
    return name in arguments, [argument for argument in arguments if argument != name]


@dataclass(frozen=True)
class AverageOptions:
    """Make a model of the mean of a run's checkpoints."""

    run: tyro.conf.Positional[str]
    """A run directory; the run may be under way."""
    output: str
    """The model directory to write."""
    count: int = 5
    """How many checkpoints; no more are there than train.keep_checkpoints and train.average_checkpoints kept."""
    which: Literal["last", "best"] = "last"


def _average(arguments: list[str]) -> int:
    options = tyro.cli(AverageOptions, args=arguments, prog="jax-transformer average")
    if options.count < 1:
        raise ValueError(f"--count must be at least 1; received {options.count}")
    from jax_transformer.model_directory import save_model
    from jax_transformer.training.kept_model import averaged_model

    model = averaged_model(options.run, options.which, options.count)
    save_model(model, options.output)
    training = model.training or {}
    steps = ", ".join(map(str, training["checkpoints"]))
    print(f"model: {options.output} (the mean of steps {steps}; valid loss {training['valid_loss']:.4f})")
    return 0


# --- translate and evaluate


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How translations are looked for; see DecodingConfig. Without these options, greedily."""

    beam_size: int = 1
    """Hypotheses that are followed side by side."""
    length_penalty: float = 1.0
    """What a hypothesis's score is divided by: its length to this power. Above 0 favours long ones."""
    early_stopping: Literal["false", "true", "never"] = "false"
    """When a sentence is done: true, with beam-size ended hypotheses; never, when none could become better."""
    semantics: Literal["huggingface", "gnmt", "floydhub"] = "huggingface"
    """Whose beam search."""
    no_repeat_ngram: int = 0
    """No sequence of so many tokens twice."""
    max_new_tokens: int | None = None
    """Most tokens of a translation."""
    sampling: bool = False
    """Draw each token by its probability."""
    temperature: float = 1.0
    """Of sampling: below 1, the more probable tokens become more probable."""
    top_k: int = 0
    """Of sampling: only the k most probable tokens; 0 for all."""
    top_p: float = 1.0
    """Of sampling: only the most probable tokens, as few as have this probability together."""
    min_p: float = 0.0
    """Of sampling: only tokens of at least this times the greatest probability."""
    seed: int = 0
    """Of sampling: the same seed draws the same."""

    def decoding(self) -> DecodingConfig:
        """Raises ConfigError for options that can't be meant."""
        from jax_transformer.decoding.decoding_config import DecodingConfig

        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(SearchOptions)}
        stopping: dict[str, bool | Literal["never"]] = {"false": False, "true": True, "never": "never"}
        return DecodingConfig(**given | {"early_stopping": stopping[self.early_stopping]})


@dataclass(frozen=True)
class TranslateOptions(SearchOptions):
    """Translate text, one sentence a line: from a file or standard input to standard output, in order."""

    model: tyro.conf.Positional[str]
    """A model directory, or a run directory with one in it."""
    input: str | None = None
    """A text file, gzipped or not. Without it: standard input; a prompt on a terminal."""
    source_tag: str = ""
    """A token put before every sentence, such as <2de>: tells a multilingual model the target language."""
    rows: int = 64
    """Most sentences decoded at once."""


@dataclass(frozen=True)
class EvaluateOptions(SearchOptions):
    """Translate a text and score it against its reference."""

    model: tyro.conf.Positional[str]
    """A model directory, or a run directory with one in it."""
    source: str
    """A text file, one sentence a line, gzipped or not."""
    target: str
    """The reference translations, line by line."""
    tokenize: Annotated[str, tyro.conf.arg(metavar="13a|none|intl|zh|…")] = "13a"
    """sacreBLEU's tokenizer; none for text that is tokenized already."""
    source_tag: str = ""
    """A token put before every sentence, such as <2de>: tells a multilingual model the target language."""
    rows: int = 64
    """Most sentences decoded at once."""


def _translate(arguments: list[str]) -> int:
    options = tyro.cli(TranslateOptions, args=arguments, prog="jax-transformer translate")
    _check_rows(options.rows)
    decoding = options.decoding()
    from jax_transformer.data.corpus import read_lines
    from jax_transformer.decoding.translation import translate

    lines = None if options.input is None else read_lines(options.input)
    model = _load(options.model, options.source_tag)
    if lines is None and sys.stdin.isatty():
        return _prompt(lambda line: translate(model, [line], decoding, source_tag=options.source_tag)[0])
    lines = _stdin_lines() if lines is None else lines
    with _output_may_close():
        for translation in translate(model, lines, decoding, rows=options.rows, source_tag=options.source_tag):
            print(translation)
    return 0


def _evaluate(arguments: list[str]) -> int:
    options = tyro.cli(EvaluateOptions, args=arguments, prog="jax-transformer evaluate")
    _check_rows(options.rows)
    decoding = options.decoding()
    from sacrebleu.metrics import BLEU

    if options.tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"--tokenize expects one of {', '.join(sorted(BLEU.TOKENIZERS))}; received {options.tokenize!r}")
    from jax_transformer.data.corpus import read_pairs
    from jax_transformer.decoding.translation import translate
    from jax_transformer.training.metrics import score_translations

    pairs = read_pairs((options.source, options.target))
    model = _load(options.model, options.source_tag)
    translations = translate(model, [source for source, _ in pairs], decoding, rows=options.rows, source_tag=options.source_tag)
    scores = score_translations(translations, [target for _, target in pairs], tokenize=options.tokenize)
    with _output_may_close():
        print(f"BLEU        {scores.bleu:.2f}   {scores.bleu_signature}")
        print(f"chrF        {scores.chrf:.2f}   {scores.chrf_signature}")
        print(f"exact match {scores.exact_match:.2f} %")
        print(f"sentences   {scores.sentences}")
    return 0


def _load(path: str, source_tag: str) -> Model:
    """The model; says so where it was trained with tags and none is given."""
    from jax_transformer.model_directory import load_model

    model = load_model(path)
    tags = model.source_tokenizer.tags if model.source_tokenizer else ()
    if tags and not source_tag:
        print(f"note: this model knows the source tags {', '.join(tags)}; none is given (--source-tag)", file=sys.stderr)
    return model


def _check_rows(rows: int) -> None:
    if rows < 1:
        raise ValueError(f"--rows must be at least 1; received {rows}")


def _stdin_lines() -> list[str]:
    """Standard input as lines; the last one may lack its newline."""
    from jax_transformer.data.corpus import split_lines

    return split_lines(sys.stdin.buffer.read(), "standard input")


def _prompt(translate_line: Callable[[str], str]) -> int:
    """Translates line after line as they are typed."""
    print("One sentence a line; Ctrl-D ends.", file=sys.stderr)
    while True:
        try:
            line = input("> ")
        except EOFError:
            print(file=sys.stderr)
            return 0
        try:
            print(translate_line(line))
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)


@contextlib.contextmanager
def _output_may_close() -> Iterator[None]:
    """A reader that has seen enough (`| head`) ends the output without an error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stderr.close()  # or Python reports the pipe once more on its way out


# --- report


@dataclass(frozen=True)
class ReportOptions:
    """Write RUN/report.html anew from the other files of the run."""

    run: tyro.conf.Positional[str]
    """A run directory."""


def _report(arguments: list[str]) -> int:
    options = tyro.cli(ReportOptions, args=arguments, prog="jax-transformer report")
    from jax_transformer.training.report import write_report

    print(write_report(options.run))
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "average": _average,
    "translate": _translate,
    "evaluate": _evaluate,
    "port": port,
    "report": _report,
    "plot": plot,
}
USAGE = """jax-transformer COMMAND …

  train       train a model; without arguments, the demo on the embedded phrasebook
  average     make a model of the mean of a run's checkpoints
  translate   translate text with a model
  evaluate    score a model on a text with its reference
  port        turn a PyTorch checkpoint into a model directory, and back
  report      write a run's report.html anew
  plot        draw positions, masks, learning rates or smoothed targets

jax-transformer COMMAND --help tells the options."""


if __name__ == "__main__":
    sys.exit(main())
