"""The first losses of `annotated_zh` on the first pairs of Tatoeba are PyTorch's, in float64 and without dropout.
(one_epoch.py trains the whole epoch on all of them; test_recipes.py takes fifty steps of a smaller model.)"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import one_epoch
import pytest
from one_epoch import Trained, data_folder, differences, make_task, read_corpus, train_exactly

from jax_transformer.comparison.gates.tolerances import TRAJECTORY_LOSS_RELATIVE, TRAJECTORY_PARAMETERS_RELATIVE_RMS

pytestmark = pytest.mark.usefixtures("quick_compilation")

FOLDER = data_folder()
PAIRS = {"train.tsv": 2000, "dev.tsv": 200}
STEPS = 4
SEED = 5  # its first batches all fit one shape


def first_pairs(folder: Path, target: Path) -> str:
    """Writes the first pairs of each file to another folder, and returns its name."""
    for name, number in PAIRS.items():
        with (folder / name).open(encoding="utf-8") as file:
            (target / name).write_text("".join(islice(file, number)), encoding="utf-8")
    return str(target)


@pytest.mark.skipif(FOLDER is None, reason="JAX_TRANSFORMER_SHARED names no folder with data")
def test_the_first_steps_of_an_epoch_are_torchs(tmp_path: Path) -> None:
    assert FOLDER is not None
    corpus = read_corpus(first_pairs(Path(FOLDER), tmp_path), str(tmp_path / "cache"))
    whole = make_task(corpus, SEED, epochs=1, shapes=[(16, 32)])
    ours, theirs = train_exactly(corpus, whole._replace(train=whole.train[:STEPS], dev=whole.dev[:1]), SEED)
    assert len(theirs.losses) == STEPS
    assert theirs.losses[-1] < theirs.losses[0]
    np.testing.assert_allclose(ours.losses, theirs.losses, rtol=TRAJECTORY_LOSS_RELATIVE)
    np.testing.assert_allclose(ours.dev_losses, theirs.dev_losses, rtol=TRAJECTORY_LOSS_RELATIVE)
    errors = differences(ours, theirs).weights
    assert {path: error for path, error in errors.items() if not error <= TRAJECTORY_PARAMETERS_RELATIVE_RMS} == {}


@pytest.mark.parametrize(
    ("factor", "code", "message"),
    [
        (1.0 + 9e-10, 0, ""),
        (
            1.0 + 2e-9,
            1,
            "FAILED: 1 of 3 losses are not finite, or differ from torch's by more than 1e-09; the first at step 2, by "
            "2.0e-09\n",
        ),
        (
            np.nan,
            1,
            "FAILED: 1 of 3 losses are not finite, or differ from torch's by more than 1e-09; the first at step 2, by "
            "nan\n",
        ),
    ],
)
def test_an_epoch_whose_losses_differ_fails(
    factor: float,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command writes its measurements all the same."""
    weights = {"head/kernel": np.ones(2), "encoder/layers/self_attention/key/bias[0]": np.ones(2)}
    theirs, ours = (Trained([3.0, 2.0 * times, 1.0], [1.5], weights) for times in (1.0, factor))
    for name in ("read_corpus", "make_task"):
        monkeypatch.setattr(one_epoch, name, lambda *arguments, **options: None)
    monkeypatch.setattr(one_epoch, "train_exactly", lambda *arguments: (ours, theirs))
    monkeypatch.setattr(one_epoch, "train_nudged", lambda *arguments: theirs)
    record = tmp_path / "record.json"
    assert one_epoch.main(["--only", "exact", "--data", "anywhere", "--json", str(record)]) == code
    assert capsys.readouterr().out.endswith(message)
    assert ("FAILED" in message) == bool(code)
    assert len(json.loads(record.read_text())["exact"]["differences"]["jax"]["losses"]) == 3
