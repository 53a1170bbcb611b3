"""Which nodes of a candidate compute something else than they should, and what: by replaying each on the candidate's own inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.parity import tolerances
from jax_transformer.parity.arrays import Arrays
from jax_transformer.parity.compare import relative_rms
from jax_transformer.parity.findings import Finding, Match
from jax_transformer.parity.truth.graph import MODEL_INPUTS, Node, nodes
from jax_transformer.parity.truth.replay import parameter, recompute
from jax_transformer.parity.variants import Replay, outcomes

if TYPE_CHECKING:
    from jax_transformer.config import TransformerConfig


def diagnose(config: TransformerConfig, params: Mapping[str, Any], captured: Arrays) -> list[Finding]:
    """The nodes at fault, in execution order: all of them, as each is fed what the candidate fed it.

    Args:
      params: the reference's, which the candidate should have.
      captured: the candidate's ids, and its masks and activations by name. Nodes whose inputs aren't all there are left out.
    """
    findings = []
    for node in nodes(config):
        if node.name in captured and all(name in captured for name in node.inputs.values()):
            expected = recompute(node, config, captured, params)
            error = distance(captured[node.name], expected, _attended(node, captured))
            if not error <= tolerances.FLOAT64_RELATIVE_RMS:
                findings.append(_explain(node, config, params, captured, error))
    return findings


def _explain(node: Node, config: TransformerConfig, params: Mapping[str, Any], captured: Arrays, error: float) -> Finding:
    replay = Replay(
        config,
        node,
        {argument: captured[name] for argument, name in node.inputs.items()},
        {argument: parameter(params, path) for argument, path in node.parameters.items()},
        captured,
        params,
    )
    received, where = captured[node.name], _attended(node, captured)
    found = sorted((Match(name, distance(received, value, where)) for name, value in outcomes(replay)), key=lambda match: match.residual)
    within = sorted((match for match in found if match.residual <= tolerances.FLOAT64_RELATIVE_RMS), key=_changes)
    others = [match for match in found if match not in within and np.isfinite(match.residual)]
    return Finding(node.name, node.kind, error, tuple(within), others[0] if others else None)


def _changes(match: Match) -> int:
    return match.variant.count(", ")


def distance(received: np.ndarray, expected: np.ndarray, where: np.ndarray | None = None) -> float:
    """The relative RMS; of masks the share that differs. Infinite where shapes differ, or what is not finite does; NaN for NaN is
    no difference, as a node that is fed NaN gives it.

    Args:
      where: boolean, broadcastable; inside and outside of it are compared apart, and the larger counts: next to the fill values of masked
        logits nothing else would.
    """
    try:
        shape = np.broadcast_shapes(received.shape, expected.shape)
    except ValueError:
        return np.inf
    if received.dtype == bool or expected.dtype == bool:
        return float(np.mean(received != expected))
    if shape != received.shape:
        return np.inf
    expected = np.broadcast_to(expected, received.shape)
    inside = np.ones(received.shape, bool) if where is None else np.broadcast_to(where, received.shape)
    counts = np.isfinite(expected) | ~((received == expected) | (np.isnan(received) & np.isnan(expected)))
    errors = [relative_rms(received, expected, part) for part in (inside & counts, ~inside & counts) if part.any()]
    return max((np.inf if np.isnan(error) else error for error in errors), default=0.0)


def _attended(node: Node, captured: Arrays) -> np.ndarray | None:
    return captured[node.inputs["mask"]] if node.kind == "attention_logits" and "mask" in node.inputs else None


def with_ids(captured: Arrays, source_ids: np.ndarray, decoder_input_ids: np.ndarray) -> dict[str, np.ndarray]:
    """The trace with the model's inputs under their names."""
    return {**captured, **dict(zip(MODEL_INPUTS, (source_ids, decoder_input_ids), strict=True))}
