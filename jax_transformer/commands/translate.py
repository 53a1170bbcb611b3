"""jax-transformer translate MODEL [options] < SOURCE > TRANSLATIONS."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tyro

from jax_transformer.commands.searching import SearchOptions, check_rows, load, output_may_close


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


def translate(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer translate ARGUMENTS`; returns the exit code."""
    options = tyro.cli(TranslateOptions, args=arguments, prog="jax-transformer translate")
    check_rows(options.rows)
    options.check()
    from jax_transformer.data.corpus import read_lines
    from jax_transformer.decoding import translation

    lines = None if options.input is None else read_lines(options.input)
    model = load(options.model, options.source_tag)
    decoding = options.decoding(model)
    if lines is None and sys.stdin.isatty():
        return _prompt(lambda line: translation.translate(model, [line], decoding, source_tag=options.source_tag)[0])
    lines = _stdin_lines() if lines is None else lines
    with output_may_close():
        for line in translation.translate(model, lines, decoding, rows=options.rows, source_tag=options.source_tag):
            print(line)
    return 0


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
