"""Fixtures for tests of the commands: models that translate words into words, and ways to run a command line."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from word_models import word_model

from jax_transformer.cli import main
from jax_transformer.storage.model_directory import save_model

PROGRESS = re.compile(r"translated \d+ of \d+, .+\n")
SUMMARY = re.compile(r"[\d,]+ lines, .*, compilation included.*\n")


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with the source tag <2de>."""
    path = tmp_path_factory.mktemp("models") / "model"
    save_model(word_model(["<2de>"]), path)
    return path


@pytest.fixture(scope="session")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model without tags."""
    path = tmp_path_factory.mktemp("models") / "model"
    save_model(word_model(), path)
    return path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """(*arguments) → exit code, standard output, standard error."""

    def run_command(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(list(arguments))
        except SystemExit as stop:  # --help
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


@pytest.fixture
def command() -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """(*arguments, text=standard input) → the finished process."""

    def run_process(*arguments: str, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        line = [sys.executable, "-m", "jax_transformer.cli", *arguments]
        return subprocess.run(line, input=text, capture_output=True, check=False)

    return run_process


@pytest.fixture
def without_summary() -> Callable[[str], str]:
    """(standard error) → standard error without the summary that must end it, and without progress, which a slow
    machine shows."""

    def strip(err: str) -> str:
        *lines, last = err.splitlines(keepends=True)
        assert SUMMARY.fullmatch(last), err
        return "".join(line for line in lines if not PROGRESS.fullmatch(line))

    return strip


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], str]:
    """(name, text) → the path of a file of that text."""

    def write_file(name: str, text: str | bytes) -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write_file
