"""A Hub of our own with a cache of its own, and a small run to share."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_server import TOKEN, Hub, running_hub
from shared_models import DATA, make_model

from jax_transformer.config.files import dump_config
from jax_transformer.config.run import DataConfig, RunConfig
from jax_transformer.storage.model_directory import Model, save_model


@pytest.fixture(scope="session")
def model() -> Model:
    return make_model()


@pytest.fixture
def run(tmp_path: Path, model: Model) -> Callable[..., Path]:
    """(data=…) → a run directory with a model, as training leaves it."""

    def make(data: DataConfig = DATA) -> Path:
        folder = tmp_path / "run"
        folder.mkdir()
        config = RunConfig(data=dataclasses.replace(data, max_length=24), model=model.config)
        (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
        (folder / "data.json").write_text(json.dumps({"splits": {"train": {"kept": 12000}, "test": {"kept": 4}}}))
        (folder / "parameters.json").write_text(json.dumps({"environment": {"device": "cpu", "jax": "0.10.2"}}))
        save_model(model, folder / "model")
        return folder

    return make


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """The Hub that huggingface_hub talks to, without Xet, and with a token."""
    with running_hub() as running:
        for name, value in {
            "ENDPOINT": running.address,
            "HUGGINGFACE_CO_URL_TEMPLATE": running.address + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(tmp_path / "hub_cache"),
            "HF_HUB_DISABLE_XET": True,
            "HF_HUB_OFFLINE": False,
        }.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
        yield running
