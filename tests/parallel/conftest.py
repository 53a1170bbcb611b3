"""What tests of runs on several devices and in several processes share: the run of one device."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_runs import small_run

from jax_transformer.training.loop import train


@pytest.fixture(scope="session")
def on_one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(small_run(tmp_path_factory.mktemp("one"))).run
