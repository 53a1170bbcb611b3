"""Batches of a few fixed shapes: XLA compiles one program per shape, so a corpus is cut into batches of very few of
them.

A target of n tokens takes n + 1 positions, as decoder input (<bos> before it) and as labels (<eos> after it). Lengths
that are passed to these functions are numbers of tokens, without that 1; the lengths in a Shape are numbers of
positions, with it.

Every function is pure: a plan is made of the lengths, the shapes, the seed and the epoch, and of nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from jax_transformer.data.preparation import Sentences, TokenPairs

Ints = npt.NDArray[np.integer]
Floats = npt.NDArray[np.floating]
MOST_CANDIDATES = 48
"""Lengths tried for one side of one shape in one round of the search."""


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

    Example:
      >>> from jax_transformer.data import make_batch
      >>> batch = make_batch([[4, 5, 3]], [[6, 7]])
      >>> [array.shape for array in batch]
      [(1, 3), (1, 3), (1, 3)]
    """

    source_ids: npt.NDArray[np.int32]  # [B, S]
    decoder_input_ids: npt.NDArray[np.int32]  # [B, T], bos + target
    labels: npt.NDArray[np.int32]  # [B, T], target + eos


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
      ValueError: other numbers of sources and targets, or none; more of them, or longer ones, than `shape` holds.

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
        source_ids[row, : len(source_sentence)] = source_sentence
        decoder_input_ids[row, : len(target_sentence) + 1] = [bos_id, *target_sentence]
        labels[row, : len(target_sentence) + 1] = [*target_sentence, eos_id]
    return Batch(source_ids, decoder_input_ids, labels)


Planned = tuple[Shape, npt.NDArray[np.int64]]
"""A shape and the indices of the pairs that fill its rows from the top; at most `rows`, and at least one."""

Lengths = tuple[Ints, Ints]
"""Numbers of source and target tokens of each pair."""


def choose_shapes(
    source_lengths: Ints,
    target_lengths: Ints,
    *,
    batch_tokens: int,
    num_shapes: int,
    pair_weights: Floats | None = None,
) -> tuple[Shape, ...]:
    """At most `num_shapes` shapes that hold every pair, chosen for the least padding of an epoch.

    Pairs are sorted by one number (the longer side, the sum, either side), and a dynamic programme cuts the sorted list
    at the best places for each; then one side of one shape is changed at a time, while that helps. Rows are
    `batch_tokens` over the longer side, rounded down to a multiple of 8 where there are 8. The shapes are in order of
    their positions per row.

    Args:
      pair_weights: how often each pair comes in an epoch; None: once.

    Raises:
      ValueError: no pairs; num_shapes below 1; a pair of more than batch_tokens positions on one side.
    """
    source, target, counts = _length_table(source_lengths, target_lengths, pair_weights)
    longest = int(max(source.max(), target.max()))
    if num_shapes < 1:
        raise ValueError(f"num_shapes: expected 1 or more; received {num_shapes}")
    if longest > batch_tokens:
        raise ValueError(
            f"batch_tokens: expected at least the longest side of a pair, {longest} positions; received {batch_tokens}"
        )
    best: list[Shape] = []
    least = np.inf
    for order in (np.maximum(source, target), source + target, source, target):
        start = _cut_sorted(order, source, target, counts, batch_tokens, num_shapes)
        start += start[-1:] * (num_shapes - len(start))  # where fewer do, the search may find a use for the others
        shapes, cost = _improve(start, source, target, counts, batch_tokens)
        if cost < least:
            best, least = shapes, cost
    used = np.unique(_assign(source, target, best))
    return tuple(best[k] for k in used)


def cover_shapes(shapes: Sequence[Shape], lengths: TokenPairs | Lengths, *, batch_tokens: int) -> tuple[Shape, ...]:
    """`shapes`, and where pairs fit none of them one more which holds those: for evaluating pairs that the shapes
    weren't chosen for."""
    source, target, _ = _positions(lengths)
    homeless = _assign(source, target, shapes) < 0
    if not homeless.any():
        return tuple(shapes)
    return (*shapes, _shape(int(source[homeless].max()), int(target[homeless].max()), batch_tokens))


def plan_epoch(
    lengths: TokenPairs | Lengths,
    shapes: Sequence[Shape],
    *,
    seed: int,
    epoch: int,
    shard: int = 0,
    weights: Sequence[float] = (),
) -> list[Planned]:
    """The batches of one epoch in a random order: every usable pair once, or as `weights` say, in the cheapest shape
    that holds it.

    Of TokenPairs the usable pairs are planned (of a training split: all); of lengths, all pairs. Every epoch has as
    many batches of each
    shape: of the n pairs of one corpus in one shape, round(weight · n) come: each floor(weight) times, those of a
      random choice once more.

    Args:
      shard: which part of the epoch's pairs these are, counted from 0.
      weights: how often the pairs of each corpus come, by its number; (): once. Below 1 at least one pair of each shape
        does.

    Raises:
      ValueError: a pair fits no shape.
    """
    generator = np.random.default_rng((seed, epoch, shard))
    source, target, indices = _positions(lengths)
    assigned = _assigned(source, target, shapes, indices)
    chosen = np.arange(len(indices))
    if any(weight != 1.0 for weight in weights):
        chosen = np.repeat(chosen, _copies(assigned, _corpora(lengths, indices), weights, generator))
    order = chosen[generator.permutation(len(chosen))]
    plan = _fill(indices[order], assigned[order], shapes)
    return [plan[k] for k in generator.permutation(len(plan))]


