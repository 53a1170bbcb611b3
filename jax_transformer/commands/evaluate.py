"""jax-transformer evaluate MODEL --source FILE --target FILE [options]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from jax_transformer.commands.searching import SearchOptions, check_rows, load, output_may_close


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


def evaluate(arguments: Sequence[str]) -> int:
    """Runs `jax-transformer evaluate ARGUMENTS`; returns the exit code."""
    options = tyro.cli(EvaluateOptions, args=arguments, prog="jax-transformer evaluate")
    check_rows(options.rows)
    options.check()
    from sacrebleu.metrics import BLEU

    if options.tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"--tokenize expects one of {', '.join(sorted(BLEU.TOKENIZERS))}; received {options.tokenize!r}")
    from jax_transformer.data.corpus import read_pairs
    from jax_transformer.decoding.translation import translate
    from jax_transformer.training.metrics import score_translations

    pairs = read_pairs((options.source, options.target))
    model = load(options.model, options.source_tag)
    decoding = options.decoding(model)
    translations = translate(model, [source for source, _ in pairs], decoding, rows=options.rows, source_tag=options.source_tag)
    scores = score_translations(translations, [target for _, target in pairs], tokenize=options.tokenize)
    with output_may_close():
        print(f"BLEU        {scores.bleu:.2f}   {scores.bleu_signature}")
        print(f"chrF        {scores.chrf:.2f}   {scores.chrf_signature}")
        print(f"exact match {scores.exact_match:.2f} %")
        print(f"sentences   {scores.sentences}")
    return 0
