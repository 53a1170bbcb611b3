"""Detects splits whose source and target are swapped, by comparing the languages' letters with train's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from jax_transformer.data.corpus import Split
from jax_transformer.data.tables import Pair

MOST_PAIRS = 1000
"""Number of pairs of each split to compare: enough to distinguish any two languages."""
LEAST_TRIGRAMS = 100
"""Minimum number of trigrams on a side: fewer aren't evidence."""
CLEARLY = 0.1
"""Threshold in nats per trigram. Two languages differ by 1 or more, two halves of one language by 0.05 or less."""


def swapped_splits(splits: Mapping[str, Split]) -> tuple[str, ...]:
    """Returns the names of the splits in which, compared with train, the sides of some corpus are swapped."""
    train = {part.corpus: part for part in splits["train"].parts}
    return tuple(
        name
        for name, split in splits.items()
        if name != "train"
        and any(are_swapped(train[part.corpus], part) for part in split.parts if part.corpus in train)
    )


def are_swapped(train: Iterable[Pair], other: Iterable[Pair]) -> bool:
    """Checks whether each side of `other` is clearly more similar to the opposite side of `train` than to its own.

    The similarity is the probability of a side's letter trigrams (after Cavnar & Trenkle 1994, who identify languages
    by n-grams). Sides in one language are never swapped.

    Example:
      >>> english, german = "the horse that he buys", "das Pferd, das er kauft"
      >>> are_swapped([(english, german)] * 9, [(german, english)] * 9)
      True
    """
    known, received = _profiles(train), _profiles(other)
    if min(sum(profile.values()) for profile in (*known, *received)) < LEAST_TRIGRAMS:
        return False
    gains = (_log_ratio(received[0], known[1], known[0]), _log_ratio(received[1], known[0], known[1]))
    return min(gains) > CLEARLY


def _profiles(pairs: Iterable[Pair]) -> tuple[Counter[str], Counter[str]]:
    """Counts the trigrams in the sources and in the targets of the first pairs."""
    profiles: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for pair in islice(pairs, MOST_PAIRS):
        for profile, text in zip(profiles, pair, strict=True):
            profile.update(_trigrams(text))
    return profiles


def _trigrams(text: str) -> Iterator[str]:
    spaced = f" {' '.join(text.lower().split())} "
    return (spaced[i : i + 3] for i in range(len(spaced) - 2))


def _log_ratio(text: Counter[str], one: Counter[str], other: Counter[str]) -> float:
    """Returns the log-probability of the text under one profile minus that under the other, in nats per trigram."""
    size = len({*one, *other, *text})
    totals = [sum(profile.values()) + size for profile in (one, other)]
    found = sum(
        count * (math.log((one[trigram] + 1) / totals[0]) - math.log((other[trigram] + 1) / totals[1]))
        for trigram, count in text.items()
    )
    return found / sum(text.values())
