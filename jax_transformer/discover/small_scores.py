"""Record a module with attention scores that are small enough to see its masks.

The scores of trained models differ by thousands and more. Their softmax is then exactly 0 at visible keys too, like at
masked ones. Smaller weights in the linear maps reveal the masks without changing the module's function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from jax_transformer.discover.graph import Graph
from jax_transformer.discover.problems import DiscoverError
from jax_transformer.programs.trace import Recording, Value

if TYPE_CHECKING:
    from torch import nn

MOST = 100.0
"""The largest products of queries and keys: exp of twice as much, negative, is far from underflow."""
READABLE = 300.0
"""Largest scores that masks can be read from, for scores that don't shrink, such as cosines times a number."""
MOST_TRIES = 12
"""Maximum number of recordings. Scores shrink by the square of the factor applied to kernels."""


def with_small_scores(build: Callable[[], nn.Module], recorded: Callable[[nn.Module], Recording]) -> Graph:
    """Returns the graph of a module whose linear maps are scaled down until attention scores are small.

    Args:
      build: makes a new copy of the module, in float64.
      recorded: runs and records it.

    Raises:
      DiscoverError: scores stay large.
    """
    factors: dict[str, float] = {}
    before = float("inf")
    for _ in range(MOST_TRIES):
        module = build()
        _multiply(module, factors)
        graph = Graph(recorded(module))
        highest = _highest(graph)
        if highest <= MOST or highest > 0.99 * before:
            break
        before = highest
        factor = max(0.5 * (MOST / highest) ** 0.5, 1e-3)
        for name in _kernels(graph):
            factors[name] = factor * factors.get(name, 1.0)
    if highest <= READABLE:
        return graph
    raise DiscoverError(
        f"its attention scores are {highest:.1e} even with small weights in its linear maps: their softmax is 0 at "
        "keys that no mask hides, so masks can't be read"
    )


def _multiply(module: nn.Module, factors: dict[str, float]) -> None:
    import torch

    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in factors:
                parameter.mul_(factors[name])


def _highest(graph: Graph) -> float:
    """Returns the largest products of queries and keys, or scores made of them. Fills of masks are negative, so they
    don't count."""
    highest, scores = 0.0, set[Value]()
    for value in graph.recording.values:
        is_product = value in graph.products
        if not (is_product or any(one in scores for one in value.inputs)) or not graph.attends(value):
            continue
        scores.add(value)
        finite = value.array[np.isfinite(value.array)] if value.is_float else np.zeros(0)
        if finite.size:
            highest = max(highest, float(np.abs(finite).max() if is_product else finite.max()))
    return highest


def _kernels(graph: Graph) -> list[str]:
    """Returns the names of the parameters that kernels of linear maps are, or are computed from."""
    roots = {root for linear in graph.linears.values() for root in graph.recording.roots(linear.kernel)}
    return sorted({name for root in roots for one in root.parameters if one.op == "parameter" for name in one.names})
