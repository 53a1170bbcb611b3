"""Position tables of a checkpoint that aren't what the model's formula gives, such as trained ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Sinusoidal
from jax_transformer.model.positions import sinusoid_table

ANGLE_ROUNDINGS = 12.0
"""The largest error of an angle in unit roundoffs of the angle: of its exponent, the power and the product."""
VALUE_ROUNDINGS = 2.0
"""The same of its sine or cosine, in roundoffs of 1."""
NARROWEST = {2: 2.0**-8}
"""Unit roundoffs by the bytes of a number; of wider ones, float32's, in which programs compute tables."""


class OtherTable(NamedTuple):
    """Describes a table that isn't the formula's."""

    stack: str
    largest: float
    """The largest difference of an entry."""
    row: int
    """Its row."""

    def __str__(self) -> str:
        return f"the {self.stack}'s by up to {self.largest:.1e}, in row {self.row}"


def other_tables(config: TransformerConfig, params: Mapping[str, Any]) -> list[OtherTable]:
    """Returns the sinusoidal tables of a model that differ from the formula by more than programs round."""
    found = []
    for name, stack in (("encoder", config.encoder), ("decoder", config.decoder)):
        table = params.get("constants", {}).get(f"{name}_positions")
        if table is None or not isinstance(stack.positions, Sinusoidal):
            continue
        roundoff = NARROWEST.get(np.asarray(table).dtype.itemsize, 2.0**-24)
        held, formula = np.asarray(table, np.float64), sinusoid_table(stack)
        rows = np.arange(len(formula))[:, None]
        apart = np.nan_to_num(np.abs(held - formula), nan=np.inf)
        if (apart > roundoff * (ANGLE_ROUNDINGS * rows + VALUE_ROUNDINGS)).any():
            row = int(np.argmax(apart.max(axis=1)))
            found.append(OtherTable(name, float(apart[row].max()), row))
    return found


def described(tables: Sequence[OtherTable]) -> str:
    """Returns one line on these tables."""
    return f"positions differ from the sinusoids of the formula: {'; '.join(map(str, tables))}"
