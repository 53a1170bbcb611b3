"""Batches of a few fixed shapes: XLA compiles one program per shape, so very few shapes serve a whole corpus.

A target of n tokens takes n + 1 positions, as decoder input (<bos> before it) and as labels (<eos> after it). Length
arguments count tokens, without that 1; the lengths in a Shape count positions, with it.

Every function is pure: a plan depends on the lengths, the shapes, the seed and the epoch alone.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from jax_transformer.runtime.arguments import check_id_lists

if TYPE_CHECKING:
    from jax_transformer.data.preparation import Sentences, TokenPairs

Ints = npt.NDArray[np.integer]
Floats = npt.NDArray[np.floating]


class Shape(NamedTuple):
    """Describes the arrays of one compiled training step.

    Example:
      >>> from jax_transformer.data import Shape
      >>> Shape(rows=2, source_length=4, target_length=5)
      Shape(rows=2, source_length=4, target_length=5)
    """

    rows: int
    source_length: int
    target_length: int


class Batch(NamedTuple):
    """Holds the int32 arrays of one training step, padded with each side's pad_id; see `make_batch`.

    A packed batch has several pairs in a row, and says with two more arrays which token belongs to which; see
    `pack_batch`.

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
      source_pad_id: fills up `source_ids`; the model's config has the same.
      target_pad_id: fills up `decoder_input_ids` and `labels`; the model's config has the same.
      shape: (rows, source length, target length) of the arrays; one shape for all batches compiles one program.
        None: as small as the sentences allow.

    Raises:
      ValueError: other numbers of sources and targets, or none; more of them, or longer ones, than `shape` holds;
        something else than lists of integers.

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


Planned = tuple[Shape, npt.NDArray[np.int64]]
"""A shape and the indices of the pairs in its rows from the top: at least one, and at most `rows`."""

Lengths = tuple[Ints, Ints]
"""Numbers of source and target tokens per pair."""


def plan_epoch(
    lengths: TokenPairs | Lengths,
    shapes: Sequence[Shape],
    *,
    seed: int,
    epoch: int,
    shard: int = 0,
    weights: Sequence[float] = (),
) -> list[Planned]:
    """Returns the batches of one epoch in random order, each pair in the cheapest shape that holds it.

    Every usable pair of TokenPairs, or every pair of `lengths`, occurs once, or as `weights` say. All epochs have the
    same number of batches of each shape: of the n pairs of one corpus in one shape, round(weight · n) occur, each
    floor(weight) times and a random choice once more.

    Args:
      lengths: the pairs, or their numbers of source and target tokens.
      shapes: see `choose_shapes`.
      seed: of the order, with `epoch` and `shard`.
      epoch: number of the epoch, counted from 0.
      shard: number of this part of the epoch, counted from 0.
      weights: occurrences per pair of each corpus, by its number; (): one. A weight below 1 still includes at least
        one pair of each shape.

    Raises:
      ValueError: a pair fits no shape.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.data import Shape, plan_epoch
      >>> plan = plan_epoch((np.array([3, 4, 2]), np.array([3, 5, 1])), [Shape(2, 4, 6)], seed=0, epoch=0)
      >>> len(plan), sorted(index for _, indices in plan for index in indices.tolist())
      (2, [0, 1, 2])
    """
    generator = np.random.default_rng((seed, epoch, shard))
    source, target, indices = source_and_target_positions(lengths)
    assigned = _assigned(source, target, shapes, indices)
    chosen = np.arange(len(indices))
    if any(weight != 1.0 for weight in weights):
        chosen = np.repeat(chosen, _copies(assigned, corpora_of(lengths, indices), weights, generator))
    order = chosen[generator.permutation(len(chosen))]
    plan = _fill(indices[order], assigned[order], shapes)
    return [plan[k] for k in generator.permutation(len(plan))]


def plan_in_order(lengths: TokenPairs | Lengths, shapes: Sequence[Shape]) -> list[Planned]:
    """Returns the batches for evaluation: every usable pair once, in order within its shape, batches sorted by their
    first pair.

    Args:
      lengths: the pairs, or their numbers of source and target tokens.
      shapes: see `choose_shapes`.

    Raises:
      ValueError: a pair fits no shape (see cover_shapes).

    Example:
      >>> import numpy as np
      >>> from jax_transformer.data import Shape, plan_in_order
      >>> plan = plan_in_order((np.array([3, 4, 2]), np.array([3, 5, 1])), [Shape(2, 4, 6)])
      >>> [indices.tolist() for _, indices in plan]
      [[0, 1], [2]]
    """
    source, target, indices = source_and_target_positions(lengths)
    plan = _fill(indices, _assigned(source, target, shapes, indices), shapes)
    return sorted(plan, key=lambda planned: int(planned[1][0]))


