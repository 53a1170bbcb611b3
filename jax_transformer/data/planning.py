"""Assigns pairs to batches, and chooses the shapes of batches.

XLA compiles one program per shape, so very few shapes serve a whole corpus. A batch has a pair in each row, or packed
rows of several pairs. Packed rows are filled greedily by length: the longest pair that is left, then the longest that
still fits. The given order only decides between pairs of equal lengths, so that all epochs have the same number of
rows.

A target of n tokens takes n + 1 positions, as decoder input (<bos> before it) and as labels (<eos> after it). Length
arguments count tokens, without that 1; the lengths in a Shape count positions, with it.

Every function is pure: a plan depends only on the lengths, the shapes, the seed and the epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jax_transformer.config.data import DataConfig
from jax_transformer.data.token_pairs import TokenPairs

Ints = npt.NDArray[np.integer]
Floats = npt.NDArray[np.floating]
Lengths = tuple[Ints, Ints]
"""Numbers of source and target tokens per pair."""

MOST_CANDIDATES = 48
"""Lengths tried for one side of one shape in one round of the search."""
PACKED_CANDIDATES = 8
"""Lengths tried for the side with fewer tokens."""
LEAST_GROUP, LEAST_DRAWN = 64, 8
"""Minimum size of a group of similar lengths, and minimum number of pairs drawn from it; see `_draw_share`."""


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


Planned = tuple[Shape, npt.NDArray[np.int64]]
"""A shape and the indices of the pairs in its rows from the top: at least one, and at most `rows`."""


class PackedPlan(NamedTuple):
    """Describes a packed batch: its shape, the indices of its pairs, and the row of each, in ascending order."""

    shape: Shape
    indices: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]


Plan = Sequence[Planned | PackedPlan]
"""The batches of an epoch, or of a part of it."""


@dataclass(frozen=True)
class BatchLayout:
    """Holds the shapes of a run's batches; see `choose`."""

    shapes: tuple[Shape, ...]
    is_packed: bool

    @classmethod
    def choose(
        cls, data: DataConfig, lengths: Lengths, pair_weights: Floats | None = None, *, accumulate: int
    ) -> BatchLayout:
        """Returns the layout with the least padding.

        With streaming, `lengths` are those of the first shard, and one shape holds max_length on both sides, since
        later shards may have longer pairs.

        Args:
          data: the size of batches, the maximum number of shapes, and whether to pack.
          lengths: numbers of source and target tokens of each pair.
          pair_weights: occurrences of each pair per epoch. None: one.
          accumulate: number of batches of that size in one batch of a step.
        """
        tokens, longest = data.batch_tokens, data.max_length
        if data.packing:
            least = (longest, longest) if data.streaming else (0, 0)
            shapes: tuple[Shape, ...] = (
                choose_packed_shape(
                    *lengths, batch_tokens=tokens, length=longest, longest=least, pair_weights=pair_weights
                ),
            )
        else:
            shapes = choose_shapes(*lengths, batch_tokens=tokens, num_shapes=data.num_shapes, pair_weights=pair_weights)
            if data.streaming:
                shapes = cover_shapes(shapes, (np.array([longest]), np.array([longest - 1])), batch_tokens=tokens)
        return cls(tuple(shape._replace(rows=shape.rows * accumulate) for shape in shapes), data.packing)

    def plan(
        self, lengths: TokenPairs | Lengths, *, seed: int, epoch: int, shard: int = 0, weights: Sequence[float] = ()
    ) -> Plan:
        """Returns the batches of an epoch; see `plan_epoch`."""
        if self.is_packed:
            return plan_packed_epoch(lengths, self.shapes[0], seed=seed, epoch=epoch, shard=shard, weights=weights)
        return plan_epoch(lengths, self.shapes, seed=seed, epoch=epoch, shard=shard, weights=weights)


