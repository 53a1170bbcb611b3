"""Parallel text and its splits, from files: one TSV file, or two files with one sentence a line; plain or gzip, always UTF-8.

A corpus that is damaged is refused, never repaired: a line skipped on one side would pair every later sentence with the wrong one.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jax_transformer.run_config import DataConfig

GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CHUNK = 1 << 16
PHRASEBOOK_PAIRS = 500
"""Validation, test and combinations pairs drawn from the phrasebook unless the config says how many."""

Pairs = list[tuple[str, str]]


class CorpusError(ValueError):
    """Text that can't be used; the message says what was expected, what was received, where, and what to do."""


def read_pairs(paths: tuple[str, ...]) -> Pairs:
    """The (source, target) pairs of one TSV file, or of two parallel files.

    Raises:
      CorpusError: not one or two paths; a row of the TSV without exactly two columns; parallel files with different numbers of lines; no
        lines at all; and whatever `read_lines` refuses.
    """
    if len(paths) == 1:
        pairs = _read_tsv(paths[0])
    elif len(paths) == 2:
        pairs = _read_parallel(paths[0], paths[1])
    else:
        raise CorpusError(f"expected one TSV file or two parallel files; received {len(paths)} paths {list(paths)}")
    if not pairs:
        raise CorpusError(f"{' and '.join(paths)}: expected at least one sentence pair; received an empty file. Check the path.")
    return pairs


def read_lines(path: str) -> list[str]:
    r"""The lines of a UTF-8 text file, without their ends.

    Lines end at "\n" alone: U+2028, U+0085, "\x0b" and their like are characters of the text, as they are to `wc -l` and to every tool that
    made the parallel file. A "\r" before the end and a byte order mark at the start are dropped. Gzip is recognised by its first bytes,
    whatever the file's name.

    Raises:
      CorpusError: the file is missing, a directory or unreadable; its gzip data are damaged or cut short; a byte is not UTF-8. The last two
        name the line.
    """
    return split_lines(_decompress(path, _read_bytes(path)), path)


def split_lines(data: bytes, name: str) -> list[str]:
    """The lines of UTF-8 data as `read_lines` gives them; errors call the data `name`."""
    data = data.removeprefix(BYTE_ORDER_MARK)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorpusError(_describe_invalid_byte(name, data, error)) from None
    lines = text.split("\n")
    if lines[-1] == "":  # what follows the last line's end is not a line
        lines.pop()
    return [line.rstrip("\r") for line in lines]


def read_splits(config: DataConfig) -> dict[str, Pairs]:
    """The pairs of "train", "valid", and where the config has them "test" and "combinations".

    Without `config.train` all are drawn from the phrasebook; with it, valid and test are files, or drawn from train, which loses them.

    Raises:
      CorpusError: valid or test files without train; no validation pairs; more pairs to be taken out of train than it has; and what
        `read_pairs` refuses.
    """
    _check_sources(config)
    if not config.train:
        return _draw_phrasebook(config)
    splits = {"train": read_pairs(config.train)}
    taken = {}
    for name, paths, count in (("valid", config.valid, config.valid_pairs), ("test", config.test, config.test_pairs)):
        if paths:
            splits[name] = read_pairs(paths)
        elif count:
            taken[name] = count
    return splits | _take_out(splits["train"], taken, config.split_seed)


def fingerprint(config: DataConfig) -> dict[str, list[str]]:
    """Hashes of the text that `read_splits` would read: of the files by role, or of the
    phrasebook's own source. Raises CorpusError as it does."""
    _check_sources(config)
    if config.train:
        return {role: [hash_file(path) for path in getattr(config, role)] for role in ("train", "valid", "test")}
    from jax_transformer.data import phrasebook

    sources = Path(str(phrasebook.__file__)).parent.glob("phrasebook*.py")
    return {"phrasebook": [hash_file(str(path)) for path in sorted(sources)]}


def hash_file(path: str) -> str:
    """The SHA-256 of the file as it is stored, in hexadecimal. Raises CorpusError as `read_lines` does for a file that can't be read."""
    return hashlib.sha256(_read_bytes(path)).hexdigest()


def _check_sources(config: DataConfig) -> None:
    if not config.train and (config.valid or config.test):
        raise CorpusError("train: expected training files beside valid or test files; received none. Set train, or leave all three empty.")
    if config.train and not config.valid and not config.valid_pairs:
        raise CorpusError(
            "valid: expected validation pairs; received neither valid files nor valid_pairs. "
            "Set valid to a file, or valid_pairs to how many pairs to take out of train."
        )


