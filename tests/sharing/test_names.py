"""Models are loaded by their names on the Hub, everywhere a model is named."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hub_server import TOKEN, Files, Hub, Repository
from shared_models import make_model

from jax_transformer import load_model, save_model
from jax_transformer.cli import main
from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.config.presets import get_preset
from jax_transformer.config.run import DataConfig, RunConfig
from jax_transformer.parity.sides.pairing import load
from jax_transformer.storage.hub import HubError, hub_name, is_model_on_hub, pinned
from jax_transformer.storage.model_directory import Model, origin_of
from jax_transformer.storage.model_files import ModelError
from jax_transformer.training import loop
from jax_transformer.training.export import check_initial_models
from jax_transformer.training.export import make_model as make_run_model
from jax_transformer.training.run_directory import RunError
from jax_transformer.training.warm_start import InitialModel, follow_initial_model, load_initial_model

NAME = "someone/tiny"


def files_of(directory: Path) -> Files:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


@pytest.fixture
def shared(hub: Hub, model: Model, tmp_path: Path) -> Repository:
    """The model on the Hub, with further, useless files, and another model in its branch old."""
    save_model(model, tmp_path / "new")
    save_model(make_model(seed=1), tmp_path / "old")
    hub.models[NAME] = Repository()
    hub.models[NAME].commit(files_of(tmp_path / "old"), "old", "old")
    hub.models[NAME].commit(files_of(tmp_path / "new") | {"README.md": b"#", "photo.png": b"0" * 999}, message="new")
    return hub.models[NAME]


def test_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b@v1").mkdir()
    assert hub_name("someone/tiny") == ("someone/tiny", None)
    assert hub_name("someone/tiny@refs/pr/3") == ("someone/tiny", "refs/pr/3")
    assert hub_name("a/c@main") == ("a/c", "main")
    with pytest.raises(ModelError, match="a/c: no such directory; for a model of this name on the Hub, write"):
        load_model("a/c")  # in a folder that is here
    local = ["a/b", "a/b@v1", "a/c", "./x", "../x/y", "/x/y", "x", "x/y/z", "x@1/y", "~/x"]
    for path in [*local, "x/y.pt", "x/y.safetensors", "x/y@", ""]:
        assert hub_name(path) is None, path


def test_only_the_files_of_the_model_are_downloaded_and_the_cache_is_used_again(
    hub: Hub, shared: Repository, model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded = load_model(NAME)
    assert np.array_equal(loaded.params["head"]["kernel"], model.params["head"]["kernel"])
    assert sorted(hub.downloads()) == sorted(file.name for file in (tmp_path / "new").iterdir())
    load_model(Path(NAME))
    assert len(hub.downloads()) == len(files_of(tmp_path / "new")), "none again"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    asked = len(hub.asked)
    load_model(NAME)
    assert len(hub.asked) == asked
    with pytest.raises(HubError, match="someone/other: no such directory, and not in the Hub's cache; HF_HUB_OFFLINE"):
        load_model("someone/other")


def test_a_revision(hub: Hub, shared: Repository) -> None:
    old = make_model(seed=1).params["head"]["kernel"]
    assert np.array_equal(load_model(f"{NAME}@old").params["head"]["kernel"], old)
    commit = shared.branches["old"]
    assert pinned(f"{NAME}@old") == f"{NAME}@{commit}"
    assert pinned("./somewhere") == "./somewhere"
    shared.branches["old"] = shared.branches["main"]  # moves on
    asked = len(hub.asked)
    assert np.array_equal(load_model(f"{NAME}@{commit}").params["head"]["kernel"], old)
    assert len(hub.asked) == asked, "a commit that is in the cache isn't asked for"
    with pytest.raises(HubError, match="someone/tiny@new: the repository on the Hub has no revision new"):
        load_model(f"{NAME}@new")


def test_all_files_are_of_one_commit_though_the_branch_moves_on_meanwhile(
    hub: Hub, shared: Repository, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interfere(method: str, path: str) -> None:
        if path.endswith("params.safetensors"):  # after the manifest
            shared.branches["main"] = shared.branches["old"]

    monkeypatch.setattr(hub, "fails", interfere)
    assert np.array_equal(load_model(NAME).params["head"]["kernel"], model.params["head"]["kernel"])
    assert shared.branches["main"] == shared.branches["old"]


def test_a_local_path_of_the_same_name_wins(
    hub: Hub, shared: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "someone").mkdir()
    save_model(make_model(seed=2), tmp_path / NAME)
    assert np.array_equal(load_model(NAME).params["head"]["kernel"], make_model(seed=2).params["head"]["kernel"])
    assert hub.asked == []


def test_a_file_that_differs_from_its_manifest_is_refused(hub: Hub, shared: Repository) -> None:
    files = shared.files()
    shared.commit(files | {"params.safetensors": files["params.safetensors"][:-1] + b"x"}, message="altered")
    with pytest.raises(ModelError, match=r"params.safetensors: altered since it was saved \(sha256 expected"):
        load_model(NAME)
    shared.commit({name: data for name, data in files.items() if name != "generation.json"}, message="incomplete")
    with pytest.raises(ModelError, match=r"expected the files that its manifest.json lists; generation.json isn't"):
        load_model(NAME)
    for place in ("../../evil", "/etc/passwd", "tokenizer/../evil", "evil.py", "tokenizer/"):
        manifest = json.loads(files["manifest.json"])
        manifest["sha256"][place] = "0" * 64
        shared.commit(files | {"manifest.json": json.dumps(manifest).encode(), "evil.py": b""}, message=place)
        with pytest.raises(ModelError, match=r"manifest.json must list files of a model; received"):
            load_model(NAME)
    assert "evil.py" not in hub.downloads()


def test_other_repositories_and_failures_are_one_line(
    hub: Hub, shared: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.models["someone/theirs"] = Repository()
    hub.models["someone/theirs"].commit({"config.json": b"{}"})
    hub.models["someone/secret"] = Repository(private=True)
    hub.models["someone/secret"].commit(shared.files(), message="secret")
    with pytest.raises(HubError, match=r"without manifest.json. If transformers wrote it, port it first: jax-transf"):
        load_model("someone/theirs")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/nowhere")
    for name in ("someone/secret", "someone/nothing"):
        with pytest.raises(
            HubError, match=r"no model of this name on the Hub; if it is a private one, log in"
        ) as raised:
            load_model(name)
        assert "\n" not in str(raised.value)
        assert not is_model_on_hub(name)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert load_model("someone/secret").training is not None
    hub.models["someone/cut"] = Repository()
    hub.models["someone/cut"].commit(shared.files(), message="cut")
    monkeypatch.setattr(hub, "fails", lambda method, path: 0 if path.endswith("params.safetensors") else None)
    with pytest.raises(HubError, match=r"someone/cut: the Hub at http.* can't be reached, or ended the connection"):
        load_model("someone/cut")


def test_commands_take_names(
    hub: Hub, shared: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """translate, score, evaluate and attention load the model by one function."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("eins zwei\n")
    outputs = []
    for name in (NAME, str(tmp_path / "new")):
        capsys.readouterr()
        assert main(["translate", name, "--input", "in.txt", "--max-new-tokens", "3"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != ""
    assert main(["port", NAME, "ported.safetensors", "--dialect", "pytorch"]) == 0
    assert main(["port", str(tmp_path / "new"), "expected.safetensors", "--dialect", "pytorch"]) == 0
    assert (tmp_path / "ported.safetensors").read_bytes() == (tmp_path / "expected.safetensors").read_bytes()
    loaded = load(NAME, None, {})
    assert loaded.origin is None
    with pytest.raises(ParityError, match="someone/tiny is a model and has its config; expected no num_heads"):
        load(NAME, None, {"num_heads": 2})


def test_a_run_starts_from_a_name_and_its_config_keeps_the_commit(hub: Hub, shared: Repository) -> None:
    name = pinned(NAME)
    preset = get_preset("finetune")
    data = dataclasses.replace(preset.data, max_length=24)
    config = follow_initial_model(dataclasses.replace(preset, data=data), load_initial_model(name))
    assert config.init_from == f"{NAME}@{shared.branches['main']}"
    assert config.model.d_model == 16
    assert Path(config.data.source_tokenizer).is_file()
    assert origin_of(name) is None


def test_a_run_keeps_the_commits_of_both_models_that_it_starts_from(
    hub: Hub, shared: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Loaded(Exception):
        pass

    def load_names(*names: str) -> InitialModel:
        raise Loaded(*names)

    monkeypatch.setattr(loop, "load_initial_model", load_names)
    config = dataclasses.replace(get_preset("finetune"), init_from=NAME, init_adapters_from=f"{NAME}@old")
    with pytest.raises(Loaded) as raised:
        loop.train(config)
    assert raised.value.args == tuple(f"{NAME}@{shared.branches[branch]}" for branch in ("main", "old"))


def test_a_local_model_that_is_gone_is_not_looked_for_on_the_hub(
    hub: Hub, shared: Repository, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the config of a run, whose names on the Hub have their commits."""
    monkeypatch.chdir(tmp_path)
    save_model(dataclasses.replace(model, origin={"dialect": "theirs"}), tmp_path / "ported")
    commit = shared.commit(files_of(tmp_path / "ported"), message="ported")
    config = RunConfig(model=model.config, data=DataConfig(max_length=24, num_shapes=2), init_from=NAME)
    corpus: Any = SimpleNamespace(
        source_tokenizer=model.source_tokenizer,
        target_tokenizer=model.target_tokenizer,
        frame=SimpleNamespace(start_id=2),
    )
    assert make_run_model(config, corpus, model.params).origin is None
    with pytest.raises(RunError, match=r"init_from: expected the model that the run starts from; there is no dir"):
        check_initial_models(config)
    assert hub.asked == []
    named = dataclasses.replace(config, init_from=f"{NAME}@{commit}")
    assert make_run_model(named, corpus, model.params).origin == {"dialect": "theirs"}
    check_initial_models(named)
