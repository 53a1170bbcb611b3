"""Lines arrive as soon as they are written, complete and whole."""

from __future__ import annotations

import os
import threading

import pytest

from jax_transformer.commands.stdin_lines import arriving_lines, windows


def test_each_line_comes_before_the_next_is_written() -> None:
    read, write = os.pipe()
    lines = arriving_lines(read, 100)
    for text in (b"one\n", b"two\nthree\n", b"\n"):
        os.write(write, text)
        assert next(lines) == text[:-1].split(b"\n")
    os.write(write, b"no e")
    threading.Timer(0.2, lambda: (os.write(write, b"nd"), os.close(write))).start()
    assert list(lines) == [[b"no end"]]
    os.close(read)


@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\n", b"\n\na\r\n", b"x" * 300_000 + b"\ny\n", b"ab\n" * 100_000])
def test_all_that_was_written_is_read(text: bytes) -> None:
    read, write = os.pipe()

    def feed() -> None:
        with os.fdopen(write, "wb") as file:
            file.write(text)

    thread = threading.Thread(target=feed)
    thread.start()
    parts = list(arriving_lines(read, 1000))
    thread.join()
    os.close(read)
    assert all(1 <= len(lines) <= 1000 for lines in parts)
    assert len(parts) < 400, "many lines come together"
    found = [line for lines in parts for line in lines]
    assert found == (text.removesuffix(b"\n").split(b"\n") if text else [])


def test_many_lines_come_in_parts() -> None:
    assert list(windows([b"a", b"b", b"c"], 2)) == [[b"a", b"b"], [b"c"]]