def pairs_per_row(plan: Plan) -> float | None:
    """Returns the mean number of pairs in a row of packed batches, without empty rows. None: the plan isn't packed."""
    packed = [planned for planned in plan if isinstance(planned, PackedPlan)]
    rows = sum(len(np.unique(planned.rows)) for planned in packed)
    return sum(len(planned.indices) for planned in packed) / rows if rows else None


# --- lengths


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


def length_table(source_lengths: Ints, target_lengths: Ints, pair_weights: Floats | None) -> tuple[Ints, Ints, Ints]:
    """Returns the distinct (source, target) positions, and the number of pairs per epoch with each."""
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


# --- shapes


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
      batch_tokens: maximum of the rows times the longer side of a shape.
      num_shapes: maximum number of shapes.
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
        start += start[-1:] * (num_shapes - len(start))  # the search may find a use for the remaining shapes
        shapes, cost = _improve(start, source, target, counts, batch_tokens)
        if cost < least:
            best, least = shapes, cost
    used = np.unique(assign_shapes(source, target, best))
    return tuple(best[k] for k in used)


def cover_shapes(shapes: Sequence[Shape], lengths: TokenPairs | Lengths, *, batch_tokens: int) -> tuple[Shape, ...]:
    """Adds one more shape if some pairs fit none of `shapes`."""
    source, target, _ = source_and_target_positions(lengths)
    unassigned = assign_shapes(source, target, shapes) < 0
    if not unassigned.any():
        return tuple(shapes)
    return (*shapes, shape_of(int(source[unassigned].max()), int(target[unassigned].max()), batch_tokens))


def shape_of(source_length: int, target_length: int, batch_tokens: int) -> Shape:
    """Returns the shape with rows of these lengths."""
    return Shape(int(_rows(max(source_length, target_length), batch_tokens)), max(1, source_length), target_length)


