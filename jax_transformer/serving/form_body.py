"""Reads a form with one file (multipart/form-data, RFC 7578) as it arrives; the file goes to disk, not to memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from email.message import Message
from email.parser import HeaderParser
from typing import IO

from jax_transformer.serving.limits import Refusal

IN_MEMORY = 1 << 20
"""Bytes of a file from which on it is on disk."""
MOST_FIELD_BYTES = 1 << 16
"""Bytes of all fields together, the file's apart."""
MOST_HEADER_BYTES = 4096
"""Bytes of a part's header."""
MOST_BOUNDARY = 70
"""Characters of a boundary (RFC 2046, §5.1.1)."""


class FormReader:
    """Divides a body into fields, each a text, and one file.

    Example:
      >>> reader = FormReader("multipart/form-data; boundary=x", file_field="file")
      >>> reader.feed(b'--x\\r\\nContent-Disposition: form-data; name="language"\\r\\n\\r\\nde\\r\\n--x--\\r\\n')
      >>> reader.end()
      {'language': ['de']}
      >>> reader.close()
    """

    def __init__(self, content_type: str, file_field: str) -> None:
        """Takes the header `Content-Type`, and the name of the field with the file. Raises Refusal for a header without
        a boundary."""
        header = Message()
        header["content-type"] = content_type
        boundary = header.get_boundary()
        if not boundary or len(boundary) > MOST_BOUNDARY or not boundary.isascii():
            raise Refusal(400, "expected a content type with a boundary of 1 to 70 characters; received another")
        self._delimiter = b"\r\n--" + boundary.encode()
        self._file_field = file_field
        self._held = b"\r\n"  # a delimiter may begin the body
        self._read: Callable[[], bool] = self._content
        self._take: Callable[[bytes], object] = lambda data: None
        self._fields: dict[str, list[bytearray]] = {}
        self._field_bytes, self._is_done = 0, False
        self.file: IO[bytes] | None = None
        """What the file's field has, if it came."""

    def feed(self, data: bytes) -> None:
        """Reads the next bytes. Raises Refusal if they are no such form."""
        self._held += data
        while self._read():
            pass

    def end(self) -> dict[str, list[str]]:
        """Returns the values of each field. Raises Refusal if the body was cut off, or a value isn't UTF-8."""
        if not self._is_done:
            raise Refusal(400, "expected a form that ends with its boundary; received one that was cut off")
        try:
            return {name: [value.decode() for value in values] for name, values in self._fields.items()}
        except UnicodeDecodeError as error:
            raise Refusal(400, f"expected fields in UTF-8; received byte {error.object[error.start]:#04x}") from None

    def close(self) -> None:
        """Deletes the file."""
        if self.file is not None:
            self.file.close()

    def _content(self) -> bool:
        """Reads a part's content up to the next delimiter; returns whether it is there."""
        place = self._held.find(self._delimiter)
        if place < 0:
            kept = len(self._delimiter) - 1  # a delimiter may have begun
            self._take(self._held[:-kept])
            self._held = self._held[-kept:]
            return False
        self._take(self._held[:place])
        self._held, self._read = self._held[place + len(self._delimiter) :], self._after_delimiter
        return True

    def _after_delimiter(self) -> bool:
        if len(self._held) < 2:
            return False
        if self._held.startswith(b"--"):
            self._is_done, self._read = True, self._rest
        elif self._held.startswith(b"\r\n"):
            self._read = self._header
        else:
            raise Refusal(400, "expected a line's end after a form's boundary; received other bytes")
        return True

    def _header(self) -> bool:
        place = self._held.find(b"\r\n\r\n")
        if place > MOST_HEADER_BYTES or (place < 0 and len(self._held) > MOST_HEADER_BYTES):
            raise Refusal(400, f"expected at most {MOST_HEADER_BYTES:,} bytes in the header of a form's part")
        if place < 0:
            return False
        header = HeaderParser().parsestr(self._held[2 : place + 2].decode("utf-8", "replace"))
        self._held, self._read = self._held[place + 4 :], self._content
        self._begin(header)
        return True

    def _begin(self, header: Message) -> None:
        """Begins a part: a field, or the file."""
        name = header.get_param("name", header="content-disposition")
        if header.get_content_disposition() != "form-data" or not isinstance(name, str) or not name:
            raise Refusal(400, "expected parts of a form with the header Content-Disposition: form-data; name=…")
        if name == self._file_field:
            if self.file is not None:
                raise Refusal(422, f"{name}: expected one file; received two")
            self.file = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115  # closed by `close`
            self._take = self.file.write
            return
        if header.get_filename() is not None:
            raise Refusal(422, f"{name[:80]}: expected a text; received a file")
        value = bytearray()
        self._fields.setdefault(name, []).append(value)

        def add(data: bytes) -> None:
            self._field_bytes += len(data)
            if self._field_bytes > MOST_FIELD_BYTES:
                raise Refusal(413, f"expected at most {MOST_FIELD_BYTES:,} bytes in a form's fields; received more")
            value.extend(data)

        self._take = add

    def _rest(self) -> bool:
        """Drops what follows the last delimiter."""
        self._held = b""
        return False