def plan_in_order(lengths: TokenPairs | Lengths, shapes: Sequence[Shape]) -> list[Planned]:
    """Batches for evaluation: every usable pair once, in its order among the pairs of its shape, batches by their first
    pair.

    Raises:
      ValueError: a pair fits no shape (see cover_shapes).
    """
    source, target, indices = _positions(lengths)
    plan = _fill(indices, _assigned(source, target, shapes, indices), shapes)
    return sorted(plan, key=lambda planned: int(planned[1][0]))


def padding_share(lengths: TokenPairs | Lengths, plan: Sequence[Planned]) -> float:
    """The share of the plan's positions, of both sides and with the empty rows of partial batches, that hold
    padding."""
    source, target = _pair_lengths(lengths)
    total = sum(shape.rows * (shape.source_length + shape.target_length) for shape, _ in plan)
    real = sum(int(source[indices].sum()) + int(target[indices].sum()) + len(indices) for _, indices in plan)
    return 1.0 - real / total if total else 0.0


def assemble(
    pairs: TokenPairs, shape: Shape, indices: Ints, *, source_pad_id: int, target_pad_id: int, bos_id: int, eos_id: int
) -> Batch:
    """The arrays of one batch: pair indices[k] in row k, rows beyond the last index all padding. bos_id and eos_id are
    the target's.

    Raises:
      ValueError: more indices than rows, or a pair that is longer than the shape (nothing is ever cut off).
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


def _positions(lengths: TokenPairs | Lengths) -> tuple[Ints, Ints, npt.NDArray[np.int64]]:
    """Positions of the usable pairs, source and target, and the pairs' indices."""
    source, target = _pair_lengths(lengths)
    indices = np.arange(len(source)) if isinstance(lengths, tuple) else lengths.usable_indices
    return source[indices], target[indices] + 1, indices


def _corpora(lengths: TokenPairs | Lengths, indices: Ints) -> Ints:
    """The corpus of each pair."""
    if isinstance(lengths, tuple) or lengths.corpus is None:
        return np.zeros(len(indices), np.uint16)
    return lengths.corpus[indices]


def _copies(assigned: Ints, corpora: Ints, weights: Sequence[float], generator: np.random.Generator) -> Ints:
    """How often each pair comes in an epoch."""
    copies = np.zeros(len(assigned), np.int64)
    for number, weight in enumerate(weights):
        for shape in np.unique(assigned[corpora == number]):
            members = np.flatnonzero((corpora == number) & (assigned == shape))
            copies[members] = int(weight)
            more = round(weight * len(members)) - int(weight) * len(members)
            more = more if weight >= 1 else max(more, 1)  # or the few pairs of a shape would never come
            copies[generator.choice(members, more, replace=False)] += 1
    return copies


def _shape(source_length: int, target_length: int, batch_tokens: int) -> Shape:
    return Shape(int(_rows(max(source_length, target_length), batch_tokens)), max(1, source_length), target_length)


