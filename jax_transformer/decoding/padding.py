"""Few shapes for sentences of any lengths, so that few programs are compiled; and how long sentences may be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from jax_transformer.config.positions import Table
from jax_transformer.storage.model_directory import Model

ROWS = (1, 8, 64)
"""Numbers of rows of translated batches, which are padded with empty rows; larger batches have a power of two."""
SHORTEST = 8
"""The least length to which sequences are padded; see `round_length`."""
LEAST_ROOM = 16
"""The least room for targets."""
FEATURES_ROOM = 32
"""Half of the first room for the targets of feature vectors, of which there are many more than tokens."""
PROGRAM_TOKENS = 8192
"""Source tokens that take about as long to decode as a program for a further length to load from JAX's cache: 4,000 of
a model of 6+6 layers of width 512, and 30,000 of one of 2+2 layers of width 128, on a CPU. Compiling takes longer."""
WITHOUT_TABLE = 1 << 16
"""Maximum length of a text in tokens if no position table limits it."""


def round_rows(count: int) -> int:
    """Returns `count` or somewhat more."""
    return next((rows for rows in ROWS if rows >= count), 1 << (count - 1).bit_length())


def round_length(length: int, most: int) -> int:
    """Returns the next of 8, 12, 16, 24, 32, 48, …, at most `most`: two sizes for each doubling."""
    rounded = SHORTEST
    while rounded < length:
        rounded *= 2
    between = rounded * 3 // 4
    return min(between if between > SHORTEST and length <= between else rounded, most)


def few_lengths(lengths: Iterable[int], most: int) -> list[int]:
    """Returns the lengths, ascending, to which sequences of these lengths are best padded.

    They are lengths of `round_length`, as few as the number of sequences is worth: each further one saves
    PROGRAM_TOKENS, or keeps sequences from being padded to more than twice their own.
    """
    counts = Counter(round_length(length, most) for length in lengths)
    sizes = sorted(counts)
    best: list[tuple[int, list[int]]] = [(0, [])]  # for the first sizes: what they cost in tokens, and their lengths
    for end, size in enumerate(sizes, 1):
        ways = []
        for start, shortest in enumerate(sizes[:end]):
            if size <= 2 * shortest:
                cost, chosen = best[start]
                tokens = size * sum(counts[other] for other in sizes[start:end])
                ways.append((cost + PROGRAM_TOKENS + tokens, [*chosen, size]))
        best.append(min(ways))
    return best[-1][1]


def pad(sequences: Sequence[Sequence[int]], *, pad_id: int, rows: int = 0, length: int = 0) -> np.ndarray:
    """Returns the ids as [rows, length] int32, or larger if they need it, filled with pads."""
    length = max([length, *map(len, sequences)])
    padded = np.full((max(rows, len(sequences)), length), pad_id, np.int32)
    for row, ids in zip(padded, sequences, strict=False):
        row[: len(ids)] = ids
    return padded


def num_positions(model: Model, side: Literal["source", "target"]) -> int | None:
    """Returns the most tokens that a side's position table has room for; None without a table."""
    config = model.config
    stack = config.encoder if side == "source" else config.decoder
    positions = stack.positions
    return stack.max_length if isinstance(positions, Table) and positions.index != "batch_row" else None


def limit(model: Model, side: Literal["source", "target"]) -> int:
    """Returns the most tokens that the model reads ("source") or decodes ("target"), the end token included."""
    positions = num_positions(model, side)
    if side == "source":
        return positions or WITHOUT_TABLE
    longest = positions or 512
    return min(longest, model.generation.max_decode_length or longest)
