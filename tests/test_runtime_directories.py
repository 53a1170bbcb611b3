"""New directories: whole or not there, with digests, and only where nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from jax_transformer.exporting.options import ExportError
from jax_transformer.runtime.digests import changes
from jax_transformer.runtime.directories import check_free, new_directory


def fill(path: Path) -> None:
    with new_directory(path) as temporary:
        (temporary / "weights").write_text("1")


def test_filled_directories_have_digests(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        fill(tmp_path / name)
        assert changes(tmp_path / name) == []
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["empty", "new"]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_and_its_target_is_written(is_there: bool, tmp_path: Path) -> None:
    if is_there:
        (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    fill(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target" / "weights").read_text() == "1"


def test_after_an_error_nothing_is_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk"), new_directory(tmp_path / "new"):
        raise OSError("disk")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_replaced_and_no_parent_made(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").touch()
    (tmp_path / "link").symlink_to("no/target")
    for name, message in (
        ("full", "expected a name that is free, or an empty directory"),
        ("full/notes", "expected a name that is free, or an empty directory"),
        ("no/target", f"no/target: there is no directory {tmp_path / 'no'}"),
        ("link", f"link: there is no directory {tmp_path / 'no'}"),
    ):
        with pytest.raises(ValueError, match=message):
            fill(tmp_path / name)
        with pytest.raises(ExportError, match=message):
            check_free(tmp_path / name, ExportError)
    assert [entry.name for entry in (tmp_path / "full").iterdir()] == ["notes"]
