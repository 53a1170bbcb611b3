"""The phrasebook: an English-German grammar that makes the embedded parallel corpus, without any file or network.

The grammar is single-valued in both directions: every English sentence it makes has one German sentence, and the
reverse. A sentence belongs to one split for good, whatever the seed: to "combinations" where it holds one of the
held-out combinations (a verb in a kind of clause, or a noun after a preposition), else to train, valid or test by a
hash of its text.

This module draws pairs and knows the splits. What it draws from, each importing only those before it:

* `lexicon`: the words, in tables;
* `phrases`: noun phrases and pronouns in every case;
* `grammar`: predicates and clauses, in every word order;
* `sentences`: the constructions.
"""

import random
from hashlib import blake2b

from jax_transformer.data.phrasebook.grammar import Sentence, Uses
from jax_transformer.data.phrasebook.sentences import CONSTRUCTIONS

__all__ = [
    "CONSTRUCTIONS",
    "FRUITLESS_DRAWS",
    "HELD_OUT",
    "HELD_OUT_CLAUSES",
    "HELD_OUT_PREPOSITIONS",
    "SPLITS",
    "held_out_combinations",
    "sample_pairs",
    "split_of",
]

SPLITS = ("train", "valid", "test", "combinations")

# Each word and each place is frequent in training; only the two of a pair never meet there.
HELD_OUT_CLAUSES: Uses = (
    ("buy", "relative clause"),
    ("visit", "because clause"),
    ("help", "future clause"),
    ("call", "that clause"),
    ("find", "negated clause"),
    ("open", "modal clause"),
)
HELD_OUT_PREPOSITIONS: Uses = (
    ("table", "under"),
    ("car", "behind"),
    ("school", "in front of"),
    ("garden", "through"),
    ("doctor", "with"),
    ("sister", "without"),
)
HELD_OUT = frozenset(HELD_OUT_CLAUSES + HELD_OUT_PREPOSITIONS)

FRUITLESS_DRAWS = 20_000
"""`sample_pairs` gives up after so many draws in a row without a new sentence."""


def held_out_combinations() -> tuple[str, ...]:
    """Returns the combinations that only the split "combinations" has, in words."""
    clauses = [f'"{verb}" in a {kind}' for verb, kind in HELD_OUT_CLAUSES]
    return (*clauses, *(f'"{noun}" after "{preposition}"' for noun, preposition in HELD_OUT_PREPOSITIONS))


def split_of(sentence: Sentence) -> str:
    """Returns the split of a sentence; without held-out combinations, a tenth each goes to valid and test."""
    for use in sentence.uses:
        if use in HELD_OUT:
            return "combinations"
    bucket = int.from_bytes(blake2b(sentence.english.encode(), digest_size=4).digest(), "big") % 10
    return ("valid", "test")[bucket] if bucket < 2 else "train"


def sample_pairs(split: str, count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Samples `count` distinct (English, German) pairs of a split, as a pure function of the arguments.

    The pairs are the same on every machine and Python version, and a smaller request gets the first pairs of a larger
    one. Splits are disjoint for any seeds and counts.

    Raises:
      ValueError: an unknown split, a negative count, or more pairs than the split has.
    """
    if split not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}; received {split!r}")
    if count < 0:
        raise ValueError(f"count: expected 0 or more; received {count}")
    rng = random.Random(int.from_bytes(blake2b(f"{split} {seed}".encode(), digest_size=8).digest(), "big"))
    pairs: dict[str, str] = {}
    fruitless = 0
    while len(pairs) < count:
        sentence = rng.choice(CONSTRUCTIONS)(rng)
        if sentence.english not in pairs and split_of(sentence) == split:
            pairs[sentence.english] = sentence.german
            fruitless = 0
            continue
        fruitless += 1
        if fruitless == FRUITLESS_DRAWS:
            raise ValueError(
                f"count: expected at most the {len(pairs)} distinct pairs found of {split!r} (then {fruitless} draws "
                "brought no new one); "
                f"received {count}"
            )
    return list(pairs.items())