def _rows(longer: int | Ints, batch_tokens: int) -> Ints:
    rows: Ints = np.maximum(1, batch_tokens // np.maximum(1, longer))
    return np.asarray(np.where(rows >= 8, rows - rows % 8, rows))


def _assign(source: Ints, target: Ints, shapes: Sequence[Shape]) -> Ints:
    """For each pair the index of the shape with fewest positions a row that holds it; -1 where none does."""
    assigned = np.full(len(source), -1)
    for k in sorted(range(len(shapes)), key=lambda k: -(shapes[k].source_length + shapes[k].target_length)):
        assigned[(source <= shapes[k].source_length) & (target <= shapes[k].target_length)] = k
    return assigned


def _assigned(source: Ints, target: Ints, shapes: Sequence[Shape], indices: Ints) -> Ints:
    """As _assign; ValueError where a pair fits no shape."""
    assigned = _assign(source, target, shapes)
    if (assigned < 0).any():
        k = int((assigned < 0).argmax())
        raise ValueError(
            "shapes: expected one that holds every pair; received "
            f"{', '.join(f'{s.source_length}x{s.target_length}' for s in shapes)} "
            f"for pair {indices[k]} with {source[k]} source and {target[k]} target positions"
        )
    return assigned


def _fill(indices: npt.NDArray[np.int64], assigned: Ints, shapes: Sequence[Shape]) -> list[Planned]:
    """Batches of the pairs `indices`, each shape's in the order given; the last batch of a shape may be partial."""
    plan = []
    for k, shape in enumerate(shapes):
        members = indices[assigned == k]
        plan += [(shape, members[start : start + shape.rows]) for start in range(0, len(members), shape.rows)]
    return plan


def _length_table(source_lengths: Ints, target_lengths: Ints, pair_weights: Floats | None) -> tuple[Ints, Ints, Ints]:
    """The distinct (source, target) positions and how many pairs of an epoch have them: all that the choice of shapes
    depends on."""
    source = np.asarray(source_lengths, np.int64)
    target = np.asarray(target_lengths, np.int64) + 1
    if not len(source) or len(source) != len(target):
        raise ValueError(
            f"lengths: expected those of as many sources as targets, one or more; received {len(source)} and "
            f"{len(target)}"
        )
    width = int(target.max()) + 1
    cells, cell, counts = np.unique(source * width + target, return_inverse=True, return_counts=True)
    if pair_weights is not None:
        counts = np.maximum(1, np.rint(np.bincount(cell, weights=pair_weights))).astype(np.int64)
    return cells // width, cells % width, counts


def _cost(count: Ints, source_length: Ints, target_length: Ints, batch_tokens: int) -> Ints:
    """Positions of the batches that `count` pairs take in one shape."""
    rows = _rows(np.maximum(source_length, target_length), batch_tokens)
    return -(-count // rows) * rows * (source_length + target_length)


def _total_cost(shapes: Sequence[Shape], source: Ints, target: Ints, counts: Ints, batch_tokens: int) -> float:
    """Positions of an epoch; infinite where a pair fits no shape."""
    assigned = _assign(source, target, shapes)
    if assigned.min() < 0:
        return np.inf
    members = np.bincount(assigned, weights=counts, minlength=len(shapes)).astype(np.int64)
    sides = np.array([[shape.source_length, shape.target_length] for shape in shapes])
    return float(_cost(members, sides[:, 0], sides[:, 1], batch_tokens).sum())


def _cut_sorted(
    order: Ints, source: Ints, target: Ints, counts: Ints, batch_tokens: int, num_shapes: int
) -> list[Shape]:
    """The best cut of the pairs, sorted by `order`, into at most `num_shapes` runs, each the shape of its longest
    sides."""
    values, group = np.unique(order, return_inverse=True)
    size = len(values)
    members = np.bincount(group, weights=counts).astype(np.int64)
    sides = np.zeros((2, size), np.int64)
    np.maximum.at(sides[0], group, source)
    np.maximum.at(sides[1], group, target)

    cost = np.full((size, size + 1), np.inf)  # cost[a, b]: groups a to b - 1 in one shape
    for a in range(size):
        longest = np.maximum.accumulate(sides[:, a:], axis=1)
        cost[a, a + 1 :] = _cost(np.cumsum(members[a:]), longest[0], longest[1], batch_tokens)
    least = np.full((num_shapes + 1, size + 1), np.inf)  # least[k, b]: groups 0 to b - 1 in exactly k shapes
    least[0, 0] = 0
    last_cut = np.zeros((num_shapes + 1, size + 1), np.int64)
    for k in range(1, num_shapes + 1):
        through = least[k - 1, :size, None] + cost
        last_cut[k] = through.argmin(axis=0)
        least[k] = through.min(axis=0)

    shapes = []
    end = size
    for k in range(int(least[:, size].argmin()), 0, -1):
        start = int(last_cut[k, end])
        shapes.append(_shape(int(sides[0, start:end].max()), int(sides[1, start:end].max()), batch_tokens))
        end = start
    return shapes[::-1]


def _improve(
    shapes: list[Shape], source: Ints, target: Ints, counts: Ints, batch_tokens: int
) -> tuple[list[Shape], float]:
    """Changes one side of one shape at a time while that lessens the cost; the shapes in order of their positions, and
    the cost."""
    candidates = [_spread(np.unique(source)), _spread(np.unique(target))]
    least = _total_cost(shapes, source, target, counts, batch_tokens)
    before = np.inf
    while least < before:
        before = least
        for k in range(len(shapes)):
            for side in (0, 1):
                for length in candidates[side]:
                    sides = [shapes[k].source_length, shapes[k].target_length]
                    sides[side] = int(length)
                    trial = [*shapes[:k], _shape(sides[0], sides[1], batch_tokens), *shapes[k + 1 :]]
                    cost = _total_cost(trial, source, target, counts, batch_tokens)
                    if cost < least:
                        shapes, least = trial, cost
    return sorted(shapes, key=lambda shape: shape.source_length + shape.target_length), least


def _spread(values: Ints) -> Ints:
    """The values, or MOST_CANDIDATES of them spread evenly, the largest always among them."""
    if len(values) <= MOST_CANDIDATES:
        return values
    return values[np.linspace(0, len(values) - 1, MOST_CANDIDATES).round().astype(np.int64)]
