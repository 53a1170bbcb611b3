"""Files in buckets of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from bucket_files import put, store_at

from jax_transformer.buckets import BucketError, local_directory, local_file
from jax_transformer.buckets.store import Batch, Store


def test_files_are_written_listed_read_and_deleted(folder: str, tmp_path: Path) -> None:
    store = store_at(folder)
    assert store.versions() == {}
    assert store.read("one") is None
    put(folder, tmp_path, one="1", below__two="22")
    before = store.versions()
    assert before.keys() == {"one", "below/two"}
    assert store.read("below/two") == b"22"
    put(folder, tmp_path, one="3", below__two="22")
    assert store.versions()["one"] != before["one"]
    store.apply([Batch(deletes=["one", "nothing"])], "delete")
    assert store.versions().keys() == {"below/two"}


def test_copies_follow_the_bucket(folder: str, tmp_path: Path) -> None:
    put(folder, tmp_path, one="1", below__two="22")
    assert local_file(f"{folder}/one").read_text() == "1"
    first = local_directory(folder)
    assert first.name == "folder" or first.name == folder.rpartition("/")[2]
    assert {path.relative_to(first).as_posix() for path in first.rglob("*") if path.is_file()} == {"one", "below/two"}
    put(folder, tmp_path, one="3")
    assert local_file(f"{folder}/one").read_text() == "3"
    assert (local_directory(folder) / "one").read_text() == "3"
    assert (first / "one").read_text() == "1"  # a copy in use doesn't change


def test_a_later_batch_wins_over_an_earlier_one(folder: str, tmp_path: Path) -> None:
    put(folder, tmp_path, mark="old")
    (tmp_path / "new").write_text("new")
    store = store_at(folder)
    store.apply([Batch(deletes=["mark"]), Batch({"mark": tmp_path / "new"})], "replace")
    assert store.read("mark") == b"new"


def test_what_isnt_there(folder: str, tmp_path: Path) -> None:
    put(folder, tmp_path, below__two="22")
    with pytest.raises(FileNotFoundError, match=f"{folder}/one"):
        local_file(f"{folder}/one")
    with pytest.raises(IsADirectoryError):
        local_file(f"{folder}/below")
    with pytest.raises(FileNotFoundError):
        local_directory(f"{folder}/nothing")


def test_a_file_is_downloaded_once(memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(memory, tmp_path, one="1")
    local_file(f"{memory}/one")
    monkeypatch.setattr(Store, "download", None)
    assert local_file(f"{memory}/one").read_text() == "1"


def test_no_credentials(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    store_at(s3)._system.clear_instance_cache()
    with pytest.raises(BucketError, match=r"expected to be allowed to use it; received NoCredentials.*aws configure"):
        local_file(f"{s3}/one")


def test_a_private_repository(hf: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(BucketError, match="hf auth login"):
        store_at("hf://owner/private/folder").apply([Batch(deletes=["one"]), Batch({"two": Path(__file__)})], "put")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("ftp://host/model", "expected a local path, or one that begins with gs://, s3:// or hf://; received ftp://"),
        ("gs://bucket", "expected a path in a bucket, such as gs://bucket/model; received no path"),
        ("s3:///model", "expected a path in a bucket, such as s3://model/model; received no path"),
    ],
)
def test_paths_that_name_nothing(path: str, message: str) -> None:
    with pytest.raises(BucketError, match=message):
        local_file(path)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax_transformer.runtime.extras import MissingPackage

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for path, extra in (("gs://bucket/model", "gcs"), ("s3://bucket/model", "s3")):
        with pytest.raises(MissingPackage, match=rf"pip install 'jax-transformer\[{extra}\]'"):
            local_file(path)
