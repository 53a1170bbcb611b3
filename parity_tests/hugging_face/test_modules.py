"""Tests of transformers models in memory, which need no hints, since their config has what the tensors lack."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import transformers
from families import make_case

from jax_transformer.exporting.ctranslate2 import export_ctranslate2
from jax_transformer.parity import compare
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensors import PortingError

pytestmark = pytest.mark.usefixtures("quick_compilation")

STAGES: dict[str, Any] = {"stages": ["weights", "masks", "forward"], "dtypes": ["float64"]}
ENDS = {"decoder_start_id": 5, "eos_id": 6}


@pytest.mark.parametrize("family", ["bart", "blenderbot_small", "pegasus", "fsmt", "t5_gated"])
def test_a_module_is_compared_by_its_own_config(family: str, folder: Path) -> None:
    """Other families have tensors of the same names."""
    case = make_case(family, 0, folder)
    report = compare(case.theirs, **STAGES)
    assert report.verdict == "passed", str(report)
    assert report.environment["dialect"] == (case.model.origin or {})["dialect"]
    assert all(stage.rows for stage in report.stages)


def test_hints_prevail_over_the_config(folder: Path) -> None:
    report = compare(make_case("bart", 0, folder).theirs, activation="relu", **STAGES)
    assert report.verdict == "diverged"
    assert "first at encoder.layers.0.feed_forward.hidden" in str(report)


def test_a_module_that_no_config_expresses_is_named() -> None:
    sizes = {"vocab_size": 20, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    module = transformers.LongT5ForConditionalGeneration(transformers.LongT5Config(**sizes)).eval()
    with pytest.raises(PortingError, match="its config: expected a model that a config expresses; received 'longt5'"):
        compare(module, **STAGES)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_ctranslate2_is_a_third_program(family: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes the same; of a weight that is off by a thousandth in its directory, it tells both sides."""
    case = make_case(family, 0, folder)
    options: dict[str, Any] = {"stages": ["ctranslate2"], **ENDS}
    assert compare(case.theirs, **options).verdict == "passed"

    def with_another_weight(model: Model, path: Path) -> None:
        params = copy.deepcopy(model.params)
        params["decoder"]["layers"]["cross_attention"]["value"]["kernel"] *= 1.001
        export_ctranslate2(dataclasses.replace(model, params=params), path)

    monkeypatch.setattr("jax_transformer.exporting.ctranslate2.export_ctranslate2", with_another_weight)
    report = compare(case.theirs, **options)
    (stage,) = report.stages
    assert [row.verdict for row in stage.rows] == ["diverged", "diverged"]


def test_a_third_program_that_cannot_compute_the_model_leaves_the_run_inconclusive(folder: Path) -> None:
    report = compare(make_case("umt5", 0, folder).theirs, stages=["ctranslate2"], **ENDS)
    assert report.verdict == "inconclusive"
    assert "ctranslate2 can't compute this model" in str(report)
