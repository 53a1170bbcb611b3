"""Reads UTF-8 text files, plain or gzip, a few lines at a time.

Damaged files are refused, never repaired: a line skipped on one side would mispair every later sentence.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from jax_transformer.buckets import local_file
from jax_transformer.runtime.files import open_regular
from jax_transformer.runtime.limits import GZIP_FREE_BYTES, GZIP_RATIO, LINE_BYTES

GZIP_MAGIC = b"\x1f\x8b"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
CHUNK = 1 << 18


class CorpusError(ValueError):
    """Raised when text can't be used; the message says what was expected and received, where, and what to do.

    Example:
      >>> from jax_transformer.data import CorpusError, read_pairs
      >>> try:
      ...     read_pairs(("no/such/file.tsv",))
      ... except CorpusError as error:
      ...     print("no/such/file.tsv" in str(error))
      True
    """


def read_lines(path: str) -> list[str]:
    """Returns the lines of `iterate_lines` as a list."""
    return list(iterate_lines(path))


def iterate_lines(path: str) -> Iterator[str]:
    r"""Yields the lines of a UTF-8 text file without their ends.

    Lines end only at "\n": U+2028, U+0085, "\x0b" and the like are characters of the text, as for `wc -l` and the tools
    that write parallel files. A "\r" before the end and a byte order mark at the start are dropped. Gzip is recognized
    by its first bytes, whatever the file's name.

    Raises:
      CorpusError: the file is missing, a directory or unreadable; its gzip data are damaged or truncated; a byte isn't
        UTF-8; a line is longer than LINE_BYTES; gzip data grow beyond GZIP_RATIO. The last four name the line.
    """
    for text in iterate_text(path):
        yield from _lines(text)


def iterate_text(path: str) -> Iterator[str]:
    """Yields the text of a file in pieces of whole lines, including their ends; otherwise as `iterate_lines`."""
    return _decode(_decompressed(path), path)


def iterate_raw_lines(path: str) -> Iterator[bytes]:
    """Yields the lines of `iterate_lines` as bytes, for `decode_line`. Raises CorpusError as `iterate_lines` does, but
    not for invalid UTF-8."""
    for data in _whole_lines(_decompressed(path), path):
        yield from data.removesuffix(b"\n").split(b"\n")


def decode_line(line: bytes, *, is_first: bool = False) -> str:
    """Returns the text of a line, without its end. Raises ValueError if it isn't UTF-8 or contains a NUL."""
    if is_first and line.startswith(UTF16_MARKS):
        raise ValueError(
            "expected UTF-8 text; received the first bytes of UTF-16. Convert the text with `iconv -f UTF-16 -t UTF-8`."
        )
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        received = f"byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line"
        raise ValueError(f"expected UTF-8 text; received {received}") from None
    if "\0" in text:
        raise ValueError(f"expected text; received a NUL at character {text.index(chr(0)) + 1}")
    return (text.removeprefix("\ufeff") if is_first else text).rstrip("\r")


def split_lines(data: bytes, name: str) -> list[str]:
    """Returns the lines of UTF-8 data as `read_lines` does; errors call the data `name`."""
    return split_chunks([data], name)


def split_chunks(chunks: Iterable[bytes], name: str) -> list[str]:
    """Returns the lines of UTF-8 data in pieces, as `split_lines` does."""
    return [line for text in _decode(chunks, name) for line in _lines(text)]


def open_stored(path: str) -> BinaryIO:
    """Opens a file to read its bytes. Raises CorpusError if it is missing, a directory or unreadable."""
    return _opened(path, lambda file: file.open("rb"))


def _opened(path: str, opener: Callable[[Path], BinaryIO]) -> BinaryIO:
    try:
        return opener(local_file(path))
    except FileNotFoundError:
        raise CorpusError(
            f"{path}: expected a text file; received a path at which there is no file. Check the path."
        ) from None
    except IsADirectoryError:
        raise CorpusError(f"{path}: expected a text file; received a directory. Name the file inside it.") from None
    except OSError as error:
        raise CorpusError(_describe_unreadable(path, error)) from None


def hash_file(path: str) -> str:
    """Returns the SHA-256 of the stored file, in hexadecimal. Raises CorpusError for an unreadable file, as
    `read_lines` does, and for a device or a pipe, since hashed files must end, and are read again."""
    digest = hashlib.sha256()
    with _opened(path, open_regular) as file:
        for chunk in _chunks(file, path):
            digest.update(chunk)
    return digest.hexdigest()


