"""Tokenizers of others with patterns that take forever, and replacements that fill all memory."""

from __future__ import annotations

import json
import subprocess
import time

import pytest
from hostile import bounded_memory, refusal, sparse
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from jax_transformer.data.tokenizers import SpecialIds, load_tokenizer, train_tokenizer, trial
from jax_transformer.data.tokenizers.hugging_face import read_tokenizers
from jax_transformer.data.tokenizers.patterns import KNOWN_PATTERNS
from jax_transformer.data.tokenizers.pipelines import PipelineBackend

VOCABULARY = {"<pad>": 0, "<unk>": 1, "<bos>": 2, "<eos>": 3, "a": 4}


def tokenizer_json(**parts) -> str:
    model = {"type": "WordLevel", "vocab": VOCABULARY, "unk_token": "<unk>"}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model} | parts)


def split(pattern: str) -> dict:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def tenfold(kind: str, pattern: dict) -> dict:
    return {"type": "Sequence", kind: [{"type": "Replace", "pattern": pattern, "content": "aaaaaaaaaa"}] * 7}


HOSTILE = {
    "exponential": tokenizer_json(pre_tokenizer=split("(a+)+$")),
    "of words": tokenizer_json(pre_tokenizer=split(r"(\w+\s?)+$")),
    "alternatives": tokenizer_json(pre_tokenizer=split("(x|xx)+$")),
    "normalizer": tokenizer_json(normalizer=tenfold("normalizers", {"String": "a"})),
    "decoder": tokenizer_json(decoder=tenfold("decoders", {"String": "a"})),
    "no length": tokenizer_json(pre_tokenizer={"type": "FixedLength", "length": 0}),
}


def load(path, text):
    path.write_text(text)
    return load_tokenizer(path, kind="words", specials=None)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_steps_that_never_end_or_fill_all_memory(text, tmp_path):
    path = tmp_path / "tokenizer.json"
    message = refusal(lambda: load(path, text))
    assert message.startswith(f"{path}: tokenizer: expected ")
    assert "another tokenizer" in message


def test_a_trial_ends_in_time(monkeypatch):
    started = time.monotonic()
    monkeypatch.setattr(trial, "PROGRAM", "while True: pass  # {module} {seconds}")
    monkeypatch.setattr(trial, "SECONDS_TO_START", 0)
    assert "more than 1 s (JAX_TRANSFORMER_MAX_PATTERN_SECONDS)" in trial._tried("{}", 1)
    assert time.monotonic() - started < 30


def test_a_trial_has_little_memory(monkeypatch):
    tell = "; import resource; print(resource.getrlimit(resource.RLIMIT_AS)[0])"
    monkeypatch.setattr(trial, "PROGRAM", trial.PROGRAM + tell)
    assert trial._tried('{"decoder": null}', 1) == str(trial.TRIAL_MEMORY)


def test_other_patterns_that_end_are_used(tmp_path):
    tokenizer = load(tmp_path / "tokenizer.json", tokenizer_json(pre_tokenizer=split(r"[^\s\w]+|\w+|\s")))
    assert tokenizer.encode(["a a"]) == [[4, 1, 4]]


@pytest.mark.parametrize("kind", ["words", "whitespace", "characters", "bpe", "unigram"])
def test_no_process_is_started_for_known_steps(kind, monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    specials = SpecialIds(pad=0, unk=1, bos=2, eos=3)
    text = train_tokenizer(["who sleeps"], kind=kind, vocab_size=40, specials=specials, normalization="nfkc").to_json()
    trial.check_steps(text)
    trial.check_steps(
        tokenizer_json(pre_tokenizer={"type": "Sequence", "pretokenizers": [*map(split, KNOWN_PATTERNS)]})
    )


def test_a_pattern_that_gives_up_on_a_later_text():
    pipeline = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    pipeline.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
    message = refusal(lambda: PipelineBackend(pipeline).encode(["a" * 40 + "!"]))
    assert "gives up on this text" in message


def test_ids_beyond_any_vocabulary(tmp_path):
    model = {"type": "WordLevel", "vocab": VOCABULARY | {"b": 2**32 - 1}, "unk_token": "<unk>"}
    message = refusal(lambda: load(tmp_path / "tokenizer.json", tokenizer_json(model=model)))
    assert "expected at most 10,000,000 token ids; received 4,294,967,296" in message


def test_ids_beyond_any_vocabulary_of_marian():
    files = {
        "vocab.json": json.dumps({"</s>": 0, "<unk>": 1, "<pad>": 10**12}).encode(),
        "source.spm": b"",
        "target.spm": b"",
    }
    message = refusal(lambda: read_tokenizers(files, {"model_type": "marian", "vocab_size": 3}))
    assert "vocab.json: expected at most 10,000,000 token ids" in message


@pytest.mark.parametrize("name", ["tokenizer.json", "spiece.model", "words.txt"])
def test_files_of_gigabytes(name, tmp_path):
    path = sparse(tmp_path / name, 2**31)
    message = refusal(lambda: load_tokenizer(path, kind="words", specials=None))
    assert "bytes in a tokenizer's file; received 2,147,483,648" in message


def test_json_nested_too_deeply(tmp_path):
    text = '{"normalizer":' + '{"type":"Sequence","normalizers":[' * 5000 + "]}" * 5000 + "}"
    with bounded_memory(), pytest.raises(ValueError, match="nested too deeply"):
        load(tmp_path / "tokenizer.json", text)
