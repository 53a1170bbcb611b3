"""jax-transformer evaluate MODEL --source FILE --target FILE [options]."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from jax_transformer.commands.decode_options import DecodeOptions, check_rows, load, output_may_close
from jax_transformer.commands.parallel_text import check_writable, read_columns, shown, write_lines
from jax_transformer.commands.parsing import parsed
from jax_transformer.commands.progress import progress
from jax_transformer.config.parallel import MeshConfig

if TYPE_CHECKING:
    from jax_transformer.training.metrics import Comparison

File = Annotated[str | None, tyro.conf.arg(metavar="FILE")]
Files = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="FILE")]


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(DecodeOptions):
    """Translate a text and score it against its reference: evaluate MODEL --source FILE --target FILE. Or score
    existing translations: evaluate --hypotheses FILE --target FILE.

    BLEU, chrF and TER (lower is better) are sacreBLEU's, with 95 % confidence intervals. --against compares with the
    translations of another system: p is the probability of so large a difference if both were equally good.
    """

    model: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="MODEL")] = None
    """Model directory, run directory that contains one, or name on the Hub (owner/name, owner/name@revision)."""
    source: File = None
    """Text file with one sentence per line, gzipped or not. One of the files may be - for standard input."""
    target: Files = ()
    """Reference translations, one per line; repeat the option for further references."""
    hypotheses: File = None
    """Translations to score, instead of a model's."""
    against: Files = ()
    """Another system's translations of the same sentences; repeat the option for further systems."""
    output: File = None
    """File to write the translations to, gzipped if the name ends in .gz."""
    format: Literal["text", "json"] = "text"
    """text: a table. json: one object with the scores and intervals of every system."""
    tokenize: Annotated[str, tyro.conf.arg(metavar="13a|none|intl|zh|…")] = "13a"
    """sacreBLEU's tokenizer for BLEU; none for text that is already tokenized."""
    bootstrap: int = 1000
    """Bootstrap samples that estimate confidence intervals and p; 0: none. 1000 take 80 kB of memory per sentence."""
    source_tag: str = ""
    """Token to put before every sentence, such as <2de>, which selects the target language of a multilingual model."""
    rows: int = 64
    """Maximum number of sentences decoded at once."""
    parallel: MeshConfig = field(default=MeshConfig())


SCORING = ("target", "hypotheses", "against", "format", "tokenize", "bootstrap")
"""Options that apply with --hypotheses; the rest configure translation."""


def evaluate(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer evaluate ARGUMENTS`; returns the exit code: 2 if some lines can't be translated."""
    options = parsed(EvaluateOptions, arguments, "evaluate")
    _check(options)
    from jax_transformer.training.metrics import check_tokenizer, compare_systems

    check_tokenizer(options.tokenize, "--tokenize")
    first = str(options.source if options.hypotheses is None else options.hypotheses)
    lines, *rest = read_columns((first, *options.target, *options.against))
    references, systems = rest[: len(options.target)], rest[len(options.target) :]
    translations, untranslated = _translate(options, lines) if options.hypotheses is None else (lines, [])
    comparisons = compare_systems(
        [translations, *systems], references, tokenize=options.tokenize, samples=options.bootstrap
    )
    names = [shown(name) for name in (options.hypotheses or str(options.model), *options.against)]
    with output_may_close():
        if options.format == "json":
            described = _described(names, comparisons, untranslated) | {"sentences": len(lines)}
            print(json.dumps(described, indent=2, ensure_ascii=False))
        else:
            print("\n".join(_table(names, comparisons)))
            left_out = f", {len(untranslated)} of them not translated" if untranslated else ""
            print(f"\n{len(lines)} sentences{left_out}")
            print("\n".join(f"{each.metric}: {each.signature}" for each in comparisons if each.signature))
    return 2 if untranslated else 0


def _check(options: EvaluateOptions) -> None:
    """Raises ValueError for options that don't go together."""
    check_rows(options.rows)
    options.config()
    if options.bootstrap < 0:
        raise ValueError(f"--bootstrap must be at least 0; received {options.bootstrap}")
    if not options.target:
        raise ValueError("--target: expected a file with the reference translations; received none")
    if options.hypotheses is None and (options.model is None or options.source is None):
        received = f"only {options.model or options.source}" if options.model or options.source else "neither"
        raise ValueError(f"expected a model and --source FILE, or --hypotheses FILE; received {received}")
    translating = [field for field in dataclasses.fields(options) if field.name not in SCORING]
    given = [field.name for field in translating if getattr(options, field.name) != field.default]
    if options.hypotheses is not None and given:
        names = ", ".join("a model" if name == "model" else f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(
            f"--hypotheses: expected no options of translating, for these are translations already; received {names}"
        )
    if options.output is not None:
        check_writable(options.output)
        read = [path for path in (options.source, *options.target, *options.against) if path is not None]
        if Path(options.output).resolve() in [Path(path).resolve() for path in read]:
            raise ValueError(f"--output: expected a file that isn't read; received {options.output}")


def _translate(options: EvaluateOptions, sources: list[str]) -> tuple[list[str], list[int]]:
    """Returns the translations, and the numbers of lines that can't be translated; their translations are empty."""
    from jax_transformer.decoding.prepared import prepare
    from jax_transformer.decoding.translation import translate_each
    from jax_transformer.parallel.mesh import make_mesh

    model, decoding = options.applied_to(load(str(options.model), options.source_tag, options.dtype))
    model = prepare(model, make_mesh(options.parallel))
    with progress("translated", sum(bool(line.strip()) for line in sources)) as advance:
        found = translate_each(
            model, sources, decoding, rows=options.rows, source_tag=options.source_tag, on_batch=advance
        )
    problems = {number: translation.problem for number, translation in enumerate(found, start=1) if translation.problem}
    for number, problem in problems.items():
        print(f"error: {shown(str(options.source))}:{number}: {problem}; scored as empty", file=sys.stderr)
    translations = [translation.text() for translation in found]
    if options.output is not None:
        write_lines(options.output, translations)
    return translations, list(problems)


def _table(names: list[str], comparisons: list[Comparison]) -> list[str]:
    """Returns the lines of a table, without empty columns."""
    rows = [("metric", "score", "95 %", "p", "translations")]
    for comparison in comparisons:
        for number, (name, system) in enumerate(zip(names, comparison.systems, strict=True)):
            interval = "" if system.interval is None else f"± {system.interval:.2f}"
            p_value = "" if system.p_value is None else f"{system.p_value:.4f}"
            rows.append((comparison.metric if number == 0 else "", f"{system.score:.2f}", interval, p_value, name))
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    first, *numbers = (max(map(len, column)) for column in columns[:-1])
    return [
        "  ".join(
            [row[0].ljust(first), *(text.rjust(width) for text, width in zip(row[1:-1], numbers, strict=True)), row[-1]]
        )
        for row in zip(*columns, strict=True)
    ]


def _described(names: list[str], comparisons: list[Comparison], untranslated: list[int]) -> dict[str, Any]:
    def scores(number: int) -> dict[str, Any]:
        return {each.metric.replace(" ", "_"): dataclasses.asdict(each.systems[number]) for each in comparisons}

    return {
        "systems": [{"translations": name, "scores": scores(number)} for number, name in enumerate(names)],
        "signatures": {each.metric: each.signature for each in comparisons if each.signature},
        "untranslated": untranslated,
    }
