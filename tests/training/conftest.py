"""Runs in these tests compile the same few programs: they share a compilation cache, with the processes they start too."""

from __future__ import annotations

import os
from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def shared_compilation_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    options = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("xla")),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in options}
    for name, value in options.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
        del os.environ[name.upper()]
