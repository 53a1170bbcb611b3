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
from jax_transformer.commands.freeze import FreezeOptions
from jax_transformer.commands.model_options import run_options
from jax_transformer.commands.parity_options import ParityOptions
from jax_transformer.commands.parsing import option_names, parsed
from jax_transformer.commands.plot import KINDS
from jax_transformer.commands.port import PortOptions
from jax_transformer.commands.presets import PresetsOptions
from jax_transformer.commands.push import PushOptions
from jax_transformer.commands.report import ReportOptions
from jax_transformer.commands.score import ScoreOptions
from jax_transformer.commands.serve import ServeOptions
from jax_transformer.commands.translate import TranslateOptions
from jax_transformer.commands.verify import VerifyOptions
from jax_transformer.config.presets import PRESETS

PROGRAM = "jax-transformer"
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
    "freeze": FreezeOptions,
    "parity": ParityOptions,
    "port": PortOptions,
    "presets": PresetsOptions,
    "push": PushOptions,
    "report": ReportOptions,
    "score": ScoreOptions,
    "serve": ServeOptions,
    "translate": TranslateOptions,
    "verify": VerifyOptions,
}


def completion(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer completion ARGUMENTS`; returns the exit code.

    Raises:
      OSError: the script can't be written.
    """
    options = parsed(CompletionOptions, arguments, "completion")
    script = SCRIPTS[options.shell](words_of_commands())
    if not options.install:
        print(script, end="")
        return 0
    file = _place(options.shell)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(script, encoding="utf-8")
    print(f"written: {file}")
    if options.shell == "zsh":
        print(f"in ~/.zshrc, before compinit: fpath+=({file.parent})")
    print("open a new shell to use it")
    return 0


def words_of_commands() -> dict[str, list[str]]:
    """Returns what may follow each command, by command."""
    run = sorted(run_options())
    words = {name: option_names(kind) for name, kind in KINDS_OF_COMMANDS.items()}
    words |= {
        "train": [*PRESETS, *TRAIN, *run],
        "presets": [*PRESETS, *words["presets"]],
        "compile": [*PRESETS, *option_names(CompileOptions), *run],
        "plot": [*KINDS, *dict.fromkeys(name for kind, _ in KINDS.values() for name in option_names(kind))],
        "launch": ["--processes", "--"],
    }
    return {**words, "help": sorted(words)}


def _place(shell: str) -> Path:
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return {
        "bash": data / "bash-completion/completions" / PROGRAM,
        "zsh": data / "zsh/site-functions" / f"_{PROGRAM}",
        "fish": config / "fish/completions" / f"{PROGRAM}.fish",
    }[shell]


def _bash(words: Mapping[str, Sequence[str]]) -> str:
    cases = "".join(f'    {name}) words="{" ".join(known)}" ;;\n' for name, known in words.items())
    return f"""\
# {PROGRAM} completion bash
_jax_transformer() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
  if [ "$COMP_CWORD" = 1 ]; then words="{" ".join(words)}"; else case "${{COMP_WORDS[1]}}" in
{cases}  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o bashdefault -o default -F _jax_transformer {PROGRAM}
"""


def _zsh(words: Mapping[str, Sequence[str]]) -> str:
    cases = "".join(f"    {name}) compadd -- {' '.join(known)} ;;\n" for name, known in words.items())
    return f"""\
#compdef {PROGRAM}
# {PROGRAM} completion zsh
if (( CURRENT == 2 )); then
  compadd -- {" ".join(words)}
else
  case $words[2] in
{cases}  esac
  _files
fi
"""


def _fish(words: Mapping[str, Sequence[str]]) -> str:
    commands = f"complete -c {PROGRAM} -n __fish_use_subcommand -f -a '{' '.join(words)}'"
    lines = [f"# {PROGRAM} completion fish", commands]
    for name, known in words.items():
        after = f"complete -c {PROGRAM} -n '__fish_seen_subcommand_from {name}'"
        plain = [word for word in known if not word.startswith("--")]
        lines += [f"{after} -a '{' '.join(plain)}'"] if plain else []
        lines += [f"{after} -l {word.removeprefix('--')}" for word in known if word.startswith("--") and word != "--"]
    return "\n".join(lines) + "\n"


SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
