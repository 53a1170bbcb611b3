"""The unknown faults of the self-test are faults: each is somewhere, changes what it should, and changes it again
alike."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
from selftest.open_world import UNKNOWNS, Site, Unknown, applicable
from selftest.unknown import to_bfloat16, unknown
from selftest.unknown_inputs import sinusoids
from selftest.unknown_norms import normed
from selftest.unknown_products import activated

from jax_transformer.comparison.gates.compare import relative_rms
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS, LEAST_FAULT_RELATIVE_RMS
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.specs import Stem
from jax_transformer.parity.oracle import Node, activations, formulas, forward, nodes, parameter
from jax_transformer.parity.oracle.graph import Kind, model_inputs

SIZES: dict[str, Any] = {
    "source_vocab_size": 13,
    "target_vocab_size": 11,
    "d_model": 12,
    "num_heads": 3,
    "d_ff": 14,
    "num_encoder_layers": 1,
    "num_decoder_layers": 2,
    "max_length": 10,
    "source_pad_id": 1,
    "target_pad_id": 2,
    "dropout_rate": 0.0,
}
CONFIGS = {
    "post-norm": TransformerConfig(**SIZES),
    "pre-norm": TransformerConfig(
        **SIZES,
        norm_placement="pre",
        final_norm=True,
        norm_eps=0.01,
        norm_eps_outside=True,
        norm_unbiased=True,
        activation="gelu",
        feed_forward_gated=True,
        position_kind="learned",
        attention_output=False,
    ),
    "rotary": TransformerConfig(
        **SIZES, position_kind="rotary", num_kv_heads=1, head_scale=True, query_key_norm=True, norm_placement="pre"
    ),
    "T5": TransformerConfig(
        **SIZES | {"source_vocab_size": 11},
        share_embeddings=True,
        tie_head=True,
        scale_head=True,
        head_bias="none",
        scale_embedding=False,
        position_kind="relative_bias",
        relative_buckets=8,
        relative_max_distance=6,
        norm_kind="rms_norm",
        norm_bias=False,
        norm_placement="pre",
        final_norm=True,
        norm_eps=1e-6,
        attention_scale=1.0,
        attention_bias=False,
        attention_output_bias=False,
        feed_forward_bias=False,
    ),
    "side by side": TransformerConfig(
        **SIZES, norm_placement="pre", parallel_residual=True, context_norm="attention", value_dim=5
    ),
    "BERT": TransformerConfig(**SIZES, head_transform="gelu", token_types=2, tie_head=True),
    "speech": TransformerConfig(**SIZES | {"source_vocab_size": 0}, stem=Stem(features=7)),
}


class Model(NamedTuple):
    config: TransformerConfig
    params: dict[str, Any]
    trace: dict[str, np.ndarray]
    """With the model's inputs."""

    def site(self, node: Node, seed: int = 0) -> Site:
        inputs = {argument: self.trace[name] for argument, name in node.inputs.items()}
        parameters = {argument: parameter(self.params, path) for argument, path in node.parameters.items()}
        return Site(self.config, node, inputs, parameters, np.random.default_rng(seed))


@pytest.fixture(scope="module")
def models(ids: Any, random_params: Callable[..., Any]) -> list[Model]:
    made = []
    for config in CONFIGS.values():
        params, source = random_params(config), np.minimum(ids.source, config.source_vocab_size - 1)
        if config.stem is not None:
            vectors = np.random.default_rng(0).standard_normal((len(source), 14, config.stem.features))
            source = vectors, np.array([14, 9, 12, 5, 1])
        trace = forward(config, params, source, ids.target)
        made.append(Model(config, params, trace | model_inputs(config, source, ids.target)))
    return made


def node_named(model: Model, name: str) -> Node:
    (node,) = (node for node in nodes(model.config) if node.name == name)
    return node


def put_in(fault: Unknown, models: list[Model]) -> Iterator[tuple[Site, np.ndarray]]:
    """Where it can be, with its wrong value there."""
    for model in models:
        for other, node in applicable(model.config):
            if other is fault:
                with contextlib.suppress(LookupError):
                    yield model.site(node), fault.corrupt(model.site(node))


def test_there_are_enough_of_them_and_each_has_its_name() -> None:
    assert len(UNKNOWNS) >= 40
    assert len({fault.name for fault in UNKNOWNS}) == len(UNKNOWNS)
    assert {kind for fault in UNKNOWNS for kind in fault.kinds} == set(get_args(Kind))


@pytest.mark.parametrize("fault", UNKNOWNS, ids=lambda fault: fault.name)
def test_every_unknown_fault_changes_a_node(fault: Unknown, models: list[Model]) -> None:
    """Of every kind that it is said to apply to, only what isn't masked, alike for the same choices; what it is given
    stays as it was."""
    possible = list(put_in(fault, models))
    assert {site.node.kind for site, _ in possible} == set(fault.kinds)
    for site, wrong in possible:
        name, right, given = site.node.name, site.compute(), {**site.inputs, **site.parameters}
        assert (wrong.shape, wrong.dtype) == (right.shape, right.dtype), name
        assert np.isfinite(wrong).all(), name
        where = None
        if site.node.kind == "attention_logits":
            where = right != formulas.masked_value(site.node.parts_of(site.config)["spec"])
            np.testing.assert_array_equal(wrong[~where], right[~where], err_msg=name)
        if right.dtype == bool:
            assert not np.array_equal(wrong, right), name
        else:
            assert relative_rms(wrong, right, where) > LEAST_FAULT_RELATIVE_RMS, name

        before = {argument: array.copy() for argument, array in given.items()}
        np.testing.assert_array_equal(fault.corrupt(site), wrong, err_msg=name)
        for argument, array in given.items():
            np.testing.assert_array_equal(array, before[argument], err_msg=f"{name}: {argument} was written to")


