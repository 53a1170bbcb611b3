"""Options of jax-transformer translate: decoding, tags, prefixes, output formats."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax_transformer.data.tokenizers import SpecialIds, Tokenizer, train_tokenizer
from jax_transformer.data.tokenizers.tokenizer import read_backend
from jax_transformer.decoding.translation import translate_each
from jax_transformer.storage.model_directory import load_model, save_model

pytestmark = pytest.mark.usefixtures("quick_compilation")

SPECIALS = SpecialIds(pad=0, unk=1, bos=2, eos=3)
WORDS = "eins zwei drei vier fünf sechs sieben acht neun zehn"

Run = Callable[..., tuple[int, str, str]]
Write = Callable[[str, str | bytes], str]
Command = Callable[..., subprocess.CompletedProcess[bytes]]
WithoutSummary = Callable[[str], str]


def test_several_translations_are_numbered(
    plain_model: Path, run: Run, write: Write, without_summary: WithoutSummary
) -> None:
    from jax_transformer.config.decoding import DecodingConfig
    from jax_transformer.decoding.translation import translate_each
    from jax_transformer.storage.model_directory import load_model

    lines = ["eins", "", "zwei drei"]
    file = write("text", "\n".join(lines))
    code, out, err = run("translate", str(plain_model), "--input", file, "--beam-size", "3", "--num-return", "2")
    assert (code, without_summary(err)) == (0, "")
    found = translate_each(load_model(plain_model), lines, DecodingConfig(beam_size=3, num_return=2))
    assert out.splitlines() == [
        f"{number}\t{hypothesis.score:.4f}\t{hypothesis.text}"
        for number in (1, 3)
        for hypothesis in found[number - 1].parts[0].hypotheses
    ]
    code, _, err = run("translate", str(plain_model), "--input", file, "--num-return", "2")
    assert code == 2
    assert "num_return must be at most beam_size=1; received 2" in err


def test_jsonl_agrees_with_the_library(
    plain_model: Path, run: Run, write: Write, without_summary: WithoutSummary
) -> None:
    from jax_transformer.config.decoding import DecodingConfig
    from jax_transformer.data.tokenizers import words_of_ids, words_of_text
    from jax_transformer.decoding.alignment import align, pharaoh, word_pairs
    from jax_transformer.decoding.generation import generate
    from jax_transformer.decoding.scoring import score
    from jax_transformer.storage.model_directory import load_model

    lines = ["eins zwei drei", "", "vier"]
    options = ("--format", "jsonl", "--beam-size", "3", "--num-return", "2")
    code, out, err = run("translate", str(plain_model), "--input", write("text", "\n".join(lines)), *options)
    assert (code, without_summary(err)) == (0, "")
    described = list(map(json.loads, out.splitlines()))
    assert [(line["line"], line["source"], len(line["hypotheses"])) for line in described] == [
        (1, lines[0], 2),
        (2, "", 0),
        (3, "vier", 2),
    ]
    model = load_model(plain_model)
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


def test_a_model_is_rounded_and_computes_in_the_dtype(plain_model: Path, run: Run, write: Write) -> None:
    text = write("text", "eins zwei drei\nvier fünf\n")
    arguments = "translate", str(plain_model), "--input", text, "--format", "jsonl"
    code, printed, errors = run(*arguments, "--dtype", "bfloat16")
    assert code == 0, errors
    model = load_model(plain_model).astype("bfloat16")
    expected = [round(one.score(), 6) for one in translate_each(model, ["eins zwei drei", "vier fünf"])]
    found = [json.loads(line)["hypotheses"][0]["score"] for line in printed.splitlines()]
    assert found == expected
    assert found != [json.loads(line)["hypotheses"][0]["score"] for line in run(*arguments)[1].splitlines()]


def test_a_dtype_that_there_is_not(plain_model: Path, run: Run) -> None:
    code, _, errors = run("translate", str(plain_model), "--dtype", "float16")
    assert (code, errors) == (2, "error: --dtype: expected one of float32, bfloat16; received float16\n")


def test_translations_begin_with_the_prefix(plain_model: Path, run: Run, write: Write) -> None:
    file = write("text", "eins\n\nzwei drei\n")
    code, out, _ = run("translate", str(plain_model), "--input", file, "--prefix", "NEUN EINS")
    assert code == 0
    first, empty, last = out.splitlines()
    assert first.startswith("NEUN EINS")
    assert last.startswith("NEUN EINS")
    assert empty == ""
    code, out, err = run("translate", str(plain_model), "--input", file, "--prefix", "NEUN ELF")
    assert (code, out) == (2, "")
    assert "prefix: expected tokens of the target vocabulary; received 'ELF', which it doesn't have" in err


def test_more_beams_than_tokens_are_refused_before_a_line_is_read(plain_model: Path, command: Command) -> None:
    result = command("translate", str(plain_model), "--beam-size", "15", text=b"\xff\n")
    assert result.returncode == 2
    assert result.stderr == b"error: beam_size must be at most the target vocabulary's 14 tokens; received 15\n"


def test_batches_hold_no_more_tokens_than_allowed(
    plain_model: Path, monkeypatch: pytest.MonkeyPatch, run: Run, write: Write
) -> None:
    from jax_transformer.decoding import batches

    shapes = []

    def recorded(*arguments: Any) -> np.ndarray:
        sources = padded_sources(*arguments)
        shapes.append(sources.shape)
        return sources

    padded_sources = batches.padded_sources
    file = write("text", "eins zwei\n" * 9 + "eins " * 18 + "\n" + "vier\n" * 9)
    _, expected, _ = run("translate", str(plain_model), "--input", file)
    monkeypatch.setattr(batches, "padded_sources", recorded)
    code, out, _ = run("translate", str(plain_model), "--input", file, "--batch-tokens", "128")
    assert (code, out) == (0, expected)
    assert shapes == [(8, 8), (8, 8), (8, 8), (1, 24)]


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
def test_translations_follow_the_decoding_options(
    options: list[str],
    decoding: dict[str, Any],
    plain_model: Path,
    run: Run,
    write: Write,
    without_summary: WithoutSummary,
) -> None:
    """The batch size doesn't matter."""
    from jax_transformer.config.decoding import DecodingConfig
    from jax_transformer.decoding.translation import translate
    from jax_transformer.storage.model_directory import load_model

    lines = ["eins", "zwei drei", "", "vier fünf sechs", "drei zwei eins"]
    file = write("text", "".join(f"{line}\n" for line in lines))
    expected = translate(load_model(plain_model), lines, DecodingConfig(**decoding))
    for rows in ("1", "64"):
        code, out, err = run("translate", str(plain_model), "--input", file, "--rows", rows, *options)
        assert (code, without_summary(err)) == (0, "")
        assert out.splitlines() == expected
    code, out, err = run("translate", str(plain_model), "--input", file, *options, "--top-k", "-1")
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
def test_options_default_to_the_models_settings(
    options: list[str],
    decoding: dict[str, Any],
    plain_model: Path,
    tmp_path: Path,
    run: Run,
    write: Write,
    without_summary: WithoutSummary,
) -> None:
    from jax_transformer.config.decoding import DecodingConfig
    from jax_transformer.decoding.translation import translate
    from jax_transformer.storage.model_directory import load_model

    plain = load_model(plain_model)
    generation = dataclasses.replace(plain.generation, **BEAMS, temperature=0.5)
    save_model(dataclasses.replace(plain, generation=generation), tmp_path / "model")
    lines = ["eins", "zwei drei", "vier fünf sechs", "drei zwei eins"]
    expected = translate(plain, lines, DecodingConfig(**decoding))
    file = write("text", "".join(f"{line}\n" for line in lines))
    code, out, err = run("translate", str(tmp_path / "model"), "--input", file, *options)
    assert (code, out.splitlines(), without_summary(err)) == (0, expected, "")
    target = write("target", out)
    code, out, _ = run("evaluate", str(tmp_path / "model"), "--source", file, "--target", target, *options)
    assert code == 0
    assert re.search(r"exact match +100.00 ", out)


