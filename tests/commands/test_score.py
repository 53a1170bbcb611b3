"""jax-transformer score: its line for each pair, and its errors for pairs that it can't score."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jax_transformer.decoding.pairs import score_pairs
from jax_transformer.storage.model_directory import load_model

pytestmark = pytest.mark.usefixtures("quick_compilation")

Run = Callable[..., tuple[int, str, str]]
Write = Callable[[str, str | bytes], str]

SOURCES = ["eins zwei drei", "vier", "fünf sechs", "drei"]
TARGETS = ["ZWEI", "EINS ELF", "", "NEUN ZEHN ACHT EINS"]


def text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def options(model_directory: Path, source: str, target: str) -> list[str]:
    return ["score", str(model_directory), "--source", source, "--target", target]


def test_each_line_has_its_score(model_directory: Path, run: Run, write: Write) -> None:
    expected = list(score_pairs(load_model(model_directory), zip(SOURCES, TARGETS, strict=True)))
    given = options(
        model_directory, write("source", text(SOURCES)), write("target.gz", gzip.compress(text(TARGETS).encode()))
    )
    code, out, err = run(*given, "--rows", "3")
    assert code == 0, err
    columns = [line.split("\t") for line in out.splitlines()]
    np.testing.assert_allclose(
        [float(log_prob) for log_prob, _ in columns], [score.log_prob for score in expected], atol=1e-4
    )
    assert [int(tokens) for _, tokens in columns] == [2, 3, 1, 5]
    assert "note: this model knows the source tags <2de>" in err
    assert "sentences      4\n" in err
    assert "target tokens  11, 1 of them unknown to the vocabulary\n" in err
    perplexity = float(err.split("perplexity")[1].split("\n")[0])
    assert perplexity == pytest.approx(np.exp(-sum(score.log_prob for score in expected) / 11), rel=1e-4)
    assert "target tokens/s" in err


def test_lines_of_json(model_directory: Path, run: Run, write: Write) -> None:
    expected = list(score_pairs(load_model(model_directory), zip(SOURCES, TARGETS, strict=True), source_tag="<2de>"))
    given = options(model_directory, write("source", text(SOURCES)), write("target", text(TARGETS)))
    code, out, err = run(*given, "--format", "jsonl", "--source-tag", "<2de>")
    assert code == 0, err
    for line, score in zip(map(json.loads, out.splitlines()), expected, strict=True):
        assert line.keys() == {"log_prob", "tokens", "perplexity", "token_log_probs"}
        np.testing.assert_allclose(line["token_log_probs"], score.token_log_probs, atol=1e-5)
        assert line["tokens"] == len(score.token_log_probs)
        assert line["log_prob"] == pytest.approx(score.log_prob, abs=1e-5)
        assert line["perplexity"] == pytest.approx(score.perplexity, rel=1e-5)
    assert "note" not in err


def test_an_unscorable_pair_keeps_its_line(model_directory: Path, run: Run, write: Write) -> None:
    long = "eins " * 30
    source, target = (
        write("source", text(["eins", "", long, "zwei", "drei"])),
        write("target", text(["EINS", "EINS", "EINS", long, "EINS"])),
    )
    code, out, err = run(*options(model_directory, source, target))
    assert code == 2
    assert [line == "nan\t0" for line in out.splitlines()] == [False, True, True, True, False]
    assert f"error: {source}:2: expected a sentence; received an empty line\n" in err
    assert f"error: {source}:3: expected at most 24 tokens, the model's longest; received 31\n" in err
    assert f"error: {target}:4: expected at most 24 tokens, the model's longest; received 31\n" in err
    assert "sentences      2 of 5\n" in err
    code, out, err = run(*options(model_directory, source, target), "--format", "jsonl")
    assert code == 2
    assert json.loads(out.splitlines()[3]) == {
        "log_prob": None, "tokens": 0, "perplexity": None, "token_log_probs": [],
        "error": "target: expected at most 24 tokens, the model's longest; received 31",
    }  # fmt: skip


def test_a_side_from_standard_input(
    model_directory: Path, run: Run, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = write("source", text(SOURCES)), write("target", text(TARGETS))
    _, expected, _ = run(*options(model_directory, source, target))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text(TARGETS).encode())))
    code, out, err = run(*options(model_directory, source, "-"))
    assert (code, out) == (0, expected), err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"eins\nzw\xfc\n")))
    code, out, err = run(*options(model_directory, "-", target))
    assert (code, out) == (2, "")
    assert "error: standard input:2: expected UTF-8 text" in err


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("eins\nzwei\n", "EINS\n", "target: expected as many lines as {source}; received 1, and 2 there"),
        ("", "EINS\n", "source: expected at least one sentence; received none"),
        ("eins\n", "", "target: expected at least one sentence; received none"),
        ("eins\n", b"EINS\nZW\xfc\n", "target:2: expected UTF-8 text; received byte 0xfc"),
        ("eins\nzw\0ei\n", "EINS\nZWEI\n", "source:2: expected text; received a NUL character"),
        ("eins\n", None, "target: expected a text file; received a path at which there is no file"),
    ],
)
def test_bad_files_are_refused(
    source: str, target: str | bytes | None, message: str, model_directory: Path, run: Run, write: Write, tmp_path: Path
) -> None:
    source_path, target_path = (
        write("source", source),
        str(tmp_path / "target") if target is None else write("target", target),
    )
    code, out, err = run(*options(model_directory, source_path, target_path))
    assert (code, out) == (2, "")
    assert message.format(source=source_path) in err
    assert err.count("\n") == 1


def test_bad_options_are_refused(model_directory: Path, run: Run, write: Write) -> None:
    file = write("file", "eins\n")
    for given, message in (
        ([*options(model_directory, file, file), "--rows", "0"], "--rows must be at least 1; received 0"),
        (options(model_directory, "-", "-"), "expected standard input (-) for one file; received it for 2"),
        (
            [*options(model_directory, file, file), "--source-tag", "<2fr>"],
            "source tag: expected one of <2de>; received '<2fr>'",
        ),
    ):
        code, out, err = run(*given)
        assert (code, out) == (2, "")
        assert message in err


def test_a_reader_that_has_gone_is_no_error(model_directory: Path, write: Write) -> None:
    file = write("text", "eins\n")
    reader, writer = os.pipe()
    os.close(reader)
    command = [
        sys.executable,
        "-m",
        "jax_transformer.cli",
        *options(model_directory, file, file),
        "--source-tag",
        "<2de>",
    ]
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert result.returncode == 0
    assert b"Traceback" not in result.stderr
    assert b"BrokenPipe" not in result.stderr
