"""A fault is named by what its own stack computes, where the other stack computes something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fault_cases import make_case, matches

from jax_transformer.parity.diagnosis.nodes import diagnose, with_ids
from jax_transformer.parity.faults import outcomes
from jax_transformer.parity.oracle import forward

ENCODER, DECODER = "encoder.layers.0", "decoder.layers.1"
FAULTS: list[tuple[str, dict[str, Any], str]] = [
    (f"{ENCODER}.feed_forward_norm", {"eps": 1e-5}, "norm: ε = 1e-05"),
    (f"{ENCODER}.feed_forward_norm", {"eps_outside": True}, "norm: ε outside the root"),
    (f"{ENCODER}.feed_forward_norm", {"unbiased": False}, "norm: variance over D"),
    (f"{ENCODER}.feed_forward_norm", {"scale_offset": 1.0}, "norm: stored scale + 1"),
    (f"{DECODER}.feed_forward_norm", {"eps": 1e-3}, "norm: ε = 0.001"),
    (f"{DECODER}.feed_forward_norm", {"eps_outside": False}, "norm: ε inside the root"),
    (f"{DECODER}.feed_forward_norm", {"unbiased": True}, "norm: variance over D − 1"),
    (f"{DECODER}.feed_forward_norm", {"scale_offset": 0.0}, "norm: stored scale without + 1"),
    (f"{DECODER}.self_attention.normed_query", {"eps": 1e-3}, "norm: ε = 0.001"),
    (f"{ENCODER}.feed_forward.hidden_norm", {"kind": "rms_norm"}, "norm: RMS without centring"),
    ("decoder.output", {"eps": 1e-3}, "norm: ε = 0.001"),
    (f"{DECODER}.self_attention.logits", {"scale": 1.0}, "scale missing"),
    (f"{DECODER}.self_attention.logits", {"masked_value": -1e9}, "masked logits are -1e+09"),
    (f"{DECODER}.cross_attention.logits", {"scale": 1.0}, "scale missing"),
    (f"{DECODER}.feed_forward.hidden", {"activation": "relu"}, "ReLU"),
    (f"{DECODER}.feed_forward.hidden", {"slope": 0.01}, "leaky ReLU of slope 0.01"),
    (f"{ENCODER}.feed_forward.hidden", {"activation": "leaky_relu", "slope": 0.2}, "leaky ReLU of slope 0.2"),
    ("encoder.positions", {"offset": 1}, "positions: 1 too far"),
    ("decoder.positions", {"offset": 0}, "positions: 1 too near"),
]
NAMED: list[tuple[str, str]] = [
    ("encoder.positions", "positions: sin and cos in halves"),
    ("decoder.positions", "positions: sin and cos interleaved"),
    ("decoder.embedding", "positions not scaled"),
    ("encoder.token_embedding", "√d_model applied"),
    ("encoder.token_embedding", "factor of the other stack's embeddings"),
    ("decoder.token_embedding", "√d_model missing"),
    (f"{ENCODER}.self_attention.logits", "scaled by √head_dim"),
    (f"{ENCODER}.feed_forward.hidden", "gate missing"),
    (f"{ENCODER}.feed_forward.hidden_norm", "norm missing"),
    (f"{ENCODER}.feed_forward.hidden", "weights of layer 1"),
    (f"{ENCODER}.feed_forward_norm", "trained scale of the sublayer's output missing"),
    (f"{ENCODER}.feed_forward_norm", "residual factors of the other stack"),
    (f"{DECODER}.output", "residual stream not scaled"),
    (f"{DECODER}.output", "residual factors of the other stack"),
    (f"{DECODER}.feed_forward_norm", "sublayers in sequence"),
    (f"{DECODER}.cross_attention.scaled_context", "factors of heads missing"),
    (f"{DECODER}.self_attention.normed_key", "norm missing"),
]
"""Faults that are no other value of an option of the node's own parts."""
NONE: list[tuple[str, str]] = [
    (f"{ENCODER}.feed_forward_norm", "norm: ε = 0.001"),
    (f"{ENCODER}.self_attention.logits", "scale missing"),
    (f"{ENCODER}.feed_forward_norm", "residual stream not scaled"),
    (f"{ENCODER}.feed_forward_norm", "sublayers in sequence"),
    (f"{DECODER}.feed_forward_norm", "norm: ε = 1e-05"),
    (f"{DECODER}.output", "trained scale of the sublayer's output missing"),
    (f"{DECODER}.feed_forward_norm", "reads the input of the sublayer before it"),
    (f"{DECODER}.feed_forward.hidden", "weights of layer 0"),
    (f"{DECODER}.cross_attention.logits", "masked logits are -1e+09"),
    ("encoder.embedding", "positions not scaled"),
    ("decoder.positions", "positions: sin and cos in halves"),
]
"""What the other stack's nodes could have for a fault, and these have not, since they compute that."""


@pytest.mark.parametrize(("node", "options", "cause"), FAULTS, ids=str)
def test_another_value_of_an_option_is_named(node: str, options: dict[str, Any], cause: str) -> None:
    """In the whole model's trace, and nothing else is found wrong."""
    case = make_case("differing")
    replay = case.replay(node)
    value = np.broadcast_to(replay.compute(parts=replay.with_options(**options)), case.captured[node].shape)
    ids = case.captured["source_ids"], case.captured["decoder_input_ids"]
    faulty = forward(case.config, case.params, *ids, replace={node: value})
    findings = diagnose(case.config, case.params, with_ids(faulty, *ids))
    assert [(finding.node, finding.cause) for finding in findings] == [(node, cause)]


@pytest.mark.parametrize(("node", "fault"), NAMED, ids=str)
def test_a_fault_of_one_stack_is_recognised(node: str, fault: str) -> None:
    replay = make_case("differing").replay(node)
    assert fault in matches(replay, dict(outcomes(replay))[fault])


@pytest.mark.parametrize(("node", "fault"), NONE, ids=str)
def test_the_formula_of_a_stack_is_no_fault(node: str, fault: str) -> None:
    assert fault not in dict(outcomes(make_case("differing").replay(node)))
