"""Reading parallel text: what a line is, and that damage is refused with its place."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_transformer.config.run import DataConfig
from jax_transformer.data import text_files
from jax_transformer.data.cache import sampled_digest
from jax_transformer.data.corpus import CorpusError, fingerprint, hash_files, read_lines, read_pairs, read_splits

# Any text but "\n", which ends a line; "\r" and U+FEFF in it, but not where they are a line's end or the file's mark.
texts = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=12).map(
    lambda text: text.strip("\r\ufeff")
)


def write(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@given(
    lines=st.lists(texts),
    end=st.sampled_from(["\n", "\r\n"]),
    mark=st.booleans(),
    packed=st.booleans(),
    chunk=st.sampled_from([2, 5, text_files.CHUNK]),
)
def test_lines_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str, mark: bool, packed: bool, chunk: int
) -> None:
    data = b"\xef\xbb\xbf" * mark + "".join(line + end for line in lines).encode()
    path = write(tmp_path_factory.mktemp("lines"), "text", gzip.compress(data) if packed else data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_files, "CHUNK", chunk)
        assert read_lines(path) == lines


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r"])
def test_only_the_line_feed_ends_a_line(tmp_path: Path, character: str) -> None:
    assert read_lines(write(tmp_path, "text", f"a{character}b\nc\n")) == [f"a{character}b", "c"]


def test_the_last_line_needs_no_end_and_empty_lines_count(tmp_path: Path) -> None:
    assert read_lines(write(tmp_path, "open", "a\n\nb")) == ["a", "", "b"]
    assert read_lines(write(tmp_path, "closed", "a\n\nb\n")) == ["a", "", "b"]
    assert read_lines(write(tmp_path, "blank", "\n")) == [""]
    assert read_lines(write(tmp_path, "space", "a\n ")) == ["a", " "]
    assert read_lines(write(tmp_path, "nothing", "")) == []


def test_pairs_of_one_tsv_and_of_two_files_are_the_same(tmp_path: Path) -> None:
    table = write(tmp_path, "pairs.tsv", "a b\tc d\ne\tf\n")
    files = write(tmp_path, "source.gz", gzip.compress(b"a b\ne\n")), write(tmp_path, "target", "c d\nf\n")
    assert read_pairs((table,)) == read_pairs(files) == [("a b", "c d"), ("e", "f")]


BROKEN_GZIP = gzip.compress(b"".join(b"line %d\n" % k for k in range(1000)))


@pytest.mark.parametrize(
    ("name", "content", "fragments"),
    [
        ("latin", b"good\nalso good\nna\xefve\n", ("latin:3:", "0xef", "byte 3", "UTF-8")),
        ("cut", b"good\nna\xc3", ("cut:2:", "0xc3")),
        ("wide", "ab\n".encode("utf-16"), ("wide:1:", "UTF-16")),
        ("short.gz", BROKEN_GZIP[:-20], ("short.gz:", "cut short")),
        ("flipped.gz", BROKEN_GZIP[:40] + b"\x00\x01\x02\x03" + BROKEN_GZIP[44:], ("flipped.gz:", "damaged")),
        ("checksum.gz", BROKEN_GZIP[:-8] + b"\x00" * 8, ("checksum.gz:1001:", "damaged")),
        ("plain.gz", b"not gzip\n", ("plain.gz:1:", "expected gzip data")),
        ("nothing.gz", b"", ("nothing.gz:1:", "expected gzip data")),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, name: str, content: bytes, fragments: tuple[str, ...]) -> None:
    with pytest.raises(CorpusError) as error:
        read_lines(write(tmp_path, name, content))
    assert all(fragment in str(error.value) for fragment in fragments), error.value


def test_a_corpus_that_has_no_end_is_refused(tmp_path: Path) -> None:
    """It would be hashed forever; nor is a pipe, which can be read only once, and waits for who writes it."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in ("/dev/zero", "/dev/urandom", str(tmp_path / "link"), str(tmp_path / "pipe")):
        output = f"{path}: expected a .*regular file, not a device, a pipe or a socket"
        with pytest.raises(CorpusError, match=output):
            hash_files(DataConfig(train=(path,), valid=(path,)))
        with pytest.raises(CorpusError, match=output):
            sampled_digest(path)


