"""The script that makes one run in Trainer and here reports how far they differ, and fails when it is too much."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import same_run_in_trainer
from same_run_in_trainer import EARLY, LARGEST, Run

PAGE = Path(__file__).parent.parent / "docs" / "coming_from.md"
REFERENCES = ["ein hund läuft .", "eine frau schläft ."]


@pytest.fixture
def multi30k(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Puts two sentences where the script looks for the text."""
    files = {}
    for split in ("train", "val", "test_2016_flickr"):
        files[split] = (tmp_path / f"{split}.en", tmp_path / f"{split}.de")
        for path in files[split]:
            path.write_text("".join(f"{line}\n" for line in REFERENCES), encoding="utf-8")
    monkeypatch.setattr(same_run_in_trainer, "unpacked", lambda shared, folder: files)
    monkeypatch.setenv("JAX_TRANSFORMER_SHARED", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("step", "factor", "code"), [(EARLY - 1, 1 + 2 * LARGEST, 1), (EARLY, 1.5, 0), (0, float("nan"), 1)]
)
def test_only_early_losses_decide(
    step: int,
    factor: float,
    code: int,
    multi30k: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = [5.0 - 0.01 * i for i in range(2 * EARLY)]
    losses = [loss * factor if i == step else loss for i, loss in enumerate(expected)]
    other = [REFERENCES[0], "."]
    runs = {
        "trainer": Run(expected, REFERENCES),
        "jax": Run(losses, other),
        "trainer_float64": Run(expected, REFERENCES),
    }
    monkeypatch.setattr(same_run_in_trainer, "train_all", lambda *arguments: runs)
    record = multi30k / "record.json"
    assert same_run_in_trainer.main(["--json", str(record)]) == code
    rows = [row.split(" | ") for row in capsys.readouterr().out.splitlines()]
    assert ["| loss of step 1", "5.000000", f"{losses[0]:.6f}", "5.000000 |"] in rows
    assert ["| equal translations", "2", "1", "2 |"] in rows
    assert json.loads(record.read_text())["bleu"]["trainer"] == pytest.approx(100.0)


def test_options_are_those_of_the_page(tmp_path: Path) -> None:
    """The page has each of Trainer's arguments that are more than its defaults, and each option of the command."""
    page = PAGE.read_text(encoding="utf-8")
    named = {"learning_rate", "warmup_steps", "lr_scheduler_type", "weight_decay", "max_grad_norm"}
    assert named < set(same_run_in_trainer.trainer_arguments(tmp_path, 1))
    options = [option for option in same_run_in_trainer.train_options(tmp_path, 1) if option.startswith("--train.")]
    absent = [word for word in (*named, *options) if not re.search(rf"{re.escape(word)}\b|`{word[8:]}`", page)]
    assert absent == []
