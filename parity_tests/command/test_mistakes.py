"""`jax-transformer parity` answers mistakes of the user's with one clear message, before anything runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import user_models
from parity_command import PYTORCH, SIZES, Run, function, module

pytestmark = pytest.mark.usefixtures("quick_compilation")

BAD: dict[str, tuple[list[str], str]] = {
    "a module in training mode": (module("training"), "the module itself is in training mode: call .eval() first"),
    "a part in training mode": (
        module("part_in_training"),
        "transformer.decoder.layers.0.dropout1 is in training mode",
    ),
    "a factory that raises": (module("raising"), "raising() raised RuntimeError: the weights are elsewhere"),
    "no such factory": (module("nowhere"), "expected nowhere in user_models; there is no such name"),
    "no factory": (module("SIZES"), "expected a function SIZES; received a dict"),
    "no such Python module": (
        ["--reference", "nowhere.models:make"],
        "nowhere.models can't be imported: ModuleNotFoundError",
    ),
    "no colon": (["--reference", "user_models"], "expected package.module:name; received 'user_models'"),
    "no nn.Module": (module("no_module"), "expected a torch.nn.Module; received dict"),
    "another width": (module("wider"), "tensor source_embedding.weight: expected shape (23, 12); received (23, 18)"),
    "other names": (
        module("foreign"),
        "map them with names (--map FILE); draft_map",
    ),
    "no such map": (
        [*module("foreign"), "--map", "nowhere.yaml"],
        "nowhere.yaml: expected a YAML file that maps names",
    ),
    "no function": (function("no_function"), "expected a function (params, inputs) → (logits, trace); received int"),
    "a function without a trace": (function("logits_alone"), "expected (logits, trace), the trace a mapping"),
    "a function that raises": (function("failing"), "candidate user_models:failing: raised KeyError: 'weights'"),
    "no such node": (["--node", "encoder.layers.7.output"], "expected an activation of this model"),
    "a tolerance": (["--tolerance", "1"], "tolerance doesn't apply to models; expected only"),
    "no such folder": (["--json", "nowhere/report.json"], "expected a directory that exists; there is no nowhere"),
    "no such folder for a page": (
        ["--html", "nowhere/report.html"],
        "expected a directory that exists; there is no nowhere",
    ),
}


@pytest.mark.parametrize("mistake", BAD)
def test_mistakes(mistake: str, run: Run, tmp_path: Path) -> None:
    options, message = BAD[mistake]
    report = [] if "--json" in options else ["--json", str(tmp_path / "report.json")]
    outcome = run("pytorch.pt", *PYTORCH, *options, *report)
    assert outcome.is_one_clear_message, outcome.output
    assert message in outcome.output
    assert list(tmp_path.iterdir()) == [], "nothing is written"
    assert len(outcome.err.splitlines()) <= 8


def test_where_reports_go_is_checked_before_anything_runs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_models, "pytorch", lambda: pytest.fail("the module was made"))
    assert run("pytorch.pt", *PYTORCH, *module("pytorch"), "--json", "nowhere/report.json").is_one_clear_message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.pt", *PYTORCH], "nowhere.pt: no such file"),
        (["pytorch.pt", *SIZES, "--dialect", "hyunwoongko"], "this is no checkpoint of dialect hyunwoongko"),
        (["pytorch.pt", *SIZES, "--dialect", "pytroch"], "received 'pytroch' (nearest: pytorch)"),
        (["harvard.pt", *SIZES], "several dialects have tensors of these names; say which this is"),
        ([], "expected a model directory or a checkpoint, --reference or --diff; received none of them"),
        (["--draft-map", "draft.yaml"], "--draft-map: expected a model"),
    ],
)
def test_no_model(arguments: list[str], message: str, run: Run, folder: Path) -> None:
    outcome = run(*arguments)
    assert outcome.is_one_clear_message, outcome.output
    assert message in outcome.output
    assert not (folder / "draft.yaml").exists()


def test_stages_and_dtypes(run: Run) -> None:
    outcome = run("pytorch.pt", *PYTORCH, stages="forwards")
    assert outcome.is_one_clear_message
    assert "stages: expected some of weights, inputs, masks, forward," in outcome.err
    assert "dtypes: expected some of float64" in run("pytorch.pt", *PYTORCH, dtypes="float16").err
    for stages in (",", "weights,,"):
        assert run("pytorch.pt", *PYTORCH, stages=stages).code == (2 if stages == "," else 0)
    outcome = run("pytorch.pt", *PYTORCH, stages="weights,loss", dtypes="float32")
    assert (outcome.code, "compared in float64 alone" in outcome.output) == (3, True)
    assert run("pytorch.pt", *PYTORCH, stages="inputs").code == 3


def test_files_of_arrays(run: Run, tmp_path: Path) -> None:
    """--diff, of which tests/commands/test_parity.py has the rest."""
    good, objects = str(tmp_path / "good.npz"), str(tmp_path / "objects.npz")
    np.savez(good, logits=np.ones(3))
    np.savez(objects, logits=np.array([{}], dtype=object))
    for arguments, message in (
        ([objects, good], "expected numbers; received an array of objects"),
        ([good, str(tmp_path / "nowhere.npz")], "there is no such file"),
        ([good, str(tmp_path)], "expected two .npz files of named arrays"),
    ):
        outcome = run("--diff", *arguments)
        assert outcome.is_one_clear_message, outcome.output
        assert message in outcome.output
    assert run("pytorch.pt", *PYTORCH, "--diff", good, good).is_one_clear_message
