"""Vocabularies of others: written to a file, and loaded with a check that a file of our own holds all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jax_transformer.data.tokenizers import SpecialIds, Tokenizer, load_tokenizer

SPECIALS = SpecialIds(pad=0, unk=1, bos=2, eos=3)
TEXTS = ["the cat saw a dog", "a dog saw the cat", "dogs", "the the"] * 5
FORGED = "<s> </s> <pad> <unk> the <2de>"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def load(path: Path, specials: SpecialIds | None = None, **options: Any) -> Tokenizer:
    options = {"kind": "whitespace"} | options
    tokenizer = load_tokenizer(path, specials=specials, **options)
    again = Tokenizer.from_json(tokenizer.to_json())
    for tag in ("", *tokenizer.tags):
        assert again.encode([*TEXTS, FORGED], tag) == tokenizer.encode([*TEXTS, FORGED], tag), (
            "a file of our own holds all of it"
        )
    assert again.to_json() == tokenizer.to_json()
    assert (again.pad_id, again.unk_id, again.tags) == (tokenizer.pad_id, tokenizer.unk_id, tokenizer.tags)
    return tokenizer
