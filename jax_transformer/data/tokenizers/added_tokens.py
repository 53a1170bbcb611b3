"""Adds tokens to the tokenizer files of a model of Hugging Face's transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jax_transformer.data.tokenizers.hugging_face_files import SETTINGS, Files, Json, content_of, json_in
from jax_transformer.data.tokenizers.special_tokens import ALL_NAMES
from jax_transformer.runtime.limits import TOKEN_IDS

PIPELINE, LIST, SENTENCEPIECE, ADDED = "tokenizer.json", "vocab.json", "sentencepiece.bpe.model", "added_tokens_decoder"
LISTS_OF_SPECIALS = ("extra_special_tokens", "additional_special_tokens")


def add_to_files(files: Files, config: Json, tokens: Sequence[str], tags: Sequence[str]) -> dict[str, bytes]:
    """Returns the files with more tokens, which get the next ids in this order: tokens, then tags.

    | files | tokens | tags |
    |---|---|---|
    | tokenizer.json | in its added_tokens | in its added_tokens, as special tokens |
    | Marian's vocab.json | | in the list: codes such as >>deu<< |
    | M2M-100's vocab.json | | in added_tokens_decoder of tokenizer_config.json |

    Args:
      files: the files' content by name.
      config: the model's config.json.
      tokens: texts that become one token wherever they occur.
      tags: special tokens, such as the codes of languages, which no text matches.

    Raises:
      ValueError: a token that is empty, repeated or known already; a tag with spaces; files that can't have them.
    """
    _check_names(tokens, tags)
    if PIPELINE in files:
        return _with_settings({**files, PIPELINE: _in_pipeline(json_in(files, PIPELINE), tokens, tags)}, tags)
    kind = config.get("model_type")
    if kind not in ("marian", "m2m_100") or LIST not in files:
        raise ValueError(
            "expected a tokenizer.json, or the files of Marian or M2M-100, to add tokens to; received "
            f"{', '.join(files)}. Load the tokenizer with transformers, and save it with a tokenizer.json."
        )
    if tokens:
        raise ValueError(
            f"expected tags alone, since a tokenizer of {kind} cuts text by its sentencepiece model; received the "
            f"token {tokens[0]!r}"
        )
    return _in_codes(files, tags) if kind == "marian" else _in_settings(files, tags)


def _check_names(tokens: Sequence[str], tags: Sequence[str]) -> None:
    for name in tags:
        if name.split() != [name]:
            raise ValueError(f"expected tags of one word, such as xho_Latn; received {name!r}")
    for number, name in enumerate([*tokens, *tags]):
        if not name.strip() or name in ALL_NAMES:
            raise ValueError(f"expected texts that aren't a special token's; received {name!r}")
        if name in [*tokens, *tags][:number]:
            raise ValueError(f"expected each token once; received {name!r} twice")


def _check_new(names: Sequence[str], ids: Mapping[str, int]) -> None:
    for name in names:
        if name in ids:
            raise ValueError(
                f"expected tokens that the vocabulary lacks; received {name!r}, which has the id {ids[name]}"
            )
    TOKEN_IDS.check(1 + max(ids.values(), default=-1) + len(names), "tokens")


def _in_pipeline(content: dict[str, Any], tokens: Sequence[str], tags: Sequence[str]) -> bytes:
    vocabulary = content["model"]["vocab"]
    listed = isinstance(vocabulary, list)
    ids = {entry: index for index, (entry, _) in enumerate(vocabulary)} if listed else dict(vocabulary)
    added = list(content.get("added_tokens", []))
    ids |= {token["content"]: token["id"] for token in added}
    _check_new([*tokens, *tags], ids)
    first, plain = 1 + max(ids.values(), default=-1), {"single_word": False, "lstrip": False, "rstrip": False}
    more = [
        {"id": first + number, "content": name, **plain, "normalized": name not in tags, "special": name in tags}
        for number, name in enumerate([*tokens, *tags])
    ]
    return _dumped(content | {"added_tokens": [*added, *more]})


def _with_settings(files: dict[str, bytes], tags: Sequence[str]) -> dict[str, bytes]:
    """Returns the files with the tokens that tokenizer.json has now in the lists of the settings, where there are such
    lists."""
    added = json_in(files, PIPELINE)["added_tokens"]
    for name in (SETTINGS, "special_tokens_map.json"):
        if name not in files:
            continue
        settings = json_in(files, name)
        for key in LISTS_OF_SPECIALS:
            if isinstance(settings.get(key), list):
                settings[key] = [*settings[key], *tags]
        if ADDED in settings:
            settings[ADDED] |= {
                str(token["id"]): {field: value for field, value in token.items() if field != "id"} for token in added
            }
        files[name] = _dumped(settings)
    return files


def _in_codes(files: Files, tags: Sequence[str]) -> dict[str, bytes]:
    for tag in tags:
        if not (tag.startswith(">>") and tag.endswith("<<")):
            raise ValueError(f"expected a code such as >>{tag.strip('<>')}<<, as Marian's tags are; received {tag!r}")
    ids = json_in(files, LIST)
    _check_new(tags, ids)
    first = 1 + max(ids.values())
    return {**files, LIST: _dumped(ids | {tag: first + number for number, tag in enumerate(tags)})}


def _in_settings(files: Files, tags: Sequence[str]) -> dict[str, bytes]:
    from jax_transformer.data.tokenizers.hugging_face_lists import languages_of

    settings = json_in(files, SETTINGS) if SETTINGS in files else {}
    ids = json_in(files, LIST)
    ids |= {name: len(ids) + number for number, name in enumerate(languages_of(settings))}
    ids |= {content_of(token): int(index) for index, token in settings.get(ADDED, {}).items()}
    _check_new(tags, ids)
    first = 1 + max(ids.values())
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    more = {str(first + number): {"content": tag, **flags} for number, tag in enumerate(tags)}
    settings[ADDED] = settings.get(ADDED, {}) | more
    for key in LISTS_OF_SPECIALS:
        if isinstance(settings.get(key), list):
            settings[key] = [*settings[key], *tags]
    return {**files, SETTINGS: _dumped(settings)}


def _dumped(content: Any) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode()
