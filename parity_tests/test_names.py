"""Hooks capture the activations of every system and family under the names that follow from its porting table."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import families
import numpy as np
import pytest
import torch
from families import FAMILIES, LIKE_OTHERS
from recipes_in_torch import trained_leaves
from systems import SYSTEMS, TIED, Case, make_case
from torch.nn import functional as torch_functional

from jax_transformer.comparison.capture import watch
from jax_transformer.comparison.gates.stages import Stage, compare_stage
from jax_transformer.comparison.sides import Arrays
from jax_transformer.config.model import TransformerConfig
from jax_transformer.mapping.maps import NameMap
from jax_transformer.parity import capture
from jax_transformer.parity.backends.families import wide_fills
from jax_transformer.parity.backends.masks import infer_masks
from jax_transformer.parity.diagnosis.nodes import with_ids
from jax_transformer.parity.names.drafts import Names, draft
from jax_transformer.parity.oracle.graph import nodes
from jax_transformer.parity.rules import SETUP
from jax_transformer.parity.stages.forward import attended
from jax_transformer.porting.activations import activation_names
from jax_transformer.porting.dialects import get_dialect
from jax_transformer.programs.modes import wide

pytestmark = pytest.mark.usefixtures("quick_compilation")

NOT_MODULES = ("mask.*", "*.positions", "*position_bias")
"""Activations that no module returns in our form."""
SCALED = ("*.token_embedding",)
"""Activations scaled by √d_model outside the embedding's module, or read from a table that both stacks share."""
FUSED = ("*attention.query", "*attention.key", "*attention.value", "*attention.context")
"""Activations that nn.MultiheadAttention computes without calling a module."""
NOT_SEEN = {
    **dict.fromkeys(("floydhub", "annotated_zh", "harvard", "marian", "bart", "m2m_100", "t5", "mt5", "umt5"), SCALED),
    **dict.fromkeys(
        ("mvp", "plbart", "mbart", "blenderbot", "blenderbot_small", "pegasus", "fsmt", "indictrans"), SCALED
    ),
    "pytorch": (*SCALED, *FUSED),
    "t5gemma": (*SCALED, "*.rotated_query", "*.rotated_key"),
    "whisper": ("encoder.token_embedding",),  # the stem's output, activated and turned around outside its modules
}
"""Dialect → the activations that hooks don't show, in addition to those that are never shown."""
ONE_TABLE_EACH = ("marian_two_vocabularies",)


def name_map(config: TransformerConfig, dialect: str) -> NameMap:
    return NameMap(activation_names(config, get_dialect(dialect).rules(config)))


def not_seen(names: Any, dialect: str, *, scaled: bool = True) -> list[str]:
    patterns = (*NOT_MODULES, *NOT_SEEN.get(dialect, ())) if scaled else NOT_MODULES
    return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]


def among(names: Any, arrays: Arrays) -> dict[str, np.ndarray]:
    return {name: arrays[name] for name in names}


def assert_passed(stage: Stage) -> None:
    assert stage.verdict == "passed", [row for row in stage.rows if row.verdict != "passed"]


@pytest.fixture(params=SYSTEMS | TIED)
def case(request: Any) -> Case:
    return make_case(request.param)


def test_a_system_seen_through_hooks_is_its_own_trace(case: Case) -> None:
    expected = case.reference.forward(case.problem, "float64")
    names = name_map(case.config, case.system.dialect)
    found, missing = names.rename(
        capture(case.program, case.ids()), {name: array.shape for name, array in expected.items()}
    )
    assert missing == {}
    assert [name for name in expected if name not in found] == not_seen(expected, case.system.dialect)
    assert list(found) == [name for name in expected if name in found]
    allowed = None if case.system.dialect == "pytorch" else 0.0  # pytorch traces another forward than nn.Transformer's
    assert_passed(
        compare_stage(
            "hooks", found, among(found, expected), tolerance=allowed, where=attended(case.config, found, expected)
        )
    )


def test_masks_follow_from_the_logits_of_a_system(case: Case) -> None:
    expected = case.reference.forward(case.problem, "float64")
    shown = {name: array for name, array in expected.items() if not name.startswith("mask.")}
    masks = infer_masks(shown, case.config)
    assert list(masks) == [name for name in expected if name.startswith("mask.")]
    for name, mask in masks.items():
        assert mask.shape == expected[name].shape
        np.testing.assert_array_equal(mask, expected[name], err_msg=name)
    assert infer_masks(expected, case.config) == {}, "only missing masks are inferred"


