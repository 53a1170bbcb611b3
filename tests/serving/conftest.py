"""Fixtures for tests of the server."""

from __future__ import annotations

import pytest
from served_models import random_model

from jax_transformer.decoding.prepared import PreparedModel, prepare


@pytest.fixture(scope="session")
def model() -> PreparedModel:
    return prepare(random_model())
