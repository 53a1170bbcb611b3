"""Packing: several pairs share a row of a batch, one after another, so that little of it is padding.

Segments number the pairs of a row from 1 on both sides; padding has 0. The model lets a token see its own pair alone,
and counts positions from the pair's first token, so that a pair has the loss that it has in a row of its own.

Rows are filled greedily, by the lengths alone: the longest pair that is left, then the longest that still fits. The
caller's order decides which of the pairs of equal lengths goes where. So all epochs have the same number of rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jax_transformer.data.batch_shapes import length_table, shape_of
from jax_transformer.data.batching import (
    Batch,
    Floats,
    Ints,
    Lengths,
    Shape,
    corpora_of,
    source_and_target_positions,
)
from jax_transformer.data.token_pairs import Sentences, TokenPairs

MOST_CANDIDATES = 8
"""Lengths tried for the side with fewer tokens."""
LEAST_GROUP, LEAST_DRAWN = 64, 8
"""Least number of pairs of similar lengths from which a share is drawn, and of those drawn: see `_draw_share`."""


class PackedPlan(NamedTuple):
    """Describes a packed batch: its shape, the indices of its pairs, and the row of each, in ascending order."""

    shape: Shape
    indices: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]


def pack_batch(
    source: Sequence[Sequence[int]],
    target: Sequence[Sequence[int]],
    *,
    bos_id: int = 2,
    eos_id: int = 3,
    source_pad_id: int = 0,
    target_pad_id: int = 0,
    shape: Shape | None = None,
) -> Batch:
    """Returns a batch with several pairs in a row, for `make_train_step`.

    The step computes for it what it computes for `make_batch` of the same pairs, in fewer positions. (Dropout draws
    other values.) The rows hold the pairs in an order of their own.

    Args:
      source: the ids of each source sentence, including the `<eos>` that the tokenizer puts after it.
      target: the ids of each target sentence, without `<bos>` and `<eos>`.
      bos_id: put before each target in `decoder_input_ids`.
      eos_id: put after each target in `labels`.
      source_pad_id: fills up `source_ids`; the model's config has the same.
      target_pad_id: fills up `decoder_input_ids` and `labels`; the model's config has the same.
      shape: (rows, source length, target length) of the arrays. Longer rows hold more pairs with less padding; a model
        with position tables takes rows of up to max_length. None: as long as the longest sentences, and as many as the
        pairs need.

    Raises:
      ValueError: other numbers of sources and targets, or none; a pair longer than a row; more rows than `shape` has.

    Example:
      >>> from jax_transformer.data import Shape, pack_batch
      >>> batch = pack_batch([[4, 5, 3], [6, 3], [7, 3]], [[7, 8], [9], [5]], shape=Shape(1, 8, 8))
      >>> batch.source_ids.tolist(), batch.source_segments.tolist()
      ([[4, 5, 3, 6, 3, 7, 3, 0]], [[1, 1, 1, 2, 2, 3, 3, 0]])
      >>> batch.decoder_input_ids.tolist(), batch.target_segments.tolist()
      ([[2, 7, 8, 2, 9, 2, 5, 0]], [[1, 1, 1, 2, 2, 3, 3, 0]])
      >>> batch.labels.tolist()
      [[7, 8, 3, 9, 3, 5, 3, 0]]
    """
    if not len(source) or len(source) != len(target):
        raise ValueError(
            f"batch: expected as many targets as sources, one or more; received {len(source)} sources and "
            f"{len(target)} targets"
        )
    pairs = TokenPairs(Sentences.pack(source), Sentences.pack(target), max_length=1 << 30)
    lengths = pairs.source_lengths, pairs.target_lengths + 1
    row = Shape(0, max(1, int(lengths[0].max())), int(lengths[1].max())) if shape is None else Shape(*shape)
    rows = pack_rows(*lengths, row)
    used = int(rows.max()) + 1
    shape = row._replace(rows=used) if shape is None else row
    if used > shape.rows:
        raise ValueError(f"batch: expected a shape of at least {used} rows for these pairs; received {tuple(shape)}")
    order = np.argsort(rows, kind="stable")
    plan = PackedPlan(shape, order, rows[order])
    return assemble_packed(
        pairs, plan, source_pad_id=source_pad_id, target_pad_id=target_pad_id, bos_id=bos_id, eos_id=eos_id
    )


def pack_rows(source: Ints, target: Ints, shape: Shape) -> npt.NDArray[np.int64]:
    """Returns the row of each pair, given its source and target positions. Rows are counted from 0, without limit.

    Raises:
      ValueError: a pair longer than a row.
    """
    _check_fit(source, target, shape)
    width = shape.target_length + 1
    cells, cell, counts = np.unique(source * width + target, return_inverse=True, return_counts=True)
    by_cell = np.argsort(cell, kind="stable")
    following = np.cumsum(counts) - counts  # the next pair of each cell in by_cell
    rows = np.empty(len(cell), np.int64)
    first = 0
    for repeats, contents in _fill(cells // width, cells % width, counts, shape):
        for k, copies in contents:
            members = by_cell[following[k] : following[k] + repeats * copies]
            rows[members] = first + np.repeat(np.arange(repeats), copies)
            following[k] += len(members)
        first += repeats
    return rows


Contents = list[tuple[int, int]]
"""What a row holds: numbers of kinds of pairs, and how many of each."""


def _fill(source: Ints, target: Ints, counts: Ints, shape: Shape) -> Iterator[tuple[int, Contents]]:
    """Yields how often a row with the same contents comes, and the contents, until `counts` pairs of each kind, with
    `source` and `target` positions, are placed.

    Puts into a row the pair that takes most of the room left, counted most on the side that has more room, while one
    fits (the dot-product heuristic of vector bin packing: Panigrahy et al. 2011).
    """
    kinds, left = np.arange(len(counts)), counts.astype(np.int64)
    lengths, row = np.stack([source, target], axis=1), np.array([shape.source_length, shape.target_length])
    while len(kinds):
        contents: Counter[int] = Counter()
        room, unused = row.copy(), left.copy()
        while (fitting := (unused > 0) & (lengths <= room).all(axis=1)).any():
            k = int(np.where(fitting, lengths @ (room / row**2), -1.0).argmax())
            contents[k] += 1
            unused[k] -= 1
            room -= lengths[k]
        repeats = min(int(left[k]) // copies for k, copies in contents.items())
        yield repeats, [(int(kinds[k]), copies) for k, copies in contents.items()]
        for k, copies in contents.items():
            left[k] -= repeats * copies
        kept = left > 0
        kinds, lengths, left = kinds[kept], lengths[kept], left[kept]


def _check_fit(source: Ints, target: Ints, shape: Shape) -> None:
    too_long = (source > shape.source_length) | (target > shape.target_length)
    if too_long.any():
        k = int(too_long.argmax())
        raise ValueError(
            f"packing: expected pairs of at most {shape.source_length} source and {shape.target_length} target "
            f"positions, the length of a row; received pair {k} with {source[k]} and {target[k]}"
        )


def choose_packed_shape(
    source_lengths: Ints,
    target_lengths: Ints,
    *,
    batch_tokens: int,
    length: int,
    longest: tuple[int, int] = (0, 0),
    pair_weights: Floats | None = None,
) -> Shape:
    """Returns the shape of packed batches.

    The side with more tokens has rows of `length` positions. The other side's length is that with the least padding.
    The rows are `batch_tokens` over `length`, as in `choose_shapes`.

    Args:
      source_lengths: tokens of each source.
      target_lengths: tokens of each target, without <bos> and <eos>.
      batch_tokens: rows times `length`, at most.
      length: positions of a row, at least those of the longest sentence.
      longest: source and target positions that a row holds at least.
      pair_weights: occurrences of each pair per epoch. None: one.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.data.packing import choose_packed_shape
      >>> choose_packed_shape(np.array([4] * 8), np.array([2] * 8), batch_tokens=64, length=16)
      Shape(rows=4, source_length=16, target_length=12)
    """
    source, target, counts = length_table(source_lengths, target_lengths, pair_weights)
    totals = int(source @ counts), int(target @ counts)
    fewer = 0 if totals[0] < totals[1] else 1
    least = max(int((source, target)[fewer].max()), longest[fewer], length * totals[fewer] // totals[1 - fewer])
    candidates = np.unique(np.linspace(min(least, length), length, MOST_CANDIDATES).round().astype(np.int64))

    def shape_with(other: int) -> Shape:
        return shape_of(*((other, length) if fewer == 0 else (length, other)), batch_tokens)

    def cost(shape: Shape) -> int:
        rows = sum(repeats for repeats, _ in _fill(source, target, counts, shape))
        return -(-rows // shape.rows) * shape.rows * (shape.source_length + shape.target_length)

    return min((shape_with(int(other)) for other in candidates), key=cost)


def plan_packed_epoch(
    lengths: TokenPairs | Lengths,
    shape: Shape,
    *,
    seed: int,
    epoch: int,
    shard: int = 0,
    weights: Sequence[float] = (),
) -> list[PackedPlan]:
    """Returns the packed batches of one epoch in random order. All epochs have the same number of batches.

    Every usable pair of TokenPairs, or every pair of `lengths`, occurs once, or as `weights` say: see `plan_epoch`,
    which has the same arguments.

    Raises:
      ValueError: a pair longer than a row.
    """
    generator = np.random.default_rng((seed, epoch, shard))
    source, target, indices = source_and_target_positions(lengths)
    occurring = _Occurring(np.arange(len(indices)), source, target)
    if any(weight != 1.0 for weight in weights):
        occurring = _weighted(source, target, corpora_of(lengths, indices), weights, generator)
    order = generator.permutation(len(occurring.pairs))
    pairs, source, target = (array[order] for array in occurring)
    rows = pack_rows(source, target, shape)
    count = int(rows.max(initial=-1)) + 1
    rows = generator.permutation(count)[rows]
    order = np.argsort(rows, kind="stable")
    ends = np.searchsorted(rows[order], np.arange(shape.rows, count + shape.rows, shape.rows))
    parts = np.split(order, ends[:-1]) if count else []
    return [PackedPlan(shape, indices[pairs[part]], rows[part] % shape.rows) for part in parts]


class _Occurring(NamedTuple):
    """Holds the pairs of an epoch, some of them several times, and the positions reserved for each."""

    pairs: Ints
    source: Ints
    target: Ints


def _weighted(
    source: Ints, target: Ints, corpora: Ints, weights: Sequence[float], generator: np.random.Generator
) -> _Occurring:
    """Returns the pairs of an epoch. The positions reserved are the same in every epoch, in some order."""
    parts = []
    for number, weight in enumerate(weights):
        members = np.flatnonzero(corpora == number)
        whole = np.repeat(members, int(weight))
        parts.append(_Occurring(whole, source[whole], target[whole]))
        more = round(weight * len(members)) - len(whole)
        more = more if weight >= 1 else max(more, min(1, len(members)))
        parts += _draw_share(members, more, source, target, generator)
    return _Occurring(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _draw_share(
    members: Ints, count: int, source: Ints, target: Ints, generator: np.random.Generator
) -> Iterator[_Occurring]:
    """Yields `count` of the pairs `members` in all, chosen at random among pairs of similar lengths. Each reserves the
    positions of the longest of them, whichever are chosen."""
    if not count:
        return
    by_length = members[np.lexsort((target[members], source[members]))]
    groups = max(1, min(len(members) // LEAST_GROUP, count // LEAST_DRAWN))
    counts = np.diff(np.arange(groups + 1) * count // groups)
    for group, drawn in zip(np.array_split(by_length, groups), counts, strict=True):
        room = np.full((2, drawn), [[source[group].max()], [target[group].max()]])
        yield _Occurring(generator.choice(group, drawn, replace=False), *room)


def assemble_packed(
    pairs: TokenPairs, plan: PackedPlan, *, source_pad_id: int, target_pad_id: int, bos_id: int, eos_id: int
) -> Batch:
    """Returns the arrays of one packed batch; `assemble` has the other arguments.

    Raises:
      ValueError: pairs that don't fit into their row (nothing is truncated).
    """
    shape, indices, rows = plan
    first = np.searchsorted(rows, rows)  # the first pair of each pair's row
    segments = np.arange(len(rows)) - first + 1
    source = _Side(pairs.source_sentences, indices, 0)
    target = _Side(pairs.target_sentences, indices, 1)
    source_at = source.columns(first, shape.source_length)
    target_at = target.columns(first, shape.target_length)

    source_ids = np.full((shape.rows, shape.source_length), source_pad_id, np.int32)
    source_segments = np.zeros_like(source_ids)
    place = rows[source.pair], source_at[source.pair] + source.number
    source_ids[place], source_segments[place] = source.ids, segments[source.pair]

    labels = np.full((shape.rows, shape.target_length), target_pad_id, np.int32)
    decoder_input_ids, target_segments = labels.copy(), np.zeros_like(labels)
    row, column = rows[target.pair], target_at[target.pair] + target.number
    labels[row, column] = decoder_input_ids[row, column + 1] = target.ids
    target_segments[row, column] = segments[target.pair]
    decoder_input_ids[rows, target_at] = bos_id
    last = target_at + target.lengths - 1
    labels[rows, last], target_segments[rows, last] = eos_id, segments
    return Batch(source_ids, decoder_input_ids, labels, source_segments, target_segments)


class _Side:
    """Holds the tokens of one side of a batch's pairs, end to end."""

    def __init__(self, sentences: Sentences, indices: Ints, specials: int) -> None:
        starts = sentences.offsets[indices]
        tokens = sentences.offsets[indices + 1] - starts
        self.lengths = tokens + specials  # positions of each pair
        self.pair = np.repeat(np.arange(len(indices)), tokens)  # that each token belongs to
        self.number = np.arange(len(self.pair)) - np.repeat(np.cumsum(tokens) - tokens, tokens)  # in its sentence
        self.ids = sentences.ids[starts[self.pair] + self.number]

    def columns(self, first: Ints, length: int) -> Ints:
        """Returns the column at which each pair begins in a row of `length`; `first` is the first pair of its row."""
        before = np.cumsum(self.lengths) - self.lengths
        columns = before - before[first]
        ends = columns + self.lengths
        if ends.max(initial=0) > length:
            raise ValueError(f"batch: expected rows of at most {length} positions; received one with {ends.max()}")
        return columns
