"""`jax-transformer parity` on optimizers for a model whose head is tied: pads get gradients from the head, and the
candidate, which is right, isn't blamed beside a fault of the reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import user_marian
import yaml
from parity_command import Outcome, Run

pytestmark = pytest.mark.usefixtures("quick_compilation")


def with_optimizer(name: str, run: Run, folder: Path) -> Outcome:
    (folder / "config.yaml").write_text(yaml.safe_dump({"train": user_marian.CONFIG}))
    options = ["--train", str(folder / "config.yaml"), "--optimizer", f"user_marian:{name}"]
    return run("--reference", "user_marian:marian", *options, stages="step")


def test_a_right_optimizer(run: Run, tmp_path: Path) -> None:
    outcome = with_optimizer("right", run, tmp_path)
    assert outcome.code == 0, outcome.output


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("without_decay_of_biases", "biases and scales not decayed, at 1 node of the reference"),
        ("clipping_values", "unexplained"),  # by another value than the rule's
    ],
)
def test_a_fault_of_the_reference_alone(name: str, cause: str, run: Run, tmp_path: Path) -> None:
    outcome = with_optimizer(name, run, tmp_path)
    assert outcome.code == (4 if cause == "unexplained" else 1), outcome.output
    assert cause in outcome.output
    assert "of the candidate" not in outcome.output
