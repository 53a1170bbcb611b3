"""jax-transformer score MODEL --source FILE --target FILE [options]."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import tyro

from jax_transformer.commands.decode_options import Dtype, check_rows, load, output_may_close
from jax_transformer.commands.parallel_text import read_columns, shown
from jax_transformer.commands.parsing import parsed
from jax_transformer.commands.progress import progress
from jax_transformer.config.parallel import MeshConfig

if TYPE_CHECKING:
    from jax_transformer.decoding.pairs import PairScore


@dataclass(frozen=True)
class ScoreOptions:
    """Score existing translations: one line for each, in order, and their perplexity on standard error.

    A line is the natural logarithm of the translation's probability, a tab, and its number of tokens, the end token
    included. A translation that can't be scored gives nan and 0. To score several translations of a sentence, repeat
    the sentence.
    """

    model: tyro.conf.Positional[str]
    """Model directory, run directory that contains one, or name on the Hub (owner/name, owner/name@revision)."""
    source: str
    """Text file with one sentence per line, gzipped or not; - for standard input."""
    target: str
    """Translations, one per line of the source; - for standard input."""
    format: Literal["text", "jsonl"] = "text"
    """jsonl: one object per line with log_prob, tokens, perplexity and token_log_probs. A translation that can't be
    scored has null, 0, null and [], and the reason as error."""
    source_tag: str = ""
    """Token to put before every sentence, such as <2de>, which selects the target language of a multilingual model."""
    target_tag: str = ""
    """Token that every translation begins with, such as deu_Latn, as in `translate`. It isn't counted."""
    dtype: Dtype | None = None
    """Round the weights to this dtype, and compute in it. Default: the model's own."""
    rows: int = 64
    """Maximum number of sentences scored at once."""
    parallel: MeshConfig = field(default=MeshConfig())


class Totals:
    """Sums up the scored translations."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.pairs = self.problems = self.tokens = self.unknown = 0
        self.log_prob = 0.0

    def add(self, found: PairScore) -> None:
        self.pairs += 1
        self.tokens += len(found.token_log_probs)
        self.unknown += found.unknown
        if found.problem is None:
            self.log_prob += found.log_prob
        else:
            self.problems += 1

    def summary(self) -> str:
        from jax_transformer.decoding.scoring import perplexity

        seconds = time.perf_counter() - self.start
        left_out = f" of {self.pairs}" if self.problems else ""
        unknown = f", {self.unknown} of them unknown to the vocabulary" if self.unknown else ""
        return (
            f"sentences      {self.pairs - self.problems}{left_out}\n"
            f"target tokens  {self.tokens}{unknown}\n"
            f"perplexity     {perplexity(self.log_prob, self.tokens):.4f}\n"
            f"speed          {self.tokens / seconds:,.0f} target tokens/s ({seconds:.1f} s, compilation included)"
        )


def score(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer score ARGUMENTS`; returns the exit code: 2 if some lines can't be scored."""
    options = parsed(ScoreOptions, arguments, "score")
    check_rows(options.rows)
    sources, targets = read_columns((options.source, options.target))
    from jax_transformer.decoding.pairs import score_pairs
    from jax_transformer.decoding.prepared import prepare
    from jax_transformer.parallel.mesh import make_mesh

    model = prepare(load(options.model, options.source_tag, options.dtype), make_mesh(options.parallel))

    totals = Totals()
    tags = {"source_tag": options.source_tag, "target_tag": options.target_tag}
    scores = score_pairs(model, zip(sources, targets, strict=True), rows=options.rows, **tags)
    with output_may_close(), progress("scored", len(sources), has_bar=not sys.stdout.isatty()) as advance:
        for number, found in enumerate(scores, start=1):
            print(_FORMATS[options.format](found))
            if found.problem:
                path = getattr(options, found.problem.side)
                print(f"error: {shown(path)}:{number}: {found.problem.message}", file=sys.stderr)
            totals.add(found)
            advance(1)
        print(totals.summary(), file=sys.stderr)
    return 2 if totals.problems else 0


def _text(found: PairScore) -> str:
    return f"{found.log_prob:.4f}\t{len(found.token_log_probs)}"


def _json(found: PairScore) -> str:
    return json.dumps(found.as_json())


_FORMATS = {"text": _text, "jsonl": _json}
