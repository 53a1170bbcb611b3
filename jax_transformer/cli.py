"""The command: jax-transformer COMMAND; each is a file of `commands`.

Exit codes: 0 done; 1 another process of the run is gone; 2 a mistake of the user's, reported in one message; 70 a
  mistake of this program's; 130 stopped by Ctrl-C; of parity and discover also 1, 3 and 4, of verify and doctor also 1,
  for what they found.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence

from jax_transformer import __version__
from jax_transformer.commands.average import average
from jax_transformer.commands.compile import compile
from jax_transformer.commands.completion import completion
from jax_transformer.commands.discover import discover
from jax_transformer.commands.doctor import doctor
from jax_transformer.commands.evaluate import evaluate
from jax_transformer.commands.export import export
from jax_transformer.commands.forecast import forecast
from jax_transformer.commands.freeze import freeze
from jax_transformer.commands.launch import launch
from jax_transformer.commands.parity import parity
from jax_transformer.commands.plot import plot
from jax_transformer.commands.port import port
from jax_transformer.commands.presets import presets
from jax_transformer.commands.push import push
from jax_transformer.commands.report import report
from jax_transformer.commands.score import score
from jax_transformer.commands.serve import serve
from jax_transformer.commands.train import train
from jax_transformer.commands.transcribe import transcribe
from jax_transformer.commands.translate import translate
from jax_transformer.commands.verbosity import VERBOSE, speaking, take_verbosity
from jax_transformer.commands.verify import verify
from jax_transformer.runtime.compilation_cache import use_compilation_cache
from jax_transformer.runtime.crashes import write_traceback
from jax_transformer.runtime.extras import explain
from jax_transformer.runtime.garbage import collect_nothing_at_exit, collect_rarely
from jax_transformer.runtime.memory import host_memory
from jax_transformer.runtime.standard_output import NAME as STANDARD_OUTPUT
from jax_transformer.runtime.standard_output import named_output
from jax_transformer.runtime.trees import nearest
from jax_transformer.runtime.unraisable import silence_closed_loops

CRASHED = 70
"""The exit code of an error that nothing here expects (EX_SOFTWARE of sysexits.h): other codes say what was found."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (without the program's name); returns the exit code."""
    try:
        verbosity, rest = take_verbosity(sys.argv[1:] if arguments is None else arguments)
    except ValueError as error:
        return _fail(str(error))
    with speaking(verbosity, f"jax-transformer {__version__}"):
        return _answered(rest, with_traceback=verbosity == VERBOSE)


def _answered(arguments: list[str], *, with_traceback: bool) -> int:
    """Runs one command line; prints an error of it in one message, if need be below its traceback."""
    name = arguments[0] if arguments else "--help"
    try:
        with named_output():
            return _run(name, arguments[1:])
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError) and error.filename == STANDARD_OUTPUT:
            return 0  # its reader, such as `head`, has seen enough
        if with_traceback:
            traceback.print_exc()
        return _fail(str(error))
    except ImportError as error:
        return _fail(explain(error, name))
    except MemoryError as error:  # the last net: sizes are checked before
        return _fail(f"{name}: expected to fit into memory ({host_memory()[1]}); {error or 'there is no more'}")
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error):
            return _fail(f"{name}: expected to fit into the memory of a device; {str(error).splitlines()[0]}")
        print(f"error: {name}: {write_traceback(error)}", file=sys.stderr)
        return CRASHED


def _run(name: str, arguments: list[str]) -> int:
    if name == "help" and arguments:
        name, arguments = arguments[0], ["--help"]
    if name in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    if name == "--version":
        print(f"jax-transformer {__version__}")
        return 0
    if name not in COMMANDS:
        raise ValueError(f"unknown command {name!r}{nearest(name, COMMANDS)}; expected one of {', '.join(COMMANDS)}")
    collect_rarely()
    collect_nothing_at_exit()
    use_compilation_cache()
    silence_closed_loops()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read with PyTorch: threads that spin starve other work
    return COMMANDS[name](arguments)


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": train,
    "presets": presets,
    "launch": launch,
    "average": average,
    "translate": translate,
    "transcribe": transcribe,
    "forecast": forecast,
    "serve": serve,
    "evaluate": evaluate,
    "score": score,
    "port": port,
    "export": export,
    "push": push,
    "parity": parity,
    "freeze": freeze,
    "discover": discover,
    "report": report,
    "verify": verify,
    "doctor": doctor,
    "plot": plot,
    "compile": compile,
    "completion": completion,
}
USAGE = """jax-transformer COMMAND …

  train       train a model; without arguments, the demo on the embedded phrasebook
  presets     list the runs that `train` knows by name: what for, how long, what score
  launch      train in several processes on this machine
  average     make a model of the mean of a run's checkpoints
  translate   translate text with a model
  transcribe  write what recordings say, with a Whisper
  forecast    predict time series, with a Chronos-T5
  serve       translate over HTTP, for many clients at once
  evaluate    measure translations against references, and systems against each other
  score       tell how probable given translations are
  port        turn a PyTorch checkpoint into a model directory, and back
  export      write a model for CTranslate2, transformers, or JAX without this package
  push        upload a model with a model card to the Hugging Face Hub
  parity      tell whether a model is the same function as a PyTorch one, and if not, where and why
  freeze      keep what a program computes in a file, for parity without the program
  discover    find out what a PyTorch module computes, and make a model of it with its weights
  report      write a run's page anew, keep it up to date while the run trains, or compare runs on one page
  verify      tell whether runs, models, caches and exports are as they were written
  doctor      tell whether the installed compilers compute what they are asked to
  plot        draw positions, masks, learning rates, smoothed targets, or a model's attention
  compile     compile a program for TPUs or GPUs that aren't here: does it fit, and how long must a step take
  completion  make the shell complete commands, options and presets

jax-transformer COMMAND --help, or help COMMAND, tells the options; --version, the version.
Every command takes --quiet (results and errors alone) and --verbose (also versions, compilations, time and memory, and
the traceback of an error; of discover and parity, more of the report).
Exit code 2: a mistake in the call; 70: a bug in jax-transformer."""


if __name__ == "__main__":
    sys.exit(main())
