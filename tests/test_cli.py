"""The command: what it refuses and how it says so, and translating through pipes."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jax_transformer.cli import main
from jax_transformer.config import GenerationConfig, TransformerConfig
from jax_transformer.data.tokenizers import SpecialIds, train_tokenizer
from jax_transformer.model import functional
from jax_transformer.model_directory import Model, save_model

SPECIALS = SpecialIds(pad=0, unk=1, bos=2, eos=3)
WORDS = "eins zwei drei vier fünf sechs sieben acht neun zehn"


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose <eos> is likely, with word tokenizers; its translations are words, if no sense."""
    source = train_tokenizer([WORDS], kind="whitespace", specials=SPECIALS, add_eos=True)
    target = train_tokenizer([WORDS.upper()], kind="whitespace", specials=SPECIALS)
    config = TransformerConfig(
        source_vocab_size=source.vocab_size, target_vocab_size=target.vocab_size, d_model=16, num_heads=2, d_ff=16,
        num_encoder_layers=1, num_decoder_layers=1, max_length=24,
    )  # fmt: skip
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
    return subprocess.run([sys.executable, "-m", "jax_transformer.cli", *arguments], input=text, capture_output=True, check=False)


# --- training refuses, with one message, and leaves nothing behind


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: str) -> str:
    run_dir = tmp_path / "run"
    code, out, err = run(capsys, "train", *arguments, "--run-dir", str(run_dir), "--data.cache-dir", str(tmp_path / "cache"))
    assert code == 2, out + err
    assert "Traceback" not in err
    assert not run_dir.exists()
    assert not list((tmp_path / "cache").glob("*")) if (tmp_path / "cache").exists() else True
    return " ".join(err.split())


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    message = refused(capsys, tmp_path, "--data.train", str(tmp_path / "nowhere.tsv"), "--data.valid-pairs", "2")
    assert "nowhere.tsv: expected a text file" in message


def test_unequal_line_counts_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    source, target = write(tmp_path / "a.en", "one\ntwo\nthree\n"), write(tmp_path / "a.de", "eins\nzwei\n")
    message = refused(capsys, tmp_path, "--data.train", source, target, "--data.valid-pairs", "1")
    assert "a.en:3:" in message
    assert "received 3 lines" in message
    assert "2 lines in" in message


def test_a_row_with_one_column_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.tsv", "one\teins\ntwo zwei\n")
    assert "pairs.tsv:2: expected two columns" in refused(capsys, tmp_path, "--data.train", file, "--data.valid-pairs", "1")


def test_invalid_utf8_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.tsv", b"one\teins\nfive\tf\xfcnf\n")
    message = refused(capsys, tmp_path, "--data.train", file, "--data.valid-pairs", "1")
    assert "pairs.tsv:2: expected UTF-8 text; received byte 0xfc" in message


def test_an_empty_corpus_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv.gz"
    file.write_bytes(gzip.compress(b""))
    assert "expected at least one sentence pair" in refused(capsys, tmp_path, "--data.train", str(file), "--data.valid-pairs", "1")


def test_every_pair_filtered_out_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    long = " ".join(["word"] * 50)
    file = write(tmp_path / "pairs.tsv", f"{long}\t{long}\n" * 5)
    message = refused(capsys, tmp_path, "--data.train", file, "--data.valid-pairs", "1", "--data.max-length", "8")
    assert "max_length" in message


def test_too_small_a_vocabulary_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.tsv", "one\teins\ntwo\tzwei\nthree\tdrei\n")
    message = refused(capsys, tmp_path, "--data.train", file, "--data.valid-pairs", "1", "--data.vocab-size", "4")
    assert "vocab_size" in message


def test_no_validation_data_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.tsv", "one\teins\ntwo\tzwei\n")
    assert "valid" in refused(capsys, tmp_path, "--data.train", file)


def test_an_unknown_preset_lists_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "train", "dmeo")
    assert code == 2
    assert "unknown preset 'dmeo'" in err
    assert "Did you mean 'demo'?" in err


