"""A model of transformers in memory is compared without hints: its config tells what its tensors don't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers
from families import make_case

from jax_transformer.parity import compare
from jax_transformer.storage.tensors import PortingError

pytestmark = pytest.mark.usefixtures("quick_compilation")

STAGES: dict[str, Any] = {"stages": ["weights", "masks", "forward"], "dtypes": ["float64"]}


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
