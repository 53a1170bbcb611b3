"""What hooks see in every system and family, under the names that follow from its porting table, is what the system
itself says of it."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import families
import numpy as np
import pytest
import torch
from families import FAMILIES, as_arrays, reference_trace, wide_norms
from systems import (
    SYSTEMS,
    TIED,
    Case,
    attended,
    make_case,
    make_labels,
    per_layer,
    torch_activation_gradients,
    torch_trace,
)
from torch.nn import functional as torch_functional

from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity import capture
from jax_transformer.parity.backends.capture import observe
from jax_transformer.parity.backends.masks import infer_masks
from jax_transformer.parity.gates.compare import compare
from jax_transformer.parity.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.parity.names.drafts import Names, draft
from jax_transformer.parity.names.maps import NameMap
from jax_transformer.parity.oracle.graph import nodes
from jax_transformer.porting.activations import activation_names
from jax_transformer.porting.dialects import get_dialect
from jax_transformer.runtime.trees import flatten

pytestmark = pytest.mark.usefixtures("quick_compilation")

NOT_MODULES = ("mask.*", "*.positions", "*position_bias")
"""What no module returns as we have it."""
SCALED = ("*.token_embedding",)
"""What is multiplied by √d_model outside of the embedding's module, or is read from a table of both sides."""
FUSED = ("*attention.query", "*attention.key", "*attention.value", "*attention.context")
"""What nn.MultiheadAttention computes without calling a module."""
NOT_SEEN = {
    **dict.fromkeys(("floydhub", "annotated_zh", "harvard", "marian", "bart", "m2m_100", "t5", "mt5", "umt5"), SCALED),
    "pytorch": (*SCALED, *FUSED),
}
"""Dialect → the activations that hooks don't show, beside those that are never shown."""
ONE_TABLE_EACH = ("marian_two_vocabularies",)


def name_map(config: TransformerConfig, dialect: str) -> NameMap:
    return NameMap(activation_names(config, get_dialect(dialect).rules(config)))


def not_seen(names: Any, dialect: str, *, scaled: bool = True) -> list[str]:
    patterns = (*NOT_MODULES, *NOT_SEEN.get(dialect, ())) if scaled else NOT_MODULES
    return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]


@pytest.fixture(params=SYSTEMS | TIED)
def case(request: Any) -> Case:
    return make_case(request.param)


def test_a_system_seen_through_hooks_is_its_own_trace(case: Case) -> None:
    expected = torch_trace(case.torch64, case)
    names = name_map(case.config, case.system.dialect)
    found, missing = names.rename(
        capture(case.torch64, case.ids()), {name: array.shape for name, array in expected.items()}
    )
    assert missing == {}
    assert [name for name in expected if name not in found] == not_seen(expected, case.system.dialect)
    assert list(found) == [name for name in expected if name in found]
    is_same_program = case.system.dialect != "pytorch"  # whose trace is of another forward than nn.Transformer's own
    for name, array in found.items():
        comparison = compare(array, expected[name], attended(name, expected))
        assert comparison.exact if is_same_program else comparison.within(FLOAT64_RELATIVE_RMS), name


def test_masks_follow_from_the_logits_of_a_system(case: Case) -> None:
    expected = torch_trace(case.torch64, case)
    shown = {name: array for name, array in expected.items() if not name.startswith("mask.")}
    masks = infer_masks(shown, case.config)
    assert list(masks) == [name for name in expected if name.startswith("mask.")]
    for name, mask in masks.items():
        assert mask.shape == expected[name].shape
        np.testing.assert_array_equal(mask, expected[name], err_msg=name)
    assert infer_masks(expected, case.config) == {}, "those that are there"


