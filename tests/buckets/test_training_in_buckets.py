"""Corpora, runs and models in buckets, as training, translation and the other commands use them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from bucket_files import fail_after, put, store_at
from tiny_runs import rows, tiny_run

from jax_transformer.buckets import PLACE, BucketError
from jax_transformer.buckets.store import Batch, Store
from jax_transformer.cli import main
from jax_transformer.config.run import RunConfig
from jax_transformer.data import CorpusError, prepare
from jax_transformer.model.functional import init_params
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import ModelError, load_model, save_model
from jax_transformer.training.interruption import Interrupted
from jax_transformer.training.loop import train

pytestmark = [
    pytest.mark.usefixtures("quick_compilation"),
    pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload raw:DeprecationWarning"),  # the Hub library's
]

Stopped = Callable[[int], contextlib.AbstractContextManager[None]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, quick_compilation: None) -> Path:
    """A run that was never stopped."""
    return train(tiny_run(tmp_path_factory.mktemp("run"), log_every=2)).run


def in_bucket(folder: str, tmp_path: Path) -> RunConfig:
    """Returns the config of the same run in a bucket."""
    return dataclasses.replace(tiny_run(tmp_path, log_every=2), run_dir=f"{folder}/run")


@pytest.mark.parametrize(
    "kind", ["memory", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("s3", "gs", "hf"))]
)
def test_a_run_stops_and_goes_on_on_another_machine(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    undisturbed: Path,
    stopped_after: Stopped,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = request.getfixturevalue(kind)
    config = in_bucket(folder, tmp_path)
    with stopped_after(3), pytest.raises(Interrupted, match=f"train --resume {config.run_dir}$"):
        train(config)
    monkeypatch.setenv(PLACE, str(tmp_path / "another machine"))
    result = train(RunConfig(run_dir=config.run_dir), resume=True)
    assert result.place == config.run_dir
    assert rows(result.run) == rows(undisturbed)
    expected = (undisturbed / "model" / "params.safetensors").read_bytes()
    assert store_at(f"{folder}/run/model").read("params.safetensors") == expected
    monkeypatch.setenv(PLACE, str(tmp_path / "a third one"))
    assert load_model(f"{folder}/run").training["step"] == result.step


@pytest.mark.parametrize("saves", [1, 2])
def test_a_bucket_that_goes_away_stops_the_run_which_then_goes_on(
    memory: str,
    tmp_path: Path,
    undisturbed: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    saves: int,
) -> None:
    config = in_bucket(memory, tmp_path)
    with monkeypatch.context() as patched:
        usual, left = Store.apply, itertools.count(saves, -1)  # the owner's name, the config, and all saves but one

        def limited(self: Store, batches: object, why: str) -> None:
            if next(left) < 0:
                raise BucketError(f"{self.address}: expected an answer; received none")
            usual(self, batches, why)

        patched.setattr(Store, "apply", limited)
        with pytest.raises(BucketError, match=f"expected an answer.*train --resume {config.run_dir}"):
            train(config)
    monkeypatch.setenv(PLACE, str(tmp_path / "another machine"))
    assert main(["train", "--resume", config.run_dir]) == 0
    assert f"resumed at step {2 * (saves - 1)}" in capsys.readouterr().out or saves == 1
    expected = (undisturbed / "model" / "params.safetensors").read_bytes()
    assert store_at(f"{memory}/run/model").read("params.safetensors") == expected


@pytest.fixture
def run(memory: str, tmp_path: Path, undisturbed: Path) -> str:
    """The undisturbed run, copied into a bucket."""
    files = {path.relative_to(undisturbed).as_posix(): path for path in undisturbed.rglob("*") if path.is_file()}
    store_at(f"{memory}/run").apply([Batch(files)], "copy")
    return f"{memory}/run"


def test_commands_read_runs_and_models_in_buckets(
    run: str,
    memory: str,
    tmp_path: Path,
    undisturbed: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    put(memory, tmp_path, source="A dog.\n", reference="Ein Hund.\n")
    assert main(["translate", run, "--input", f"{memory}/source", "--max-new-tokens", "4"]) == 0
    (tmp_path / "out").write_text(capsys.readouterr().out)
    for arguments in (
        ["evaluate", "--hypotheses", "out", "--target", f"{memory}/reference"],
        ["report", run],
        ["verify", run],
        ["average", run, "--output", f"{memory}/averaged"],
        ["push", run, "owner/name", "--dry-run", "card"],
        ["push", str(undisturbed), "owner/name", "--dry-run", "card of local files"],
    ):
        assert main(arguments) == 0, capsys.readouterr()
    assert (tmp_path / "run.html").is_file()
    cards = [(tmp_path / name / "README.md").read_text() for name in ("card", "card of local files")]
    assert cards[0] == cards[1]
    assert load_model(f"{memory}/averaged").training["checkpoints"] == [2, 4, 6]


def test_port_reads_and_writes_buckets(undisturbed: Path, memory: str, capsys: pytest.CaptureFixture[str]) -> None:
    trained = load_model(undisturbed)
    config = trained.config.replace(final_norm=True)
    model = dataclasses.replace(trained, config=config, params=init_params(config, jax.random.key(0)))
    save_model(model, f"{memory}/model")
    for arguments in ([f"{memory}/model", f"{memory}/ported.pt"], [f"{memory}/ported.pt", f"{memory}/back"]):
        assert main(["port", *arguments, "--dialect", "pytorch"]) == 0, capsys.readouterr()
    back = flatten(load_model(f"{memory}/back").params)
    assert {path: leaf.tobytes() for path, leaf in back.items()} == {
        path: np.asarray(leaf).tobytes() for path, leaf in flatten(model.params).items()
    }


def test_a_model_is_never_replaced(run: str, memory: str) -> None:
    model = load_model(run)
    save_model(model, f"{memory}/model")
    with pytest.raises(BucketError, match="expected a name that is free"):
        save_model(model, f"{memory}/model")
    with pytest.raises(ModelError, match="expected a model directory, or a run directory with a model in it"):
        load_model(f"{memory}/nothing")


def test_a_model_that_was_uploaded_in_part_is_none(run: str, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(run)
    with monkeypatch.context() as patched:
        fail_after(2, patched)
        with pytest.raises(BucketError, match="went away"):
            save_model(model, f"{memory}/model")
    with pytest.raises(ModelError, match=r"received none with manifest\.json"):
        load_model(f"{memory}/model")


def test_a_corpus_in_a_bucket(memory: str, tmp_path: Path) -> None:
    lines = [f"dog {number}" for number in range(9)]
    put(memory, tmp_path, train="\n".join(lines), below__valid="\n".join(lines[:2]))
    data = dataclasses.replace(
        tiny_run(tmp_path).data,
        train=(f"{memory}/train", f"{memory}/train"),
        valid=(f"{memory}/below/valid", f"{memory}/below/valid"),
        valid_pairs=0,
        test_pairs=0,
    )
    local = dataclasses.replace(data, train=(str(tmp_path / "train"),) * 2, valid=(str(tmp_path / "below__valid"),) * 2)
    found = prepare(data)
    assert found.splits["train"].source_texts(range(9)) == lines
    assert prepare(local).directory == found.directory  # the text counts, and not where it is
    put(memory, tmp_path, train="\n".join(lines[:8]))
    assert len(prepare(data).splits["train"]) == 8
    missing = dataclasses.replace(data, train=(f"{memory}/none", f"{memory}/train"))
    with pytest.raises(CorpusError, match=f"{memory}/none: expected a text file; received a path at which there is no"):
        prepare(missing)