def shorten(text: str, width: int = 60) -> str:
    """Quotes the text for a message, shortened to `width` characters."""
    return repr(text if len(text) <= width else text[: width - 1] + "…")


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if lines[-1] == "":  # nothing follows the last line's end
        lines.pop()
    return [line.rstrip("\r") for line in lines]


def _chunks(file: BinaryIO, path: str) -> Iterator[bytes]:
    try:
        while chunk := file.read(CHUNK):
            yield chunk
    except OSError as error:
        raise CorpusError(_describe_unreadable(path, error)) from None


def _decompressed(path: str) -> Iterator[bytes]:
    """Yields the file's data, decompressed if its first bytes are gzip's."""
    with open_stored(path) as file:
        chunks = _chunks(file, path)
        first = next(chunks, b"")
        if first.startswith(GZIP_MAGIC):
            file.seek(0)
            yield from _gunzipped(file, path)
            return
        if path.endswith(".gz"):
            raise CorpusError(
                f"{path}:1: expected gzip data, as the name ends in .gz; received first bytes {first[:2]!r}. "
                "Copy the file again, or rename it if it is plain text."
            )
        if first:
            yield first
        yield from chunks


def _gunzipped(file: BinaryIO, path: str) -> Iterator[bytes]:
    line, size = 1, 0
    try:
        with gzip.GzipFile(fileobj=file) as unpacked:
            while chunk := unpacked.read1(CHUNK):
                line += chunk.count(b"\n")
                size += len(chunk)
                if size > GZIP_FREE_BYTES:
                    GZIP_RATIO.check(size // max(file.tell(), 1), f"{path}:{line}", CorpusError, or_more=True)
                yield chunk
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(
            f"{path}:{line}: expected whole gzip data; received data that are damaged or cut short at this line or "
            "soon after it "
            f"({error}). Copy or compress the file again."
        ) from None
    except OSError as error:
        raise CorpusError(_describe_unreadable(path, error)) from None


def _decode(chunks: Iterable[bytes], name: str) -> Iterator[str]:
    """Yields the text of UTF-8 data, without a byte order mark, cut only after line ends."""
    line = 1
    for data in _whole_lines(chunks, name):
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorpusError(_describe_invalid_byte(name, data, line, error)) from None
        text = text.removeprefix("\ufeff") if line == 1 else text
        if text:
            yield text
        line += data.count(b"\n")


def _whole_lines(chunks: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yields the same data, cut only after line ends. Raises CorpusError for a line of more than LINE_BYTES."""
    begun: list[bytes] = []
    line, length = 1, 0
    for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        length += chunk.find(b"\n") if end else len(chunk)
        LINE_BYTES.check(length, f"{name}:{line}", CorpusError, or_more=True)
        if end:
            line, length = line + chunk.count(b"\n"), len(chunk) - end
        if end:
            yield b"".join([*begun, chunk[:end]])
            begun = []
        if end < len(chunk):
            begun.append(chunk[end:])
    if begun:
        yield b"".join(begun)


def _describe_unreadable(path: str, error: OSError) -> str:
    if error.errno == errno.EINVAL and error.strerror:  # the message of `open_regular`
        return f"{path}: {error.strerror}, since a corpus is read several times. Write the text to a file."
    return (
        f"{path}: expected a readable text file; received the error {error.strerror!r}. Check the disk, and who "
        "may read the file."
    )


def _describe_invalid_byte(name: str, data: bytes, first_line: int, error: UnicodeDecodeError) -> str:
    """Describes the first invalid byte of data that begin with line `first_line`."""
    line = first_line + data.count(b"\n", 0, error.start)
    column = error.start - (data.rfind(b"\n", 0, error.start) + 1) + 1
    advice = "Convert the file, e.g. with `iconv -f LATIN1 -t UTF-8`."
    if first_line == 1 and data[:2] in UTF16_MARKS:
        advice = "The file starts as UTF-16 does: convert it with `iconv -f UTF-16 -t UTF-8`."
    return (
        f"{name}:{line}: expected UTF-8 text; received byte 0x{data[error.start]:02x} at byte {column} of the "
        f"line. {advice}"
    )
