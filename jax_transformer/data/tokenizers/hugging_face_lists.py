"""Reads tokenizers of transformers that are a list of pieces with a sentencepiece model or merges, or bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from jax_transformer.data.tokenizers.byte_tokens import BYTES, ByteBackend
from jax_transformer.data.tokenizers.hugging_face_files import (
    FAIRSEQ_SPECIALS,
    SETTINGS,
    Files,
    Json,
    Pair,
    both,
    content_of,
    ending_in_eos,
    ending_in_tag,
    file_in,
    json_in,
)
from jax_transformer.data.tokenizers.merge_lists import MergeListBackend
from jax_transformer.data.tokenizers.piece_lists import PieceListBackend
from jax_transformer.data.tokenizers.sentencepiece_model import pieces_of, read_sentencepiece
from jax_transformer.data.tokenizers.special_tokens import UNUSED, shown_name, unused_entries
from jax_transformer.data.tokenizers.tokenizer import Tokenizer
from jax_transformer.runtime.limits import TOKEN_IDS

FAIRSEQ_LANGUAGES = {
    "m2m100": (
        "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht "
        "hu hy id ig ilo is it "
        "ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl "
        "so sq sr ss su sv sw "
        "ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
    ),
    "wmt21": "en ha is ja cs ru zh de",
}
"""The languages of M2M-100 and the WMT21 models, in the order of their ids, which follow those of vocab.json."""
PLBART_LANGUAGES = {
    "base": "__java__ __python__ __en_XX__",
    "multi": "__java__ __python__ __en_XX__ __javascript__ __php__ __ruby__ __go__",
}
"""The languages of PLBART, after the pieces of its sentencepiece model."""
INDIC_TAG = re.compile("[a-z]{3}_[A-Z][a-z]{3}")
"""A language and its script, before IndicTrans2's sources."""
SMALL_NAMES = {"unk_token": "__unk__", "bos_token": "__start__", "eos_token": "__end__", "pad_token": "__null__"}
"""Names of Blenderbot Small's special tokens."""


def marian(files: Files, settings: Json) -> Pair:
    is_shared = not settings.get("separate_vocabs")
    lists = {"source": "vocab.json", "target": "vocab.json" if is_shared else "target_vocab.json"}

    def backend(side: str) -> PieceListBackend:
        entries = _entries(files, lists[side], settings if is_shared else {})
        codes = {piece: index for index, piece in enumerate(entries) if piece.startswith(">>") and piece.endswith("<<")}
        specials = _named(entries, lists[side], "<unk>", "</s>", "<pad>") | codes
        return PieceListBackend(file_in(files, f"{side}.spm"), entries, specials, takes_codes=True)

    return ending_in_eos(backend("source")), Tokenizer(backend("target"), add_bos=False, add_eos=False)


def m2m_100(files: Files, settings: Json) -> Pair:
    languages = languages_of(settings)
    model = file_in(files, "sentencepiece.bpe.model")
    added = settings.get("added_tokens_decoder", {})
    known = json_in(files, "vocab.json").keys() | {*languages}
    more = [content_of(added[index]) for index in sorted(added, key=int)]
    languages += [token for token in more if token not in known]  # added by `add_to_files`
    entries = _entries(files, "vocab.json", settings, more=languages)
    specials = _named(entries, "vocab.json", *FAIRSEQ_SPECIALS, *languages)
    return both(ending_in_eos(PieceListBackend(model, entries, specials, takes_codes=False)))


def languages_of(settings: Json) -> list[str]:
    """Returns the tags of an M2M-100 tokenizer, in the order of their ids, which follow those of vocab.json. Raises
    ValueError for an unknown list."""
    codes = settings.get("language_codes", "m2m100")
    if codes not in FAIRSEQ_LANGUAGES:
        raise ValueError(f"{SETTINGS}: language_codes must be one of {', '.join(FAIRSEQ_LANGUAGES)}; received {codes}")
    return [f"__{code}__" for code in FAIRSEQ_LANGUAGES[codes].split()]


def plbart(files: Files, settings: Json) -> Pair:
    codes = settings.get("language_codes", "base")
    if codes not in PLBART_LANGUAGES:
        raise ValueError(f"{SETTINGS}: language_codes must be one of {', '.join(PLBART_LANGUAGES)}; received {codes}")
    model = file_in(files, "sentencepiece.bpe.model")
    read_sentencepiece(model)
    languages = PLBART_LANGUAGES[codes].split()
    more = [*languages, "<mask>"] if codes == "base" else languages
    entries = [*FAIRSEQ_SPECIALS, *(piece.text for piece in pieces_of(model)[3:]), *more]
    specials = _named(entries, "sentencepiece.bpe.model", *FAIRSEQ_SPECIALS, *more)
    return both(ending_in_tag(PieceListBackend(model, entries, specials, takes_codes=False)))


