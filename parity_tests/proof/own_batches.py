"""Batches that hold the same sentences: in longer rows, with rows of padding, packed into fewer rows, in another order,
one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import Batch, make_batch, pack_batch
from jax_transformer.data.planning import Shape
from jax_transformer.model.functional import Params
from jax_transformer.parallel.placement import pad_rows
from proof.own_models import (
    BATCH,
    SOURCES,
    TARGETS,
    TRAIN,
    Computation,
    Outputs,
    OwnPair,
    for_models,
    logits,
    loss_and_gradients,
)

LONGER = make_batch(SOURCES, TARGETS, shape=Shape(len(SOURCES), 8, 7))
MORE_ROWS = pad_rows(BATCH, 6, (0, 0))
PACKED = pack_batch(SOURCES, TARGETS, shape=Shape(3, 8, 9))
"""Three rows: two hold several pairs, one is empty or holds one."""
ORDER = [2, 0, 3, 1]
REORDERED = Batch(*(None if ids is None else ids[ORDER] for ids in BATCH))
Places = Sequence[tuple[int, int]]
"""The row and the first column of each target."""


def rows_of(order: Sequence[int]) -> Places:
    """Returns the places of targets in rows of their own, in which `order` has them."""
    return [(list(order).index(number), 0) for number in range(len(TARGETS))]


def places_in(packed: Batch) -> Places:
    """Returns the places of targets in packed rows, found by their tokens."""
    starts = np.argwhere(np.diff(packed.target_segments, prepend=0, axis=1) > 0)
    found = {}
    for row, column in starts.tolist():
        number = packed.target_segments[row, column]
        labels = packed.labels[row][packed.target_segments[row] == number]
        found[tuple(labels[:-1].tolist())] = row, column
    return [found[tuple(target)] for target in TARGETS]


def on(
    batch: Batch, places: Places, train: TrainConfig = TRAIN, **options: object
) -> Callable[[TransformerConfig], Computation]:
    """Returns the computation of the logits of all real tokens, target by target, of the loss and its gradients."""

    def of(config: TransformerConfig) -> Computation:
        def computed(params: Params) -> Outputs:
            every = logits(config, params, batch)
            real = [
                every[row, first : first + len(target) + 1]
                for (row, first), target in zip(places, TARGETS, strict=True)
            ]
            return {"logits": jnp.concatenate(real), **loss_and_gradients(config, params, batch, train)}

        return computed

    return of


def alone(config: TransformerConfig) -> Computation:
    """Returns the computation of the logits of each pair in a batch of its own, and of the mean of their losses."""

    def computed(params: Params) -> Outputs:
        singles = [make_batch([source], [target]) for source, target in zip(SOURCES, TARGETS, strict=True)]
        tokens = sum(len(target) + 1 for target in TARGETS)
        losses = [loss_and_gradients(config, params, single) for single in singles]
        shares = [jnp.asarray((len(target) + 1) / tokens) for target in TARGETS]
        found: dict[str, jax.Array] = {
            name: sum(share * each[name] for share, each in zip(shares, losses, strict=True)) for name in losses[0]
        }
        return {"logits": jnp.concatenate([logits(config, params, single)[0] for single in singles]), **found}

    return computed


IN_ORDER = rows_of(range(len(TARGETS)))
PADS = replace(TRAIN, loss_counts_pads=True)
PAIRS: tuple[OwnPair, ...] = (
    *for_models("a longer bucket, and a shorter one", on(LONGER, IN_ORDER), on(BATCH, IN_ORDER)),
    *for_models("rows of padding, and none", on(MORE_ROWS, IN_ORDER), on(BATCH, IN_ORDER)),
    *for_models(
        "rows of padding where pads count, and none", on(MORE_ROWS, IN_ORDER, PADS), on(BATCH, IN_ORDER, PADS),
        models=("post-norm", "T5"),
    ),
    *for_models("packed rows, and a row for each pair", on(PACKED, places_in(PACKED)), on(BATCH, IN_ORDER)),
    *for_models("rows in another order", on(REORDERED, rows_of(ORDER)), on(BATCH, IN_ORDER)),
    *for_models("a batch, and each pair alone", on(BATCH, IN_ORDER), alone),
)  # fmt: skip