def test_missing_files_and_directories_are_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"absent: expected a text file; received a path at which there is no file"):
        read_lines(str(tmp_path / "absent"))
    with pytest.raises(CorpusError, match=r"received a directory"):
        read_lines(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "received"),
    [
        ("a\tb\nc\td\te\n", r"pairs.tsv:2: .* received 3 columns"),
        ("a\tb\nsource alone\n", r"pairs.tsv:2: .* received one column \(no tab\) 'source alone'"),
        ("a\tb\nc\td\n\n", r"pairs.tsv:3: .* received an empty line"),
        ("", r"pairs.tsv: expected at least one sentence pair; received none"),
    ],
)
def test_a_tsv_has_two_columns(tmp_path: Path, content: str, received: str) -> None:
    with pytest.raises(CorpusError, match=received):
        read_pairs((write(tmp_path, "pairs.tsv", content),))


def test_parallel_files_are_as_long_as_each_other(tmp_path: Path) -> None:
    files = write(tmp_path, "source", "a\nb\nc\n"), write(tmp_path, "target", "d\ne\n")
    with pytest.raises(CorpusError) as error:
        read_pairs(files)
    assert all(
        part in str(error.value) for part in (f"{files[0]}:3:", f"3 lines in {files[0]}", f"2 lines in {files[1]}")
    )


@pytest.mark.parametrize("paths", [(), ("a", "b", "c")])
def test_one_or_two_paths(paths: tuple[str, ...]) -> None:
    with pytest.raises(CorpusError, match=f"received {len(paths)} paths"):
        read_pairs(paths)


# --- splits


def read_lists(config: DataConfig) -> dict[str, list[tuple[str, str]]]:
    return {name: list(split) for name, split in read_splits(config).splits.items()}


def numbered(folder: Path, count: int) -> str:
    return write(folder, f"{count}.tsv", "".join(f"s{k}\tt{k}\n" for k in range(count)))


@given(count=st.integers(3, 60), seed=st.integers(0, 5), data=st.data())
def test_pairs_taken_out_of_train_are_in_one_split_each(
    tmp_path_factory: pytest.TempPathFactory, count: int, seed: int, data: st.DataObject
) -> None:
    valid = data.draw(st.integers(1, count - 2))
    test = data.draw(st.integers(0, count - valid - 1))
    train = numbered(tmp_path_factory.mktemp("splits"), count)
    splits = read_lists(DataConfig(train=(train,), valid_pairs=valid, test_pairs=test, split_seed=seed))
    assert len(splits["valid"]) == valid
    assert len(splits.get("test", [])) == test
    merged = [pair for split in splits.values() for pair in split]
    assert sorted(merged) == sorted(read_pairs((train,)))
    for split in splits.values():
        assert split == sorted(split, key=lambda pair: int(pair[0][1:])), "corpus order is kept"


def test_the_seed_chooses_the_pairs_taken_out(tmp_path: Path) -> None:
    def valid(seed: int) -> list[tuple[str, str]]:
        return read_lists(DataConfig(train=(numbered(tmp_path, 100),), valid_pairs=20, split_seed=seed))["valid"]

    assert valid(0) == valid(0) != valid(1)


def test_a_split_is_files_or_taken_out_of_train(tmp_path: Path) -> None:
    train, other = numbered(tmp_path, 10), write(tmp_path, "other.tsv", "x\ty\n")
    splits = read_lists(DataConfig(train=(train,), valid=(other,), test_pairs=2))
    assert [len(splits[name]) for name in ("train", "valid", "test")] == [8, 1, 2]
    with pytest.raises(CorpusError, match="valid_pairs: expected 0, for the corpus has valid files; received 5"):
        read_splits(DataConfig(train=(train,), valid=(other,), valid_pairs=5))


def test_impossible_splits_are_refused(tmp_path: Path) -> None:
    train = numbered(tmp_path, 10)
    with pytest.raises(CorpusError, match="neither valid files nor valid_pairs"):
        read_splits(DataConfig(train=(train,)))
    with pytest.raises(
        CorpusError, match=r"valid_pairs \+ test_pairs: expected fewer than the 10 pairs of train.* received 4 \+ 6"
    ):
        read_splits(DataConfig(train=(train,), valid_pairs=4, test_pairs=6))
    with pytest.raises(CorpusError, match="train: expected training files along with valid or test files"):
        read_splits(DataConfig(valid=(train,)))


def test_the_fingerprint_follows_content_and_role_not_names(tmp_path: Path) -> None:
    one, same, other = (
        write(tmp_path, name, text) for name, text in (("one", "a\tb\n"), ("same", "a\tb\n"), ("other", "a\tc\n"))
    )

    def contents(config: DataConfig) -> object:
        return fingerprint(config, hash_files(config))

    assert contents(DataConfig(train=(one,), valid=(other,))) == contents(DataConfig(train=(same,), valid=(other,)))
    assert contents(DataConfig(train=(one,), valid=(other,))) != contents(DataConfig(train=(other,), valid=(one,)))
