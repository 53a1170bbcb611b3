"""`push` uploads what `load_model` then reads, over nothing else, and fails with one line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_server import Hub, Repository
from shared_models import make_model

from jax_transformer import load_model, save_model
from jax_transformer.cli import main
from jax_transformer.config.lora import LoraConfig
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.adapters import Adapters
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.training_state import TrainingState

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload raw:DeprecationWarning")  # the library's

Run = Callable[..., Path]
NAME = "someone/tiny"


def push(path: Path, *options: str, name: str = NAME) -> int:
    return main(["push", str(path), name, *options])


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """(path, options, message) → `push` refuses with one line that has the message."""

    def check(path: Path, *options: str, message: str, name: str = NAME) -> None:
        capsys.readouterr()
        assert push(path, *options, name=name) == 2
        printed = capsys.readouterr().err
        assert message in printed, printed
        assert printed.strip().count("\n") == 0
        assert ("ended the connection" in printed) == ("ended the connection" in message)

    return check


def test_a_pushed_model_is_the_same_when_it_is_loaded_by_its_name(
    hub: Hub, run: Run, model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run()
    assert push(folder, "--private", "--license", "mit", "--message", "The first model") == 0
    repository = hub.models[NAME]
    assert (repository.private, repository.messages[-1]) == (True, "The first model")
    stored = repository.files()
    assert stored.keys() == {".gitattributes", "README.md", *(file.name for file in (folder / "model").iterdir())}
    for file in (folder / "model").iterdir():
        assert stored[file.name] == file.read_bytes()
    loaded = load_model(NAME)
    assert loaded.training == model.training
    assert all(np.array_equal(leaf, flatten(model.params)[path]) for path, leaf in flatten(loaded.params).items())
    capsys.readouterr()
    assert push(folder, "--private", "--license", "mit") == 0
    assert f"nothing to upload: {NAME} has this model and this card" in capsys.readouterr().out
    assert len(repository.commits) == 2


def test_adapters_are_pushed_and_loaded(hub: Hub, run: Run, model: Model) -> None:
    kernel = model.params["head"]["kernel"]
    a, b = np.ones((16, 2), np.float32), np.ones((2, kernel.shape[1]), np.float32)
    config = LoraConfig(rank=2, targets=("head/kernel",))
    folder = run()
    adapters = Adapters(config, {"head": {"lora_a": a, "lora_b": b}})
    save_model(dataclasses.replace(model, adapters=adapters), folder / "model")
    assert push(folder) == 0
    assert "rank 2: `adapters.safetensors`" in hub.models[NAME].files()["README.md"].decode()
    loaded = load_model(NAME).adapters
    assert loaded is not None
    assert loaded.config == config
    assert np.array_equal(loaded.params["head"]["lora_a"], a)
    assert np.array_equal(loaded.params["head"]["lora_b"], b)


def test_an_optimizers_state_is_pushed_only_if_that_is_asked_for(
    hub: Hub, run: Run, model: Model, tmp_path: Path, refused: Callable[..., None]
) -> None:
    momentum = {"head/kernel": np.ones((2, 3), np.float32)}
    state = TrainingState("sgd", 7, {"momentum": momentum})
    folder = run()
    save_model(dataclasses.replace(model, training_state=state), folder / "model")
    message = "expected a model without an optimizer's state; received one with optimizer.safetensors"
    refused(folder, message=message)
    refused(folder, "--dry-run", str(tmp_path / "dry"), message=message)
    assert hub.asked == []
    assert not (tmp_path / "dry").exists()
    assert push(folder, "--with-optimizer") == 0
    loaded = load_model(NAME).training_state
    assert loaded is not None
    assert (loaded.optimizer, loaded.step, loaded.origin) == ("sgd", 7, state.origin)
    assert np.array_equal(loaded.slots["momentum"]["head/kernel"], momentum["head/kernel"])
    assert push(folder, "--license", "mit", "--card-only") == 0


def test_another_model_or_card_is_replaced_only_if_that_is_asked_for(
    hub: Hub, run: Run, tmp_path: Path, refused: Callable[..., None]
) -> None:
    folder = run()
    assert push(folder) == 0
    refused(folder, "--license", "mit", message="this model is there already, with another card; to replace")
    assert push(folder, "--license", "mit", "--card-only") == 0
    assert b"license: mit" in hub.models[NAME].files()["README.md"]
    other = dataclasses.replace(make_model(seed=1), target_tokenizer=None)
    save_model(other, tmp_path / "other")
    refused(tmp_path / "other", message="received one with another model; to commit this one in its place, --replace")
    refused(tmp_path / "other", "--card-only", message="expected the repository of this model for --card-only")
    assert len(hub.models[NAME].commits) == 3
    assert push(tmp_path / "other", "--replace") == 0
    assert "target_tokenizer.json" not in hub.models[NAME].files(), "a file that the new model hasn't"
    assert np.array_equal(load_model(NAME).params["head"]["kernel"], other.params["head"]["kernel"])


def test_a_branch_of_its_own(hub: Hub, run: Run) -> None:
    folder = run()
    assert push(folder, "--revision", "trial") == 0
    assert hub.models[NAME].files().keys() == {".gitattributes"}
    assert load_model(f"{NAME}@trial").training is not None


def test_a_repository_of_something_else_is_left_alone(hub: Hub, run: Run, refused: Callable[..., None]) -> None:
    hub.models[NAME] = Repository()
    hub.models[NAME].commit({"config.json": b"{}", "model.safetensors": b"", "README.md": b"Mine."})
    folder = run()
    message = "expected a new repository, or one with a model of jax-transformer; received one with config.json, model"
    refused(folder, message=message)
    refused(folder, "--replace", message=message)
    refused(folder, "--private", message="expected a private repository; received a public one")
    refused(folder, "--card-only", name="someone/new", message="expected a repository whose card to replace")
    assert hub.models.keys() == {NAME}
    assert len(hub.models[NAME].commits) == 1


def test_failures_of_the_hub_are_one_line(
    hub: Hub, run: Run, refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run()

    def failing(status: int, ending: str) -> None:
        monkeypatch.setattr(hub, "fails", lambda method, path: status if path.endswith(ending) else None)

    failing(403, "/create")
    refused(folder, message="the token has no right to do this: use one with write access")
    failing(401, "/create")
    refused(folder, message="the Hub doesn't know this user: log in (hf auth login), or set HF_TOKEN")
    failing(0, "/objects/batch")  # in the middle
    refused(folder, message="can't be reached, or ended the connection")
    failing(412, "/commit/main")
    refused(folder, message="the repository was changed in between, and nothing was committed: try again")
    assert hub.models[NAME].files().keys() == {".gitattributes"}
    failing(500, "/nowhere")
    assert push(folder) == 0  # goes on in the repository that was made
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "no token"))
    refused(folder, message="expected a token of the Hub; received none; log in (hf auth login), or set HF_TOKEN")


def test_a_commit_of_another_in_between_is_not_overwritten(
    hub: Hub, run: Run, refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run()

    def interfere(method: str, path: str) -> None:
        if path.endswith("/objects/batch"):
            hub.models[NAME].commit({"README.md": b"Theirs."}, message="theirs")

    monkeypatch.setattr(hub, "fails", interfere)
    refused(folder, message="the repository was changed in between, and nothing was committed")
    assert hub.models[NAME].files() == {"README.md": b"Theirs."}


@pytest.mark.parametrize("file", ["params.safetensors", "generation.json"])
def test_a_file_that_changes_meanwhile_is_not_committed(
    hub: Hub, run: Run, refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    folder = run()

    def interfere(method: str, path: str) -> None:
        if path == "/api/repos/create":
            data = (folder / "model" / file).read_bytes()
            (folder / "model" / file).write_bytes(data[:-2] + b"x\n")

    monkeypatch.setattr(hub, "fails", interfere)
    refused(folder, message=f"{file}: changed while it was uploaded; nothing was committed")
    assert hub.models[NAME].files().keys() == {".gitattributes"}


def test_an_altered_model_and_odd_names_are_refused_before_the_hub_is_asked(
    hub: Hub, run: Run, refused: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run()
    for name in ("tiny", "a/b/c", "someone/ti ny", "someone/tiny@main", "-/x", "../x"):
        refused(folder, name=name, message="push: expected OWNER/NAME to upload to; received")
    (folder / "model" / "generation.json").write_text("{}")
    assert push(folder) == 2
    assert "generation.json: altered since it was saved" in capsys.readouterr().err
    assert hub.asked == []


def test_a_dry_run_writes_the_card_and_asks_nobody(
    hub: Hub, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run()
    assert push(folder / "model", "--dry-run", str(tmp_path / "dry")) == 0
    output = capsys.readouterr().out
    assert [file.name for file in (tmp_path / "dry").iterdir()] == ["README.md"]
    assert all(f"file:  {file.name}, " in output for file in (folder / "model").iterdir())
    assert hub.asked == []


def report_of(sums: Any) -> dict[str, Any]:
    row = {"name": "logits", "verdict": "passed"}
    stages = [{"name": "forward", "verdict": "diverged", "rows": [row, row, {"name": "x", "verdict": "diverged"}]}]
    return {"verdict": "diverged", "reference": "my<b>:build", "stages": stages, "sha256": {"model/params": sums},
            "environment": {"torch": "2.13.0"}}  # fmt: skip


def test_the_card_tells_the_parity_report_of_this_model_alone(
    run: Run, tmp_path: Path, refused: Callable[..., None]
) -> None:
    folder = run()
    sums = json.loads((folder / "model" / "manifest.json").read_text())["sha256"]["params.safetensors"]
    report = folder / "parity.json"  # beside the model
    report.write_text(json.dumps(report_of(sums)))
    assert push(folder, "--dry-run", str(tmp_path / "dry")) == 0
    card = (tmp_path / "dry" / "README.md").read_text(encoding="utf-8")
    assert "Compared with my&#60;b&#62;:build by `jax-transformer parity`: **diverged**." in card
    assert "| forward | diverged | 2 | 3 |" in card
    report.write_text(json.dumps(report_of("0" * 64)))
    refused(folder, "--dry-run", str(tmp_path / "dry"), message="parity.json: expected the report of this model")
    report.write_text("[1]")
    refused(folder, "--dry-run", str(tmp_path / "dry"), message="parity.json: expected a JSON object; received list")
    missing = ["--parity-report", str(folder / "none.json"), "--dry-run", str(tmp_path / "dry")]
    refused(folder, *missing, message="none.json")
