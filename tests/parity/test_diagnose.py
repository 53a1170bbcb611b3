"""Diagnosis by replay: faults of the catalogue are found where they are and named, several at once, and others are
never named."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.config.model import TransformerConfig
from jax_transformer.model.functional import abstract_params
from jax_transformer.parity.diagnosis.judging import distance
from jax_transformer.parity.diagnosis.nodes import diagnose, with_ids
from jax_transformer.parity.faults import Replay, outcomes
from jax_transformer.parity.oracle import forward, nodes
from jax_transformer.parity.oracle.graph import parameter, place, recompute
from jax_transformer.runtime.trees import flatten, unflatten

SIZES: dict[str, Any] = {
    "source_vocab_size": 17, "target_vocab_size": 13, "d_model": 12, "num_heads": 3, "d_ff": 7, "num_encoder_layers": 2,
    "num_decoder_layers": 2, "max_length": 20, "source_pad_id": 1, "target_pad_id": 2,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "post": {},
    "pre": {
        "norm_placement": "pre",
        "final_norm": True,
        "norm_eps_outside": True,
        "norm_unbiased": True,
        "activation": "gelu",
        "masked_value": -1e9,
        "position_frequency": "doubled",
    },
    "rms": {
        "norm_kind": "rms_norm",
        "norm_bias": False,
        "norm_placement": "pre",
        "final_norm": True,
        "feed_forward_gated": True,
        "attention_bias": False,
        "position_kind": "learned",
        "decoder_padding": "queries",
        "cross_padding": "both",
    },
}


class Case(NamedTuple):
    config: TransformerConfig
    params: dict[str, Any]
    source_ids: np.ndarray
    decoder_input_ids: np.ndarray
    trace: dict[str, np.ndarray]

    def faulty(self, **replaced: np.ndarray) -> dict[str, np.ndarray]:
        """What a candidate with these values would have: what follows them, follows from them."""
        return with_ids(self.forward(replaced), self.source_ids, self.decoder_input_ids)

    def forward(self, replaced: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return forward(self.config, self.params, self.source_ids, self.decoder_input_ids, replace=replaced)

    def replay(self, name: str, captured: dict[str, np.ndarray]) -> Replay:
        (node,) = (node for node in nodes(self.config) if node.name == name)
        inputs = {argument: captured[source] for argument, source in node.inputs.items()}
        return Replay(
            self.config,
            node,
            inputs,
            {role: parameter(self.params, path) for role, path in node.parameters.items()},
            captured,
            self.params,
        )


@cache
def make_case(name: str) -> Case:
    rng, config = np.random.default_rng(0), TransformerConfig(**SIZES | CONFIGS[name])
    leaves = {path: rng.standard_normal(leaf.shape) for path, leaf in flatten(abstract_params(config)).items()}
    for stack in ("encoder", "decoder"):
        if f"constants/{stack}_positions" in leaves:
            from jax_transformer.parity.oracle.formulas import sinusoid_table

            leaves[f"constants/{stack}_positions"] = sinusoid_table(
                getattr(config, stack).positions, config.d_model, config.max_length
            )
    source, target = rng.integers(3, 17, (4, 7)), rng.integers(3, 13, (4, 5))
    source[1, 5:] = source[2, :2] = source[3, 3] = 1
    target[0, 3:] = target[1, :2] = target[2, 2] = 2
    params = unflatten(leaves)
    return Case(config, params, source, target, forward(config, params, source, target))


def faults(case: Case) -> list[tuple[str, str, np.ndarray]]:
    """Node, variant and value of each that can be seen in the last layers, the embeddings, the masks and the head."""
    captured = with_ids(case.trace, case.source_ids, case.decoder_input_ids)
    return [
        (node.name, variant, np.broadcast_to(value, case.trace[node.name].shape))
        for node in nodes(case.config)
        if "layers.0" not in node.name
        for variant, value in outcomes(case.replay(node.name, captured))
        if all(own in (1, size) for own, size in zip(value.shape, case.trace[node.name].shape, strict=True))
        if not distance(value, case.trace[node.name], captured.get(node.inputs.get("mask", ""))) <= FLOAT64_RELATIVE_RMS
    ]


@pytest.mark.parametrize("name", CONFIGS)
def test_faults_are_found_and_named(name: str) -> None:
    case = make_case(name)
    found = faults(case)
    assert len(found) > 400
    for node, variant, value in found[::12]:  # each, by itself, in test_variants
        findings = diagnose(case.config, case.params, case.faulty(**{node: value}))
        assert [finding.node for finding in findings] == [node], variant
        assert variant in [match.variant for match in findings[0].matches], (node, variant, findings[0])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_without_faults_has_none(name: str) -> None:
    case = make_case(name)
    assert diagnose(case.config, case.params, case.faulty()) == []


@pytest.mark.parametrize("name", CONFIGS)
def test_an_unknown_fault_is_found_and_not_named(name: str) -> None:
    case, rng = make_case(name), np.random.default_rng(1)
    for node in nodes(case.config):
        value = case.trace[node.name]
        if node.kind != "mask":
            wrong = value * np.where((rng.random(value.shape) < 0.5) & (np.abs(value) < 1e6), 1.01, 1.0)
            findings = diagnose(case.config, case.params, case.faulty(**{node.name: wrong}))
            assert [(finding.node, finding.cause) for finding in findings] == [(node.name, "unexplained")]
            assert findings[0].runner_up is None or findings[0].runner_up.residual > 1e-6


def test_several_faults_are_all_listed() -> None:
    """Each from what the candidate fed it, so that the first doesn't hide the others."""
    case = make_case("post")
    first = case.replay("encoder.layers.1.self_attention_norm", case.faulty()).under(eps=1e-3)
    one = {"encoder.layers.1.self_attention_norm": first}
    second = case.replay("decoder.layers.0.feed_forward.hidden", case.faulty(**one)).under(activation="silu")
    both = one | {"decoder.layers.0.feed_forward.hidden": second}
    third = case.replay("logits", case.faulty(**both)).compute(parameters={"kernel": case.params["head"]["kernel"]})
    findings = diagnose(case.config, case.params, case.faulty(**both, logits=third))
    assert [(finding.node, finding.cause) for finding in findings] == [
        ("encoder.layers.1.self_attention_norm", "norm: ε = 0.001"),
        ("decoder.layers.0.feed_forward.hidden", "SiLU"),
        ("logits", "bias missing"),
    ]
    assert all(finding.matches[0].residual < 1e-15 for finding in findings)


