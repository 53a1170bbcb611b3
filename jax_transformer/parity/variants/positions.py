"""Faults of the position tables, and of the numbers that index them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.parity.truth import formulas
from jax_transformer.parity.truth.graph import Kind
from jax_transformer.parity.variants.replay import Replay, Variant, changed

if TYPE_CHECKING:
    from jax_transformer.config import TransformerConfig


LAYOUTS = {"halves": "sin and cos in halves", "interleaved": "sin and cos interleaved"}
FREQUENCIES = {"standard": "exponents 2i / D", "inclusive": "exponents i / (D/2 − 1)", "doubled": "exponents doubled"}
INDICES = {"column": "column", "batch_row": "batch row", "non_pad_count": "count of real tokens"}


def positions(config: TransformerConfig) -> Iterator[Variant]:
    kinds: tuple[Kind, ...] = ("positions",)
    if config.position_kind == "sinusoidal":
        for layout, frequency in product(LAYOUTS, FREQUENCIES):
            names = [LAYOUTS[layout]] if layout != config.position_layout else []
            names += [FREQUENCIES[frequency]] if frequency != config.position_frequency else []
            if names:
                changes = {"position_layout": layout, "position_frequency": frequency}
                yield Variant(f"positions: {', and '.join(names)}", kinds, partial(_of_table, changes=changes))
        yield Variant("positions: computed in float32", kinds, partial(_of_table, changes={}, dtype=np.float32))
    for index, name in INDICES.items():
        if index != config.position_index:
            yield Variant(f"positions: indexed by {name}", kinds, partial(_indexed, position_index=index))
    for offset in (-2, -1, 1, 2):
        name = f"positions: {abs(offset)} too {'far' if offset > 0 else 'near'}"
        yield Variant(name, kinds, partial(_indexed, position_offset=config.position_offset + offset))


def _indexed(replay: Replay, **changes: Any) -> np.ndarray:
    return np.broadcast_to(replay.under(**changes), replay.compute().shape)


def _of_table(replay: Replay, changes: Mapping[str, Any], dtype: type[np.floating] = np.float64) -> np.ndarray:
    table = formulas.sinusoid_table(changed(replay.config, **changes), len(replay.parameters["table"]))
    return replay.compute(parameters={"table": table.astype(dtype).astype(np.float64)})
