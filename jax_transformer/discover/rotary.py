"""Read rotary positions (Su et al. 2021) from the change of queries and keys between projection and product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jax_transformer.config.positions import Rotary
from jax_transformer.discover.attention import Projection
from jax_transformer.discover.graph import CLOSE, Graph, close, distance
from jax_transformer.discover.problems import Unknown
from jax_transformer.parity.oracle import formulas
from jax_transformer.programs.trace import Value

ROUNDED = 1e-5
"""Largest error of angles computed in float32, against float64."""
USUAL_BASES = (10000.0, 500000.0, 1000000.0, 100000.0)


@dataclass(frozen=True, eq=False)
class Rotation:
    """Describes the rotation of heads by their positions."""

    fields: dict[str, Any]
    """layout, base, dim and offset"""
    rotated: np.ndarray
    """The projection's heads [B, N, P, H], rotated by the formula, or by the module if it rounds its angles"""
    residual: float
    unrotated: float
    """Distance of the projected heads, scaled by a number, from the heads used"""

    @property
    def described(self) -> str:
        return "rotary, " + ", ".join(f"{name} {value}" for name, value in self.fields.items())


def read_rotation(graph: Graph, projection: Projection, where: Value) -> Rotation | None:
    """Returns the rotation of a projection's heads; None if they are only scaled by one number.

    Raises:
      Unknown: they change in another way.
    """
    projected, used = graph.values(projection.elements), graph.values(projection.used)
    if np.array_equal(projection.elements, projection.used):
        return None
    factor = float((projected * used).sum() / (projected * projected).sum())
    if close(used, factor * projected):
        return None
    unrotated = distance(factor * projected, used)
    nearest = (f"scaled by {factor:.3g}", unrotated)
    usual = (1.0, used.shape[-1] ** -0.5, used.shape[-1] ** -0.25)
    for layout, width, steps, factor, offset in _fits(projected, used):
        factor = next((one for one in usual if abs(factor / one - 1) < ROUNDED), factor)
        pairs = np.arange(1, width // 2)
        bases = steps[1:] ** (-width / (2 * pairs)) if len(pairs) else np.array([USUAL_BASES[0]])
        base = float(np.median(bases))
        base = next((usual for usual in USUAL_BASES if abs(base / usual - 1) < ROUNDED * 10), base)
        spec = Rotary(layout=layout, base=base, dim=width)
        angles = (offset + np.arange(used.shape[2]))[:, None] * formulas.rotary_frequencies(spec, used.shape[-1])
        rotated = formulas.rotated(spec, projected, np.cos(angles), np.sin(angles))
        error = float(np.sqrt(np.mean((factor * rotated - used) ** 2) / np.mean(used**2)))
        if error <= ROUNDED:
            fields = {
                "layout": layout,
                "base": base,
                "dim": None if width == used.shape[-1] else width,
                "offset": offset,
            }
            return Rotation(fields, rotated if error <= CLOSE else used / factor, error, unrotated)
        nearest = min(nearest, (f"rotary, {layout}, base {base:.6g}", error), key=lambda one: one[1])
    raise Unknown(
        where,
        "queries or keys that are neither used as projected, nor scaled by a number, nor rotated by position",
        nearest,
    )


def _fits(projected: np.ndarray, used: np.ndarray) -> Iterator[tuple[Any, int, np.ndarray, float, int]]:
    """Yields layout, width, the angle of each pair from one position to the next, factor and first position."""
    head_dim = used.shape[-1]
    for width in range(head_dim - head_dim % 2, 0, -2):
        for layout in ("halves", "interleaved"):
            first, second = formulas.rotary_pairs(Rotary(layout=layout), width)
            before, after = (one[..., first] + 1j * one[..., second] for one in (projected, used))
            with np.errstate(divide="ignore", invalid="ignore"):
                ratios = after / before  # [B, N, P, pairs]
            spread = np.abs(ratios - ratios[:1, :1]).max()
            factor = float(np.median(np.abs(ratios)))
            if not spread <= ROUNDED * factor or not np.allclose(np.abs(ratios), factor, rtol=ROUNDED):
                continue
            turned = ratios[0, 0] / factor
            steps = np.angle(turned[1:] / turned[:-1])
            if (np.abs(steps - steps[:1]) > ROUNDED * 10).any() or (steps[0] <= 0).any():
                continue
            offset = round(float(np.angle(turned[0, -1]) / steps[0, -1]))
            if max(offset, 0) == offset:
                yield layout, width, steps[0], factor, offset
