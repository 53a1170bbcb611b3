"""--quiet and --verbose, which every command takes: how much it says on the way to its result."""

from __future__ import annotations

import os
import re
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

from jax_transformer.runtime.durations import duration
from jax_transformer.runtime.environment import environment

QUIET, VERBOSE = "--quiet", "--verbose"
OF_REPORTS = ("discover", "parity")
"""Commands whose --verbose is an option of their own: it shows more of their report."""
SHOWN = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "tokenizers", "torch", "transformers")
"""Libraries whose versions --verbose tells."""
ERROR = re.compile(r"(\[\d+\] )?error: ")
"""The beginning of an error's first line, with the number of a process that `launch` started."""
MOST_HELD = 400
"""Lines that are kept for the case that the command is refused."""

_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)


def is_quiet() -> bool:
    """Returns whether the command that runs was given --quiet."""
    return _is_quiet.get()


def take_verbosity(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Returns QUIET, VERBOSE or "", and the arguments without these words. What follows `--` is another program's, and
    `OF_REPORTS` have VERBOSE themselves.

    Raises:
      ValueError: both words.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    own, rest = list(arguments[:end]), arguments[end:]
    given = [word for word in (QUIET, VERBOSE) if word in own]
    if len(given) > 1:
        raise ValueError(f"{QUIET}, {VERBOSE}: expected one of them; received both")
    others = [word for word in own if word not in given]
    if given == [VERBOSE] and others[:1] and others[0] in OF_REPORTS:
        return "", [*others, VERBOSE, *rest]
    return "".join(given), [*others, *rest]


@contextmanager
def speaking(verbosity: str, program: str) -> Iterator[None]:
    """Says less or more during the block.

    QUIET: standard error has errors alone, and `train` prints its results alone. VERBOSE: standard error also has the
    versions, each compilation with its time, and at the end the time and the most memory.
    """
    if verbosity == QUIET:
        with _quiet():
            yield
    elif verbosity == VERBOSE:
        with _verbose(program):
            yield
    else:
        yield


class ErrorsAlone:
    """Writes errors to a stream, and holds other lines back. An error's further lines are indented."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._line, self._is_error = stream, "", False
        self.held: list[str] = []
        self.encoding, self.errors = stream.encoding, stream.errors

    def write(self, text: str) -> int:
        """Takes any piece of text; a line is written once it is whole."""
        *whole, self._line = (self._line + text).split("\n")
        for line in whole:
            self._is_error = bool(ERROR.match(line)) or (self._is_error and line.startswith(" "))
            if self._is_error:
                self._stream.write(f"{line}\n")
            elif len(self.held) < MOST_HELD:
                self.held.append(line)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        """Returns False, so that nobody draws bars."""
        return False

    def fileno(self) -> int:
        return self._stream.fileno()


@contextmanager
def _quiet() -> Iterator[None]:
    before, token = sys.stderr, _is_quiet.set(True)
    errors = ErrorsAlone(before)
    sys.stderr = errors
    try:
        yield
    except SystemExit as stop:
        if stop.code:  # a refused option: its message has a form of its own
            before.write("\n".join([*errors.held, ""]))
        raise
    finally:
        sys.stderr = before
        _is_quiet.reset(token)


@contextmanager
def _verbose(program: str) -> Iterator[None]:
    start = time.perf_counter()
    facts = ", ".join(f"{name} {value}" for name, value in environment(SHOWN).items())
    print(f"{program}; {facts}", file=sys.stderr)
    with _logged_compilations():
        try:
            yield
        finally:
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            took = duration(time.perf_counter() - start)
            print(f"took {took}, at most {memory / 2**20:,.0f} MiB of memory", file=sys.stderr)


@contextmanager
def _logged_compilations() -> Iterator[None]:
    """Lets JAX log each compilation, whether it is imported already or not."""
    name = "JAX_LOG_COMPILES"
    before = os.environ.get(name)
    os.environ[name] = "1"
    jax = sys.modules.get("jax")
    was_on = jax is not None and bool(jax.config.jax_log_compiles)
    if jax is not None:
        jax.config.update("jax_log_compiles", True)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
        jax = sys.modules.get("jax")
        if jax is not None:
            jax.config.update("jax_log_compiles", was_on)
