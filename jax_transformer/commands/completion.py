"""`jax-transformer completion`: the shell completes commands, options and presets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from jax_transformer.commands.average import AverageOptions
from jax_transformer.commands.compile import CompileOptions
from jax_transformer.commands.discover import DiscoverOptions
from jax_transformer.commands.doctor import DoctorOptions
from jax_transformer.commands.evaluate import EvaluateOptions
from jax_transformer.commands.export import ExportOptions
from jax_transformer.commands.forecast import ForecastOptions
from jax_transformer.commands.freeze import FreezeOptions
from jax_transformer.commands.model_options import run_options
from jax_transformer.commands.options import option_names, options_of, taken
from jax_transformer.commands.parity_options import ParityOptions
from jax_transformer.commands.parsing import parsed
from jax_transformer.commands.plot import KINDS
from jax_transformer.commands.port import PortOptions
from jax_transformer.commands.presets import PresetsOptions
from jax_transformer.commands.push import PushOptions
from jax_transformer.commands.report import ReportOptions
from jax_transformer.commands.score import ScoreOptions
from jax_transformer.commands.serve import ServeOptions
from jax_transformer.commands.train import TRAIN
from jax_transformer.commands.transcribe import TranscribeOptions
from jax_transformer.commands.translate import TranslateOptions
from jax_transformer.commands.verbosity import QUIET, VERBOSE
from jax_transformer.commands.verify import VerifyOptions
from jax_transformer.config.presets import PRESETS
from jax_transformer.config.run import RunConfig
from jax_transformer.config.short_names import short_names

PROGRAM = "jax-transformer"


@dataclass(frozen=True)
class CompletionOptions:
    """Print a script that makes a shell complete commands, options and presets, or install it."""

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """The shell."""
    install: bool = False
    """Write the script where the shell looks for it, in your home directory, and say where."""


KINDS_OF_COMMANDS: Mapping[str, type] = {
    "average": AverageOptions,
    "completion": CompletionOptions,
    "discover": DiscoverOptions,
    "doctor": DoctorOptions,
    "evaluate": EvaluateOptions,
    "export": ExportOptions,
    "forecast": ForecastOptions,
    "freeze": FreezeOptions,
    "parity": ParityOptions,
    "port": PortOptions,
    "presets": PresetsOptions,
    "push": PushOptions,
    "report": ReportOptions,
    "score": ScoreOptions,
    "serve": ServeOptions,
    "transcribe": TranscribeOptions,
    "translate": TranslateOptions,
    "verify": VerifyOptions,
}


def completion(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer completion ARGUMENTS`; returns the exit code.

    Raises:
      ValueError: the script can't be written.
    """
    options = parsed(CompletionOptions, arguments, "completion")
    script = SCRIPTS[options.shell](words_of_commands(), values_of_options())
    if not options.install:
        print(script, end="")
        return 0
    file = _place(options.shell)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(script, encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"--install: expected a file that can be written, {file}; received {error.strerror}; without --install the "
            "script is printed"
        ) from None
    print(f"written: {file}")
    if options.shell == "zsh":
        print(f"in ~/.zshrc, before compinit: fpath+=({file.parent})")
    print("open a new shell to use it")
    return 0


def words_of_commands() -> dict[str, list[str]]:
    """Returns what may follow each command, by command."""
    run = sorted(run_options())
    words = {name: [*_choices_of_arguments(kind), *option_names(kind)] for name, kind in KINDS_OF_COMMANDS.items()}
    words |= {
        "train": [*PRESETS, *TRAIN, *run],
        "presets": [*PRESETS, *words["presets"]],
        "compile": [*PRESETS, *option_names(CompileOptions), *run],
        "plot": [*KINDS, *dict.fromkeys(name for kind, _ in KINDS.values() for name in option_names(kind))],
        "launch": ["--processes", "--"],
    }
    words = {name: [*dict.fromkeys([*own, QUIET, VERBOSE])] for name, own in words.items()}
    return {**words, "help": sorted(words)}


