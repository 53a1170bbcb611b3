"""Files that tests put into buckets, and buckets that go away."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

from jax_transformer.buckets import address_of
from jax_transformer.buckets.store import Batch, Store


def store_at(path: str) -> Store:
    address = address_of(path)
    assert address is not None
    return Store(address)


def put(path: str, folder: Path, **contents: str) -> None:
    """Uploads files, whose names have `__` for a slash, and which lie in a local folder under these names."""
    files = {}
    for name, content in contents.items():
        files[name.replace("__", "/")] = folder / name
        (folder / name).write_text(content)
    store_at(path).apply([Batch(files)], "put")


def fail_after(calls: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lets the bucket in memory go away after so many writes; returns a list of those that it then refuses."""
    system = fsspec.get_filesystem_class("memory")
    left, refused = itertools.count(calls, -1), list[str]()
    for method in ("put_file", "rm_file"):
        usual = getattr(system, method)

        def limited(self: object, *names: str, usual: Callable[..., None] = usual, **options: object) -> None:
            if next(left) <= 0:
                refused.append(names[-1])
                raise ConnectionResetError("the bucket went away")
            usual(self, *names, **options)

        monkeypatch.setattr(system, method, limited)
    return refused
