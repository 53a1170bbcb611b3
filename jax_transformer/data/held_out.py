"""Choose the pairs of a training text that are held out for validation or test."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from jax_transformer.config.data import CorpusConfig
from jax_transformer.data.duplicates import Flags
from jax_transformer.data.text_files import CorpusError


def held_out_counts(corpus: CorpusConfig, there: Iterable[str]) -> dict[str, int]:
    """Returns the number of training pairs to hold out, by role.

    Raises:
      CorpusError: pairs are to be held out for a role that is `there` already.
    """
    counts = {role: getattr(corpus, f"{role}_pairs") for role in ("valid", "test")}
    counts = {role: count for role, count in counts.items() if count}
    for role in counts.keys() & set(there):
        has = f"the split {role}" if corpus.used_dataset else f"{role} files"
        raise CorpusError(
            f"{role}_pairs: expected 0, for the corpus has {has}; received {counts[role]}. Set {role}_pairs to 0, or "
            "name no such pairs."
        )
    return counts


def too_few_pairs(corpus: CorpusConfig, total: int, wanted: dict[str, int]) -> CorpusError:
    """Returns the error for a corpus with fewer training pairs than it is to hold out."""
    names = " + ".join(f"{name}_pairs" for name in wanted)
    counts = " + ".join(map(str, wanted.values()))
    train = corpus.used_dataset or " and ".join(corpus.train)
    return CorpusError(
        f"{names}: expected fewer than the {total} pairs of train ({train}), out of which they are taken; received "
        f"{counts}. "
        "Take fewer, or name files."
    )


def draw_held_out(total: int, wanted: dict[str, int], seed: int) -> dict[str, Flags | None]:
    """Draws `wanted` of `total` pairs for each split; returns masks by split, with the rest as "train" (None: all)."""
    if not wanted:
        return {"train": None}
    order = np.random.default_rng(seed).permutation(total)
    chosen: dict[str, Flags | None] = {}
    for name, part in zip((*wanted, "train"), np.split(order, np.cumsum(list(wanted.values()))), strict=True):
        flags = np.zeros(total, np.bool_)
        flags[part] = True
        chosen[name] = flags
    return chosen
