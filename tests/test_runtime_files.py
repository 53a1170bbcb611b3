"""Writing whole files: a failure leaves the old one and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from jax_transformer.runtime.files import atomic_write, temporary_directory_beside


@pytest.mark.parametrize("durable", [False, True])
def test_the_new_file_replaces_the_old_one(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "scores.json"
    path.write_text("old")
    with atomic_write(path, durable=durable) as temporary:
        assert temporary.parent == tmp_path
        temporary.write_text("new")
        assert path.read_text() == "old", "until the block is over"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_failing_writer_leaves_the_old_file_and_nothing_else(tmp_path: Path, is_begun: bool) -> None:
    path = tmp_path / "scores.json"
    path.write_text("old")

    def write() -> None:
        with atomic_write(path) as temporary:
            if is_begun:
                temporary.write_text("half of the n")
            raise RuntimeError("no more room")

    with pytest.raises(RuntimeError, match="no more room"):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_mode_follows_from_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "file") as temporary:
            temporary.write_text("")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_two_writers_of_one_file_dont_share_a_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with atomic_write(path) as first, atomic_write(path) as second:
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first", "whose block ended last"


def test_a_directory_that_isnt_renamed_is_removed(tmp_path: Path) -> None:
    target = tmp_path / "model"
    with temporary_directory_beside(target) as temporary:
        (temporary / "a").write_text("")
    assert list(tmp_path.iterdir()) == []
    with temporary_directory_beside(target) as temporary:
        temporary.rename(target)
    assert list(tmp_path.iterdir()) == [target]


def test_leftovers_of_a_killed_process_are_removed_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "model[1]"
    with temporary_directory_beside(target) as running:
        for name in (".model[1].killed.tmp", ".model[1].new.tmp", ".model1.killed.tmp"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "weights").touch()
        for path in (running, tmp_path / ".model[1].killed.tmp", tmp_path / ".model1.killed.tmp"):
            os.utime(path, (time.time() - 100,) * 2)
        with temporary_directory_beside(target) as temporary:
            left = {path.name for path in tmp_path.iterdir()}
            assert left == {running.name, temporary.name, ".model[1].new.tmp", ".model1.killed.tmp"}