def test_an_unknown_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "train", "--train.max-stepz", "3")
    assert code == 2
    assert "--train.max-steps" in err


def test_an_unknown_field_of_a_yaml_file_is_told_with_its_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write(tmp_path / "run.yaml", "model:\n  d_model: 64\n  d_modle: 64\n")
    code, _, err = run(capsys, "train", "--config", file)
    assert code == 2
    assert "run.yaml:3: unknown field 'model.d_modle'; did you mean 'd_model'?" in err


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("train:\n  learning_rate: fast\n", "run.yaml:2: TrainConfig: learning_rate must be a number; received 'fast'"),
        ("model:\n  norm_placement: middle\n", "norm_placement must be one of pre, post; received 'middle'"),
        ("model: [1, 2]\n", "run.yaml:1: expected fields and values under 'model.'"),
        ("model:\n  d_model: 64\n  d_model: 32\n", "run.yaml:3: field 'model.d_model' is given twice"),
        ("model: {d_model: 64\n", "expected YAML"),
    ],
)  # fmt: skip
def test_a_wrong_value_in_a_yaml_file_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path, yaml: str, message: str) -> None:
    code, _, err = run(capsys, "train", "--config", write(tmp_path / "run.yaml", yaml))
    assert code == 2
    assert message in " ".join(err.split())


def test_a_contradiction_on_the_command_line_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "train", "--model.num-heads", "7")
    assert code == 2
    assert "num_heads must be a divisor of d_model=128" in " ".join(err.split())


def test_a_run_directory_in_use_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write(tmp_path / "run" / "config.yaml", "{}\n")
    code, _, err = run(capsys, "train", "--run-dir", str(tmp_path / "run"))
    assert code == 2
    assert "already in use" in err
    assert "--resume" in err
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.yaml"]


def test_resuming_what_is_no_run_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "train", "--resume", str(tmp_path))
    assert code == 2
    assert "expected a run directory to resume" in err


def test_resume_takes_nothing_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "train", "demo", "--resume", str(tmp_path))
    assert code == 2
    assert "--resume takes no other option" in err


def test_an_unknown_command_lists_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "fly")
    assert code == 2
    assert "expected one of train, average, translate, evaluate, score, port, report" in err


# --- translating


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


def test_a_sentence_beyond_the_positions_is_refused(model_directory: Path) -> None:
    result = command("translate", str(model_directory), text=b"eins\n" + b"zwei " * 30 + b"\n")
    assert result.returncode == 2
    assert b"expected at most 24 tokens" in result.stderr
    assert b"sentence 2 has 31" in result.stderr
    assert result.stdout == b""


