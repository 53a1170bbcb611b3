"""Fixtures for tests of the commands: models that translate words into words, and ways to run a command line."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import pytest

from jax_transformer.cli import main
from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.data.tokenizers import SpecialIds, train_tokenizer
from jax_transformer.model import functional
from jax_transformer.storage.model_directory import Model, save_model

SPECIALS = SpecialIds(pad=0, unk=1, bos=2, eos=3)
WORDS = "eins zwei drei vier fünf sechs sieben acht neun zehn"
SUMMARY = re.compile(r"[\d,]+ lines, .*, compilation included.*\n")


def save_random_model(path: Path, tags: Sequence[str] = ()) -> Path:
    """Writes a random model whose <eos> is likely, with 24 positions; its translations are random words."""
    source = train_tokenizer([WORDS], kind="whitespace", specials=SPECIALS, add_eos=True, tags=tags)
    target = train_tokenizer([WORDS.upper()], kind="whitespace", specials=SPECIALS)
    config = TransformerConfig(
        source_vocab_size=source.vocab_size,
        target_vocab_size=target.vocab_size,
        d_model=16,
        num_heads=2,
        d_ff=16,
        num_encoder_layers=1,
        num_decoder_layers=1,
        max_length=24,
    )
    params = functional.init_params(config, jax.random.key(0))
    params["head"]["kernel"] = params["head"]["kernel"] * 8.0
    params["head"]["bias"] = params["head"]["bias"].at[SPECIALS.eos].add(14.0)
    save_model(Model(config, params, source, target, GenerationConfig(decoder_start_id=2, eos_id=3)), path)
    return path


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with the source tag <2de>."""
    return save_random_model(tmp_path_factory.mktemp("models") / "model", tags=["<2de>"])


@pytest.fixture(scope="session")
def plain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model without tags."""
    return save_random_model(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """(*arguments) → exit code, standard output, standard error."""

    def run_command(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(list(arguments))
        except SystemExit as stop:  # tyro's own refusals
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
def told() -> Callable[[str], str]:
    """(standard error) → standard error without the summary that must end it."""

    def without_summary(err: str) -> str:
        *lines, last = err.splitlines(keepends=True)
        assert SUMMARY.fullmatch(last), err
        return "".join(lines)

    return without_summary


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str | bytes], str]:
    """(name, text) → the path of a file of that text."""

    def write_file(name: str, text: str | bytes) -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write_file
