"""Modules of a user's own that write the same function otherwise pass, and single faults are named alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import families
import other_writings as writings
import pytest
import torch
import user_models

from jax_transformer.comparison.report.report import Report
from jax_transformer.parity import NameMap, Side, compare
from jax_transformer.parity.problems import own_problem
from jax_transformer.parity.sides.pairing import Sides, pair_models
from jax_transformer.parity.stages.forward import compare_forward
from jax_transformer.porting import import_checkpoint

pytestmark = pytest.mark.usefixtures("quick_compilation")

STAGES = ("weights", "masks", "forward")


@pytest.fixture(scope="module")
def model() -> Any:
    return import_checkpoint(user_models.pytorch().state_dict(), "pytorch", **user_models.HINTS)


def check(model: Any, module: Any, folder: Path, **options: Any) -> Report:
    path = folder / "names.yaml"
    path.write_text(writings.EMBEDDING_MAP)
    options = {"stages": STAGES, "dtypes": ["float64"]} | options
    return compare(model, module, names=NameMap.read(path), **options)


def causes(report: Report) -> dict[str, str]:
    return {fault.finding.node: fault.finding.cause for fault in report.faults}


@pytest.mark.parametrize("kind", [writings.Parts, writings.Adding])
def test_other_fills_are_noted(kind: Any, model: Any, tmp_path: Path) -> None:
    report = check(model, writings.with_attention(kind), tmp_path)
    assert (report.exit_code, causes(report)) == (0, {})
    assert {note.finding.matches[0].variant for note in report.notes} == {"masked logits are -1e+30"}


@pytest.mark.parametrize("kind", [writings.Fused, writings.ByLogarithm, writings.MaskedAfterwards])
def test_only_fully_masked_rows_differ(kind: Any, model: Any, tmp_path: Path) -> None:
    report = check(model, writings.with_attention(kind), tmp_path)
    assert (report.exit_code, {fault.finding.effect for fault in report.faults}) == (1, {"fully masked rows"})


def test_they_may_be_allowed(model: Any, tmp_path: Path) -> None:
    module = writings.with_attention(writings.MaskedAfterwards)
    assert check(model, module, tmp_path, allow=["fully-masked"]).exit_code == 0


def test_gradients_outside_a_recomputed_attention(model: Any, tmp_path: Path) -> None:
    module = writings.with_attention(writings.Recomputed, "enc.1.attn")
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad"):
        report = check(model, module, tmp_path, stages=("forward", "loss", "gradients"))
    assert report.exit_code == 0, str(report)
    assert "reference shows no gradients of" in report.environment


FAULTS = {
    "table in float32": (
        writings.narrow_positions,
        {
            "encoder.positions": "positions: computed in float32",
            "encoder.layers.1.feed_forward_norm": "norm: ε = 1e-06",
            "decoder.positions": "positions: computed in float32",
        },
    ),
    "mask inverted in the first layer": (
        lambda: writings.with_attention(writings.Inverted, "enc.0.attn"),
        {"encoder.layers.0.self_attention.logits": "mask inverted, in this attention alone"},
    ),
    "mask inverted in the second layer": (
        lambda: writings.with_attention(writings.Inverted, "enc.1.attn"),
        {"encoder.layers.1.self_attention.logits": "mask inverted, in this attention alone"},
    ),
    "keys before queries": (
        lambda: writings.with_attention(writings.KeysFirst, "enc.1.attn"),
        {"encoder.layers.1.self_attention.logits": "fused kernel read in the order key, query, value"},
    ),
    "pre-norm in one layer": (
        lambda: writings.pre_norm("enc.1"),
        {"encoder.layers.1.self_attention_norm": "norms before its sublayers (pre-norm)"},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_alone(name: str, model: Any, tmp_path: Path) -> None:
    make, found = FAULTS[name]
    report = check(model, make(), tmp_path)
    assert (report.exit_code, causes(report)) == (1, found)


def test_a_scale_after_the_positions_where_no_embedding_is_seen(model: Any, tmp_path: Path) -> None:
    (tmp_path / "hidden.yaml").write_text(user_models.FOREIGN_MAP)
    names = NameMap.read(tmp_path / "hidden.yaml")
    report = compare(model, writings.scaled_after(), names=names, stages=STAGES, dtypes=["float64"])
    expected = {f"{stack}.embedding": "√d_model applied after positions" for stack in ("encoder", "decoder")}
    assert (report.exit_code, causes(report)) == (1, expected)


# --- models of transformers, as from_pretrained loads them


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def as_loaded(family: str, folder: Path) -> tuple[Any, Any]:
    """Returns a model and the same in transformers, as from_pretrained loads it."""
    case = families.make_case(family, 1, folder)
    theirs = families.FAMILIES[family].model.from_pretrained(case.directory, dtype=torch.float32).eval()
    assert theirs.config._attn_implementation == "sdpa"
    return case.model, theirs


def test_a_model_of_transformers_as_it_is_loaded(tmp_path: Path) -> None:
    model, theirs = as_loaded("bart", tmp_path)
    options: dict[str, Any] = {"stages": ("weights", "forward"), "dtypes": ["float64"]}
    assert compare(model, theirs, **options).exit_code == 0
    assert theirs.config._attn_implementation == "sdpa", "the user's stays as it is"
    norms = [part for part in theirs.modules() if isinstance(part, torch.nn.LayerNorm)]
    norms[1].eps = 1e-3
    report = compare(model, theirs, **options)
    assert report.exit_code == 1
    assert list(causes(report).values()) == ["norm: ε = 0.001"]


def test_t5s_norms_are_in_float64(tmp_path: Path) -> None:
    """As the reference for modules of transformers computes them, on the model's own weights."""
    model, theirs = as_loaded("t5", tmp_path)
    next(part for part in theirs.modules() if hasattr(part, "variance_epsilon")).variance_epsilon = 1e-3
    sides = Sides(Side(model), Side(theirs), ("model", "module"))
    pair, _ = pair_models(sides)
    problem = own_problem(model.config, model.params)
    traces = [side.forward(problem, "float64") for side in (pair.candidate, pair.reference)]
    result = compare_forward(model.config, problem, *traces, visible=pair.visible)
    assert [(fault.side, fault.finding.cause) for fault in result.faults] == [("reference", "norm: ε = 0.001")]
