"""Scores translations by BLEU, chrF, TER and exact match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BEST_METRICS = {"loss": ("valid_loss", -1.0), "bleu": ("valid_bleu", 1.0), "chrf": ("valid_chrf", 1.0)}
"""The key in metrics.jsonl of each `train.best_metric`, and the factor after which higher is better."""


@dataclass(frozen=True)
class TranslationScores:
    """Holds corpus scores in percent, with sacreBLEU's signatures (Post 2018); see `score_translations`.

    Example:
      >>> from jax_transformer.training import score_translations
      >>> score_translations(["A dog sleeps ."], ["A dog sleeps ."]).summary()
      'BLEU 100.00  chrF 100.00  exact match 100.0 %  (1 sentences)'
    """

    bleu: float
    chrf: float
    exact_match: float
    """Percentage of translations equal to their reference, ignoring surrounding spaces."""
    bleu_signature: str
    chrf_signature: str
    sentences: int
    too_long: int = 0
    """Number of sentences too long for the model, scored with an empty translation."""

    def summary(self) -> str:
        left_out = f", {self.too_long} too long to translate" if self.too_long else ""
        return (
            f"BLEU {self.bleu:.2f}  chrF {self.chrf:.2f}  exact match {self.exact_match:.1f} %  "
            f"({self.sentences} sentences{left_out})"
        )


@dataclass(frozen=True)
class SystemScore:
    """Holds the score of one system by one metric."""

    score: float
    interval: float | None = None
    """Half the width of the 95 % confidence interval."""
    p_value: float | None = None
    """Probability of a difference from the first system at least this large if the two were equally good. None for the
    first system, and for a system with the same translations."""


@dataclass(frozen=True)
class Comparison:
    """Holds the scores of several systems by one metric."""

    metric: str
    """BLEU, chrF2 or TER (sacreBLEU's names), or "exact match"."""
    signature: str
    """sacreBLEU's signature; empty for exact match."""
    systems: list[SystemScore]


def check_tokenizer(tokenize: str, option: str = "train.score_tokenizer") -> None:
    """Raises ValueError, with the name of the option, unless sacreBLEU has this tokenizer and can use it."""
    from sacrebleu.metrics import BLEU

    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"{option}: expected one of {', '.join(sorted(BLEU.TOKENIZERS))}; received {tokenize!r}")
    try:
        BLEU(tokenize=tokenize)
    except (ImportError, RuntimeError) as error:  # some tokenizers need a separate package
        raise ValueError(f"{option}: expected one that is installed; received {tokenize!r}: {error}") from None


def score_translations(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a"
) -> TranslationScores:
    """Returns BLEU (Papineni et al. 2002), chrF (Popović 2015) and exact match, with one reference per hypothesis.

    Args:
      hypotheses: the translations.
      references: one reference per translation.
      tokenize: sacreBLEU's tokenizer; "none" for tokenized text.

    Raises:
      ValueError: no sentences, or different numbers of hypotheses and references.

    Example:
      >>> from jax_transformer.training import score_translations
      >>> score_translations(["A dog sleeps .", "No ."], ["A dog sleeps .", "Yes ."]).exact_match
      50.0
    """
    _check_counts(hypotheses, references)
    from sacrebleu.metrics import BLEU, CHRF

    bleu, chrf = BLEU(tokenize=tokenize, force=True), CHRF()  # force: don't warn of text that looks tokenized
    return TranslationScores(
        bleu=bleu.corpus_score(hypotheses, [references]).score,
        chrf=chrf.corpus_score(hypotheses, [references]).score,
        exact_match=exact_match(hypotheses, [references]),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        sentences=len(references),
    )


def exact_match(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Returns the percentage of hypotheses equal to one of their references, ignoring surrounding spaces."""
    equal = [
        hypothesis.strip() in map(str.strip, each) for hypothesis, *each in zip(hypotheses, *references, strict=True)
    ]
    return 100.0 * sum(equal) / len(equal)


def compare_systems(
    systems: Sequence[Sequence[str]], references: Sequence[Sequence[str]], *, tokenize: str = "13a", samples: int = 1000
) -> list[Comparison]:
    """Returns BLEU, chrF, TER (Snover et al. 2006) and exact match of several systems.

    Except for exact match, sacreBLEU adds confidence intervals by bootstrap resampling, and p-values of each system
    against the first by paired bootstrap resampling (Koehn 2004). Its environment variable SACREBLEU_SEED seeds the
    samples.

    Args:
      systems: the hypotheses of each system.
      references: one or more sequences of references.
      tokenize: sacreBLEU's tokenizer.
      samples: number of bootstrap samples; 0: neither intervals nor p-values.

    Raises:
      ValueError: no sentences, or different numbers of sentences.
    """
    for lines in (*systems, *references):
        _check_counts(lines, references[0])
    from sacrebleu.metrics import BLEU, CHRF, TER
    from sacrebleu.significance import PairedTest

    metrics = [
        BLEU(tokenize=tokenize, force=True, references=references),
        CHRF(references=references),
        TER(references=references),
    ]
    exact = Comparison("exact match", "", [SystemScore(exact_match(hypotheses, references)) for hypotheses in systems])
    if not samples:
        return [*(_without_samples(metric, systems) for metric in metrics), exact]
    named = [(str(number), hypotheses) for number, hypotheses in enumerate(systems)]
    signatures, results = PairedTest(
        named, {type(metric).__name__: metric for metric in metrics}, None, "bs", samples
    )()
    # for identical translations, sacreBLEU reports the smallest p-value
    differs = [hypotheses != systems[0] for hypotheses in systems]

    def systems_by(metric: str) -> list[SystemScore]:
        found = zip(results[metric], differs, strict=True)
        return [
            SystemScore(result.score, float(result.ci), result.p_value if differ else None) for result, differ in found
        ]

    return [
        *(Comparison(metric, str(signature), systems_by(metric)) for metric, signature in signatures.items()),
        exact,
    ]


def _without_samples(metric: Any, systems: Sequence[Sequence[str]]) -> Comparison:
    scores = [metric.corpus_score(hypotheses, None) for hypotheses in systems]
    return Comparison(scores[0].name, str(metric.get_signature()), [SystemScore(each.score) for each in scores])


def _check_counts(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if not hypotheses or len(hypotheses) != len(references):
        raise ValueError(
            "expected as many translations as references, at least one; "
            f"received {len(hypotheses)} and {len(references)}"
        )