def _draw_phrasebook(config: DataConfig) -> dict[str, Pairs]:
    from jax_transformer.data.phrasebook import sample_pairs

    test_pairs = config.test_pairs or PHRASEBOOK_PAIRS
    counts = {
        "train": config.phrasebook_pairs, "valid": config.valid_pairs or PHRASEBOOK_PAIRS, "test": test_pairs, "combinations": test_pairs
    }  # fmt: skip
    return {name: sample_pairs(name, count, config.split_seed) for name, count in counts.items()}


def _take_out(pairs: Pairs, wanted: dict[str, int], seed: int) -> dict[str, Pairs]:
    """Splits of random `pairs`, as many as `wanted`, and what is then left as "train"; each in corpus order."""
    if not wanted:
        return {"train": pairs}
    if sum(wanted.values()) >= len(pairs):
        raise CorpusError(
            f"{' + '.join(f'{name}_pairs' for name in wanted)}: expected fewer than the {len(pairs)} pairs of train, out of which they are "
            f"taken; received {' + '.join(str(count) for count in wanted.values())}. Take fewer, or name files."
        )
    order = np.random.default_rng(seed).permutation(len(pairs))
    cuts = np.cumsum(list(wanted.values()))
    parts = np.split(order, cuts)
    return {name: [pairs[i] for i in np.sort(part)] for name, part in zip((*wanted, "train"), parts, strict=True)}


def _read_tsv(path: str) -> Pairs:
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise CorpusError(_describe_columns(path, number, columns))
        pairs.append((columns[0], columns[1]))
    return pairs


def _describe_columns(path: str, number: int, columns: list[str]) -> str:
    if columns == [""]:
        received, advice = "an empty line", "Remove the line."
    elif len(columns) == 1:
        received = f"one column (no tab) {_shorten(columns[0])}"
        advice = "Separate source and target with a tab, or give two parallel files."
    else:
        received, advice = f"{len(columns)} columns", "Keep the two columns of the sentences only, e.g. with `cut -f`."
    return f"{path}:{number}: expected two columns, source and target, separated by a tab; received {received}. {advice}"


def _read_parallel(source_path: str, target_path: str) -> Pairs:
    source, target = read_lines(source_path), read_lines(target_path)
    if len(source) != len(target):
        first_alone = min(len(source), len(target)) + 1
        longer = source_path if len(source) > len(target) else target_path
        raise CorpusError(
            f"{longer}:{first_alone}: expected parallel files with as many lines each; received {len(source)} lines in {source_path} and "
            f"{len(target)} lines in {target_path}. Line n of one must be the translation of line n of the other."
        )
    return list(zip(source, target, strict=True))


def _read_bytes(path: str) -> bytes:
    """The file's content as it is stored."""
    try:
        return Path(path).expanduser().read_bytes()
    except FileNotFoundError:
        raise CorpusError(f"{path}: expected a text file; received a path at which there is no file. Check the path.") from None
    except IsADirectoryError:
        raise CorpusError(f"{path}: expected a text file; received a directory. Name the file inside it.") from None
    except OSError as error:
        raise CorpusError(f"{path}: expected a readable text file; received the error {error.strerror!r}.") from None


def _decompress(path: str, data: bytes) -> bytes:
    """`data` as it is, unless its first bytes or the file's name say gzip."""
    if not data.startswith(GZIP_MAGIC):
        if path.endswith(".gz"):
            raise CorpusError(
                f"{path}:1: expected gzip data, as the name ends in .gz; received first bytes {data[:2]!r}. "
                "Copy the file again, or rename it if it is plain text."
            )
        return data
    chunks: list[bytes] = []
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while chunk := file.read1(CHUNK):
                chunks.append(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        line = sum(chunk.count(b"\n") for chunk in chunks) + 1
        raise CorpusError(
            f"{path}:{line}: expected whole gzip data; received data that are damaged or cut short at this line or soon after it "
            f"({error}). Copy or compress the file again."
        ) from None
    return b"".join(chunks)


def _describe_invalid_byte(path: str, data: bytes, error: UnicodeDecodeError) -> str:
    line = data.count(b"\n", 0, error.start) + 1
    column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
    advice = "Convert the file, e.g. with `iconv -f LATIN1 -t UTF-8`."
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        advice = "The file starts as UTF-16 does: convert it with `iconv -f UTF-16 -t UTF-8`."
    return f"{path}:{line}: expected UTF-8 text; received byte 0x{data[error.start]:02x} at byte {column} of the line. {advice}"


def _shorten(text: str, width: int = 60) -> str:
    return repr(text if len(text) <= width else text[: width - 1] + "…")