@pytest.mark.parametrize(
    ("options", "message"),
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
    options: list[str], message: str, run: Run, write: Write
) -> None:
    text = write("text", "eins\n")
    for arguments in (
        ["translate", "nowhere", "--input", text],
        ["evaluate", "nowhere", "--source", text, "--target", text],
    ):
        code, _, err = run(*arguments, *options)
        assert code == 2
        assert message in err


@pytest.mark.parametrize(
    "options", [["--early-stopping", "true"], ["--temperature", "0.5"], ["--top-k", "4", "--sampling"]]
)
def test_options_that_some_model_can_obey_wait_for_it(
    options: list[str], tmp_path: Path, run: Run, write: Write
) -> None:
    code, _, err = run("translate", str(tmp_path / "nowhere"), "--input", write("text", "eins\n"), *options)
    assert code == 2
    assert "nowhere: no such directory" in err


def test_a_target_tag_comes_first(
    plain_model: Path, tmp_path: Path, run: Run, write: Write, without_summary: WithoutSummary
) -> None:
    from jax_transformer.config.decoding import DecodingConfig
    from jax_transformer.decoding.translation import translate
    from jax_transformer.storage.model_directory import load_model

    plain = load_model(plain_model)
    tags = ["deu_Latn", "fra_Latn"]
    target = train_tokenizer([WORDS.upper()], kind="whitespace", specials=SPECIALS, vocab_size=14, tags=tags)
    model = dataclasses.replace(plain, target_tokenizer=target)  # the tags have the ids of words of the plain one
    save_model(model, tmp_path / "model")
    file = write("text", "eins\nzwei drei\n")
    found = {}
    for tag in tags:
        forced = DecodingConfig(forced_bos_id=target.tag_ids[tag])
        code, out, err = run("translate", str(tmp_path / "model"), "--input", file, "--target-tag", tag)
        assert (code, without_summary(err)) == (0, "")
        found[tag] = out.splitlines()
        assert found[tag] == translate(model, ["eins", "zwei drei"], forced)
    assert found["deu_Latn"] != found["fra_Latn"]
    code, out, err = run("translate", str(tmp_path / "model"), "--input", file, "--target-tag", "deu_Lat")
    assert (code, out) == (2, "")
    assert "--target-tag: expected one of deu_Latn, fra_Latn; received 'deu_Lat' (nearest: deu_Latn)" in " ".join(
        err.split()
    )
    code, _, err = run("translate", str(plain_model), "--input", file, "--target-tag", "deu_Latn")
    assert code == 2
    assert "--target-tag: expected none, for the vocabulary has no tags; received 'deu_Latn'" in " ".join(err.split())