def test_invalid_utf8_on_standard_input_is_refused(model_directory: Path) -> None:
    result = command("translate", str(model_directory), text=b"eins\nf\xfcnf\n")
    assert result.returncode == 2
    assert b"standard input:2: expected UTF-8 text" in result.stderr


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
    options: list[str], decoding: dict[str, Any], model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the batches."""
    from jax_transformer.decoding.decoding_config import DecodingConfig
    from jax_transformer.decoding.translation import translate
    from jax_transformer.model_directory import load_model

    lines = ["eins", "zwei drei", "", "vier fünf sechs", "drei zwei eins"]
    file = write(tmp_path / "text", "".join(f"{line}\n" for line in lines))
    expected = translate(load_model(model_directory), lines, DecodingConfig(**decoding))
    for rows in ("1", "64"):
        code, out, err = run(capsys, "translate", str(model_directory), "--input", file, "--rows", rows, *options)
        assert (code, err) == (0, "")
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
    options: list[str], decoding: dict[str, Any], model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from jax_transformer.decoding.decoding_config import DecodingConfig
    from jax_transformer.decoding.translation import translate
    from jax_transformer.model_directory import load_model

    plain = load_model(model_directory)
    generation = dataclasses.replace(plain.generation, **BEAMS, temperature=0.5)
    save_model(dataclasses.replace(plain, generation=generation), tmp_path / "model")
    lines = ["eins", "zwei drei", "vier fünf sechs", "drei zwei eins"]
    expected = translate(plain, lines, DecodingConfig(**decoding))
    file = write(tmp_path / "text", "".join(f"{line}\n" for line in lines))
    code, out, err = run(capsys, "translate", str(tmp_path / "model"), "--input", file, *options)
    assert (code, out.splitlines(), err) == (0, expected, "")
    target = write(tmp_path / "target", out)
    code, out, _ = run(capsys, "evaluate", str(tmp_path / "model"), "--source", file, "--target", target, *options)
    assert code == 0
    assert "exact match 100.00 %" in out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--sampling", "--beam-size", "4"], "beam_size must be 1 with sampling; received 4"),
        (["--beam-size", "1", "--early-stopping", "true"], "early_stopping must be false without beams; received True"),
        (["--beam-size", "2", "--temperature", "0.5"], "temperature must be 1.0 without sampling; received 0.5"),
        (["--temperature", "0"], "temperature must be greater than 0; received 0.0"),
        (["--max-new-tokens", "3", "--min-new-tokens", "3"], "min_new_tokens must be below max_new_tokens=3; received 3"),
    ],
)
def test_options_that_no_model_can_obey_are_refused_before_one_is_loaded(
    options: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = write(tmp_path / "text", "eins\n")
    for command in (["translate", "nowhere", "--input", text], ["evaluate", "nowhere", "--source", text, "--target", text]):
        code, _, err = run(capsys, *command, *options)
        assert code == 2
        assert told in err


@pytest.mark.parametrize("options", [["--early-stopping", "true"], ["--temperature", "0.5"], ["--top-k", "4", "--sampling"]])
def test_options_that_some_model_can_obey_wait_for_it(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "translate", str(tmp_path / "nowhere"), "--input", write(tmp_path / "text", "eins\n"), *options)
    assert code == 2
    assert "nowhere: no such directory" in err


def test_a_target_tag_comes_first(model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from jax_transformer.decoding.decoding_config import DecodingConfig
    from jax_transformer.decoding.translation import translate
    from jax_transformer.model_directory import load_model

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
        assert (code, err) == (0, "")
        found[tag] = out.splitlines()
        assert found[tag] == translate(model, ["eins", "zwei drei"], forced)
    assert found["deu_Latn"] != found["fra_Latn"]
    code, out, err = run(capsys, "translate", str(tmp_path / "model"), "--input", file, "--target-tag", "deu_Lat")
    assert (code, out) == (2, "")
    assert "--target-tag: expected one of deu_Latn, fra_Latn; received 'deu_Lat' (nearest: deu_Latn)" in " ".join(err.split())
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


def test_a_model_of_a_newer_version_is_refused(model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    copy = tmp_path / "model"
    shutil.copytree(model_directory, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["format_version"] += 1
    (copy / "manifest.json").write_text(json.dumps(manifest))
    code, _, err = run(capsys, "translate", str(copy), "--input", write(tmp_path / "text", "eins\n"))
    assert code == 2
    assert "newer" in err


def test_a_source_tag_goes_with_every_sentence(model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from jax_transformer.decoding.batches import generate_each
    from jax_transformer.decoding.translation import translate
    from jax_transformer.model_directory import load_model

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
    assert err == ""


def test_an_unknown_source_tag_is_refused(model_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "source", "eins\n")
    code, _, err = run(capsys, "translate", str(model_directory), "--input", file, "--source-tag", "<2de>")
    assert code == 2
    assert "source tag: expected none, for this vocabulary has no tags; received '<2de>'" in err


def test_random_weights_end_sentences(model_directory: Path) -> None:
    """What the tests above compare is not a row of cut-off sentences."""
    from jax_transformer.decoding.batches import generate_each
    from jax_transformer.model_directory import load_model

    model = load_model(model_directory)
    assert model.source_tokenizer is not None
    found = generate_each(model, model.source_tokenizer.encode(["eins", "zwei drei", "vier fünf sechs"]))
    decoded = [best.ids for best, *_ in found]
    assert len({tuple(ids) for ids in decoded}) > 1
    assert np.mean([len(ids) < 23 for ids in decoded]) > 0.5
