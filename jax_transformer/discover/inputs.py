"""Make the ids that a module runs on, for reading it and for checking the result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jax_transformer.programs.calling import Call

ROWS, SOURCE_LENGTH, TARGET_LENGTH = 3, 13, 11
FAR = 331, 307
"""Lengths that separate the buckets of far distances."""
SPECIAL = 4
"""Number of lowest ids that reading avoids if there are enough others: programs may treat start and end ids specially.
The checks include them."""


@dataclass(frozen=True)
class Batch:
    """Holds ids [B, S] and [B, T], and where their padding is."""

    source_ids: np.ndarray
    target_ids: np.ndarray
    padding: str

    @property
    def lengths(self) -> tuple[int, int]:
        """Returns the numbers of tokens of a source and of a target."""
        return self.source_ids.shape[1], self.target_ids.shape[1]


PADDINGS = ("inside", "at the end")


def probes(limits: Call) -> list[Batch]:
    """Returns the batches to try: first with padding inside sentences, which reveals more, then only at their ends."""
    rng = np.random.default_rng(0)
    return [_batch(limits, rng, padding, lowest=SPECIAL) for padding in PADDINGS]


def checks(limits: Call, padding: str, count: int = 3) -> list[Batch]:
    """Returns batches that differ from the probes: with every id, and of other lengths where a module allows it."""
    rng = np.random.default_rng(1)
    longest = _longest(limits)
    lengths = [(SOURCE_LENGTH - 4, TARGET_LENGTH + 6), (SOURCE_LENGTH + 8, TARGET_LENGTH - 6), longest]
    return [_batch(limits, rng, padding, lowest=0, lengths=lengths[number % 3]) for number in range(count)]


def long_checks(limits: Call, padding: str, longest: tuple[int, int]) -> list[Batch]:
    """Returns single-sentence batches of further lengths: one token; `longest` tokens of source and target; and lengths
    in between."""
    far = _longest(limits)
    between = tuple(round((least * most) ** 0.5) for least, most in zip(far, longest, strict=True))
    if max(longest) < 2 * max(far):
        between = longest
    rng = np.random.default_rng(3)
    found = {batch.lengths: batch for batch in checks(limits, padding)}
    known = {*found}
    for lengths in ((1, 1), between, longest):
        batch = _batch(limits, rng, padding, lowest=0, lengths=(lengths[0], lengths[1]), rows=1)
        if batch.lengths == (1, 1) or any(one > other for one, other in zip(batch.lengths, far, strict=True)):
            found.setdefault(batch.lengths, batch)
    return [batch for lengths, batch in found.items() if lengths not in known]


def longer(limits: Call, batch: Batch) -> Batch | None:
    """Returns a batch of much longer sentences with padding in the same places; None if it can't be longer."""
    lengths = FAR[0], FAR[1]
    found = _batch(limits, np.random.default_rng(2), batch.padding, lowest=SPECIAL, lengths=lengths)
    return found if found.source_ids.shape[1] > batch.source_ids.shape[1] else None


def _longest(limits: Call) -> tuple[int, int]:
    return min(limits.max_source_length or FAR[0], FAR[0]), min(limits.max_target_length or FAR[1], FAR[1])


def _batch(
    limits: Call,
    rng: np.random.Generator,
    padding: str,
    *,
    lowest: int,
    lengths: tuple[int, int] | None = None,
    rows: int = ROWS,
) -> Batch:
    source, target = lengths or (SOURCE_LENGTH, TARGET_LENGTH)
    source = limits.fixed_source_length or min(source, limits.max_source_length or source)
    target = limits.fixed_target_length or min(target, limits.max_target_length or target)
    if limits.equal_lengths:
        source = target = max(source, target)
    ids = [
        _ids(rng, rows, length, size, pad, lowest)
        for length, size, pad in (
            (source, limits.source_vocab_size, limits.source_pad_id),
            (target, limits.target_vocab_size, limits.target_pad_id),
        )
    ]
    for array, pad, row in zip(ids, (limits.source_pad_id, limits.target_pad_id), (0, 1), strict=True):
        if pad is None:
            continue
        if rows > 1:
            array[row, -max(1, array.shape[1] // 4) :] = pad
        if padding == "inside" and array.shape[1] >= 6:
            array[-1, array.shape[1] // 3 : array.shape[1] // 3 + 2] = pad
    if limits.start_id is not None:
        ids[1][:, 0] = limits.start_id
    return Batch(ids[0], ids[1], padding)


def _ids(rng: np.random.Generator, rows: int, length: int, size: int, pad: int | None, lowest: int) -> np.ndarray:
    allowed = np.setdiff1d(np.arange(lowest if size > 3 * SPECIAL else 0, size), [] if pad is None else [pad])
    return rng.choice(allowed, (rows, length)).astype(np.int64)
