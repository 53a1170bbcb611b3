"""Find the side whose gradients are wrong: they aren't the slope of the side's own loss.

Two sides with equal losses may differ only in their gradients: a detached part, a hook, a hand-written backward pass.
Each side's loss is then evaluated at weights moved along the difference of both gradients, where a correct gradient
predicts its slope.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.comparison.findings import Match, SideName
from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import Arrays
from jax_transformer.comparison.gates.compare import relative_rms
from jax_transformer.parity.oracle import formulas

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig
    from jax_transformer.parity.problems import Problem

GATE = tolerances.FLOAT64_RELATIVE_RMS
SHARES = (1e-3, 1e-4, 1e-5, 1e-6)
"""Steps for measuring a slope, relative to the norm of the weights, tried in order until the slope is certain: a step
that is too long crosses kinks, such as ReLU's."""
CERTAIN = 0.05
"""Largest change of a slope when the step is halved, relative to the difference of the slopes that the two gradients
predict."""
WRONG = 0.25
"""Least distance of a wrong gradient from the slope, in the same unit. A correct gradient is as near as the slope is
certain; if the other side is correct, a wrong one is at 1."""
CUT_OFF = "gets no gradient: frozen, or detached from the loss"

LossAt = Callable[[Arrays], float]
"""Returns a side's loss with these arrays added to its parameters, by path, layers one by one."""


def wrong_sides(
    gradients: Mapping[SideName, Arrays], losses: Mapping[SideName, LossAt], weights: Arrays
) -> tuple[SideName, ...]:
    """Returns the sides whose gradients aren't the slopes of their losses; none if the slopes aren't certain.

    Args:
      gradients: both sides' gradients by path, layers one by one, without those that are zero up to rounding.
      weights: the parameters at which they were computed.
    """
    candidate, reference = gradients["candidate"], gradients["reference"]
    apart = {path: candidate[path] - reference[path] for path in reference if path in candidate}
    gap = _norm(apart.values())
    if not (gap and math.isfinite(gap)):
        return ()
    direction = {path: array / gap for path, array in apart.items() if array.any()}
    size = _norm(weights[path] for path in direction)
    wrong: list[SideName] = []
    for side, loss_at in losses.items():
        slope = _slope(loss_at, direction, size, CERTAIN * gap)
        if slope is None:
            return ()
        expected = sum(float(np.vdot(gradients[side][path], step)) for path, step in direction.items())
        wrong += [side] if abs(slope - expected) > WRONG * gap else []
    return tuple(wrong)


def _slope(loss_at: LossAt, direction: Arrays, size: float, certain: float) -> float | None:
    """Returns the slope of a loss along a direction of norm 1; None if it is uncertain for every step size."""
    for share in SHARES:
        wide, near = (_difference(loss_at, direction, step * size) for step in (share, share / 2))
        if abs(near - wide) <= certain:
            return near
    return None


def _difference(loss_at: LossAt, direction: Arrays, step: float) -> float:
    """Returns the central difference of a loss."""
    above, below = (loss_at({path: sign * step * array for path, array in direction.items()}) for sign in (1, -1))
    return (above - below) / (2 * step)


def _norm(arrays: Iterable[np.ndarray]) -> float:
    return math.sqrt(sum(float(np.vdot(array, array)) for array in arrays))


# --- causes


def known_gradients(
    wrong: Arrays, right: Arrays, different: Iterable[str], shares: Mapping[str, Mapping[str, np.ndarray]], *, than: str
) -> dict[str, tuple[Match, ...]]:
    """Returns known mistakes by the names of the gradients that differ; none unless all are explained.

    Args:
      wrong, right: gradients by name, parameters by path.
      different: the names of the gradients that differ.
      shares: see `shares_of_tables`.
      than: the name of the side whose gradients are "right".
    """
    names = tuple(different)
    if not all(name in wrong and name in right for name in names):
        return {}
    common = _scaled(wrong, right, names, than)
    if common is not None:
        return dict.fromkeys(names, (common,))
    found = {name: tuple(_explanations(wrong[name], right[name], shares.get(name, {}))) for name in names}
    return found if all(found.values()) else {}


