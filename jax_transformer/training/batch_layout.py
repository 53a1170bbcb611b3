"""Lays out training pairs in batches: a pair in each row, in a few shapes, or packed into rows of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jax_transformer.config.run import RunConfig
from jax_transformer.data.batch_shapes import choose_shapes, cover_shapes
from jax_transformer.data.batching import Floats, Lengths, Planned, Shape, padding_share, plan_epoch
from jax_transformer.data.packing import PackedPlan, choose_packed_shape, plan_packed_epoch
from jax_transformer.data.token_pairs import TokenPairs
from jax_transformer.parallel.placement import RowShare

Plan = Sequence[Planned | PackedPlan]
"""The batches of an epoch, or of a part of it."""


@dataclass(frozen=True)
class BatchLayout:
    """Holds the shapes of a run's batches; see `choose`."""

    shapes: tuple[Shape, ...]
    is_packed: bool

    @classmethod
    def choose(cls, config: RunConfig, lengths: Lengths, pair_weights: Floats | None = None) -> BatchLayout:
        """Returns the layout with the least padding.

        Streaming: `lengths` are those of the first shard. Later ones may have longer pairs, so that some shape holds
        max_length on both sides.

        Args:
          config: the run.
          lengths: numbers of source and target tokens of each pair.
          pair_weights: occurrences of each pair per epoch. None: one.
        """
        data = config.data
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
        rows = config.train.accumulate
        return cls(tuple(shape._replace(rows=shape.rows * rows) for shape in shapes), data.packing)

    def plan(
        self, lengths: TokenPairs | Lengths, *, seed: int, epoch: int, shard: int = 0, weights: Sequence[float] = ()
    ) -> Plan:
        """Returns the batches of an epoch; see `plan_epoch`."""
        if self.is_packed:
            return plan_packed_epoch(lengths, self.shapes[0], seed=seed, epoch=epoch, shard=shard, weights=weights)
        return plan_epoch(lengths, self.shapes, seed=seed, epoch=epoch, shard=shard, weights=weights)


def own_part(planned: Planned | PackedPlan, share: RowShare) -> Planned | PackedPlan:
    """Returns the rows of a batch that this process makes, as a batch of their own."""
    shape, indices = planned[:2]
    own = share.rows_of(shape.rows)
    shape = shape._replace(rows=len(own))
    if isinstance(planned, PackedPlan):
        mine = np.isin(planned.rows, own)
        return PackedPlan(shape, indices[mine], np.searchsorted(own, planned.rows[mine]))
    return shape, indices[own[own < len(indices)]]


def plan_padding(lengths: TokenPairs | Lengths, plan: Plan) -> float:
    """Returns the share of padding in a plan's positions; see `padding_share`."""
    return padding_share(lengths, [(planned[0], planned[1]) for planned in plan])


def pairs_per_row(plan: Plan) -> float | None:
    """Returns the mean number of pairs in a row of packed batches, without empty rows. None: the plan isn't packed."""
    packed = [planned for planned in plan if isinstance(planned, PackedPlan)]
    rows = sum(len(np.unique(planned.rows)) for planned in packed)
    return sum(len(planned.indices) for planned in packed) / rows if rows else None