@pytest.mark.parametrize("name", ["hyunwoongko", "pytorch_pre_gelu"])
def test_gradients_of_activations_have_the_same_names(name: str) -> None:
    case = make_case(name)
    expected = case.reference.gradients(case.problem).activations
    case.program.zero_grad()
    seen = watch(case.program, case.ids(), keep_gradients=True)
    logits = seen.output
    torch_functional.cross_entropy(
        logits.flatten(0, 1),
        torch.from_numpy(case.problem.labels).flatten(),
        ignore_index=case.config.target_pad_id,
        label_smoothing=SETUP.label_smoothing,
    ).backward()
    gradients = {name: gradient.numpy() for name, gradient in seen.gradients.items()}
    names = name_map(case.config, case.system.dialect)
    found, missing = names.rename(gradients, {name: array.shape for name, array in expected.items()})
    assert missing == {}
    assert [name for name in expected if name not in found] == not_seen(expected, case.system.dialect)
    assert_passed(compare_stage("gradients", found, among(found, expected)))


@pytest.mark.parametrize(
    ("name", "parameters", "activations"), [("hyunwoongko", 0.7, 0.5), ("pytorch_pre_gelu", 0.7, 0.2)]
)
def test_drafts_are_right_about_most_parameters_and_activations(
    name: str, parameters: float, activations: float, tmp_path: Path
) -> None:
    """They name at least these shares of them."""
    case = make_case(name)
    of_trace, captured = case.reference.forward(case.problem, "float64"), capture(case.program, case.ids())
    ours = trained_leaves(case.model.params)
    theirs = {name: tensor.numpy() for name, tensor in case.program.state_dict().items()}
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
    assert_passed(compare_stage("draft", found, among(found, of_trace), where=attended(case.config, found, of_trace)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.mark.parametrize(
    ("family", "attention"),
    [
        *((family, "eager") for family in FAMILIES),
        *((family, "sdpa") for family in FAMILIES if family not in (*LIKE_OTHERS, "t5gemma")),  # whose cap it lacks
    ],
)
def test_a_family_seen_through_hooks_is_the_same_with_any_attention(family: str, attention: str, folder: Path) -> None:
    """test_families.py compares what hooks show with JAX and with the truth."""
    case = families.make_case(family, 0, folder)
    dialect = (case.model.origin or {})["dialect"]
    expected = case.reference.forward(case.problem, "float64")
    module = case.family_reference.build(torch.float64)
    module.set_attn_implementation(attention)
    with wide(module), wide_fills():
        inputs = {name: array.double() if array.is_floating_point() else array for name, array in case.inputs().items()}
        captured = capture(module, inputs | {"use_cache": False})
    graph = nodes(case.config)
    trace = [node.name for node in graph]
    names = name_map(case.config, dialect)
    promised = [name for ours in names.activations.values() for name in ours]
    assert set(trace) - set(promised) == set(not_seen(trace, dialect, scaled=family not in ONE_TABLE_EACH))
    assert set(names.activations) <= set(captured)
    compared = [name for name in expected if name in promised]
    assert set(expected) - set(compared) == {name for name in expected if name.startswith("mask.")}
    like = {name: array.shape for name, array in expected.items()}
    theirs = {key: tuple(name for name in ours if name in like) for key, ours in names.activations.items()}
    found, _ = NameMap({key: ours for key, ours in theirs.items() if ours}).rename(captured, like)
    assert list(found) == [name for name in like if name in compared]
    assert_passed(compare_stage("hooks", found, among(found, expected), where=attended(case.config, found, expected)))
    rows = len(case.problem.source_ids)  # some programs put the heads beside them
    logits = {
        ours[0]: captured[key].reshape(rows, -1, *captured[key].shape[-2:])
        for key, ours in names.activations.items()
        if key.endswith("@logits")
    }
    ids = with_ids({}, *case.problem.ids)
    of_config = {
        node.name: node.compute(case.config, {name: ids[name] for name in node.inputs}, {})
        for node in graph
        if node.kind == "mask"
    }
    masks = infer_masks(logits, case.config)
    assert list(masks) == list(of_config)
    for name, mask in masks.items():
        np.testing.assert_array_equal(mask, np.broadcast_to(of_config[name], mask.shape), err_msg=name)
