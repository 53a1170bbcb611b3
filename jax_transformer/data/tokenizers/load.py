"""Reads tokenizers of other programs: a tokenizer.json, a sentencepiece .model or .spm, or a .txt of tokens."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jax_transformer.buckets import local_file
from jax_transformer.data.tokenizers.pipelines import (
    Normalization,
    PipelineBackend,
    make_pipeline,
    normalizer_steps,
    read_pipeline,
)
from jax_transformer.data.tokenizers.special_tokens import (
    ALL_NAMES,
    BARE_NAMES,
    BOS,
    EOS,
    NAMES,
    PAD,
    ROLES,
    UNK,
    SpecialIds,
    check_tags,
    find_specials,
    hidden_name,
)
from jax_transformer.data.tokenizers.tokenizer import Backend, Tokenizer, read_backend
from jax_transformer.runtime.files import read_bytes
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.runtime.limits import TOKENIZER_BYTES

if TYPE_CHECKING:
    from jax_transformer.data.tokenizers.training import Kind

LISTABLE = ("words", "whitespace", "characters", "spacy")


def load_tokenizer(
    path: str | os.PathLike[str],
    *,
    kind: Kind,
    specials: SpecialIds | None,
    lowercase: bool = False,
    normalization: Normalization = "none",
    language: str = "",
    tags: Sequence[str] = (),
    add_bos: bool = False,
    add_eos: bool = False,
) -> Tokenizer:
    """Reads a tokenizer from a file. Every token keeps its id in the file.

    - tokenizer.json: any pipeline of the library `tokenizers`, except for the tokens that it adds around a sentence; or
      a file of `Tokenizer.to_json`.
    - .model or .spm: a sentencepiece model of any kind, which sentencepiece itself runs.
    - .txt: one token a line, whose id is the line's number, from 0; `kind` determines how to split text.

    Special tokens are recognised by common names: <pad> [PAD] <blank>, <unk> [UNK], <bos> <s> <sos> [CLS] <init>, <eos>
    </s> [SEP], …. They keep their ids in the file. A token of `specials` that the file lacks is added after the file's
    last token, if `specials` gives it that id. A file without <pad> also fits `specials` whose pad is unk. No token is
    ever moved to make room.

    Args:
      kind: how to split text for a .txt (words, whitespace, characters or spacy); the other files determine it.
      specials: the expected ids. If the file has different ones, these are used, with a warning. None: any.
      lowercase, normalization: applied to the text before the file's own steps.
      language: the code of the language, for the kind spacy.
      tags: special tokens of the file to use as tags. (It may have more.)
      add_bos, add_eos: whether `encode` puts <bos> before and <eos> after each sentence.

    Raises:
      ValueError: an unreadable, unknown or empty file; an empty or repeated line of a .txt, or one that isn't a single
        token (with its number); a missing tag; a missing special token that can't be added; a kind that needs more than
        a list of tokens.

    Example:
      >>> from pathlib import Path
      >>> _ = Path("words.txt").write_text("<pad>\\n<unk>\\n<bos>\\n<eos>\\nwho\\nsleeps\\n")
      >>> tokenizer = load_tokenizer("words.txt", kind="whitespace", specials=None)
      >>> tokenizer.encode(["who sleeps", "who knows"])
      [[4, 5], [4, 1]]
    """
    file = _local(path)
    tags = check_tags(tags)
    if file is None or not file.is_file():
        raise ValueError(
            f"{path}: expected a tokenizer.json, a sentencepiece .model or .spm, or a .txt of tokens; there is no such "
            "file"
        )
    try:
        if file.suffix == ".json":
            backend = _read_json(file, specials, normalization, lowercase)
        elif file.suffix in (".model", ".spm"):
            backend = _read_model(file, specials, normalization, lowercase)
        elif file.suffix == ".txt":
            backend = _read_list(file, kind, specials, normalization, lowercase, language, tags)
        else:
            raise ValueError(
                "expected a tokenizer.json, a sentencepiece .model or .spm, or a .txt of tokens; received a name "
                f"ending in {file.suffix!r}"
            )
        tokenizer = Tokenizer(backend, add_bos=add_bos, add_eos=add_eos)
    except ValueError as error:
        message = str(error)
        raise ValueError(message if message.startswith((f"{path}:", f"{file}:")) else f"{path}: {message}") from None
    missing = [tag for tag in tags if tag not in tokenizer.tags]
    if missing:
        known = (
            f"one of its special tokens ({', '.join(tokenizer.tags[:10])})"
            if tokenizer.tags
            else "none, for it has no such token"
        )
        raise ValueError(
            f"{path}: expected as a source_tag {known}; received {', '.join(missing)}; add it to the file, or take it "
            "out of the config"
        )
    if specials is not None:
        received = SpecialIds(pad=tokenizer.pad_id, unk=tokenizer.unk_id, bos=tokenizer.bos_id, eos=tokenizer.eos_id)
        if received != specials:
            warnings.warn(
                f"{path}: expected the special ids {specials.settings()}; received, and used, the file's: "
                f"{received.settings()}",
                stacklevel=2,
            )
    return tokenizer


# --- tokenizer.json


def _read_json(path: Path, specials: SpecialIds | None, normalization: Normalization, lowercase: bool) -> Backend:
    from tokenizers import normalizers

    text = _read_text(path)
    try:
        content = parse_json(text)
    except ValueError as error:
        raise ValueError(f"expected JSON ({error})") from None
    if isinstance(content, dict) and "format" in content:
        if normalization != "none" or lowercase:
            raise ValueError(
                "expected normalization and lowercase unset, since this file has its own; received other values"
            )
        return read_backend(text)[0]
    read_pipeline(text)  # gives a clear error for an invalid file
    backend, _ = read_pipeline(with_marked_specials(content))
    pipeline = backend.pipeline
    steps = normalizer_steps(normalization, lowercase)
    if steps:
        own = [pipeline.normalizer] if pipeline.normalizer is not None else []
        pipeline.normalizer = normalizers.Sequence([*steps, *own])
    extra = _missing_specials(backend.specials, backend.size, specials)
    pipeline.add_special_tokens([hidden_name(name) for name in extra])  # they get the next ids, in order
    return PipelineBackend(pipeline)


def with_marked_specials(content: dict) -> str:
    """Marks the special tokens of a tokenizer.json, and renames them so that no text matches.

    A model that looks up any part of a text (Unigram, WordLevel, WordPiece) has the special tokens' names in its
    vocabulary. A leading space keeps text from matching them.
    """
    model = dict(content["model"])
    listed = isinstance(model["vocab"], list)
    entries: list[str] = [entry for entry, _ in model["vocab"]] if listed else list(model["vocab"])
    ids = dict(zip(entries, range(len(entries)), strict=True)) if listed else model["vocab"]
    added = {token["content"]: dict(token) for token in content.get("added_tokens", [])}
    for name in ALL_NAMES:
        if name in ids and name not in added:  # some files don't list them
            added[name] = {
                "id": ids[name],
                "content": name,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
        if name in added:
            added[name]["special"] = True
    if listed or model.get("type") in ("WordLevel", "WordPiece"):
        hidden = {
            name: hidden_name(name) for name, token in added.items() if token["special"] and not name.startswith(" ")
        }
        if listed:
            model["vocab"] = [[hidden.get(entry, entry), score] for entry, score in model["vocab"]]
        else:
            model["vocab"] = {hidden.get(entry, entry): index for entry, index in ids.items()}
            model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
        added = {name: token | {"content": hidden.get(name, name)} for name, token in added.items()}
    tokens = sorted(added.values(), key=lambda token: token["id"])
    return json.dumps(content | {"model": model, "added_tokens": tokens}, ensure_ascii=False)


# --- .model


def _read_model(path: Path, specials: SpecialIds | None, normalization: Normalization, lowercase: bool) -> Backend:
    from jax_transformer.data.tokenizers.sentencepiece_model import SentencePieceBackend

    model = read_bytes(path, TOKENIZER_BYTES)
    backend = SentencePieceBackend(model, {}, normalization, lowercase)
    extra = _missing_specials(backend.specials, backend.size, specials)
    return SentencePieceBackend(model, extra, normalization, lowercase)


# --- .txt


def _read_list(
    path: Path,
    kind: str,
    specials: SpecialIds | None,
    normalization: Normalization,
    lowercase: bool,
    language: str,
    tags: Sequence[str],
) -> Backend:
    if kind not in LISTABLE:
        raise ValueError(
            f"expected the tokenizer {', '.join(LISTABLE)} with a list of tokens, which says nothing of merges; "
            f"received {kind!r}"
        )
    entries = _read_entries(path, kind)
    ids = {entry: index for index, entry in enumerate(entries)}
    for special, names in NAMES.items():
        several = [name for name in names if name in ids]
        if len(several) > 1:
            lines = " and ".join(f"{name!r} (line {ids[name] + 1})" for name in several)
            raise ValueError(f"expected one {special} token; received {lines}")
    marked = {name: index for name, index in ids.items() if name in ALL_NAMES}
    found = find_specials(marked)
    found |= {special: ids[name] for special, name in BARE_NAMES.items() if special not in found and name in ids}
    marked |= found
    found |= _missing_specials(marked, len(entries), specials)
    by_id = {index: name for name, index in found.items()} | {ids[tag]: hidden_name(tag) for tag in tags if tag in ids}
    size = max([len(entries), *(index + 1 for index in by_id)])
    named = [by_id.get(index, entries[index] if index < len(entries) else "") for index in range(size)]
    special_ids = {name: index for index, name in by_id.items()}
    if kind == "spacy":
        from jax_transformer.data.tokenizers.spacy_rules import SpacyBackend, SpacyRules

        return SpacyBackend(SpacyRules(language, normalization, lowercase), named, special_ids)
    return listed_backend(kind, named, special_ids, normalization, lowercase=lowercase)


def listed_backend(
    kind: str, entries: Sequence[str], special_ids: Mapping[str, int], normalization: Normalization, *, lowercase: bool
) -> Backend:
    """Returns the backend of a list of tokens.

    Args:
      kind: words, whitespace or characters.
      entries: the token of each id, special ones under the names of `special_ids`.
      special_ids: the tokens that no text matches, with their ids.
    """
    from tokenizers import models

    pipeline = make_pipeline(kind, normalization, lowercase)
    pipeline.model = models.WordLevel({name: index for index, name in enumerate(entries)}, unk_token=UNK)
    pipeline.add_special_tokens(sorted(special_ids, key=lambda name: special_ids[name]))
    return PipelineBackend(pipeline)


def _read_entries(path: Path, kind: str) -> list[str]:
    """Returns the tokens in the lines of a file; in a list of characters, white space is also a token."""
    entries = _read_text(path).removeprefix("\ufeff").split("\n")
    if entries[-1] == "":
        entries.pop()
    if not entries:
        raise ValueError("expected a token a line; received an empty file")
    lines: dict[str, int] = {}
    for number, line in enumerate(entries, 1):
        entry = line.removesuffix("\r")
        if entry in lines:
            raise ValueError(
                f"{path}:{number}: expected a token that isn't in a line before; received {entry!r} again, of line "
                f"{lines[entry]}"
            )
        if not entry or (kind != "characters" and entry.split() != [entry]):
            raise ValueError(f"{path}:{number}: expected one token, without spaces; received {line!r}")
        if kind == "characters" and len(entry) > 1 and entry.split() != [entry]:
            raise ValueError(f"{path}:{number}: expected one character, or a special token; received {line!r}")
        lines[entry] = number
    return list(lines)


# --- special tokens


def _missing_specials(entries: Mapping[str, int], size: int, wanted: SpecialIds | None) -> dict[str, int]:
    """Returns the wanted special tokens that a vocabulary of this size lacks, by id. Their ids in `wanted` must be the
    next free ones."""
    if wanted is None:
        return {}
    found = find_specials(entries)
    missing = [special for special in (PAD, UNK, BOS, EOS) if special not in found]
    if PAD in missing and wanted.pad == wanted.unk:
        missing.remove(PAD)  # <unk> is then the padding
    if not missing:
        return {}
    asked = {special: getattr(wanted, ROLES[special]) for special in missing}
    if sorted(asked.values()) != list(range(size, size + len(missing))):
        names = "; ".join(f"{special} (or {', '.join(NAMES[special][1:])})" for special in missing)
        free = ", ".join(f"{ROLES[special]}_id={index}" for index, special in enumerate(missing, size))
        raise ValueError(
            f"expected the special tokens {names}; received none of these; add them to the file, or set {free} to "
            "have them after its end"
        )
    return dict(sorted(asked.items(), key=lambda item: item[1]))


def _local(path: str | os.PathLike[str]) -> Path | None:
    """Returns the local path of a file; None if it is in a bucket that has no such file."""
    try:
        return local_file(path)
    except FileNotFoundError:
        return None


def _read_text(path: Path) -> str:
    data = read_bytes(path, TOKENIZER_BYTES)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: expected UTF-8 text; received byte {data[error.start]:#x}") from None