def test_choices_differ(models: list[Model]) -> None:
    """One weight is another one for another generator."""
    (fault,) = (fault for fault in UNKNOWNS if fault.name == "one weight is perturbed")
    head = node_named(models[0], "logits")
    assert not np.array_equal(fault.corrupt(models[0].site(head, 0)), fault.corrupt(models[0].site(head, 1)))


# --- where a formula is written anew, the fault is the only difference


def test_norms_without_a_fault(models: list[Model]) -> None:
    for model in models:
        for node in nodes(model.config):
            if node.kind in ("norm", "residual_norm", "context_norm"):
                site = model.site(node)
                assert relative_rms(normed(site), site.compute()) <= FLOAT64_RELATIVE_RMS


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("frequency", ["standard", "inclusive"])
@pytest.mark.parametrize("index", ["column", "non_pad_count"])
def test_sinusoids_without_a_fault(layout: Any, frequency: Any, index: Any, models: list[Model]) -> None:
    config = replace(
        models[0].config, position_layout=layout, position_frequency=frequency, position_index=index, position_offset=1
    )
    table = formulas.sinusoid_table(config.encoder.positions, config.d_model, 10)
    site = Site(config, node_named(models[0], "encoder.positions"), {}, {"table": table}, np.random.default_rng(0))
    np.testing.assert_allclose(sinusoids(site), table, rtol=0, atol=1e-15)


@pytest.mark.parametrize("number", range(2))
def test_activations_without_a_fault(number: int, models: list[Model]) -> None:
    """Ungated, and gated."""
    site = models[number].site(node_named(models[number], "encoder.layers.0.feed_forward.hidden"))
    wrong = activated([activations.relu, activations.gelu][number])
    np.testing.assert_array_equal(wrong(site, site.compute()), site.compute())


# --- what is no fault is refused


CONTEXT = "encoder.layers.0.self_attention.context"


def test_a_fault_that_changes_nothing_is_refused(models: list[Model]) -> None:
    """Rounding in the last bit, what softmax's mask hides, and a mask as it was."""
    model = models[0]
    site = model.site(node_named(model, "decoder.layers.0.self_attention.logits"))
    nudged = unknown("nudged", ("attention_logits",), lambda site, right: right * (1 + 1e-11))
    hidden = unknown("hidden", ("attention_logits",), lambda site, right: np.where(site.inputs["mask"], right, 0.0))
    mask = unknown("as it was", ("mask",), lambda site, right: right.copy())
    for fault, at in ((nudged, site), (hidden, site), (mask, model.site(node_named(model, "mask.cross")))):
        with pytest.raises(LookupError, match=f"{fault.name}: changes nothing of {at.node.name}"):
            fault.corrupt(at)
    shifted = unknown("shifted", ("attention_logits",), lambda site, right: right + 1e-6).corrupt(site)
    assert not np.array_equal(shifted, site.compute())


def test_an_unknown_part_of_a_node_is_refused(models: list[Model]) -> None:
    (fault,) = (fault for fault in UNKNOWNS if fault.name == "a bias is added twice")
    model = models[[*CONFIGS].index("T5")]  # which has none
    assert fault not in [other for other, _ in applicable(model.config)]
    with pytest.raises(LookupError, match="has no bias"):
        fault.corrupt(model.site(node_named(model, "logits")))


@pytest.mark.parametrize(
    ("name", "node", "inputs"),
    [
        ("the last key is always visible", "mask.encoder_self", {"source_ids": np.array([[3, 4, 5, 1], [3, 4, 5, 6]])}),
        (
            "one sentence of the batch is not masked",
            "mask.encoder_self",
            {"source_ids": np.array([[3, 4, 1, 1], [3, 4, 5, 6]])},
        ),
        ("one hidden cell of a mask is visible", "mask.encoder_self", {"source_ids": np.array([[3, 1, 4], [3, 4, 5]])}),
        ("the mask is causal in blocks of two", "mask.decoder_self", {"decoder_input_ids": np.array([[3, 4], [5, 6]])}),
        ("one head is dropped", CONTEXT, {"weights": np.ones((1, 1, 2, 2)), "value": np.ones((1, 2, 1, 4))}),
    ],
)
def test_a_known_fault_is_refused(name: str, node: str, inputs: dict[str, np.ndarray], models: list[Model]) -> None:
    """No mask at all; nothing left of attention."""
    (fault,) = (fault for fault in UNKNOWNS if fault.name == name)
    site = models[0].site(node_named(models[0], node))
    with pytest.raises(LookupError):
        fault.corrupt(Site(site.config, site.node, {**site.inputs, **inputs}, site.parameters, site.rng))


def test_to_bfloat16() -> None:
    """Eight bits, ties to even."""
    expected = {
        1.0: 1.0,
        1 + 2**-8: 1.0,
        1 + 3 * 2**-8: 1 + 2**-6,
        1 + 2**-8 + 2**-20: 1 + 2**-7,
        -3.14159: -3.140625,
        0.0: 0.0,
    }
    np.testing.assert_array_equal(to_bfloat16(np.array(list(expected))), list(expected.values()))
