"""Translating from the command line: through pipes and from files, as the options say, line by line."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jax_transformer.cli import main
from jax_transformer.config.model import GenerationConfig, TransformerConfig
from jax_transformer.data.tokenizers import SpecialIds, train_tokenizer
from jax_transformer.model import functional
from jax_transformer.storage.model_directory import Model, save_model

SUMMARY = re.compile(r"[\d,]+ lines, .*, compilation included.*\n")

SPECIALS = SpecialIds(pad=0, unk=1, bos=2, eos=3)
WORDS = "eins zwei drei vier fünf sechs sieben acht neun zehn"


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose <eos> is likely, with word tokenizers; its translations are words, if no sense."""
    source = train_tokenizer([WORDS], kind="whitespace", specials=SPECIALS, add_eos=True)
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
    path = tmp_path_factory.mktemp("models") / "model"
    save_model(Model(config, params, source, target, GenerationConfig(decoder_start_id=2, eos_id=3)), path)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(list(arguments))
    except SystemExit as stop:  # tyro's own refusals
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def command(*arguments: str, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "jax_transformer.cli", *arguments], input=text, capture_output=True, check=False
    )


def told(err: str) -> str:
    """What standard error says but for the summary, which it must end with."""
    *lines, last = err.splitlines(keepends=True)
    assert SUMMARY.fullmatch(last), err
    return "".join(lines)


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_lines_come_out_in_order_one_for_one(model_directory: Path) -> None:
    lines = ["eins zwei drei", "", "neun", "vier fünf", "   ", "zehn neun acht sieben"]
    together = command("translate", str(model_directory), text="\n".join(lines).encode() + b"\n")
    assert together.returncode == 0, together.stderr.decode()
    translated = together.stdout.decode().split("\n")
    assert translated.pop() == ""
    assert len(translated) == len(lines)
    assert translated[1] == translated[4] == ""
    alone = command("translate", str(model_directory), text=lines[3].encode())  # and without a newline at the end
    assert alone.stdout.decode() == translated[3] + "\n"


def test_a_file_gives_what_standard_input_gives(model_directory: Path, tmp_path: Path) -> None:
    text = "\n".join(["eins zwei", "drei vier fünf sechs"] * 40).encode() + b"\n"
    file = tmp_path / "text.gz"
    file.write_bytes(gzip.compress(text))
    piped = command("translate", str(model_directory), "--rows", "7", text=text)
    assert piped.stdout == command("translate", str(model_directory), "--input", str(file)).stdout
    assert piped.stdout.count(b"\n") == 80


def test_a_reader_that_stops_early_is_no_error(model_directory: Path) -> None:
    script = f"yes eins | head -5000 | {sys.executable} -m jax_transformer.cli translate {model_directory} | head -1"
    result = subprocess.run(["bash", "-o", "pipefail", "-c", script], capture_output=True, check=False)
    assert b"Traceback" not in result.stderr
    assert b"BrokenPipe" not in result.stderr
    assert result.stdout.count(b"\n") == 1


def test_a_reader_that_has_gone_is_no_error(model_directory: Path, tmp_path: Path) -> None:
    text = write(tmp_path / "text", "eins\n")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "jax_transformer.cli", "translate", str(model_directory), "--input", text]
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, b"")


def test_what_is_wrong_with_a_line_is_told_and_the_others_are_translated(model_directory: Path, tmp_path: Path) -> None:
    good = [b"eins zwei drei", b"vier", b"zehn neun"]
    bad = {2: b"f\xfcnf", 3: b"eins\0zwei", 5: b"zwei " * 10_000}
    lines = [good[0], bad[2], bad[3], good[1], bad[5], b"", good[2]]
    expected = command("translate", str(model_directory), text=b"\n".join(good)).stdout.split(b"\n")
    file = tmp_path / "text"
    file.write_bytes(b"\n".join(lines) + b"\n")
    piped = command("translate", str(model_directory), text=file.read_bytes())
    for name, result in {
        "standard input": piped,
        str(file): command("translate", str(model_directory), "--input", str(file)),
    }.items():
        assert result.returncode == 2
        assert result.stdout.split(b"\n") == [expected[0], b"", b"", expected[1], b"", b"", expected[2], b""]
        assert told(result.stderr.decode()).splitlines() == [
            f"error: {name}:2: expected UTF-8 text; received byte 0xfc at byte 2 of the line",
            f"error: {name}:3: expected text; received a NUL at character 5",
            f"error: {name}:5: expected at most 24 tokens, the model's longest; received 10001",
        ]
        assert b"7 lines" in result.stderr
        assert b"; 3 not translated" in result.stderr