def indictrans(files: Files, settings: Json) -> Pair:
    """Reads IndicTrans2's tokenizers: two lists, the source's with tags, and rules for the languages of tags."""

    def backend(name: str) -> PieceListBackend:
        file = f"dict.{name}.json"
        entries = _entries(files, file, {})
        tags = [entry for entry in entries if INDIC_TAG.fullmatch(entry)]
        specials = _named(entries, file, *FAIRSEQ_SPECIALS, *tags)
        return PieceListBackend(
            file_in(files, f"model.{name}"), entries, specials, takes_codes=False, languages="indictrans"
        )

    return ending_in_eos(backend("SRC")), Tokenizer(backend("TGT"), add_bos=False, add_eos=False)


def fsmt(files: Files, settings: Json) -> Pair:
    """Reads FSMT's tokenizers: each side has its own vocabulary and its language's rules. (transformers encodes targets
    with the source's.)"""
    languages = settings.get("langs") or ()
    if len(languages) != 2:
        raise ValueError(f"{SETTINGS}: langs must be two languages; received {json.dumps(languages)}")
    lowercase = bool(settings.get("do_lower_case"))

    def backend(name: str, language: str) -> MergeListBackend:
        entries = _entries(files, name, {})
        rules = {"kind": "moses", "language": language, "lowercase": lowercase}
        return MergeListBackend(rules, _merges(files), entries, _named(entries, name, *FAIRSEQ_SPECIALS))

    source, target = map(backend, ("vocab-src.json", "vocab-tgt.json"), languages)
    return ending_in_eos(source), Tokenizer(target, add_bos=False, add_eos=False)


def blenderbot_small(files: Files, settings: Json) -> Pair:
    entries = _entries(files, "vocab.json", {})
    specials = _named(entries, "vocab.json", *SMALL_NAMES.values())
    source = MergeListBackend({"kind": "conversation"}, _merges(files, first=1), entries, specials)
    return both(Tokenizer(source, add_bos=False, add_eos=False))


def _merges(files: Files, first: int = 0) -> list[list[str]]:
    """Returns the pairs in the lines of merges.txt, from line `first` on."""
    lines = file_in(files, "merges.txt").decode("utf-8").split("\n")[first:-1]
    return [line.split()[:2] for line in lines if len(line.split()) > 1]


def byt5(files: Files, settings: Json) -> Pair:
    extra = settings.get("extra_ids") or 125
    TOKEN_IDS.check(extra, f"{SETTINGS}: extra_ids")
    names = ["<pad>", "</s>", "<unk>"]
    specials = {name: index for index, name in enumerate(names)}
    specials |= {f"<extra_id_{i}>": len(names) + BYTES + i for i in range(extra)}
    return both(ending_in_eos(ByteBackend(specials, len(names))))


def _entries(files: Files, name: str, settings: Json, more: Sequence[str] = ()) -> list[str]:
    """Returns the piece of each id, followed by `more`. Raises ValueError if the files add other tokens, or give two
    tokens one id."""
    ids: dict[str, int] = json_in(files, name)
    ids |= {piece: len(ids) + i for i, piece in enumerate(more)}
    by_id = {index: piece for piece, index in ids.items()}
    if len(by_id) < len(ids) or min(by_id) < 0:
        raise ValueError(f"{name}: expected an id of its own for each piece; received {len(by_id)} for {len(ids)}")
    added = {content_of(token): int(index) for index, token in settings.get("added_tokens_decoder", {}).items()}
    added |= json_in(files, "added_tokens.json") if "added_tokens.json" in files else {}
    unlisted = [token for token, index in added.items() if ids.get(token) != index]
    if unlisted:
        raise ValueError(
            f"{SETTINGS}, added_tokens.json: expected tokens of {name}; received {', '.join(unlisted[:10])}"
        )
    size = max(by_id) + 1
    TOKEN_IDS.check(size, name)
    by_id |= {index: entry for entry, index in unused_entries({*range(size)} - by_id.keys()).items()}
    return [by_id[index] for index in range(size)]


def _named(entries: list[str], file: str, *names: str) -> dict[str, int]:
    """Returns the entries with these names, and those of ids without a token. Raises ValueError if a name is
    missing."""
    missing = [name for name in names if name not in entries]
    if missing:
        raise ValueError(
            f"{file}: expected the special tokens {', '.join(names)}; received a list without {', '.join(missing)}"
        )
    return {
        entry: index for index, entry in enumerate(entries) if entry in names or UNUSED.fullmatch(shown_name(entry))
    }