def _rows(longer: int | Ints, batch_tokens: int) -> Ints:
    rows: Ints = np.maximum(1, batch_tokens // np.maximum(1, longer))
    return np.asarray(np.where(rows >= 8, rows - rows % 8, rows))


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


def assign_shapes(source: Ints, target: Ints, shapes: Sequence[Shape]) -> Ints:
    """Returns for each pair the index of the smallest shape (positions per row) that holds it, or -1."""
    assigned = np.full(len(source), -1)
    for k in sorted(range(len(shapes)), key=lambda k: -(shapes[k].source_length + shapes[k].target_length)):
        assigned[(source <= shapes[k].source_length) & (target <= shapes[k].target_length)] = k
    return assigned


# --- a pair in each row


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

    Every usable pair of TokenPairs, or every pair of `lengths`, occurs once, unless `weights` are given. All epochs
    have the same number of batches of each shape: of the n pairs of one corpus in one shape, round(weight · n) occur,
    each floor(weight) times and a random choice once more.

    Args:
      lengths: the pairs, or their numbers of source and target tokens.
      shapes: see `choose_shapes`.
      seed: determines the order, together with `epoch` and `shard`.
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


def padding_share(lengths: TokenPairs | Lengths, plan: Plan) -> float:
    """Returns the share of padding in a plan's positions, on both sides, including the empty rows of partial batches.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.data import Shape, padding_share, plan_in_order
      >>> lengths = np.array([4, 4]), np.array([3, 3])
      >>> padding_share(lengths, plan_in_order(lengths, [Shape(4, 4, 4)]))  # half of the rows are empty
      0.5
    """
    source, target = _pair_lengths(lengths)
    total = sum(shape.rows * (shape.source_length + shape.target_length) for shape, *_ in plan)
    real = sum(int(source[indices].sum()) + int(target[indices].sum()) + len(indices) for _, indices, *_ in plan)
    return 1.0 - real / total if total else 0.0


def _copies(assigned: Ints, corpora: Ints, weights: Sequence[float], generator: np.random.Generator) -> Ints:
    """Returns the occurrences of each pair in an epoch."""
    copies = np.zeros(len(assigned), np.int64)
    for number, weight in enumerate(weights):
        for shape in np.unique(assigned[corpora == number]):
            members = np.flatnonzero((corpora == number) & (assigned == shape))
            copies[members] = int(weight)
            more = round(weight * len(members)) - int(weight) * len(members)
            more = more if weight >= 1 else max(more, 1)  # otherwise the few pairs of a shape might never occur
            copies[generator.choice(members, more, replace=False)] += 1
    return copies


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


# --- packed rows


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

    The side with more tokens has rows of `length` positions. The other side's length is chosen for the least padding.
    The number of rows is `batch_tokens` over `length`, as in `choose_shapes`.

    Args:
      source_lengths: tokens of each source.
      target_lengths: tokens of each target, without <bos> and <eos>.
      batch_tokens: maximum of the rows times `length`.
      length: positions of a row, at least those of the longest sentence.
      longest: minimum source and target positions of a row.
      pair_weights: occurrences of each pair per epoch. None: one.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.data.planning import choose_packed_shape
      >>> choose_packed_shape(np.array([4] * 8), np.array([2] * 8), batch_tokens=64, length=16)
      Shape(rows=4, source_length=16, target_length=12)
    """
    source, target, counts = length_table(source_lengths, target_lengths, pair_weights)
    totals = int(source @ counts), int(target @ counts)
    fewer = 0 if totals[0] < totals[1] else 1
    least = max(int((source, target)[fewer].max()), longest[fewer], length * totals[fewer] // totals[1 - fewer])
    candidates = np.unique(np.linspace(min(least, length), length, PACKED_CANDIDATES).round().astype(np.int64))

    def shape_with(other: int) -> Shape:
        return shape_of(*((other, length) if fewer == 0 else (length, other)), batch_tokens)

    def cost(shape: Shape) -> int:
        rows = sum(repeats for repeats, _ in _filled_rows(source, target, counts, shape))
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

    Every usable pair of TokenPairs, or every pair of `lengths`, occurs once, unless `weights` are given; see
    `plan_epoch`, which has the same arguments.

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
    """Holds the pairs of an epoch, possibly with repetitions, and the positions reserved for each."""

    pairs: Ints
    source: Ints
    target: Ints


def _weighted(
    source: Ints, target: Ints, corpora: Ints, weights: Sequence[float], generator: np.random.Generator
) -> _Occurring:
    """Returns the pairs of an epoch. The reserved positions are the same in every epoch, up to order."""
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
    """Yields a total of `count` of the pairs `members`, drawn at random from groups of similar lengths. Each drawn pair
    reserves the positions of the longest pair of its group, so that the draw doesn't change the number of rows."""
    if not count:
        return
    by_length = members[np.lexsort((target[members], source[members]))]
    groups = max(1, min(len(members) // LEAST_GROUP, count // LEAST_DRAWN))
    counts = np.diff(np.arange(groups + 1) * count // groups)
    for group, drawn in zip(np.array_split(by_length, groups), counts, strict=True):
        room = np.full((2, drawn), [[source[group].max()], [target[group].max()]])
        yield _Occurring(generator.choice(group, drawn, replace=False), *room)


def pack_rows(source: Ints, target: Ints, shape: Shape) -> npt.NDArray[np.int64]:
    """Returns the row of each pair, counted from 0 without limit, from its source and target positions.

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
    for repeats, contents in _filled_rows(cells // width, cells % width, counts, shape):
        for k, copies in contents:
            members = by_cell[following[k] : following[k] + repeats * copies]
            rows[members] = first + np.repeat(np.arange(repeats), copies)
            following[k] += len(members)
        first += repeats
    return rows


Contents = list[tuple[int, int]]
"""The contents of a row: kinds of pairs, by number, with the count of each."""


def _filled_rows(source: Ints, target: Ints, counts: Ints, shape: Shape) -> Iterator[tuple[int, Contents]]:
    """Yields the number of rows with the same contents, and these contents, until `counts` pairs of each kind, with
    `source` and `target` positions, are placed.

    While a pair fits, adds the one that takes most of the remaining room, where the side with more room counts more
    (the dot-product heuristic of vector bin packing: Panigrahy et al. 2011).
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