IDS = ("source_ids", "decoder_input_ids")


def test_where_nothing_else_was_captured_a_fault_shows_at_the_next_node_that_was() -> None:
    case = make_case("post")
    captured = case.faulty(
        **{"encoder.layers.1.self_attention.context": 1.01 * case.trace["encoder.layers.1.self_attention.context"]}
    )
    kept = {name: captured[name] for name in (*IDS, "encoder.layers.0.output", "encoder.layers.1.output", "logits")}
    assert [(finding.node, finding.cause) for finding in diagnose(case.config, case.params, kept)] == [
        ("encoder.layers.1.output", "unexplained")
    ]


@pytest.mark.parametrize(
    ("node", "changes", "cause"),
    [
        ("encoder.layers.1.self_attention_norm", {"eps": 1e-3}, "norm: ε = 0.001"),
        ("encoder.layers.1.feed_forward.hidden", {"activation": "gelu"}, "exact GELU"),
        ("mask.encoder_self", {"padding": "none"}, "padding not masked"),
    ],
)
def test_a_fault_that_was_not_captured_is_named_at_its_own_node(node: str, changes: dict[str, Any], cause: str) -> None:
    case = make_case("post")
    value = np.broadcast_to(case.replay(node, case.faulty()).under(**changes), case.trace[node].shape)
    captured = case.faulty(**{node: value})
    kept = {
        name: captured[name]
        for name in (*IDS, "encoder.layers.0.output", "encoder.layers.1.output", "decoder.output", "logits")
    }
    first, *_ = diagnose(case.config, case.params, kept)
    assert first.node == node
    assert cause in [match.variant for match in first.matches]


@pytest.mark.parametrize(
    ("name", "other", "cause"),
    [
        ("pre", "post", "norms after the sublayers of this layer (post-norm)"),
        ("post", "pre", "norms before its sublayers (pre-norm)"),
    ],
)
@pytest.mark.parametrize(("stack", "layer"), [("encoder", 0), ("encoder", 1), ("decoder", 1)])
def test_norms_elsewhere_in_one_layer_are_one_fault(name: str, other: str, cause: str, stack: str, layer: int) -> None:
    case = make_case(name)
    config = replace(case.config, norm_placement=other)
    graph = list(nodes(case.config))
    replaced = [node for node in nodes(config) if place(node.name)[:2] == (stack, layer)]
    start = next(number for number, node in enumerate(graph) if place(node.name)[:2] == (stack, layer))
    others = [node for node in graph if place(node.name)[:2] != (stack, layer)]
    trace = with_ids({}, case.source_ids, case.decoder_input_ids)
    for node in [*others[:start], *replaced, *others[start:]]:
        trace[node.name] = recompute(node, config if node in replaced else case.config, trace, case.params)
    found = [(finding.node, finding.cause) for finding in diagnose(case.config, case.params, trace)]
    assert found == [(f"{stack}.layers.{layer}.self_attention_norm", cause)]