def test_a_target_tag_may_start_the_decoder(plain_model: Path, tmp_path: Path, run: Run, write: Write) -> None:
    """Where tags stand last, as in mBART."""
    from jax_transformer.decoding.translation import translate
    from jax_transformer.storage.model_directory import load_model

    plain = load_model(plain_model)
    tagged = train_tokenizer([WORDS.upper()], kind="whitespace", specials=SPECIALS, vocab_size=14, tags=["de_DE"])
    backend, _ = read_backend(tagged.to_json())
    target = Tokenizer(backend, add_bos=False, add_eos=False, tag_last=True)
    unstarted = dataclasses.replace(plain.generation, decoder_start_id=None)
    model = dataclasses.replace(plain, target_tokenizer=target, generation=unstarted)
    save_model(model, tmp_path / "model")
    file = write("source", "eins zwei drei\nvier\n")
    code, out, err = run("translate", str(tmp_path / "model"), "--input", file, "--target-tag", "de_DE")
    assert code == 0, err
    started = dataclasses.replace(plain.generation, decoder_start_id=target.tag_ids["de_DE"])
    expected = translate(dataclasses.replace(model, generation=started), ["eins zwei drei", "vier"])
    assert out.splitlines() == expected
    assert expected != translate(dataclasses.replace(model, generation=plain.generation), ["eins zwei drei", "vier"])
    code, out, err = run("translate", str(tmp_path / "model"), "--input", file)
    assert (code, out) == (2, "")
    assert (
        "expected a target tag, which starts this model's decoder; received none. Give --target-tag, one of de_DE"
        in err
    )
    code, out, err = run("translate", str(tmp_path / "model"), "--input", file, "--target-tag", "de")
    assert (code, out) == (2, "")


def test_a_source_tag_goes_with_every_sentence(
    plain_model: Path, tmp_path: Path, run: Run, write: Write, without_summary: WithoutSummary
) -> None:
    from jax_transformer.decoding.batches import generate_each
    from jax_transformer.decoding.translation import translate
    from jax_transformer.storage.model_directory import load_model

    sentences = ["eins zwei drei", "vier", "", "fünf sechs sieben acht"]
    plain = load_model(plain_model)
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
    file = write("source", "\n".join(sentences) + "\n")
    code, out, err = run("translate", str(tmp_path / "model"), "--input", file, "--source-tag", "<2de>")
    assert code == 0, err
    assert out.splitlines() == tagged
    assert without_summary(err) == ""


def test_an_unknown_source_tag_is_refused(plain_model: Path, run: Run, write: Write) -> None:
    file = write("source", "eins\n")
    code, _, err = run("translate", str(plain_model), "--input", file, "--source-tag", "<2de>")
    assert code == 2
    assert "source tag: expected none, for the vocabulary has no tags; received '<2de>'" in err


def test_translations_that_are_cut_off_are_counted(plain_model: Path, run: Run, write: Write) -> None:
    file = write("text", "eins zwei drei\n\nzehn sieben .\n")
    _, _, err = run("translate", str(plain_model), "--input", file, "--max-new-tokens", "1")
    assert "; 2 cut off at the maximum length" in err
    _, _, err = run("translate", str(plain_model), "--input", file)
    assert "cut off" not in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min-new-tokens", "24"], "min_new_tokens must be below the 24 tokens that fit; received 24"),
        (
            ["--prefix", "NEUN " * 30],
            "prefix: expected at most 23 tokens, to leave room for one more; received 30",
        ),
        (["--sampling", "--seed", str(1 << 63)], "seed must be at least 0 and below 2^63"),
        (["--rows", "0"], "--rows must be at least 1; received 0"),
        (["--batch-tokens", "0"], "--batch-tokens must be at least 1; received 0"),
    ],
)
def test_options_that_fit_no_line_are_refused_before_the_first(
    options: list[str], message: str, plain_model: Path, run: Run, write: Write
) -> None:
    code, out, err = run("translate", str(plain_model), "--input", write("text", "\n"), *options)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
