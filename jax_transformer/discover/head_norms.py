"""Read norms over the features of each query and key (Henry et al. 2020) between projection and product."""

from __future__ import annotations

import numpy as np

from jax_transformer.discover.attention import Projection
from jax_transformer.discover.graph import Graph
from jax_transformer.discover.labels import Stream
from jax_transformer.discover.norms import Norm, best_fit, epsilons
from jax_transformer.programs.trace import Value


def read_head_norm(graph: Graph, projection: Projection) -> tuple[Norm, np.ndarray] | None:
    """Returns the norm of a projection's heads, and the elements [B, N, P, H] after it; None without a norm."""
    if np.array_equal(projection.elements, projection.used):
        return None
    behind = list(graph.before_linears(graph.recording.roots(projection.used)))
    eps = epsilons(behind)
    vectors = _vectors(graph, behind, projection.used.shape[-1])
    for root in sorted((one for one in behind if one.depends_on_ids), key=lambda one: -one.number):
        after = graph.pull(projection.used, lambda one, root=root: one is root)  # type: ignore[misc]
        if after is not None:
            norm = best_fit(graph, Stream(projection.elements), root, Stream(after), eps, vectors)
            if norm is not None:
                return norm, after
    return None


def _vectors(graph: Graph, values: list[Value], size: int) -> list[np.ndarray]:
    """Returns the elements [H] of the vectors of parameters among Values, each once."""
    found = (
        graph.recording.elements(one).ravel()
        for one in values
        if one.array.size == size and not one.depends_on_ids and any(other.trains for other in one.parameters)
    )
    return list({elements.tobytes(): elements for elements in found}.values())
