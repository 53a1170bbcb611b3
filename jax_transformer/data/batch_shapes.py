"""Choose the few shapes of batches that cost least padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jax_transformer.data.preparation import TokenPairs
from jax_transformer.data.batching import Floats, Ints, Lengths, Shape, assign_shapes, source_and_target_positions

MOST_CANDIDATES = 48
"""Lengths tried for one side of one shape in one round of the search."""


def choose_shapes(
    source_lengths: Ints,
    target_lengths: Ints,
    *,
    batch_tokens: int,
    num_shapes: int,
    pair_weights: Floats | None = None,
) -> tuple[Shape, ...]:
    """Returns at most `num_shapes` shapes that hold every pair, chosen for the least padding in an epoch, sorted by
    positions per row.

    Sorts the pairs by one number (the longer side, the sum, either side) and finds the best cuts of the sorted list by
    dynamic programming; then changes one side of one shape at a time while that helps. The rows of a shape are
    `batch_tokens` over its longer side, rounded down to a multiple of 8 if there are at least 8.

    Args:
      source_lengths: tokens of each source.
      target_lengths: tokens of each target, without <bos> and <eos>.
      batch_tokens: rows times the longer side of a shape, at most.
      num_shapes: most shapes.
      pair_weights: occurrences of each pair per epoch. None: one.

    Raises:
      ValueError: no pairs; num_shapes below 1; a pair of more than batch_tokens positions on one side.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.data import choose_shapes
      >>> choose_shapes(np.array([4] * 6 + [20] * 2), np.array([5] * 6 + [19] * 2), batch_tokens=40, num_shapes=2)
      (Shape(rows=6, source_length=4, target_length=6), Shape(rows=2, source_length=20, target_length=20))
    """
    source, target, counts = length_table(source_lengths, target_lengths, pair_weights)
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
    used = np.unique(assign_shapes(source, target, best))
    return tuple(best[k] for k in used)


def cover_shapes(shapes: Sequence[Shape], lengths: TokenPairs | Lengths, *, batch_tokens: int) -> tuple[Shape, ...]:
    """Returns `shapes` and, if some pairs fit none of them, one more shape that holds these."""
    source, target, _ = source_and_target_positions(lengths)
    homeless = assign_shapes(source, target, shapes) < 0
    if not homeless.any():
        return tuple(shapes)
    return (*shapes, shape_of(int(source[homeless].max()), int(target[homeless].max()), batch_tokens))


def shape_of(source_length: int, target_length: int, batch_tokens: int) -> Shape:
    """Returns the shape with rows of these lengths."""
    return Shape(int(_rows(max(source_length, target_length), batch_tokens)), max(1, source_length), target_length)


def _rows(longer: int | Ints, batch_tokens: int) -> Ints:
    rows: Ints = np.maximum(1, batch_tokens // np.maximum(1, longer))
    return np.asarray(np.where(rows >= 8, rows - rows % 8, rows))


def length_table(source_lengths: Ints, target_lengths: Ints, pair_weights: Floats | None) -> tuple[Ints, Ints, Ints]:
    """Returns the distinct (source, target) positions and the number of pairs per epoch that have them."""
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
    """Returns the number of positions in the batches of `count` pairs in one shape."""
    rows = _rows(np.maximum(source_length, target_length), batch_tokens)
    return -(-count // rows) * rows * (source_length + target_length)


def _total_cost(shapes: Sequence[Shape], source: Ints, target: Ints, counts: Ints, batch_tokens: int) -> float:
    """Returns the number of positions in an epoch; infinity if a pair fits no shape."""
    assigned = assign_shapes(source, target, shapes)
    if assigned.min() < 0:
        return np.inf
    members = np.bincount(assigned, weights=counts, minlength=len(shapes)).astype(np.int64)
    sides = np.array([[shape.source_length, shape.target_length] for shape in shapes])
    return float(_cost(members, sides[:, 0], sides[:, 1], batch_tokens).sum())


def _cut_sorted(
    order: Ints, source: Ints, target: Ints, counts: Ints, batch_tokens: int, num_shapes: int
) -> list[Shape]:
    """Returns the shapes of the best cut of the pairs, sorted by `order`, into at most `num_shapes` runs."""
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
        shapes.append(shape_of(int(sides[0, start:end].max()), int(sides[1, start:end].max()), batch_tokens))
        end = start
    return shapes[::-1]


def _improve(
    shapes: list[Shape], source: Ints, target: Ints, counts: Ints, batch_tokens: int
) -> tuple[list[Shape], float]:
    """Changes one side of one shape at a time while that lowers the cost; returns the shapes, sorted, and the cost."""
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
                    trial = [*shapes[:k], shape_of(sides[0], sides[1], batch_tokens), *shapes[k + 1 :]]
                    cost = _total_cost(trial, source, target, counts, batch_tokens)
                    if cost < least:
                        shapes, least = trial, cost
    return sorted(shapes, key=lambda shape: shape.source_length + shape.target_length), least


def _spread(values: Ints) -> Ints:
    """Returns the values, or MOST_CANDIDATES of them spread evenly, including the largest."""
    if len(values) <= MOST_CANDIDATES:
        return values
    return values[np.linspace(0, len(values) - 1, MOST_CANDIDATES).round().astype(np.int64)]
