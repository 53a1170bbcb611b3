"""Analyzes the translations of a finished model: by the length of the source, by the frequency of words, and the worst.

A run keeps the translations of its test sets in translations.json, with how often the training targets have each word
of the references.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jax_transformer.data.token_pairs import TokenPairs
    from jax_transformer.training.evaluation import Sample

Record = dict[str, Any]

MOST_COUNTED = 200_000
"""Maximum number of training pairs whose words are counted, spread evenly."""
MOST_ANALYZED = 5_000
"""Maximum number of sentences of a split that are analyzed, spread evenly."""
WORST = 20
LENGTHS = (1, 5, 9, 13, 17, 25, 33, 49)
"""The first number of words of each group of source lengths."""
FREQUENCIES = (0, 1, 2, 10, 100, 1000)
"""The first number of occurrences of each group of words."""
WORD = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\W_]+|[^\w\s]|_")
"""A word, a punctuation mark, or a character of a script without spaces."""


def words(text: str) -> list[str]:
    """Splits a text into words and punctuation marks, and scripts without spaces into characters.

    Example:
      >>> from jax_transformer.training.analysis import words
      >>> words("Ja, 你好!")
      ['Ja', ',', '你', '好', '!']
    """
    return WORD.findall(text)


def translations_record(
    step: int, translated: Mapping[str, Sequence[Sample]], training: TokenPairs | None
) -> dict[str, Any]:
    """Returns what translations.json keeps.

    Args:
      step: the last step of the run.
      translated: the translations of each split.
      training: the training pairs, whose target words are counted. None: unknown, as for a stream.
    """
    splits = {name: [dataclasses.asdict(sample) for sample in samples] for name, samples in translated.items()}
    counted = None
    if training is not None and len(training):
        indices = spread(len(training), MOST_COUNTED)
        seen = Counter(word for text in training.target_texts(indices) for word in words(text))
        needed = {word for samples in translated.values() for sample in samples for word in words(sample.reference)}
        counts = {word: seen[word] for word in sorted(needed) if seen[word]}
        counted = {"pairs": len(indices), "of": len(training), "counts": counts}
    return {"step": step, "splits": splits, "words": counted}


def spread(count: int, most: int) -> np.ndarray:
    """Returns at most `most` of `count` indices, spread evenly."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def sentence_scores(samples: Sequence[Record]) -> np.ndarray:
    """Returns chrF of each translation, in percent."""
    from sacrebleu.metrics import CHRF

    chrf = CHRF()
    return np.array(
        [chrf.sentence_score(sample["translation"], [sample["reference"]]).score for sample in samples], np.float64
    )


def analysis(samples: Sequence[Record], counted: Record | None) -> Record:
    """Returns the scores of a split's translations by length and by word frequency, and the worst of them."""
    chosen = [samples[i] for i in spread(len(samples), MOST_ANALYZED)]
    scores = sentence_scores(chosen)
    worst = np.argsort(scores, kind="stable")[:WORST]
    return {
        "sentences": len(samples),
        "analyzed": len(chosen),
        "lengths": by_length(chosen, scores),
        "frequencies": by_frequency(chosen, counted["counts"]) if counted else [],
        "counted": {name: counted[name] for name in ("pairs", "of")} if counted else None,
        "worst": [{**chosen[i], "chrf": round(float(scores[i]), 2)} for i in worst if scores[i] < 100.0],
    }


def by_length(samples: Sequence[Record], scores: np.ndarray) -> list[Record]:
    """Returns, for each group of source lengths in words, the mean of the sentences' chrF, half its 95 % interval by
    the normal approximation, and the percentage of exact matches."""
    group = np.searchsorted(LENGTHS, [max(1, len(words(sample["source"]))) for sample in samples], side="right") - 1
    exact = np.array([sample["translation"].strip() == sample["reference"].strip() for sample in samples])
    found = []
    for number in np.unique(group):
        own = scores[group == number]
        interval = 1.96 * own.std(ddof=1) / len(own) ** 0.5 if len(own) > 1 else None
        found.append(
            {
                "words": _range(LENGTHS, int(number)),
                "sentences": len(own),
                "chrf": float(own.mean()),
                "interval": None if interval is None else float(interval),
                "exact_match": float(100.0 * exact[group == number].mean()),
            }
        )
    return found


def by_frequency(samples: Sequence[Record], counts: Mapping[str, int]) -> list[Record]:
    """Returns, for each group of how often training targets have a word, the words of the references, and the
    percentage of them that the translations have, wherever in the sentence."""
    wanted, had = Counter[int](), Counter[int]()
    for sample in samples:
        translated = Counter(words(sample["translation"]))
        for word, count in Counter(words(sample["reference"])).items():
            group = int(np.searchsorted(FREQUENCIES, counts.get(word, 0), side="right")) - 1
            wanted[group] += count
            had[group] += min(count, translated[word])
    return [
        {"count": _range(FREQUENCIES, group), "words": wanted[group], "found": 100.0 * had[group] / wanted[group]}
        for group in sorted(wanted)
    ]


def _range(starts: Sequence[int], number: int) -> str:
    """Describes a group of whole numbers, such as "5–8" or "49 or more"."""
    if number == len(starts) - 1:
        return f"{starts[number]:,} or more"
    first, last = starts[number], starts[number + 1] - 1
    return f"{first:,}" if first == last else f"{first:,}–{last:,}"
