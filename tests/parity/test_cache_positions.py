"""The decoder's nodes at other positions, as a cache with a wrong index has them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from fault_cases import make_case

from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.parity.diagnosis.judging import distance
from jax_transformer.parity.faults.cache_positions import at_other_positions
from jax_transformer.parity.oracle import formulas

NODES = {
    "post": ["positions"],
    "rotary": [f"layers.{i}.self_attention.rotated_{role}" for i in range(2) for role in ("query", "key")],
    "alibi": ["position_bias"],
    "vectors": [f"layers.{i}.self_attention.{node}" for i in range(2) for node in ("logits", "context")],
}


@pytest.mark.parametrize("name", NODES)
def test_only_the_targets_positions_matter(name: str) -> None:
    """Nothing changes at the right positions, and the first token keeps its own."""
    case = make_case(name)
    assert [*at_other_positions(case.config, case.params, 0)] == [f"decoder.{node}" for node in NODES[name]]
    for by in (0, 1, -1):
        for node, compute in at_other_positions(case.config, case.params, by).items():
            received, expected = compute(case.captured), case.captured[node]
            mask = case.captured["mask.decoder_self"] if node.endswith("logits") else None
            assert (distance(received, expected, mask) <= FLOAT64_RELATIVE_RMS) == (by == 0), (node, by)
            tokens = 2 if node.endswith(("logits", "bias")) else 1
            first = (slice(None),) * tokens + (slice(1),)
            np.testing.assert_allclose(received[first], expected[first], rtol=1e-12, atol=1e-12)


def test_later_tokens_turn_one_further() -> None:
    case = make_case("rotary")
    further = dataclasses.replace(case.config, position_offset=1)
    node = "decoder.layers.1.self_attention.rotated_key"
    x, ids = (case.captured[name] for name in (node.replace("rotated", "normed"), "decoder_input_ids"))
    expected = formulas.rotation(further.decoder.positions, further.target, x, ids)
    received = at_other_positions(case.config, case.params, 1)[node](case.captured)
    np.testing.assert_allclose(received[:, 1:], expected[:, 1:], rtol=1e-12, atol=1e-12)


def test_biases_are_computed_for_queries_one_position_later() -> None:
    case = make_case("alibi")
    received = at_other_positions(case.config, case.params, 1)["decoder.position_bias"](case.captured)
    slopes = formulas.alibi_slopes(3)
    np.testing.assert_allclose(received[0, :, 2], [[-slope * abs(3 - key) for key in range(5)] for slope in slopes])