def test_many_problems_are_only_counted(model_directory: Path) -> None:
    result = command("translate", str(model_directory), text=b"\xff\n" * 50 + b"eins\n")
    problems = told(result.stderr.decode()).splitlines()
    assert len(problems) == 20
    assert problems[-1].endswith("(further ones are only counted)")
    assert b"; 50 not translated" in result.stderr
    assert result.stdout.count(b"\n") == 51


def test_utf_16_is_told(model_directory: Path) -> None:
    result = command("translate", str(model_directory), text="eins\n".encode("utf-16"))
    assert b"the first bytes of UTF-16. Convert the text" in result.stderr


def test_a_byte_order_mark_and_carriage_returns_are_no_text(model_directory: Path) -> None:
    marked = command("translate", str(model_directory), text=b"\xef\xbb\xbfeins\r\nzwei\r\n")
    assert marked.stdout == command("translate", str(model_directory), text=b"eins\nzwei\n").stdout


def test_each_line_is_answered_before_the_next_is_written(model_directory: Path) -> None:
    lines = ["eins zwei drei", "", "vier"]
    expected = command("translate", str(model_directory), text="\n".join(lines).encode()).stdout.splitlines(
        keepends=True
    )
    arguments = [sys.executable, "-m", "jax_transformer.cli", "translate", str(model_directory)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line, answer in zip(lines, expected, strict=True):
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == answer
        process.stdin.close()
        assert process.wait() == 0


def test_a_closed_standard_input_is_told(model_directory: Path) -> None:
    script = f"{sys.executable} -m jax_transformer.cli translate {model_directory} <&-"
    result = subprocess.run(["bash", "-c", script], capture_output=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith(b"error: expected text on standard input, which is closed")


def test_no_lines_give_none(model_directory: Path) -> None:
    result = command("translate", str(model_directory))
    assert (result.returncode, result.stdout) == (0, b"")
    assert result.stderr.startswith(b"0 lines, 0 tokens")


def test_long_lines_are_split_where_sentences_end(
    model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each sentence is translated by itself, and the white space between them is kept."""
    sentences = 4 * ["eins zwei .", "zehn sieben ."]
    long, no_end = "  ".join(sentences), "eins " * 40
    file = write(tmp_path / "text", f"vier\n{long}\n{no_end}\n")
    code, out, err = run(capsys, "translate", str(model_directory), "--input", file, "--split-long")
    assert code == 2
    assert (
        told(err) == f"error: {file}:3: expected at most 24 tokens, the model's longest; received 41 without an end\n"
    )
    assert "; 1 split into 8 parts; " in err
    assert "; 1 not translated" in err
    apart = write(tmp_path / "apart", "\n".join(["vier", *sentences]))
    code, alone, _ = run(capsys, "translate", str(model_directory), "--input", apart)
    first, *parts = alone.splitlines()
    assert all(parts)
    assert out.splitlines() == [first, "  ".join(parts), ""]
    code, described, _ = run(
        capsys, "translate", str(model_directory), "--input", file, "--split-long", "--format", "jsonl"
    )
    _, second, third = map(json.loads, described.splitlines())
    assert second["parts"] == 8
    assert second["hypotheses"][0]["text"] == "  ".join(parts)
    assert third["hypotheses"] == []
    assert third["error"].startswith("expected at most 24 tokens")


def test_several_translations_are_numbered(
    model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from jax_transformer.config.decoding import DecodingConfig
    from jax_transformer.decoding.translation import translate_each
    from jax_transformer.storage.model_directory import load_model

    lines = ["eins", "", "zwei drei"]
    file = write(tmp_path / "text", "\n".join(lines))
    code, out, err = run(
        capsys, "translate", str(model_directory), "--input", file, "--beam-size", "3", "--num-return", "2"
    )
    assert (code, told(err)) == (0, "")
    found = translate_each(load_model(model_directory), lines, DecodingConfig(beam_size=3, num_return=2))
    assert out.splitlines() == [
        f"{number}\t{hypothesis.score:.4f}\t{hypothesis.text}"
        for number in (1, 3)
        for hypothesis in found[number - 1].parts[0].hypotheses
    ]
    code, _, err = run(capsys, "translate", str(model_directory), "--input", file, "--num-return", "2")
    assert code == 2
    assert "num_return must be at most beam_size=1; received 2" in err


def test_jsonl_has_what_the_library_says(
    model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from jax_transformer.config.decoding import DecodingConfig
    from jax_transformer.data.tokenizers import words_of_ids, words_of_text
    from jax_transformer.decoding.alignment import align, pharaoh, word_pairs
    from jax_transformer.decoding.generation import generate
    from jax_transformer.decoding.scoring import score
    from jax_transformer.storage.model_directory import load_model

    lines = ["eins zwei drei", "", "vier"]
    options = ("--format", "jsonl", "--beam-size", "3", "--num-return", "2")
    code, out, err = run(
        capsys, "translate", str(model_directory), "--input", write(tmp_path / "text", "\n".join(lines)), *options
    )
    assert (code, told(err)) == (0, "")
    described = list(map(json.loads, out.splitlines()))
    assert [(line["line"], line["source"], len(line["hypotheses"])) for line in described] == [
        (1, lines[0], 2),
        (2, "", 0),
        (3, "vier", 2),
    ]
    model = load_model(model_directory)
    source, target = model.source_tokenizer, model.target_tokenizer
    assert source is not None
    assert target is not None
    for line in described:
        if not line["hypotheses"]:
            continue
        (ids,) = source.encode([line["source"]])
        found = generate(model, [ids], DecodingConfig(beam_size=3, num_return=2))
        for rank, hypothesis in enumerate(line["hypotheses"]):
            given = found.sequences[0, rank].tolist()
            given = given[: given.index(3) + 1] if 3 in given else given[: len(hypothesis["tokens"])]
            assert hypothesis["tokens"] == target.tokens(given)
            assert hypothesis["text"] == target.decode([given])[0]
            assert hypothesis["score"] == pytest.approx(found.scores[0, rank], abs=1e-5)
            assert hypothesis["token_log_probs"] == pytest.approx(
                score(model, [ids], [given]).token_log_probs[0, : len(given)], abs=1e-5
            )
            pairs = word_pairs(
                align(model, [ids], [given])[0], words_of_text(source, line["source"]), words_of_ids(target, given)
            )
            assert hypothesis["alignment"] == pharaoh(pairs)


def test_translations_begin_as_told(model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "text", "eins\n\nzwei drei\n")
    code, out, _ = run(capsys, "translate", str(model_directory), "--input", file, "--prefix", "NEUN EINS")
    assert code == 0
    first, empty, last = out.splitlines()
    assert first.startswith("NEUN EINS")
    assert last.startswith("NEUN EINS")
    assert empty == ""
    code, out, err = run(capsys, "translate", str(model_directory), "--input", file, "--prefix", "NEUN ELF")
    assert (code, out) == (2, "")
    assert "prefix: expected tokens of the target vocabulary; received 'ELF', which it doesn't have" in err


def test_more_beams_than_tokens_are_refused_before_a_line_is_read(model_directory: Path) -> None:
    result = command("translate", str(model_directory), "--beam-size", "15", text=b"\xff\n")
    assert result.returncode == 2
    assert result.stderr == b"error: beam_size must be at most the target vocabulary's 14 tokens; received 15\n"


def test_a_model_without_tokenizers_is_told(
    model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from jax_transformer.storage.model_directory import load_model

    save_model(
        dataclasses.replace(load_model(model_directory), source_tokenizer=None, target_tokenizer=None),
        tmp_path / "model",
    )
    code, _, err = run(capsys, "translate", str(tmp_path / "model"), "--input", write(tmp_path / "text", "eins\n"))
    assert code == 2
    assert "expected a model with tokenizers; this one has none" in err


def test_batches_hold_no_more_tokens_than_told(
    model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from jax_transformer.decoding import batches

    shapes = []

    def recorded(model: Model, source_ids: np.ndarray, *arguments: Any, **options: Any) -> Any:
        shapes.append(source_ids.shape)
        return generate(model, source_ids, *arguments, **options)

    generate = batches.generate
    file = write(tmp_path / "text", "eins zwei\n" * 9 + "eins " * 18 + "\n" + "vier\n" * 9)
    _, expected, _ = run(capsys, "translate", str(model_directory), "--input", file)
    monkeypatch.setattr(batches, "generate", recorded)
    code, out, _ = run(capsys, "translate", str(model_directory), "--input", file, "--batch-tokens", "128")
    assert (code, out) == (0, expected)
    assert shapes == [(8, 16), (8, 16), (8, 16), (1, 24)]


@pytest.mark.parametrize(
    ("options", "decoding"),
    [
        (
            ["--beam-size", "3", "--length-penalty", "0.5", "--early-stopping", "true"],
            {"beam_size": 3, "length_penalty": 0.5, "early_stopping": True},
        ),
        (
            ["--sampling", "--seed", "7", "--temperature", "2", "--top-p", "0.9"],
            {"sampling": True, "seed": 7, "temperature": 2.0, "top_p": 0.9},
        ),
    ],
    ids=["beams", "samples"],
)
def test_translations_are_looked_for_as_the_options_say(
    options: list[str],
    decoding: dict[str, Any],
    model_directory: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever the batches."""
    from jax_transformer.config.decoding import DecodingConfig
    from jax_transformer.decoding.translation import translate
    from jax_transformer.storage.model_directory import load_model

    lines = ["eins", "zwei drei", "", "vier fünf sechs", "drei zwei eins"]
    file = write(tmp_path / "text", "".join(f"{line}\n" for line in lines))
    expected = translate(load_model(model_directory), lines, DecodingConfig(**decoding))
    for rows in ("1", "64"):
        code, out, err = run(capsys, "translate", str(model_directory), "--input", file, "--rows", rows, *options)
        assert (code, told(err)) == (0, "")
        assert out.splitlines() == expected
    code, out, err = run(capsys, "translate", str(model_directory), "--input", file, *options, "--top-k", "-1")
    assert (code, out) == (2, "")
    assert "top_k must be at least 0; received -1" in err


BEAMS: dict[str, Any] = {"beam_size": 3, "length_penalty": 0.5, "early_stopping": True, "no_repeat_ngram": 2}


@pytest.mark.parametrize(
    ("options", "decoding"),
    [
        ([], BEAMS),
        (["--beam-size", "2", "--length-penalty", "0"], BEAMS | {"beam_size": 2, "length_penalty": 0.0}),
        (["--beam-size", "1", "--no-repeat-ngram", "0"], {}),
        (["--sampling", "--seed", "7"], {"sampling": True, "seed": 7, "temperature": 0.5, "no_repeat_ngram": 2}),
    ],
    ids=["none", "another", "greedily", "samples"],
)
def test_what_no_option_says_is_as_the_model_says(
    options: list[str],
    decoding: dict[str, Any],
    model_directory: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from jax_transformer.config.decoding import DecodingConfig
    from jax_transformer.decoding.translation import translate
    from jax_transformer.storage.model_directory import load_model

    plain = load_model(model_directory)
    generation = dataclasses.replace(plain.generation, **BEAMS, temperature=0.5)
    save_model(dataclasses.replace(plain, generation=generation), tmp_path / "model")
    lines = ["eins", "zwei drei", "vier fünf sechs", "drei zwei eins"]
    expected = translate(plain, lines, DecodingConfig(**decoding))
    file = write(tmp_path / "text", "".join(f"{line}\n" for line in lines))
    code, out, err = run(capsys, "translate", str(tmp_path / "model"), "--input", file, *options)
    assert (code, out.splitlines(), told(err)) == (0, expected, "")
    target = write(tmp_path / "target", out)
    code, out, _ = run(capsys, "evaluate", str(tmp_path / "model"), "--source", file, "--target", target, *options)
    assert code == 0
    assert re.search(r"exact match +100.00 ", out)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--sampling", "--beam-size", "4"], "beam_size must be 1 with sampling; received 4"),
        (["--beam-size", "1", "--early-stopping", "true"], "early_stopping must be false without beams; received True"),
        (["--beam-size", "2", "--temperature", "0.5"], "temperature must be 1.0 without sampling; received 0.5"),
        (["--temperature", "0"], "temperature must be greater than 0; received 0.0"),
        (
            ["--max-new-tokens", "3", "--min-new-tokens", "3"],
            "min_new_tokens must be below max_new_tokens=3; received 3",
        ),
    ],
)
def test_options_that_no_model_can_obey_are_refused_before_one_is_loaded(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = write(tmp_path / "text", "eins\n")
    for command in (
        ["translate", "nowhere", "--input", text],
        ["evaluate", "nowhere", "--source", text, "--target", text],
    ):
        code, _, err = run(capsys, *command, *options)
        assert code == 2
        assert told in err


@pytest.mark.parametrize(
    "options", [["--early-stopping", "true"], ["--temperature", "0.5"], ["--top-k", "4", "--sampling"]]
)
def test_options_that_some_model_can_obey_wait_for_it(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(
        capsys, "translate", str(tmp_path / "nowhere"), "--input", write(tmp_path / "text", "eins\n"), *options
    )
    assert code == 2
    assert "nowhere: no such directory" in err


def test_a_target_tag_comes_first(model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from jax_transformer.config.decoding import DecodingConfig
    from jax_transformer.decoding.translation import translate
    from jax_transformer.storage.model_directory import load_model

    plain = load_model(model_directory)
    tags = ["deu_Latn", "fra_Latn"]
    target = train_tokenizer([WORDS.upper()], kind="whitespace", specials=SPECIALS, vocab_size=14, tags=tags)
    model = dataclasses.replace(plain, target_tokenizer=target)  # the tags have the ids of words of the plain one
    save_model(model, tmp_path / "model")
    file = write(tmp_path / "text", "eins\nzwei drei\n")
    found = {}
    for tag in tags:
        forced = DecodingConfig(forced_bos_id=target.tag_ids[tag])
        code, out, err = run(capsys, "translate", str(tmp_path / "model"), "--input", file, "--target-tag", tag)
        assert (code, told(err)) == (0, "")
        found[tag] = out.splitlines()
        assert found[tag] == translate(model, ["eins", "zwei drei"], forced)
    assert found["deu_Latn"] != found["fra_Latn"]
    code, out, err = run(capsys, "translate", str(tmp_path / "model"), "--input", file, "--target-tag", "deu_Lat")
    assert (code, out) == (2, "")
    assert "--target-tag: expected one of deu_Latn, fra_Latn; received 'deu_Lat' (nearest: deu_Latn)" in " ".join(
        err.split()
    )
    code, _, err = run(capsys, "translate", str(model_directory), "--input", file, "--target-tag", "deu_Latn")
    assert code == 2
    assert "--target-tag: expected none, for its vocabulary has no tags; received 'deu_Latn'" in " ".join(err.split())


def test_an_altered_model_is_refused(model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    copy = tmp_path / "model"
    shutil.copytree(model_directory, copy)
    with open(copy / "params.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    code, _, err = run(capsys, "translate", str(copy), "--input", write(tmp_path / "text", "eins\n"))
    assert code == 2
    assert "params.safetensors" in err


def test_a_model_of_a_newer_version_is_refused(
    model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    copy = tmp_path / "model"
    shutil.copytree(model_directory, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["format_version"] += 1
    (copy / "manifest.json").write_text(json.dumps(manifest))
    code, _, err = run(capsys, "translate", str(copy), "--input", write(tmp_path / "text", "eins\n"))
    assert code == 2
    assert "newer" in err


def test_a_source_tag_goes_with_every_sentence(
    model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from jax_transformer.decoding.batches import generate_each
    from jax_transformer.decoding.translation import translate
    from jax_transformer.storage.model_directory import load_model

    sentences = ["eins zwei drei", "vier", "", "fünf sechs sieben acht"]
    plain = load_model(model_directory)
    source = train_tokenizer([WORDS], kind="whitespace", specials=SPECIALS, add_eos=True, vocab_size=13, tags=["<2de>"])
    model = dataclasses.replace(plain, source_tokenizer=source)  # the tag has the id of a word of the plain one
    assert model.source_tokenizer is not None
    assert model.target_tokenizer is not None
    tagged = translate(model, sentences, source_tag="<2de>")
    assert tagged != translate(model, sentences)
    encoded = model.source_tokenizer.encode([text for text in sentences if text], "<2de>")
    best = [found[0].ids for found in generate_each(model, encoded)]
    assert [text for text in tagged if text] == [text for text in model.target_tokenizer.decode(best) if text]
    save_model(model, tmp_path / "model")
    file = write(tmp_path / "source", "\n".join(sentences) + "\n")
    code, out, err = run(capsys, "translate", str(tmp_path / "model"), "--input", file, "--source-tag", "<2de>")
    assert code == 0, err
    assert out.splitlines() == tagged
    assert told(err) == ""


def test_an_unknown_source_tag_is_refused(
    model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "source", "eins\n")
    code, _, err = run(capsys, "translate", str(model_directory), "--input", file, "--source-tag", "<2de>")
    assert code == 2
    assert "source tag: expected none, for this vocabulary has no tags; received '<2de>'" in err


def test_random_weights_end_sentences(model_directory: Path) -> None:
    """What the tests above compare is not a row of cut-off sentences."""
    from jax_transformer.decoding.batches import generate_each
    from jax_transformer.storage.model_directory import load_model

    model = load_model(model_directory)
    assert model.source_tokenizer is not None
    found = generate_each(model, model.source_tokenizer.encode(["eins", "zwei drei", "vier fünf sechs"]))
    decoded = [best.ids for best, *_ in found]
    assert len({tuple(ids) for ids in decoded}) > 1
    assert np.mean([len(ids) < 23 for ids in decoded]) > 0.5


def test_a_prompt_answers_line_after_line(model_directory: Path) -> None:
    """On a terminal; what is wrong with a line is told, and the next is translated."""
    (expected,) = command("translate", str(model_directory), text=b"eins zwei drei\n").stdout.splitlines()
    master, slave = os.openpty()
    arguments = [sys.executable, "-m", "jax_transformer.cli", "translate", str(model_directory)]
    with subprocess.Popen(arguments, stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        os.close(slave)
        os.write(master, b"\xff\n" + b"zwei " * 30 + b"\neins zwei drei\n\x04")
        out, err = process.communicate(timeout=120)
    os.close(master)
    assert process.returncode == 2
    assert out.decode().splitlines() == ["", "", expected.decode()]
    assert err.count(b"> ") == 4
    assert b"received byte 0xff" in err
    assert b"expected at most 24 tokens" in err


def test_translations_that_are_cut_off_are_counted(
    model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "text", "eins zwei drei\n\nzehn sieben .\n")
    _, _, err = run(capsys, "translate", str(model_directory), "--input", file, "--max-new-tokens", "1")
    assert "; 2 cut off at the maximum length" in err
    _, _, err = run(capsys, "translate", str(model_directory), "--input", file)
    assert "cut off" not in err


def test_a_closed_standard_output_is_told(model_directory: Path) -> None:
    script = f"echo eins | {sys.executable} -m jax_transformer.cli translate {model_directory} >&-"
    result = subprocess.run(["bash", "-c", script], capture_output=True, check=False)
    assert result.returncode == 2
    assert result.stderr == b"error: expected standard output, which is closed, to write translations to\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min-new-tokens", "24"], "min_new_tokens must be below the 24 that there is room for; received 24"),
        (
            ["--prefix", "NEUN " * 30],
            "prefix: expected at most 23 tokens, so that there is room for another; received 30",
        ),
        (["--sampling", "--seed", str(1 << 63)], "seed must be at least 0 and below 2^63"),
        (["--rows", "0"], "--rows must be at least 1; received 0"),
        (["--batch-tokens", "0"], "--batch-tokens must be at least 1; received 0"),
    ],
)
def test_what_can_be_meant_of_no_line_is_told_before_the_first(
    options: list[str], message: str, model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "translate", str(model_directory), "--input", write(tmp_path / "text", "\n"), *options)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
