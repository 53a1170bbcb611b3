"""One node of the truth can be computed or changed by itself; names of nodes and parameters are found, and wrong ones
are refused."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import positions
from jax_transformer.parity.diagnosis.nodes import with_ids
from jax_transformer.parity.oracle import Place, downstream, formulas, forward, nodes, parameter, place, recompute

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

# --- one node by itself


@pytest.mark.parametrize(
    "name",
    [
        "mask.encoder_self",
        "encoder.token_embedding",
        "encoder.layers.0.self_attention.key",
        "encoder.layers.0.self_attention.weights",
        "encoder.layers.0.feed_forward_norm",
        "encoder.output",
        "decoder.layers.0.self_attention_residual",
        "decoder.layers.1.cross_attention.context",
        "decoder.layers.1.feed_forward.hidden",
        "logits",
    ],
)
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_a_change_is_local_to_its_node_and_propagates_downstream(
    name: str, placement: Any, config: TransformerConfig, ids: Any, random_params: Any
) -> None:
    config = dataclasses.replace(config, norm_placement=placement)
    params = random_params(config)
    truth = forward(config, params, *ids)
    noise = np.random.default_rng(0).standard_normal(truth[name].shape)
    change = noise > 0 if truth[name].dtype == bool else truth[name] + 0.01 * noise
    changed = forward(config, params, *ids, replace={name: change})
    np.testing.assert_array_equal(changed[name], change)

    graph = nodes(config)
    behind = downstream(graph, name)
    assert {other for other in truth if not np.array_equal(changed[other], truth[other])} == {name, *behind}
    local = {node.name: recompute(node, config, with_ids(changed, *ids), params) for node in graph}
    assert {other for other in truth if not np.array_equal(changed[other], local[other])} == {name}
    np.testing.assert_array_equal(local[name], truth[name])


WHAT_IFS: list[tuple[str, dict[str, Any]]] = [
    ("mask.encoder_self", {"encoder_padding": "none"}),
    ("mask.decoder_self", {"decoder_causal": False}),
    ("mask.decoder_self", {"decoder_padding_id": 5}),
    ("mask.cross", {"cross_padding": "queries"}),
    ("encoder.token_embedding", {"scale_embedding": False}),
    ("encoder.positions", {"position_index": "non_pad_count", "position_offset": 0}),
    ("decoder.positions", {"position_offset": 1}),
    ("encoder.embedding", {"encoder_embedding_norm": "before_positions"}),
    ("encoder.layers.0.self_attention_norm", {"norm_eps_outside": True}),
    ("encoder.layers.0.self_attention_norm", {"norm_unbiased": True}),
    ("decoder.layers.1.cross_attention_norm", {"norm_eps": 1e-6}),
    ("decoder.layers.1.feed_forward_norm", {"norm_kind": "rms_norm"}),
    ("decoder.layers.1.self_attention.logits", {"attention_scale": 1.0}),
    ("decoder.layers.1.self_attention.logits", {"masked_value": -1e4}),
    ("decoder.layers.0.feed_forward.hidden", {"activation": "gelu"}),
    ("decoder.layers.1.feed_forward_norm", {"norm_scale_offset": 1.0}),
    ("logits", {"scale_head": True}),
    ("logits", {"logits_factor": 0.5}),
]


@pytest.fixture(scope="module")
def what_if(config: TransformerConfig) -> TransformerConfig:
    return dataclasses.replace(config, encoder_embedding_norm="after_positions", norm_bias=False)


@pytest.mark.parametrize(("name", "change"), WHAT_IFS, ids=str)
def test_another_config_answers_a_what_if(
    name: str, change: dict[str, Any], what_if: TransformerConfig, ids: Any, random_params: Any
) -> None:
    """The node computed as a model of that config computes it, of the same parameters and inputs."""
    params = random_params(what_if)
    given = with_ids(forward(what_if, params, *ids), *ids)
    other = dataclasses.replace(what_if, **change)
    (node,) = (node for node in nodes(what_if) if node.name == name)
    received = recompute(node, other, given, params)
    assert not np.array_equal(*np.broadcast_arrays(received, given[name]))
    for its in (its for its in nodes(other) if its.name == name):  # a mask that hides nothing is none
        np.testing.assert_array_equal(received, recompute(its, other, given, params))


def test_positions_of_another_formula(config: TransformerConfig, ids: Any) -> None:
    """The table is a parameter: what if it were another one?"""
    (node,) = (node for node in nodes(config) if node.name == "encoder.positions")
    other = dataclasses.replace(config, position_frequency="doubled", position_offset=2)
    table = formulas.sinusoid_table(other.encoder.positions, other.d_model, 11)
    received = node.compute(other, {"ids": ids.source}, {"table": table})
    np.testing.assert_allclose(received[0], positions.sinusoid_table(other.encoder)[2:8], rtol=0, atol=1e-14)


# --- names


def test_places() -> None:
    assert place("encoder.layers.12.self_attention.query") == Place("encoder", 12, ("self_attention", "query"))
    assert place("decoder.layers.0.output") == Place("decoder", 0, ("output",))
    assert place("decoder.position_bias") == Place("decoder", None, ("position_bias",))
    assert place("mask.encoder_self") == Place(None, None, ("mask", "encoder_self"))
    assert place("logits") == Place(None, None, ("logits",))


def test_downstream_nodes(config: TransformerConfig) -> None:
    """(That it is what a change propagates to is tested above.)"""
    graph = nodes(config)
    assert downstream(graph, "logits") == ()
    assert downstream(graph, "decoder.output") == ("logits",)
    behind = downstream(graph, "mask.cross")
    assert behind[:4] == tuple(
        f"decoder.layers.0.cross_attention.{name}" for name in ("logits", "weights", "context", "output")
    )
    assert behind[-1] == "logits"
    assert "decoder.layers.1.cross_attention.key" not in behind
    assert downstream(graph, "source_ids")[:3] == ("mask.encoder_self", "mask.cross", "encoder.token_embedding")


def test_a_layers_parameter(config: TransformerConfig, random_params: Any) -> None:
    params = random_params(config)
    expected = params["decoder"]["layers"]["self_attention"]["query"]["kernel"]
    np.testing.assert_array_equal(parameter(params, "decoder/layers/self_attention/query/kernel[1]"), expected[1])
    np.testing.assert_array_equal(parameter(params, "head/kernel"), params["head"]["kernel"])


# --- what is refused


@pytest.mark.parametrize(
    "path", ["head/scale", "heads/kernel", "head/kernel/0", "decoder/layers/self_attention/query/kernel[2]"]
)
def test_a_parameter_that_is_not_there(path: str, config: TransformerConfig, random_params: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{path} is not among the parameters, but the config asks for it")):
        parameter(random_params(config), path)


def test_an_input_that_was_not_captured(config: TransformerConfig) -> None:
    (node,) = (node for node in nodes(config) if node.name == "encoder.layers.0.self_attention.logits")
    missing = r"encoder\.layers\.0\.self_attention\.key, mask\.encoder_self"
    with pytest.raises(
        ValueError, match=rf"^encoder\.layers\.0\.self_attention\.logits is computed from {missing}, which the trace"
    ):
        recompute(node, config, {"encoder.layers.0.self_attention.query": np.zeros((1, 2, 3, 5))}, {})


def test_replacements_that_do_not_fit(config: TransformerConfig, ids: Any, random_params: Any) -> None:
    run = lambda **arrays: forward(config, random_params(config), *ids, replace=arrays)  # noqa: E731
    with pytest.raises(
        ValueError, match=r"replace: expected names of this model's activations; received Logits, source_ids"
    ):
        run(Logits=np.zeros(3), source_ids=ids.source)
    with pytest.raises(ValueError, match=r"replace: logits: expected shape \(5, 8, 11\), received \(8, 11\)"):
        run(logits=np.zeros((8, 11)))


@pytest.mark.parametrize("token", [-1, 13])
def test_ids_that_have_no_row(token: int, config: TransformerConfig, ids: Any, random_params: Any) -> None:
    source = ids.source.copy()
    source[1, 2] = token
    with pytest.raises(
        ValueError, match=r"a table of 13 rows: expected numbers from 0 to 12; received (-1 to 12|0 to 13)"
    ):
        forward(config, random_params(config), source, ids.target)


def test_more_tokens_than_positions(config: TransformerConfig, random_params: Any) -> None:
    with pytest.raises(ValueError, match="a table of 9 rows: expected numbers from 0 to 8; received 0 to 9"):
        forward(config, random_params(config), np.full((2, 10), 3), np.full((2, 4), 3))
