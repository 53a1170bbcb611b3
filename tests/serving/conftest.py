"""Fixtures for tests of the server."""

from __future__ import annotations

import pytest
from word_models import word_model

from jax_transformer.decoding.prepared import PreparedModel, prepare
from jax_transformer.storage.model_directory import Model


@pytest.fixture(scope="session")
def served() -> Model:
    """A random model with the source tag <2de> and the target tags <de> and <nl>."""
    return word_model(["<2de>"], ["<de>", "<nl>"])


@pytest.fixture(scope="session")
def model(served: Model) -> PreparedModel:
    return prepare(served)
