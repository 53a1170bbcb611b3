"""Models of the installed transformers, one or more of each family, without the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from families import FAMILIES, Case, make_case


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.fixture(params=FAMILIES)
def first(request: Any, folder: Path) -> Case:
    """Returns one case of each family."""
    return make_case(request.param, 0, folder)


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
