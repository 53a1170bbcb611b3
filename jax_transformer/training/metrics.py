"""Scores of translations, and running means of a training window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
        return f"BLEU {self.bleu:.2f}  chrF {self.chrf:.2f}  exact match {self.exact_match:.1f} %  ({self.sentences} sentences{left_out})"


def check_tokenizer(tokenize: str) -> None:
    """Raises ValueError unless sacreBLEU has a tokenizer of this name, and can use it here."""
    from sacrebleu.metrics import BLEU

    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"train.score_tokenizer: expected one of {', '.join(sorted(BLEU.TOKENIZERS))}; received {tokenize!r}")
    try:
        BLEU(tokenize=tokenize)
    except (ImportError, RuntimeError) as error:  # some need a package of their own
        raise ValueError(f"train.score_tokenizer: expected one that is installed; received {tokenize!r}: {error}") from None


def score_translations(hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a") -> TranslationScores:
    """BLEU (Papineni et al. 2002), chrF (Popović 2015) and exact match of hypotheses against one reference each.

    Args:
      tokenize: sacreBLEU's tokenizer; "none" for text that is tokenized already.

    Raises:
      ValueError: no sentences, or not as many of one as of the other.
    """
    if not hypotheses or len(hypotheses) != len(references):
        raise ValueError(f"expected as many translations as references, at least one; received {len(hypotheses)} and {len(references)}")
    from sacrebleu.metrics import BLEU, CHRF

    bleu, chrf = BLEU(tokenize=tokenize, force=True), CHRF()  # force: don't warn of text that looks tokenized
    equal = sum(hypothesis.strip() == reference.strip() for hypothesis, reference in zip(hypotheses, references, strict=True))
    return TranslationScores(
        bleu=bleu.corpus_score(hypotheses, [references]).score,
        chrf=chrf.corpus_score(hypotheses, [references]).score,
        exact_match=100.0 * equal / len(references),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
        sentences=len(references),
    )
