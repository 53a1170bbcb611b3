"""Makes batches, the arrays of a training step, from the token ids of pairs.

A batch has one pair in each row. A packed batch has several, one after another, which leaves little padding: segments
number the pairs of a row from 1 on both sides; padding has 0. In the model, a token sees only its own pair, and
positions are counted from the pair's first token, so that packing doesn't change a pair's loss.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jax_transformer.data.planning import Ints, PackedPlan, Shape, pack_rows
from jax_transformer.data.token_pairs import Sentences, TokenPairs
from jax_transformer.runtime.arguments import check_id_lists


class Batch(NamedTuple):
    """Holds the int32 arrays of one training step, padded with each side's pad_id; see `make_batch`.

    A packed batch has several pairs in a row, and two more arrays that assign each token to its pair; see `pack_batch`.

    Example:
      >>> from jax_transformer.data import make_batch
      >>> batch = make_batch([[4, 5, 3]], [[6, 7]])
      >>> batch.source_ids.shape, batch.decoder_input_ids.shape, batch.labels.shape, batch.source_segments
      ((1, 3), (1, 3), (1, 3), None)
    """

    source_ids: npt.NDArray[np.int32]  # [B, S]
    decoder_input_ids: npt.NDArray[np.int32]  # [B, T], bos + target
    labels: npt.NDArray[np.int32]  # [B, T], target + eos
    source_segments: npt.NDArray[np.int32] | None = None  # [B, S], number of the pair in its row, from 1; 0 at pads
    target_segments: npt.NDArray[np.int32] | None = None  # [B, T]


def make_batch(
    source: Sequence[Sequence[int]],
    target: Sequence[Sequence[int]],
    *,
    bos_id: int = 2,
    eos_id: int = 3,
    source_pad_id: int = 0,
    target_pad_id: int = 0,
    shape: Shape | None = None,
) -> Batch:
    """Returns a batch made of lists of token ids.

    Args:
      source: the ids of each source sentence, including the `<eos>` that the tokenizer puts after it.
      target: the ids of each target sentence, without `<bos>` and `<eos>`.
      bos_id: put before each target in `decoder_input_ids`.
      eos_id: put after each target in `labels`.
      source_pad_id: fills up `source_ids`; must be that of the model's config.
      target_pad_id: fills up `decoder_input_ids` and `labels`; must be that of the model's config.
      shape: (rows, source length, target length) of the arrays; one shape for all batches compiles one program.
        None: as small as the sentences allow.

    Raises:
      ValueError: different numbers of sources and targets, or none; more or longer sentences than `shape` holds;
        anything but lists of integers.

    Example:
      >>> from jax_transformer.data import make_batch
      >>> batch = make_batch([[4, 5, 3], [6, 3]], [[7, 8], [9]])
      >>> batch.source_ids.tolist()
      [[4, 5, 3], [6, 3, 0]]
      >>> batch.decoder_input_ids.tolist()
      [[2, 7, 8], [2, 9, 0]]
      >>> batch.labels.tolist()
      [[7, 8, 3], [9, 3, 0]]
    """
    check_id_lists("source", source)
    check_id_lists("target", target)
    if not len(source) or len(source) != len(target):
        raise ValueError(
            f"batch: expected as many targets as sources, one or more; received {len(source)} sources and "
            f"{len(target)} targets"
        )
    longest = Shape(len(source), max(1, *map(len, source)), 1 + max(map(len, target)))
    shape = longest if shape is None else Shape(*shape)
    if any(have < needed for have, needed in zip(shape, longest, strict=True)):
        raise ValueError(
            "batch: expected a shape (rows, source length, target length with <bos>) of at least "
            f"{tuple(longest)}; received {tuple(shape)}"
        )
    source_ids = np.full((shape.rows, shape.source_length), source_pad_id, np.int32)
    decoder_input_ids = np.full((shape.rows, shape.target_length), target_pad_id, np.int32)
    labels = np.full((shape.rows, shape.target_length), target_pad_id, np.int32)
    for row, (source_sentence, target_sentence) in enumerate(zip(source, target, strict=True)):
        source_ids[row, : len(source_sentence)] = _integers("source", source_sentence)
        target_row = _integers("target", target_sentence)
        decoder_input_ids[row, : len(target_row) + 1] = [bos_id, *target_row]
        labels[row, : len(target_row) + 1] = [*target_row, eos_id]
    return Batch(source_ids, decoder_input_ids, labels)


def _integers(side: str, ids: Sequence[int]) -> Ints:
    """Returns the ids of a sentence as an array, int64."""
    array = np.asarray(ids)
    if array.size and (array.ndim != 1 or array.dtype.kind not in "iu"):
        raise ValueError(f"{side}: expected a list of each sentence's ids, integers; received {reprlib.repr(ids)}")
    return array.astype(np.int64)


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

    The step gives the same results as for `make_batch` of the same pairs, in fewer positions. (Dropout draws different
    values.) The order of the pairs in the rows is unspecified.

    Args:
      source: the ids of each source sentence, including the `<eos>` that the tokenizer puts after it.
      target: the ids of each target sentence, without `<bos>` and `<eos>`.
      bos_id: put before each target in `decoder_input_ids`.
      eos_id: put after each target in `labels`.
      source_pad_id: fills up `source_ids`; must be that of the model's config.
      target_pad_id: fills up `decoder_input_ids` and `labels`; must be that of the model's config.
      shape: (rows, source length, target length) of the arrays. Longer rows hold more pairs with less padding; a model
        with position tables takes rows of up to max_length. None: as long as the longest sentences, and as many rows as
        the pairs need.

    Raises:
      ValueError: different numbers of sources and targets, or none; a pair longer than a row; more rows than `shape`
        has.

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


def assemble(
    pairs: TokenPairs, shape: Shape, indices: Ints, *, source_pad_id: int, target_pad_id: int, bos_id: int, eos_id: int
) -> Batch:
    """Returns the arrays of one batch: pair indices[k] in row k, and rows of padding after the last index.

    Args:
      pairs: the pairs of a split.
      shape: rows and lengths of the arrays.
      indices: the pairs of this batch, [at most rows].
      source_pad_id: fills up the sources.
      target_pad_id: fills up the targets.
      bos_id: the target's <bos>.
      eos_id: the target's <eos>.

    Raises:
      ValueError: more indices than rows, or a pair longer than the shape (nothing is truncated).

    Example:
      >>> import numpy as np
      >>> from jax_transformer.data import Shape, TokenPairs, assemble
      >>> from jax_transformer.data.token_pairs import Sentences
      >>> pairs = TokenPairs(Sentences.pack([[4, 3]]), Sentences.pack([[5, 6]]), max_length=8)
      >>> assemble(pairs, Shape(1, 2, 4), np.array([0]), source_pad_id=0, target_pad_id=0, bos_id=2, eos_id=3).labels
      array([[5, 6, 3, 0]], dtype=int32)
    """
    if len(indices) > shape.rows:
        raise ValueError(f"batch: expected at most {shape.rows} pairs; received {len(indices)}")
    source_ids = np.full((shape.rows, shape.source_length), source_pad_id, np.int32)
    decoder_input_ids = np.full((shape.rows, shape.target_length), target_pad_id, np.int32)
    labels = np.full((shape.rows, shape.target_length), target_pad_id, np.int32)
    _copy_rows(pairs.source_sentences, indices, source_ids)
    ends = _copy_rows(pairs.target_sentences, indices, labels[:, :-1])
    filled = np.arange(len(indices))
    decoder_input_ids[:, 1:] = labels[:, :-1]
    decoder_input_ids[filled, 0] = bos_id
    labels[filled, ends] = eos_id
    return Batch(source_ids, decoder_input_ids, labels)


def _copy_rows(sentences: Sentences, indices: Ints, rows: npt.NDArray[np.int32]) -> Ints:
    """Writes sentence indices[k] at the start of rows[k]; returns the lengths."""
    starts = sentences.offsets[indices]
    lengths = sentences.offsets[np.asarray(indices) + 1] - starts
    if lengths.max(initial=0) > rows.shape[1]:
        index = int(np.asarray(indices)[lengths.argmax()])
        raise ValueError(
            f"batch: expected sentences of at most {rows.shape[1]} tokens; received pair {index} with {lengths.max()}"
        )
    total = int(lengths.sum())
    before = np.repeat(np.cumsum(lengths) - lengths, lengths)  # tokens of the rows above
    column = np.arange(total) - before
    row = np.repeat(np.arange(len(indices)), lengths)
    rows[row, column] = sentences.ids[np.repeat(starts, lengths) + column]
    return lengths


def assemble_packed(
    pairs: TokenPairs, plan: PackedPlan, *, source_pad_id: int, target_pad_id: int, bos_id: int, eos_id: int
) -> Batch:
    """Returns the arrays of one packed batch; see `assemble` for the remaining arguments.

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
        self.pair = np.repeat(np.arange(len(indices)), tokens)  # each token's pair
        self.number = np.arange(len(self.pair)) - np.repeat(np.cumsum(tokens) - tokens, tokens)  # index in its sentence
        self.ids = sentences.ids[starts[self.pair] + self.number]

    def columns(self, first: Ints, length: int) -> Ints:
        """Returns the column at which each pair begins in a row of `length`; `first` is the first pair of its row."""
        before = np.cumsum(self.lengths) - self.lengths
        columns = before - before[first]
        ends = columns + self.lengths
        if ends.max(initial=0) > length:
            raise ValueError(f"batch: expected rows of at most {length} positions; received one with {ends.max()}")
        return columns
