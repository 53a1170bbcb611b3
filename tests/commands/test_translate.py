"""Translating from the command line: through pipes and from files, line by line; lines and models that are refused."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jax_transformer.storage.model_directory import save_model

pytestmark = pytest.mark.usefixtures("quick_compilation")

Run = Callable[..., tuple[int, str, str]]
Write = Callable[[str, str | bytes], str]
Command = Callable[..., subprocess.CompletedProcess[bytes]]
WithoutSummary = Callable[[str], str]


def test_lines_come_out_in_order_one_for_one(plain_model: Path, command: Command) -> None:
    lines = ["eins zwei drei", "", "neun", "vier fünf", "   ", "zehn neun acht sieben"]
    together = command("translate", str(plain_model), text="\n".join(lines).encode() + b"\n")
    assert together.returncode == 0, together.stderr.decode()
    translated = together.stdout.decode().split("\n")
    assert translated.pop() == ""
    assert len(translated) == len(lines)
    assert translated[1] == translated[4] == ""
    alone = command("translate", str(plain_model), text=lines[3].encode())  # and without a newline at the end
    assert alone.stdout.decode() == translated[3] + "\n"


def test_a_file_gives_the_same_as_standard_input(plain_model: Path, tmp_path: Path, command: Command, run: Run) -> None:
    text = "\n".join(["eins zwei", "drei vier fünf sechs"] * 40).encode() + b"\n"
    file = tmp_path / "text.gz"
    file.write_bytes(gzip.compress(text))
    piped = command("translate", str(plain_model), "--rows", "7", text=text)
    assert piped.stdout.decode() == run("translate", str(plain_model), "--input", str(file))[1]
    assert piped.stdout.count(b"\n") == 80


def test_a_reader_that_stops_early_is_no_error(plain_model: Path) -> None:
    script = f"yes eins | head -5000 | {sys.executable} -m jax_transformer.cli translate {plain_model} | head -1"
    result = subprocess.run(["bash", "-o", "pipefail", "-c", script], capture_output=True, check=False)
    assert b"Traceback" not in result.stderr
    assert b"BrokenPipe" not in result.stderr
    assert result.stdout.count(b"\n") == 1


def test_a_reader_that_has_gone_is_no_error(plain_model: Path, write: Write) -> None:
    text = write("text", "eins\n")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "jax_transformer.cli", "translate", str(plain_model), "--input", text]
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, b"")


def test_a_bad_line_gives_an_error_and_the_others_are_translated(
    plain_model: Path, tmp_path: Path, command: Command, run: Run, write: Write, without_summary: WithoutSummary
) -> None:
    good = [b"eins zwei drei", b"vier", b"zehn neun"]
    bad = {2: b"f\xfcnf", 3: b"eins\0zwei", 5: b"zwei " * 10_000}
    lines = [good[0], bad[2], bad[3], good[1], bad[5], b"", good[2]]
    expected = run("translate", str(plain_model), "--input", write("good", b"\n".join(good)))[1].split("\n")
    file = tmp_path / "text"
    file.write_bytes(b"\n".join(lines) + b"\n")
    piped = command("translate", str(plain_model), text=file.read_bytes())
    for name, (code, out, err) in {
        "standard input": (piped.returncode, piped.stdout.decode(), piped.stderr.decode()),
        str(file): run("translate", str(plain_model), "--input", str(file)),
    }.items():
        assert code == 2
        assert out.split("\n") == [expected[0], "", "", expected[1], "", "", expected[2], ""]
        assert without_summary(err).splitlines() == [
            f"error: {name}:2: expected UTF-8 text; received byte 0xfc at byte 2 of the line",
            f"error: {name}:3: expected text; received a NUL at character 5",
            f"error: {name}:5: expected at most 24 tokens, the model's longest; received 10001",
        ]
        assert "7 lines" in err
        assert "; 3 not translated" in err


def test_many_problems_are_only_counted(plain_model: Path, command: Command, without_summary: WithoutSummary) -> None:
    result = command("translate", str(plain_model), text=b"\xff\n" * 50 + b"eins\n")
    problems = without_summary(result.stderr.decode()).splitlines()
    assert len(problems) == 20
    assert problems[-1].endswith("(further ones are only counted)")
    assert b"; 50 not translated" in result.stderr
    assert result.stdout.count(b"\n") == 51


def test_lines_of_mostly_unknown_tokens_are_reported(plain_model: Path, command: Command) -> None:
    done = command("translate", str(plain_model), text="eins zwei\nеден два eins\nacht unbekannt zwei\n".encode())
    assert done.returncode == 0
    assert b"warning: standard input:2: 2 of 3 tokens are unknown to the model\n" in done.stderr
    assert done.stderr.count(b"warning: ") == 1
    assert b"; 1 of mostly unknown tokens" in done.stderr


def test_utf_16_gives_an_error(plain_model: Path, command: Command) -> None:
    result = command("translate", str(plain_model), text="eins\n".encode("utf-16"))
    assert b"the first bytes of UTF-16. Convert the text" in result.stderr


def test_a_byte_order_mark_and_carriage_returns_are_no_text(
    plain_model: Path, command: Command, run: Run, write: Write
) -> None:
    marked = command("translate", str(plain_model), text=b"\xef\xbb\xbfeins\r\nzwei\r\n")
    assert marked.stdout.decode() == run("translate", str(plain_model), "--input", write("text", "eins\nzwei\n"))[1]


def test_each_line_is_answered_before_the_next_is_written(plain_model: Path, run: Run, write: Write) -> None:
    lines = ["eins zwei drei", "", "vier"]
    _, expected, _ = run("translate", str(plain_model), "--input", write("text", "\n".join(lines)))
    arguments = [sys.executable, "-m", "jax_transformer.cli", "translate", str(plain_model)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line, answer in zip(lines, expected.splitlines(keepends=True), strict=True):
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            assert process.stdout.readline().decode() == answer
        process.stdin.close()
        assert process.wait() == 0


def test_a_closed_standard_input_gives_an_error(plain_model: Path) -> None:
    script = f"{sys.executable} -m jax_transformer.cli translate {plain_model} <&-"
    result = subprocess.run(["bash", "-c", script], capture_output=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith(b"error: expected text on standard input, which is closed")


def test_no_lines_give_none(plain_model: Path, command: Command) -> None:
    result = command("translate", str(plain_model))
    assert (result.returncode, result.stdout) == (0, b"")
    assert result.stderr.startswith(b"0 lines, 0 tokens")


def test_long_lines_are_split_where_sentences_end(
    plain_model: Path, run: Run, write: Write, without_summary: WithoutSummary
) -> None:
    """Each sentence is translated by itself, and the white space between them is kept."""
    sentences = 4 * ["eins zwei .", "zehn sieben ."]
    long, no_end = "  ".join(sentences), "eins " * 40
    file = write("text", f"vier\n{long}\n{no_end}\n")
    code, out, err = run("translate", str(plain_model), "--input", file, "--split-long")
    assert code == 2
    assert (
        without_summary(err)
        == f"error: {file}:3: expected at most 24 tokens, the model's longest; received 41 without an end\n"
    )
    assert "; 1 split into 8 parts; " in err
    assert "; 1 not translated" in err
    apart = write("apart", "\n".join(["vier", *sentences]))
    code, alone, _ = run("translate", str(plain_model), "--input", apart)
    first, *parts = alone.splitlines()
    assert all(parts)
    assert out.splitlines() == [first, "  ".join(parts), ""]
    code, described, _ = run("translate", str(plain_model), "--input", file, "--split-long", "--format", "jsonl")
    _, second, third = map(json.loads, described.splitlines())
    assert second["parts"] == 8
    assert second["hypotheses"][0]["text"] == "  ".join(parts)
    assert third["hypotheses"] == []
    assert third["error"].startswith("expected at most 24 tokens")


def test_a_model_without_tokenizers_is_refused(plain_model: Path, tmp_path: Path, run: Run, write: Write) -> None:
    from jax_transformer.storage.model_directory import load_model

    save_model(
        dataclasses.replace(load_model(plain_model), source_tokenizer=None, target_tokenizer=None),
        tmp_path / "model",
    )
    code, _, err = run("translate", str(tmp_path / "model"), "--input", write("text", "eins\n"))
    assert code == 2
    assert "expected a model with tokenizers; this one has none" in err


def test_an_altered_model_is_refused(plain_model: Path, tmp_path: Path, run: Run, write: Write) -> None:
    import shutil

    copy = tmp_path / "model"
    shutil.copytree(plain_model, copy)
    with open(copy / "params.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    code, _, err = run("translate", str(copy), "--input", write("text", "eins\n"))
    assert code == 2
    assert "params.safetensors" in err


def test_a_model_of_a_newer_version_is_refused(plain_model: Path, tmp_path: Path, run: Run, write: Write) -> None:
    import shutil

    copy = tmp_path / "model"
    shutil.copytree(plain_model, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["format_version"] += 1
    (copy / "manifest.json").write_text(json.dumps(manifest))
    code, _, err = run("translate", str(copy), "--input", write("text", "eins\n"))
    assert code == 2
    assert "newer" in err


def test_random_weights_end_sentences(plain_model: Path) -> None:
    """The tests above compare more than cut-off sentences."""
    from jax_transformer.decoding.batches import generate_each
    from jax_transformer.storage.model_directory import load_model

    model = load_model(plain_model)
    assert model.source_tokenizer is not None
    found = generate_each(model, model.source_tokenizer.encode(["eins", "zwei drei", "vier fünf sechs"]))
    decoded = [best.ids for best, *_ in found]
    assert len({tuple(ids) for ids in decoded}) > 1
    assert np.mean([len(ids) < 23 for ids in decoded]) > 0.5


def test_a_prompt_answers_line_after_line(plain_model: Path, run: Run, write: Write) -> None:
    """On a terminal, a bad line gives an error, and the next is translated."""
    _, expected, _ = run("translate", str(plain_model), "--input", write("text", "eins zwei drei\n"))
    master, slave = os.openpty()
    arguments = [sys.executable, "-m", "jax_transformer.cli", "translate", str(plain_model)]
    with subprocess.Popen(arguments, stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        os.close(slave)
        os.write(master, b"\xff\n" + b"zwei " * 30 + b"\neins zwei drei\n\x04")
        out, err = process.communicate(timeout=120)
    os.close(master)
    assert process.returncode == 2
    assert out.decode() == "\n\n" + expected
    assert err.count(b"> ") == 4
    assert b"received byte 0xff" in err
    assert b"expected at most 24 tokens" in err


def test_a_closed_standard_output_gives_an_error(plain_model: Path) -> None:
    script = f"echo eins | {sys.executable} -m jax_transformer.cli translate {plain_model} >&-"
    result = subprocess.run(["bash", "-c", script], capture_output=True, check=False)
    assert result.returncode == 2
    assert result.stderr == b"error: expected standard output, which is closed, to write translations to\n"