def values_of_options() -> dict[str, list[str]]:
    """Returns the values of each option that has few, by option."""
    kinds = [*KINDS_OF_COMMANDS.values(), CompileOptions, *(kind for kind, _ in KINDS.values()), RunConfig]
    options = [one for kind in kinds for one in options_of(kind)]
    found = {one.name: _choices(one.kind) for one in options if one.name.startswith("--") and _choices(one.kind)}
    model = {f"--model.{name.replace('_', '-')}": _choices(taken(kind)) for name, kind in short_names().items()}
    return found | {name: choices for name, choices in model.items() if choices}


def _choices_of_arguments(kind: type) -> list[str]:
    return [choice for one in options_of(kind) if not one.name.startswith("--") for choice in _choices(one.kind)]


def _choices(kind: str) -> list[str]:
    return kind[1:-1].split(",") if kind.startswith("{") else []


def _place(shell: str) -> Path:
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return {
        "bash": data / "bash-completion/completions" / PROGRAM,
        "zsh": data / "zsh/site-functions" / f"_{PROGRAM}",
        "fish": config / "fish/completions" / f"{PROGRAM}.fish",
    }[shell]


def _bash(words: Mapping[str, Sequence[str]], values: Mapping[str, Sequence[str]]) -> str:
    plain = "".join(f'    {name}) words="{" ".join(_without_dashes(known))}" ;;\n' for name, known in words.items())
    options = "".join(f'    {name}) words="{" ".join(_with_dashes(known))}" ;;\n' for name, known in words.items())
    chosen = "".join(f'    {name}) words="{" ".join(known)}" ;;\n' for name, known in values.items())
    return f"""\
# {PROGRAM} completion bash
_jax_transformer() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  if [ "$COMP_CWORD" = 1 ]; then words="{" ".join(words)}"
  elif [[ "$word" == -* ]]; then case "${{COMP_WORDS[1]}}" in
{options}  esac
  elif [[ "$before" == --* ]]; then case "$before" in
{chosen}  esac
  else case "${{COMP_WORDS[1]}}" in
{plain}  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o bashdefault -o default -F _jax_transformer {PROGRAM}
"""


def _zsh(words: Mapping[str, Sequence[str]], values: Mapping[str, Sequence[str]]) -> str:
    cases = "".join(f"    {name}) compadd -- {' '.join(known)} ;;\n" for name, known in words.items())
    chosen = "".join(f"    {name}) compadd -- {' '.join(known)}; return ;;\n" for name, known in values.items())
    return f"""\
#compdef {PROGRAM}
# {PROGRAM} completion zsh
if (( CURRENT == 2 )); then
  compadd -- {" ".join(words)}
else
  case $words[CURRENT-1] in
{chosen}  esac
  case $words[2] in
{cases}  esac
  _files
fi
"""


def _fish(words: Mapping[str, Sequence[str]], values: Mapping[str, Sequence[str]]) -> str:
    commands = f"complete -c {PROGRAM} -n __fish_use_subcommand -f -a '{' '.join(words)}'"
    lines = [f"# {PROGRAM} completion fish", commands]
    for name, known in words.items():
        after = f"complete -c {PROGRAM} -n '__fish_seen_subcommand_from {name}'"
        plain = _without_dashes(known)
        lines += [f"{after} -a '{' '.join(plain)}'"] if plain else []
        for option in _with_dashes(known):
            chosen = f" -x -a '{' '.join(values[option])}'" if option in values else ""
            lines += [f"{after} -l {option.removeprefix('--')}{chosen}"] if option != "--" else []
    return "\n".join(lines) + "\n"


def _with_dashes(words: Sequence[str]) -> list[str]:
    return [word for word in words if word.startswith("-")]


def _without_dashes(words: Sequence[str]) -> list[str]:
    return [word for word in words if not word.startswith("-")]


SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