def _scaled(wrong: Arrays, right: Arrays, names: tuple[str, ...], than: str) -> Match | None:
    """Returns the common factor of all differing gradients, if there is one."""
    flat = [np.concatenate([np.ravel(side[name]) for name in names]) for side in (wrong, right)]
    size = float(flat[1] @ flat[1])
    factor = float(flat[0] @ flat[1]) / size if size and flat[0].size > 1 else 0.0
    residual = max(_apart(wrong[name], factor * right[name], right[name]) for name in names)
    if not factor or residual > GATE:
        return None
    return Match(f"gradient {factor:.6g} times as large as the {than}'s", residual)


def _explanations(wrong: np.ndarray, right: np.ndarray, shares: Mapping[str, np.ndarray]) -> Iterator[Match]:
    """Yields explanations of one gradient: it is zero, or zero in one row, or lacks some uses of a table."""
    if not wrong.any():
        yield Match(CUT_OFF, 0.0)
        return
    found = []
    changed = np.any(wrong != 0, axis=-1) != np.any(right != 0, axis=-1)
    rows = np.flatnonzero(changed) if wrong.ndim == 2 else np.array([], int)
    if len(rows) == 1:
        kept = np.arange(len(right)) != rows[0]
        has = "a" if np.any(wrong[rows[0]]) else "no"
        cause = f"row {rows[0]} gets {has} gradient, unlike under the other side's pads"
        found.append(Match(cause, relative_rms(wrong[kept], right[kept])))
    for number in range(1, len(shares)):
        for missing in combinations(shares, number):
            expected = right - sum(shares[use] for use in missing)
            cause = f"gradient of a shared table without the share of {' and '.join(missing)}"
            found.append(Match(cause, _apart(wrong, expected, right)))
    yield from (match for match in found if match.residual <= GATE)


def shares_of_tables(
    config: TransformerConfig, problem: Problem, activations: Arrays, read: np.ndarray
) -> dict[str, dict[str, np.ndarray]]:
    """Returns the shares of each embedding table's gradient, by path and use, for tables that are used several times.

    Args:
      activations: a side's gradients of activations by name.
      read: the head's input, [B, T, D].
    """
    tables: dict[str, dict[str, np.ndarray]] = {}
    uses = (("encoder", "source", "source_ids"), ("decoder", "target", "decoder_input_ids"))
    for stack, language, argument in uses:
        ids, gradient = getattr(problem, argument), activations.get(f"{stack}.token_embedding")
        if gradient is None:
            return {}
        tokens, own = config.target if config.share_embeddings else getattr(config, language), getattr(config, stack)
        share = np.zeros((tokens.vocab_size, own.d_model))
        np.add.at(share, ids, gradient * own.embedding_factor)
        if not tokens.trains_pad:
            share[tokens.pad_id] = 0.0
        path = f"{'shared' if config.share_embeddings else language}_embedding/embedding"
        tables.setdefault(path, {})[f"the {language}"] = share
    if config.head.tied and "logits" in activations:
        width = read.shape[-1]
        scale, double = (
            formulas.logits(config.head, x * np.eye(1, width)[None], np.ones((width, 1))).item() for x in (1.0, 2.0)
        )
        if not math.isclose(double, 2.0 * scale):
            return {}  # the head isn't linear, so its share isn't a multiple of the gradient of its outputs
        path = f"{'shared' if config.share_embeddings else 'target'}_embedding/embedding"
        tables[path]["the head"] = scale * np.einsum("btv,btd->vd", activations["logits"], read)
    return {path: uses for path, uses in tables.items() if len(uses) > 1}


def _apart(received: np.ndarray, expected: np.ndarray, scale: np.ndarray) -> float:
    """Returns the RMS of a difference relative to an array."""
    return relative_rms(scale + (received - expected), scale)
