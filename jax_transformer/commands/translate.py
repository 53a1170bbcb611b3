"""jax-transformer translate MODEL [options] < SOURCE > TRANSLATIONS."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import tyro

from jax_transformer.commands.decode_options import DecodeOptions, check_rows, load, output_may_close
from jax_transformer.commands.parallel_text import STANDARD_INPUT, shown
from jax_transformer.commands.parsing import parsed
from jax_transformer.commands.progress import progress
from jax_transformer.commands.stdin_lines import arriving_lines, windows
from jax_transformer.config.parallel import MeshConfig

if TYPE_CHECKING:
    from jax_transformer.config.decoding import DecodingConfig
    from jax_transformer.decoding.translation import Translation
    from jax_transformer.storage.model_directory import Model

MOST_LINES = 4096
"""Lines translated together, sorted by length."""
MOST_ERRORS = 20
"""Errors printed; further ones are only counted."""


@dataclass(frozen=True, kw_only=True)
class TranslateOptions(DecodeOptions):
    """Translate text, one sentence per line, from a file or standard input to standard output, in order.

    A line that can't be translated gives an error on standard error, an empty line, and the exit code 2. A process that
    writes to standard input gets the answer to each line before it writes the next.
    """

    model: tyro.conf.Positional[str]
    """Model directory, run directory that contains one, or name on the Hub (owner/name, owner/name@revision)."""
    input: str | None = None
    """Text file, gzipped or not. Default, or -: standard input; a prompt on a terminal."""
    format: Literal["text", "jsonl"] = "text"
    """text: the best translation; with --num-return N, N lines of line number, score and translation, separated by
    tabs. jsonl: one object per line with the hypotheses, their scores, tokens, token log-probabilities and word
    alignments."""
    num_return: int = 1
    """Translations to return for each sentence, best first; with --sampling, how many to draw."""
    prefix: str = ""
    """Text that every translation begins with."""
    source_tag: str = ""
    """Token to put before every sentence, such as <2de>, which selects the target language of a multilingual model."""
    split_long: tyro.conf.FlagCreatePairsOff[bool] = False
    """Split a line that is too long for the model at its sentence ends, and translate the parts. Default: refuse it."""
    rows: int = 64
    """Maximum number of sentences decoded at once."""
    batch_tokens: int = 8192
    """Maximum number of source tokens decoded at once, padding included."""
    parallel: MeshConfig = field(default=MeshConfig())


@dataclass
class Counts:
    """Counts the work done so far."""

    start: float = field(default_factory=time.perf_counter)
    lines: int = 0
    tokens: int = 0
    split: int = 0
    parts: int = 0
    cut: int = 0
    problems: int = 0
    unknown: int = 0

    def add(self, translation: Translation, eos_id: int | None, unknown: str = "") -> None:
        self.lines += 1
        self.tokens += sum(len(part.hypotheses[0].ids) for part in translation.parts)
        if len(translation.parts) > 1:
            self.split += 1
            self.parts += len(translation.parts)
        self.cut += any(part.hypotheses[0].ids[-1:] != [eos_id] for part in translation.parts)
        self.problems += bool(translation.problem)
        self.unknown += bool(unknown)

    def summary(self) -> str:
        seconds = time.perf_counter() - self.start
        split = f"; {self.split:,} split into {self.parts:,} parts" if self.split else ""
        cut = f"; {self.cut:,} cut off at the maximum length" if self.cut else ""
        problems = f"; {self.problems:,} not translated" if self.problems else ""
        problems += f"; {self.unknown:,} of mostly unknown tokens" if self.unknown else ""
        return (
            f"{self.lines:,} lines, {self.tokens:,} tokens in {seconds:.1f} s: {self.lines / seconds:,.1f} lines/s, "
            f"{self.tokens / seconds:,.0f} tokens/s, compilation included{split}{cut}{problems}"
        )


class Translator:
    """Turns lines of text into the lines to print, with one model and its options."""

    def __init__(self, options: TranslateOptions, model: Model, decoding: DecodingConfig) -> None:
        self.options, self.model, self.decoding = options, model, decoding
        self.counts = Counts()

    def __call__(self, lines: Sequence[bytes], on_batch: Callable[[int], None] | None = None) -> Iterator[str]:
        """Returns the output for the next lines, and prints problems to standard error."""
        from jax_transformer.data.text_files import decode_line
        from jax_transformer.decoding.translation import translate_each

        texts, unreadable = [""] * len(lines), {}
        for i, line in enumerate(lines):
            try:
                texts[i] = decode_line(line, is_first=self.counts.lines + i == 0)
            except ValueError as error:
                unreadable[i] = str(error)
        options = self.options
        found = translate_each(
            self.model,
            texts,
            self.decoding,
            rows=options.rows,
            batch_tokens=options.batch_tokens,
            source_tag=options.source_tag,
            prefix=options.prefix,
            split_long=options.split_long,
            first_number=self.counts.lines,
            on_batch=on_batch,
        )
        found = [
            translation._replace(problem=unreadable.get(i, translation.problem)) for i, translation in enumerate(found)
        ]
        yield from self._jsonl(texts, found) if options.format == "jsonl" else self._text(found)

    def _text(self, found: Sequence[Translation]) -> Iterator[str]:
        for translation in found:
            number = self._count(translation)
            if self.options.num_return == 1:
                yield translation.text()
            elif translation.parts:
                yield from (
                    f"{number}\t{translation.score(rank):.4f}\t{translation.text(rank)}"
                    for rank in range(self.options.num_return)
                )

    def _jsonl(self, texts: Sequence[str], found: Sequence[Translation]) -> Iterator[str]:
        from jax_transformer.commands.jsonl import describe

        for text, translation, hypotheses in zip(
            texts, found, describe(self.model, found, self.options.source_tag), strict=True
        ):
            number = self._count(translation)
            fields = {"line": number, "source": text, "hypotheses": hypotheses}
            fields |= {"parts": len(translation.parts)} if len(translation.parts) > 1 else {}
            fields |= {"error": translation.problem} if translation.problem else {}
            yield json.dumps(fields, ensure_ascii=False)

    def _count(self, translation: Translation) -> int:
        """Counts the translation, prints its problem or that its tokens are unknown, and returns the number of its
        line, from 1."""
        from jax_transformer.decoding.translation import unknown_tokens

        unknown = unknown_tokens(self.model, translation.parts)
        self.counts.add(translation, self.model.generation.eos_id, unknown)
        number, problems = self.counts.lines, self.counts.problems
        where = f"{shown(self.options.input or STANDARD_INPUT)}:{number}"
        if unknown and self.counts.unknown <= MOST_ERRORS:
            also = " (further ones are only counted)" if self.counts.unknown == MOST_ERRORS else ""
            print(f"warning: {where}: {unknown}{also}", file=sys.stderr)
        if translation.problem and problems <= MOST_ERRORS:
            also = " (further ones are only counted)" if problems == MOST_ERRORS else ""
            print(f"error: {where}: {translation.problem}{also}", file=sys.stderr)
        return number


def translate(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer translate ARGUMENTS`; returns the exit code: 2 if some lines can't be translated."""
    options = parsed(TranslateOptions, arguments, "translate")
    check_rows(options.rows)
    if options.batch_tokens < 1:
        raise ValueError(f"--batch-tokens must be at least 1; received {options.batch_tokens}")
    options.config()
    from jax_transformer.data.text_files import iterate_raw_lines
    from jax_transformer.decoding.prepared import prepare
    from jax_transformer.decoding.translation import translate_each
    from jax_transformer.parallel.mesh import make_mesh

    reads_stdin = options.input in (None, STANDARD_INPUT)
    if reads_stdin and sys.stdin is None:
        raise ValueError("expected text on standard input, which is closed: pipe it in, or name a file with --input")
    if sys.stdout is None:
        raise ValueError("expected standard output, which is closed, to write translations to")
    lines = None if reads_stdin else list(iterate_raw_lines(str(options.input)))
    model, decoding = options.applied_to(load(options.model, options.source_tag, options.dtype))
    model = prepare(model, make_mesh(options.parallel))
    # refuses options that fit no line before the first line is read
    translate_each(model, [], decoding, source_tag=options.source_tag, prefix=options.prefix)
    translator = Translator(options, model, decoding)
    if lines is None and sys.stdin.isatty():
        return _prompt(translator)
    arriving = arriving_lines(sys.stdin.fileno(), MOST_LINES) if lines is None else windows(lines, MOST_LINES)
    total = None if lines is None else len(lines)
    with output_may_close(), progress("translated", total, has_bar=not sys.stdout.isatty()) as advance:
        for some in arriving:
            left = len(some)

            def decoded(count: int) -> None:
                nonlocal left
                advance(min(count, left))  # a split line counts once, though decoding reports its parts
                left -= min(count, left)

            for answer in translator(some, decoded):
                print(answer)
            advance(left)
            sys.stdout.flush()
        print(translator.counts.summary(), file=sys.stderr)
    return 2 if translator.counts.problems else 0


def _prompt(translator: Translator) -> int:
    """Translates each line as it is typed."""
    print("One sentence per line; Ctrl-D ends.\n> ", end="", file=sys.stderr, flush=True)
    while line := sys.stdin.buffer.readline():
        for answer in translator([line.removesuffix(b"\n")]):
            print(answer, flush=True)
        print("> ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return 2 if translator.counts.problems else 0
