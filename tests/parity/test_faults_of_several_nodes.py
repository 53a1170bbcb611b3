"""One fault of several nodes that a side doesn't show: each alone explains nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
from fake_sides import CONFIG, make_params

from jax_transformer.comparison.findings import Finding
from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity.diagnosis.nodes import diagnose, with_ids
from jax_transformer.parity.faults import Replay
from jax_transformer.parity.faults.layers import layers
from jax_transformer.parity.faults.projections import MERGES, SPLITS
from jax_transformer.parity.faults.rotary import LAYOUTS
from jax_transformer.parity.oracle.formulas import rotary_pairs
from jax_transformer.parity.oracle.graph import MODEL_INPUTS, nodes, parameter
from jax_transformer.parity.problems import own_problem

Fault = Callable[[Replay], np.ndarray]
ROTARY = dataclasses.replace(CONFIG, position_kind="rotary", d_model=24)
DEEPER = dataclasses.replace(CONFIG, num_encoder_layers=2)
ATTENTION = "encoder.layers.0.self_attention."


def findings(config: TransformerConfig, faults: Mapping[str, Fault], hidden: tuple[str, ...]) -> list[Finding]:
    """Runs the truth with faults, and diagnoses what is shown of it."""
    params = make_params(config)
    problem = own_problem(config, params)
    known = dict(zip(MODEL_INPUTS, problem.ids, strict=True))
    for node in nodes(config):
        inputs = {argument: known[name] for argument, name in node.inputs.items()}
        parameters = {argument: parameter(params, path) for argument, path in node.parameters.items()}
        replay = Replay(config, node, inputs, parameters, known, params)
        known[node.name] = faults[node.name](replay) if node.name in faults else replay.compute()
    shown = {name: array for name, array in known.items() if not name.endswith(hidden)}
    return diagnose(config, params, with_ids(shown, *problem.ids))


def other_base(replay: Replay, base: float = 500000.0, **changes: Any) -> np.ndarray:
    return replay.under(base=base, **changes)


@pytest.mark.parametrize("base", [500000.0, 20000.0, 1234.5, 7e7, 3.0])
def test_the_base_of_queries_and_keys(base: float) -> None:
    faults = dict.fromkeys((f"{ATTENTION}rotated_query", f"{ATTENTION}rotated_key"), partial(other_base, base=base))
    (found,) = findings(ROTARY, faults, ("rotated_query", "rotated_key"))
    assert found.node == f"{ATTENTION}rotated_query"
    assert found.cause == f"rotary: base {base:,g} instead of 10,000 (with {ATTENTION}rotated_key)".replace(
        "7e+07", "70,000,000"
    )


@pytest.mark.parametrize("base", [20000.0, 1234.5, 12345.678, 7e7])
def test_a_base_is_measured_in_the_rotation(base: float) -> None:
    faults = dict.fromkeys((f"{ATTENTION}rotated_query", f"{ATTENTION}rotated_key"), partial(other_base, base=base))
    assert {found.node: found.cause for found in findings(ROTARY, faults, ())} == dict.fromkeys(
        faults, f"rotary: base {base:,.15g} instead of 10,000"
    )


def test_a_base_is_measured_in_other_pairs() -> None:
    layout = "interleaved" if ROTARY.position_layout == "halves" else "halves"
    name = f"{ATTENTION}rotated_query"
    (found,) = findings(ROTARY, {name: partial(other_base, base=20000.0, layout=layout)}, ())
    assert found.cause == f"rotary: {LAYOUTS[layout]}, base 20,000 instead of 10,000"


def test_a_rotation_by_no_base_has_none() -> None:
    """Its first pair turns as by a base of 20,000, and its last by another."""

    def uneven(replay: Replay) -> np.ndarray:
        value, other = other_base(replay, 20000.0), other_base(replay, 30000.0)
        last = list(rotary_pairs(ROTARY.encoder.positions, value.shape[-1])[0])[-1]
        value[..., last] = other[..., last]
        return value

    for hidden in ((), ("rotated_query", "rotated_key")):
        found = findings(ROTARY, {f"{ATTENTION}rotated_query": uneven}, hidden)
        assert found
        assert not any("base" in one.cause for one in found)


@pytest.mark.parametrize("number", [0, 1])
def test_heads_that_are_neither_split_nor_merged_right(number: int) -> None:
    """Projections are right in a module that splits their outputs itself."""
    split = list(SPLITS.values())[number]
    order = ((0, 1, 3, 2), (0, 2, 1, 3))[number]

    def logits(replay: Replay) -> np.ndarray:
        return replay.compute({role: split(replay.inputs[role]) for role in ("query", "key")})

    def context(replay: Replay) -> np.ndarray:
        return replay.compute({"value": split(replay.inputs["value"])})

    def output(replay: Replay) -> np.ndarray:
        x = replay.inputs["x"]
        return replay.compute({"x": x.transpose(order).reshape(x.shape)})

    name = list(SPLITS)[number]
    found = findings(CONFIG, {f"{ATTENTION}logits": logits, f"{ATTENTION}context": context}, ())
    assert {one.node: one.cause for one in found} == {f"{ATTENTION}logits": name, f"{ATTENTION}context": name}
    faults = {f"{ATTENTION}logits": logits, f"{ATTENTION}context": context, f"{ATTENTION}output": output}
    found = findings(CONFIG, faults, ("context",))
    assert {one.node: one.cause for one in found} == {
        f"{ATTENTION}logits": name,
        f"{ATTENTION}context": f"{name}, and {list(MERGES)[number]}",
    }


def layer_0_fault() -> Fault:
    return next(iter(layers(DEEPER))).compute


SHARED = {
    node.name: layer_0_fault()
    for node in nodes(DEEPER)
    if node.name.startswith("encoder.layers.1.") and any(path.endswith("[1]") for path in node.parameters.values())
}


def test_a_layer_with_the_weights_of_another() -> None:
    found = findings(DEEPER, SHARED, ())
    assert {one.node: one.cause for one in found} == dict.fromkeys(SHARED, "weights of layer 0")
    assert len(found) == 8


def test_a_hidden_layer_with_the_weights_of_another() -> None:
    inner = tuple(node.name for node in nodes(DEEPER) if node.name.startswith("encoder.layers.1."))
    (found,) = findings(DEEPER, SHARED, inner)
    assert found.node == "encoder.layers.1.self_attention.query"
    assert found.cause.startswith("weights of layer 0 (with encoder.layers.1.self_attention.key, ")


def test_a_fault_of_one_of_two_nodes_is_not_blamed_on_both() -> None:
    faults = {f"{ATTENTION}rotated_query": other_base}
    (found,) = findings(ROTARY, faults, ("rotated_query", "rotated_key"))
    assert (found.node, found.cause) == (f"{ATTENTION}rotated_query", "rotary: base 500,000 instead of 10,000")
