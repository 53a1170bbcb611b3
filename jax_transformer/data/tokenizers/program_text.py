"""Builds the tokenizers of programs that keep a list of tokens for each side, and say elsewhere how text is split:
JoeyNMT, Sockeye, OpenNMT-py and fairseq. `config.program_text` describes both.
"""

from __future__ import annotations

import base64
import re
from typing import Any

from jax_transformer.config.program_text import TEXT, SideText, sides_of
from jax_transformer.data.tokenizers.hugging_face_files import Files, Pair, file_in, json_in
from jax_transformer.data.tokenizers.load import listed_backend
from jax_transformer.data.tokenizers.sentencepiece_model import pieces_of, read_sentencepiece
from jax_transformer.data.tokenizers.special_tokens import hidden_name
from jax_transformer.data.tokenizers.split_lists import SplitListBackend
from jax_transformer.data.tokenizers.tokenizer import Backend, Tokenizer
from jax_transformer.runtime.limits import TOKEN_IDS


def read_described(files: Files) -> Pair:
    """Builds the tokenizers of source and target from a model's tokenizer files.

    Raises:
      ValueError: a file is missing or malformed; a special token isn't in its list; a library that splits text isn't
        installed.
    """
    source, target = sides_of(json_in(files, TEXT))
    return _tokenizer(files, source), _tokenizer(files, target)


def _tokenizer(files: Files, side: SideText) -> Tokenizer:
    entries = _entries(files, side)
    ids = {entry: index for index, entry in enumerate(entries)}
    missing = [name for name in [*side.specials.values(), *side.tags] if name not in ids]
    if missing:
        raise ValueError(f"{side.list}: expected the special tokens {', '.join(missing)}; received a list without")
    specials = {ours: ids[theirs] for ours, theirs in side.specials.items()}
    tags = {hidden_name(tag): ids[tag] for tag in side.tags}
    by_id = {index: name for name, index in (specials | tags).items()}
    named = [by_id.get(index, entry) for index, entry in enumerate(entries)]
    backend: Backend
    if side.split == "spaces" and not side.normalize and not side.moses and len({*named}) == len(named):
        backend = listed_backend("whitespace", named, specials | tags, "none", lowercase=side.lowercase)
    else:
        backend = SplitListBackend(_rules(files, side), entries, specials | tags)
    return Tokenizer(backend, add_bos=False, add_eos=side.add_eos)


def _entries(files: Files, side: SideText) -> list[str]:
    """Returns the token of each id."""
    name = side.list
    if side.form == "model":
        read_sentencepiece(file_in(files, name))
        return [*(piece.text for piece in pieces_of(file_in(files, name))), *side.last]
    if side.form == "json":
        ids = json_in(files, name)
        if sorted(ids.values()) != list(range(len(ids))):
            raise ValueError(f"{name}: expected the ids 0 to {len(ids) - 1}, each once; received others")
        return sorted(ids, key=lambda entry: ids[entry])
    try:
        lines = file_in(files, name).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: expected UTF-8 text; received byte {error.object[error.start]:#x}") from None
    if lines[-1] == "":
        lines.pop()
    TOKEN_IDS.check(len(lines), name)
    if side.form == "counts":
        lines = [_counted(line, f"{name}:{number}") for number, line in enumerate(lines, 1)]
    return list(dict.fromkeys([*side.first, *lines, *side.last]))


def _counted(line: str, where: str) -> str:
    """Returns the token in a line of fairseq's dict.txt, `token count`, with a mark behind it where it is special."""
    token, _, count = line.removesuffix(" #fairseq:overwrite").rpartition(" ")
    if not token or not count.isdecimal():
        raise ValueError(f"{where}: expected a token and its count; received {line!r}")
    return token


def _rules(files: Files, side: SideText) -> dict[str, Any]:
    """Returns the rules of SplitListBackend."""
    rules = {name: getattr(side, name) for name in ("split", "lowercase", "normalize", "moses", "restricted")}
    if side.split == "sentencepiece":
        rules["model"] = base64.b64encode(file_in(files, side.model)).decode("ascii")
    if side.split == "merges":
        is_apart, merges = _merges(file_in(files, side.model), side.model)
        rules |= {"separator": side.separator, "merges": merges, "end_apart": is_apart}
    return rules


def _merges(data: bytes, name: str) -> tuple[bool, list[list[str]]]:
    """Reads subword-nmt's codes: whether the end of a word is a symbol of its own, as before version 0.2, and the
    pairs."""
    lines = data.decode("utf-8", "replace").split("\n")
    version = re.match(r"#version: (\d+)\.(\d+)", lines[0])
    pairs = [line.split(" ") for line in lines[bool(version) :] if line.strip("\r ")]
    odd = next((pair for pair in pairs if len(pair) < 2), None)
    if odd is not None:
        raise ValueError(f"{name}: expected subword-nmt's codes, two symbols a line; received {' '.join(odd)!r}")
    return version is None or (int(version[1]), int(version[2])) < (0, 2), [pair[:2] for pair in pairs]
