"""Scores of translations, and running means of a training window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TranslationScores:
    """Corpus scores in percent, with sacreBLEU's signatures (Post 2018)."""

    bleu: float
    chrf: float
    exact_match: float
    """Share of sentences equal to their reference to the letter, surrounding space aside."""
    bleu_signature: str
    chrf_signature: str
    sentences: int
    too_long: int = 0
    """Sentences that the model couldn't take, scored with an empty translation."""

    def summary(self) -> str:
        left_out = f", {self.too_long} too long to translate" if self.too_long else ""
        return (
            f"BLEU {self.bleu:.2f}  chrF {self.chrf:.2f}  exact match {self.exact_match:.1f} %  ({self.sentences} "
            f"sentences{left_out})"
        )


@dataclass(frozen=True)
class SystemScore:
    """One system by one metric."""

    score: float
    interval: float | None = None
    """Half the width of the 95 % confidence interval."""
    p_value: float | None = None
    """How probable so large a difference from the first system would be, were the two equally good. None: of the first
    system itself, and of one with the same translations."""


@dataclass(frozen=True)
class Comparison:
    """Systems by one metric."""

    metric: str
    """BLEU, chrF2 or TER, as sacreBLEU calls them, or "exact match"."""
    signature: str
    """sacreBLEU's; "" of exact match."""
    systems: list[SystemScore]


def check_tokenizer(tokenize: str, option: str = "train.score_tokenizer") -> None:
    """Raises ValueError, which names the option, unless sacreBLEU has a tokenizer of this name, and can use it here."""
    from sacrebleu.metrics import BLEU

    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"{option}: expected one of {', '.join(sorted(BLEU.TOKENIZERS))}; received {tokenize!r}")
    try:
        BLEU(tokenize=tokenize)
    except (ImportError, RuntimeError) as error:  # some need a package of their own
        raise ValueError(f"{option}: expected one that is installed; received {tokenize!r}: {error}") from None


def score_translations(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a"
) -> TranslationScores:
    """BLEU (Papineni et al. 2002), chrF (Popović 2015) and exact match of hypotheses against one reference each.

    Args:
      tokenize: sacreBLEU's tokenizer; "none" for text that is tokenized already.

    Raises:
      ValueError: no sentences, or not as many of one as of the other.
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
    """Share of hypotheses, in percent, that equal one of their references to the letter, surrounding space aside."""
    equal = [
        hypothesis.strip() in map(str.strip, each) for hypothesis, *each in zip(hypotheses, *references, strict=True)
    ]
    return 100.0 * sum(equal) / len(equal)


def compare_systems(
    systems: Sequence[Sequence[str]], references: Sequence[Sequence[str]], *, tokenize: str = "13a", samples: int = 1000
) -> list[Comparison]:
    """BLEU, chrF, TER (Snover et al. 2006) and exact match of the translations of systems.

    But for exact match, sacreBLEU also gives confidence intervals by bootstrap resampling, and compares each other
    system with the first by paired bootstrap resampling (Koehn 2004). Its environment variable SACREBLEU_SEED is what
    samples are drawn by.

    Args:
      systems: the hypotheses of each.
      references: one or more sequences of references.
      samples: how many are drawn; with 0, there are neither intervals nor p-values.

    Raises:
      ValueError: no sentences, or not as many somewhere.
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
    differs = [
        hypotheses != systems[0] for hypotheses in systems
    ]  # where nothing does, sacreBLEU's p-value is the smallest there is

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
            f"expected as many translations as references, at least one; received {len(hypotheses)} and "
            f"{len(references)}"
        )