@pytest.mark.parametrize("name", ["hyunwoongko", "pytorch_pre_gelu"])
def test_gradients_of_activations_have_the_same_names(name: str) -> None:
    case = make_case(name)
    labels = make_labels(case)
    expected = torch_activation_gradients(case, labels)
    case.torch64.zero_grad()
    seen = observe(case.torch64, case.ids(), keep_gradients=True)
    logits = seen["decoder.linear" if name == "hyunwoongko" else "head"]
    pad_id = case.config.target_pad_id
    torch_functional.cross_entropy(
        logits.flatten(0, 1), torch.from_numpy(labels).flatten(), ignore_index=pad_id
    ).backward()
    gradients = {name: tensor.grad.numpy() for name, tensor in seen.items() if tensor.grad is not None}
    names = name_map(case.config, case.system.dialect)
    found, missing = names.rename(gradients, {name: array.shape for name, array in expected.items()})
    assert missing == {}
    assert [name for name in expected if name not in found] == not_seen(expected, case.system.dialect)
    wrong = [name for name, array in found.items() if not compare(array, expected[name]).within(FLOAT64_RELATIVE_RMS)]
    assert wrong == []


@pytest.mark.parametrize(
    ("name", "parameters", "activations"), [("hyunwoongko", 0.7, 0.5), ("pytorch_pre_gelu", 0.7, 0.2)]
)
def test_what_a_draft_is_sure_of_is_right(name: str, parameters: float, activations: float, tmp_path: Path) -> None:
    """And that is at least this part of all parameters and of all activations."""
    case = make_case(name)
    of_trace, captured = torch_trace(case.torch64, case), capture(case.torch64, case.ids())
    ours = per_layer(flatten(case.params64))
    theirs = {name: tensor.numpy() for name, tensor in case.torch64.state_dict().items()}
    sides = [
        Names(*({name: array.shape for name, array in part.items()} for part in side))
        for side in ((captured, theirs), (of_trace, ours))
    ]
    (tmp_path / "names.yaml").write_text(draft(*sides), encoding="utf-8")
    names = NameMap.read(tmp_path / "names.yaml")
    found, missing = names.rename_parameters(theirs, sides[1].parameters)
    assert missing == {}
    assert len(found) >= parameters * len(ours)
    for path, leaf in found.items():
        np.testing.assert_array_equal(leaf, ours[path], err_msg=path)
    found, missing = names.rename(captured, sides[1].activations)
    assert missing == {}
    assert len(found) >= activations * len(of_trace)
    wrong = [
        name
        for name, array in found.items()
        if not compare(array, of_trace[name], attended(name, of_trace)).within(FLOAT64_RELATIVE_RMS)
    ]
    assert wrong == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_seen_through_hooks_is_its_reference(family: str, attention: str, folder: Path) -> None:
    case = families.make_case(family, 0, folder)
    dialect = (case.model.origin or {})["dialect"]
    with torch.no_grad():
        expected = as_arrays(reference_trace(case.torch64, case.inputs()))
    case.torch64.set_attn_implementation(attention)
    try:
        with wide_norms(case.torch64):
            captured = capture(case.torch64, case.inputs() | {"use_cache": False})
    finally:
        case.torch64.set_attn_implementation("eager")
    graph = nodes(case.config)
    trace = [node.name for node in graph]
    names = name_map(case.config, dialect)
    promised = [name for ours in names.activations.values() for name in ours]
    assert set(trace) - set(promised) == set(not_seen(trace, dialect, scaled=family not in ONE_TABLE_EACH))
    assert set(names.activations) <= set(captured)
    compared = [name for name in expected if name in promised]
    assert set(expected) - set(compared) == set(not_seen(expected, dialect))
    like = {name: array.shape for name, array in expected.items()}
    theirs = {key: tuple(name for name in ours if name in like) for key, ours in names.activations.items()}
    found, _ = NameMap({key: ours for key, ours in theirs.items() if ours}).rename(captured, like)
    assert list(found) == [name for name in like if name in compared]
    wrong = {name: compare(array, expected[name]).relative_rms for name, array in found.items()}
    assert {name: error for name, error in wrong.items() if not error <= FLOAT64_RELATIVE_RMS} == {}
    logits = {ours[0]: captured[key] for key, ours in names.activations.items() if key.endswith("@logits")}
    ids = {"source_ids": case.source_ids, "decoder_input_ids": case.decoder_input_ids}
    of_config = {
        node.name: node.compute(case.config, {name: ids[name] for name in node.inputs}, {})
        for node in graph
        if node.kind == "mask"
    }
    masks = infer_masks(logits, case.config)
    assert list(masks) == list(of_config)
    for name, mask in masks.items():
        np.testing.assert_array_equal(mask, np.broadcast_to(of_config[name], mask.shape), err_msg=name)
