"""Defines what the readers of transformers' tokenizer files share: types, file access and endings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax_transformer.data.tokenizers.tokenizer import Tokenizer
from jax_transformer.runtime.json_text import parse_json

Json = Mapping[str, Any]
Files = Mapping[str, bytes]
Pair = tuple[Tokenizer, Tokenizer]
"""The tokenizers of source and target."""

SETTINGS = "tokenizer_config.json"
FAIRSEQ_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
"""The first ids of fairseq's vocabularies, in place of sentencepiece's first three."""


def ending_in_eos(backend: Any) -> Tokenizer:
    return Tokenizer(backend, add_bos=False, add_eos=True)


def ending_in_tag(backend: Any) -> Tokenizer:
    return Tokenizer(backend, add_bos=False, add_eos=True, tag_last=True)


def both(source: Tokenizer) -> Pair:
    """Returns both tokenizers of one vocabulary; the batch adds the tokens around a target."""
    return source, source.adding(bos=False, eos=False)


def content_of(token: Any) -> str:
    """Returns the text of a token, or of its description."""
    return str(token["content"] if isinstance(token, dict) else token)


def file_in(files: Files, name: str, wanted: str = "") -> bytes:
    if name not in files:
        raise ValueError(f"expected {wanted or name}; received {', '.join(files)}")
    return files[name]


def json_in(files: Files, name: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = parse_json(file_in(files, name))
    except ValueError as error:
        raise ValueError(f"{name}: expected JSON ({error})" if name in files else str(error)) from None
    if not isinstance(content, dict):
        raise ValueError(f"{name}: expected a JSON object; received {type(content).__name__}")
    return content