def padding_share(lengths: TokenPairs | Lengths, plan: Sequence[Planned]) -> float:
    """Returns the share of padding in a plan's positions, on both sides, including the empty rows of partial batches.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.data import Shape, padding_share, plan_in_order
      >>> lengths = np.array([4, 4]), np.array([3, 3])
      >>> padding_share(lengths, plan_in_order(lengths, [Shape(4, 4, 4)]))  # half of the rows are empty
      0.5
    """
    source, target = _pair_lengths(lengths)
    total = sum(shape.rows * (shape.source_length + shape.target_length) for shape, _ in plan)
    real = sum(int(source[indices].sum()) + int(target[indices].sum()) + len(indices) for _, indices in plan)
    return 1.0 - real / total if total else 0.0


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


def _pair_lengths(lengths: TokenPairs | Lengths) -> Lengths:
    if isinstance(lengths, tuple):
        return np.asarray(lengths[0]), np.asarray(lengths[1])
    return lengths.source_lengths, lengths.target_lengths


def source_and_target_positions(lengths: TokenPairs | Lengths) -> tuple[Ints, Ints, npt.NDArray[np.int64]]:
    """Returns the source and target positions of the usable pairs, and their indices."""
    source, target = _pair_lengths(lengths)
    indices = np.arange(len(source)) if isinstance(lengths, tuple) else lengths.usable_indices
    return source[indices], target[indices] + 1, indices


def corpora_of(lengths: TokenPairs | Lengths, indices: Ints) -> Ints:
    """Returns the corpus number of each pair."""
    if isinstance(lengths, tuple) or lengths.corpus is None:
        return np.zeros(len(indices), np.uint16)
    return lengths.corpus[indices]


def _copies(assigned: Ints, corpora: Ints, weights: Sequence[float], generator: np.random.Generator) -> Ints:
    """Returns the occurrences of each pair in an epoch."""
    copies = np.zeros(len(assigned), np.int64)
    for number, weight in enumerate(weights):
        for shape in np.unique(assigned[corpora == number]):
            members = np.flatnonzero((corpora == number) & (assigned == shape))
            copies[members] = int(weight)
            more = round(weight * len(members)) - int(weight) * len(members)
            more = more if weight >= 1 else max(more, 1)  # or the few pairs of a shape would never come
            copies[generator.choice(members, more, replace=False)] += 1
    return copies


def assign_shapes(source: Ints, target: Ints, shapes: Sequence[Shape]) -> Ints:
    """Returns for each pair the index of the smallest shape (positions per row) that holds it, or -1."""
    assigned = np.full(len(source), -1)
    for k in sorted(range(len(shapes)), key=lambda k: -(shapes[k].source_length + shapes[k].target_length)):
        assigned[(source <= shapes[k].source_length) & (target <= shapes[k].target_length)] = k
    return assigned


def _assigned(source: Ints, target: Ints, shapes: Sequence[Shape], indices: Ints) -> Ints:
    """Returns `assign_shapes`; raises ValueError if a pair fits no shape."""
    assigned = assign_shapes(source, target, shapes)
    if (assigned < 0).any():
        k = int((assigned < 0).argmax())
        raise ValueError(
            "shapes: expected one that holds every pair; received "
            f"{', '.join(f'{s.source_length}x{s.target_length}' for s in shapes)} "
            f"for pair {indices[k]} with {source[k]} source and {target[k]} target positions"
        )
    return assigned


def _fill(indices: npt.NDArray[np.int64], assigned: Ints, shapes: Sequence[Shape]) -> list[Planned]:
    """Returns the batches of the pairs `indices`, in their order within each shape; the last one may be partial."""
    plan = []
    for k, shape in enumerate(shapes):
        members = indices[assigned == k]
        plan += [(shape, members[start : start + shape.rows]) for start in range(0, len(members), shape.rows)]
    return plan
