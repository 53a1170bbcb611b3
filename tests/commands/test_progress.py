"""Progress: on standard error alone, a bar on a terminal and lines elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from jax_transformer.commands import progress as module
from jax_transformer.commands.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def become_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replaces standard error from here on."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def work(*, has_bar: bool = True) -> None:
    with progress("scored", 8, has_bar=has_bar) as advance:
        for _ in range(4):
            print("a line")
            advance(2)


def test_lines_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    work()
    assert capsys.readouterr() == (4 * "a line\n", "")
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", -1.0)
    work()
    out, err = capsys.readouterr()
    assert out == 4 * "a line\n"
    assert err.splitlines() == [
        "scored 2 of 8, time left unknown",
        *(f"scored {count} of 8, 0 s left" for count in (4, 6, 8)),
    ]


def test_the_first_batch_is_left_out_of_the_time_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compiles."""
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", -1.0)
    times = iter([0.0, 1000.0, 1001.0])
    with monkeypatch.context() as patch:
        patch.setattr(module.time, "perf_counter", lambda: next(times, 1001.0))
        with progress("scored", 100) as advance:
            advance(10)
            advance(10)
    assert capsys.readouterr().err.splitlines()[-1] == "scored 20 of 100, 8 s left"


def test_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = become_terminal(monkeypatch)
    work()
    assert capsys.readouterr().out == 4 * "a line\n", "lines are left alone"
    assert "8/8" in terminal.getvalue()
    assert " of 8" not in terminal.getvalue()


def test_no_bar_among_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = become_terminal(monkeypatch)
    work(has_bar=False)
    assert terminal.getvalue() == ""
