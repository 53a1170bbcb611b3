"""The tokenizers of a model of Hugging Face's transformers, from its files, as transformers 5 makes them of these.

| class | files | source | target |
|---|---|---|---|
| MarianTokenizer | vocab.json, source.spm, target.spm; target_vocab.json if there are two vocabularies | … </s> | … |
| BartTokenizer, RobertaTokenizer | tokenizer.json, or vocab.json and merges.txt | <s> … </s> | … |
| BlenderbotTokenizer | the same | … </s> | … |
| BlenderbotSmallTokenizer | vocab.json, merges.txt | … | … |
| MBartTokenizer | tokenizer.json or sentencepiece.bpe.model | … </s> tag | … |
| PLBartTokenizer | sentencepiece.bpe.model | … </s> tag | … |
| MBart50Tokenizer | tokenizer.json or sentencepiece.bpe.model | tag … </s> | … |
| M2M100Tokenizer | vocab.json, sentencepiece.bpe.model | tag … </s> | … |
| NllbTokenizer | tokenizer.json | tag … </s> | … |
| FSMTTokenizer | vocab-src.json, vocab-tgt.json, merges.txt | … </s> | … |
| PegasusTokenizer, T5Tokenizer | tokenizer.json or spiece.model | … </s> | … |
| ByT5Tokenizer | | … </s> | … |
| TokenizersBackend, PreTrainedTokenizer | tokenizer.json | what it says | … |

What stands around targets is the business of training (`data.framing`) and decoding.

Of a tokenizer.json these classes read the vocabulary, its merges, its character map and its special tokens, and take
the rest from their own program; so it is here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax_transformer.data.tokenizers.byte_tokens import BYTES, ByteBackend
from jax_transformer.data.tokenizers.load import with_marked_specials
from jax_transformer.data.tokenizers.merge_lists import MergeListBackend
from jax_transformer.data.tokenizers.piece_lists import PieceListBackend
from jax_transformer.data.tokenizers.pipelines import PipelineBackend, read_pipeline
from jax_transformer.data.tokenizers.sentencepiece_model import character_map_of, pieces_of, read_sentencepiece
from jax_transformer.data.tokenizers.special_tokens import (
    BOS,
    EOS,
    OF_PRETRAINING,
    UNUSED,
    find_specials,
    shown_name,
    unused_entries,
)
from jax_transformer.data.tokenizers.tokenizer import Tokenizer
from jax_transformer.runtime.json_text import parse_json
from jax_transformer.runtime.limits import TOKEN_IDS

Json = Mapping[str, Any]
Files = Mapping[str, bytes]
Pair = tuple[Tokenizer, Tokenizer]
"""Of source and target."""

SETTINGS = "tokenizer_config.json"
CLASSES = {
    "marian": "MarianTokenizer",
    "bart": "BartTokenizer",
    "mvp": "RobertaTokenizer",
    "plbart": "PLBartTokenizer",
    "mbart": "MBartTokenizer",
    "blenderbot": "BlenderbotTokenizer",
    "blenderbot-small": "BlenderbotSmallTokenizer",
    "pegasus": "PegasusTokenizer",
    "fsmt": "FSMTTokenizer",
    "m2m_100": "M2M100Tokenizer",
    "t5": "T5Tokenizer",
    "mt5": "T5Tokenizer",
    "umt5": "TokenizersBackend",
}
"""A config.json's model_type → the class of its tokenizer, where none is named."""
NAMES = {
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
    "sep_token": "</s>",
    "cls_token": "<s>",
}
"""What the special tokens are called in these classes unless a setting says otherwise."""
SMALL_NAMES = {"unk_token": "__unk__", "bos_token": "__start__", "eos_token": "__end__", "pad_token": "__null__"}
"""The same in Blenderbot Small."""
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
MBART_LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
MBART_50_LANGUAGES = (
    f"{MBART_LANGUAGES} af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF "
    "pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
PLBART_LANGUAGES = {
    "base": "__java__ __python__ __en_XX__",
    "multi": "__java__ __python__ __en_XX__ __javascript__ __php__ __ruby__ __go__",
}
"""The languages of mBART, mBART-50 and PLBART, in the order of their ids, which come after those of the sentencepiece
model."""
OF_FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")
"""The first ids of fairseq's vocabularies, in place of sentencepiece's first three."""
"""The languages of M2M-100, and of the models of WMT21, in the order of their ids, which come after those of
vocab.json."""


def read_tokenizers(files: Files, config: Json) -> Pair:
    """Builds the tokenizers of source and target.

    Unlike in transformers, the name of a special token in a text is plain text, and decoding shows <unk>.

    Args:
      files: the files' content by name.
      config: the model's config.json.

    Raises:
      ValueError: a file is missing or malformed; a class, or a setting, whose tokenizer isn't built here.
    """
    settings = {"vocab_size": config.get("vocab_size")} | _settings(files)
    usual = CLASSES[config["model_type"]]
    named = str(settings.get("tokenizer_class") or config.get("tokenizer_class") or usual).removesuffix("Fast")
    name = usual if usual == "TokenizersBackend" else named
    if name not in _READERS:
        raise ValueError(f"{SETTINGS}: tokenizer_class must be one of {', '.join(_READERS)}; received {name}")
    _check(settings, SMALL_NAMES if name == "BlenderbotSmallTokenizer" else NAMES)
    try:
        return _READERS[name](files, settings)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{', '.join(files)}: expected the files of a {name}; received others ({error!r})") from None


def cleans_up(files: Files) -> bool:
    """Returns whether transformers takes spaces before punctuation out of what it decodes; here they stay."""
    return bool(_settings(files).get("clean_up_tokenization_spaces"))


def _settings(files: Files) -> dict[str, Any]:
    """Reads tokenizer_config.json, and special_tokens_map.json if the former lists no added tokens."""
    settings = _json(files, SETTINGS) if SETTINGS in files else {}
    is_older = "added_tokens_decoder" not in settings and "special_tokens_map.json" in files
    return settings | _json(files, "special_tokens_map.json") if is_older else settings


def _check(settings: Json, names: Mapping[str, str]) -> None:
    """Raises ValueError for settings that make another tokenizer of the same files. `names` are of special tokens."""
    only: dict[str, Any] = {"sp_model_kwargs": {}, "legacy_behaviour": False, "auto_map": None}
    for name, value in only.items():
        if settings.get(name) and settings[name] != value:
            raise ValueError(f"{SETTINGS}: {name} must be {json.dumps(value)}; received {json.dumps(settings[name])}")
    for name, value in names.items():
        received = _content(settings.get(name) or value)
        if received != value:
            raise ValueError(f"{SETTINGS}: {name} must be {value}; received {received}")


# --- sentencepiece models with lists of pieces


def _marian(files: Files, settings: Json) -> Pair:
    is_shared = not settings.get("separate_vocabs")
    lists = {"source": "vocab.json", "target": "vocab.json" if is_shared else "target_vocab.json"}

    def backend(side: str) -> PieceListBackend:
        entries = _entries(files, lists[side], settings if is_shared else {})
        codes = {piece: index for index, piece in enumerate(entries) if piece.startswith(">>") and piece.endswith("<<")}
        specials = _named(entries, lists[side], "<unk>", "</s>", "<pad>") | codes
        return PieceListBackend(_file(files, f"{side}.spm"), entries, specials, takes_codes=True)

    return _ending_in_eos(backend("source")), Tokenizer(backend("target"), add_bos=False, add_eos=False)


def _m2m_100(files: Files, settings: Json) -> Pair:
    codes = settings.get("language_codes", "m2m100")
    if codes not in FAIRSEQ_LANGUAGES:
        raise ValueError(f"{SETTINGS}: language_codes must be one of {', '.join(FAIRSEQ_LANGUAGES)}; received {codes}")
    model = _file(files, "sentencepiece.bpe.model")
    languages = [f"__{code}__" for code in FAIRSEQ_LANGUAGES[codes].split()]
    entries = _entries(files, "vocab.json", settings, more=languages)
    specials = _named(entries, "vocab.json", *OF_FAIRSEQ, *languages)
    return _both(_ending_in_eos(PieceListBackend(model, entries, specials, takes_codes=False)))


def _plbart(files: Files, settings: Json) -> Pair:
    codes = settings.get("language_codes", "base")
    if codes not in PLBART_LANGUAGES:
        raise ValueError(f"{SETTINGS}: language_codes must be one of {', '.join(PLBART_LANGUAGES)}; received {codes}")
    model = _file(files, "sentencepiece.bpe.model")
    read_sentencepiece(model)
    languages = PLBART_LANGUAGES[codes].split()
    more = [*languages, "<mask>"] if codes == "base" else languages
    entries = [*OF_FAIRSEQ, *(piece.text for piece in pieces_of(model)[3:]), *more]
    specials = _named(entries, "sentencepiece.bpe.model", *OF_FAIRSEQ, *more)
    return _both(_ending_in_tag(PieceListBackend(model, entries, specials, takes_codes=False)))


def _fsmt(files: Files, settings: Json) -> Pair:
    """Each side has its own vocabulary and its language's rules. (transformers encodes targets as if they were
    sources.)"""
    languages = settings.get("langs") or ()
    if len(languages) != 2:
        raise ValueError(f"{SETTINGS}: langs must be two languages; received {json.dumps(languages)}")
    lowercase = bool(settings.get("do_lower_case"))

    def backend(name: str, language: str) -> MergeListBackend:
        entries = _entries(files, name, {})
        rules = {"kind": "moses", "language": language, "lowercase": lowercase}
        return MergeListBackend(rules, _merges(files), entries, _named(entries, name, *OF_FAIRSEQ))

    source, target = map(backend, ("vocab-src.json", "vocab-tgt.json"), languages)
    return _ending_in_eos(source), Tokenizer(target, add_bos=False, add_eos=False)


def _blenderbot_small(files: Files, settings: Json) -> Pair:
    entries = _entries(files, "vocab.json", {})
    specials = _named(entries, "vocab.json", *SMALL_NAMES.values())
    source = MergeListBackend({"kind": "conversation"}, _merges(files, first=1), entries, specials)
    return _both(Tokenizer(source, add_bos=False, add_eos=False))


def _merges(files: Files, first: int = 0) -> list[list[str]]:
    """Returns the pairs in the lines of merges.txt, from line `first` on."""
    lines = _file(files, "merges.txt").decode("utf-8").split("\n")[first:-1]
    return [line.split()[:2] for line in lines if len(line.split()) > 1]


def _byt5(files: Files, settings: Json) -> Pair:
    extra = settings.get("extra_ids") or 125
    TOKEN_IDS.check(extra, f"{SETTINGS}: extra_ids")
    names = ["<pad>", "</s>", "<unk>"]
    specials = {name: index for index, name in enumerate(names)}
    specials |= {f"<extra_id_{i}>": len(names) + BYTES + i for i in range(extra)}
    return _both(_ending_in_eos(ByteBackend(specials, len(names))))


def _entries(files: Files, name: str, settings: Json, more: Sequence[str] = ()) -> list[str]:
    """Returns the piece of each id, followed by `more`. Raises ValueError for files that add other tokens, and for two
    tokens with one id."""
    ids: dict[str, int] = _json(files, name)
    ids |= {piece: len(ids) + i for i, piece in enumerate(more)}
    by_id = {index: piece for piece, index in ids.items()}
    if len(by_id) < len(ids) or min(by_id) < 0:
        raise ValueError(f"{name}: expected an id of its own for each piece; received {len(by_id)} for {len(ids)}")
    added = {_content(token): int(index) for index, token in settings.get("added_tokens_decoder", {}).items()}
    added |= _json(files, "added_tokens.json") if "added_tokens.json" in files else {}
    others = [token for token, index in added.items() if ids.get(token) != index]
    if others:
        raise ValueError(f"{SETTINGS}, added_tokens.json: expected tokens of {name}; received {', '.join(others[:10])}")
    size = max(by_id) + 1
    TOKEN_IDS.check(size, name)
    gaps = {index: entry for entry, index in unused_entries({*range(size)} - by_id.keys()).items()}
    return [(by_id | gaps)[index] for index in range(size)]


def _named(entries: list[str], file: str, *names: str) -> dict[str, int]:
    """Returns the special tokens of these names among the entries, and ids without a token. Raises ValueError if a
    special token is missing."""
    missing = [name for name in names if name not in entries]
    if missing:
        raise ValueError(
            f"{file}: expected the special tokens {', '.join(names)}; received a list without {', '.join(missing)}"
        )
    return {
        entry: index for index, entry in enumerate(entries) if entry in names or UNUSED.fullmatch(shown_name(entry))
    }


# --- pipelines of the library tokenizers

METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
WORDS = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]}
ONE_SPACE = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}


def _t5(files: Files, settings: Json) -> Pair:
    if "tokenizer.json" in files:
        given = _json(files, "tokenizer.json")
        vocabulary, added, normalizers = given["model"]["vocab"], given["added_tokens"], _character_maps(given)
    else:
        model = _file(files, "spiece.model", "tokenizer.json or spiece.model")
        read_sentencepiece(model)
        pieces = pieces_of(model)
        extra = settings.get("extra_ids", 100)
        TOKEN_IDS.check(extra, f"{SETTINGS}: extra_ids")
        sentinels = [f"<extra_id_{i}>" for i in reversed(range(extra))]
        vocabulary = [*([piece.text, piece.score] for piece in pieces), *([name, 0.0] for name in sentinels)]
        added = [
            _added(i, piece.text, special=piece.kind == 3) for i, piece in enumerate(pieces) if piece.kind in (3, 4)
        ]
        normalizers = _map_in(model)
    content = {
        "model": _unigram(vocabulary, 2),
        "normalizer": {"type": "Sequence", "normalizers": normalizers} if normalizers else None,
        "pre_tokenizer": WORDS,
        "decoder": METASPACE,
    }
    return _both(_ending_in_eos(_pipeline(content, added, [piece for piece, _ in vocabulary], settings)))


def _mbart(files: Files, settings: Json) -> Pair:
    """Its class has no character map."""
    vocabulary, added, _ = _fairseq_unigram(files, MBART_LANGUAGES.split())
    content = {"model": _unigram(vocabulary, 3), "normalizer": None, "pre_tokenizer": WORDS, "decoder": METASPACE}
    return _both(_ending_in_tag(_pipeline(content, added, [piece for piece, _ in vocabulary], settings)))


def _mbart_50(files: Files, settings: Json) -> Pair:
    vocabulary, added, maps = _fairseq_unigram(files, MBART_50_LANGUAGES.split())
    content = {
        "model": _unigram(vocabulary, 3),
        "normalizer": {"type": "Sequence", "normalizers": [*maps, ONE_SPACE]},
        "pre_tokenizer": METASPACE,
        "decoder": METASPACE,
    }
    return _both(_ending_in_eos(_pipeline(content, added, [piece for piece, _ in vocabulary], settings)))


def _fairseq_unigram(
    files: Files, languages: Sequence[str]
) -> tuple[list[Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the vocabulary of a tokenizer.json, its added tokens and its character map; or those of a sentencepiece
    model, with the languages after its pieces."""
    if "tokenizer.json" in files:
        given = _json(files, "tokenizer.json")
        return given["model"]["vocab"], given["added_tokens"], _character_maps(given)
    model = _file(files, "sentencepiece.bpe.model", "tokenizer.json or sentencepiece.bpe.model")
    read_sentencepiece(model)
    own = [[piece.text, piece.score] for piece in pieces_of(model)[3:]]
    vocabulary = [*([name, 0.0] for name in OF_FAIRSEQ), *own, *([name, 0.0] for name in (*languages, "<mask>"))]
    named = {*OF_FAIRSEQ, *languages, "<mask>"}
    added = [_added(index, piece) for index, (piece, _) in enumerate(vocabulary) if piece in named]
    return vocabulary, added, _map_in(model)


def _pegasus(files: Files, settings: Json) -> Pair:
    if "tokenizer.json" in files:
        given = _json(files, "tokenizer.json")
        vocabulary, added, maps = given["model"]["vocab"], given["added_tokens"], _character_maps(given)
    else:
        model = _file(files, "spiece.model", "tokenizer.json or spiece.model")
        read_sentencepiece(model)
        offset = settings.get("offset", 103)
        TOKEN_IDS.check(offset, f"{SETTINGS}: offset")
        own = [[piece.text, piece.score] for piece in pieces_of(model)]
        of_pretraining = ["<mask_1>", "<mask_2>", *(f"<unk_{i}>" for i in range(2, offset))]
        vocabulary = [*own[:2], *([name, 0.0] for name in of_pretraining), *own[2:]]
        named = {"<pad>", "</s>", "<unk>", *of_pretraining}
        added = [_added(index, piece) for index, (piece, _) in enumerate(vocabulary) if piece in named]
        maps = _map_in(model)
    entries = [piece for piece, _ in vocabulary]
    line_ends = {"type": "Replace", "pattern": {"Regex": "\\n"}, "content": " "}
    content = {
        "model": _unigram(vocabulary, entries.index("<unk>")),
        "normalizer": {"type": "Sequence", "normalizers": [*(maps or [line_ends]), ONE_SPACE]},
        "pre_tokenizer": METASPACE,
        "decoder": METASPACE,
    }
    return _both(_ending_in_eos(_pipeline(content, added, entries, settings)))


def _nllb(files: Files, settings: Json) -> Pair:
    given = _json(files, "tokenizer.json")
    maps = _character_maps(given)
    content = {
        "model": _bpe(given["model"]["vocab"], given["model"]["merges"], unk_token="<unk>", fuse_unk=True),
        "normalizer": {"type": "Sequence", "normalizers": [*maps, ONE_SPACE]} if maps else None,
        "pre_tokenizer": METASPACE,
        "decoder": METASPACE,
    }
    return _both(_ending_in_eos(_pipeline(content, given["added_tokens"], given["model"]["vocab"], settings)))


def _bart(files: Files, settings: Json) -> Pair:
    return _both(Tokenizer(_byte_level(files, settings, prefix=False), add_bos=True, add_eos=True))


def _blenderbot(files: Files, settings: Json) -> Pair:
    """A tokenizer.json may do without </s>. (Of the other two files, transformers 5 adds none; its documentation and
    transformers 4 do.)"""
    post = _json(files, "tokenizer.json").get("post_processor") if "tokenizer.json" in files else None
    backend = _byte_level(files, settings, prefix=True)
    return _both(Tokenizer(backend, add_bos=False, add_eos="tokenizer.json" not in files or "</s>" in json.dumps(post)))


def _byte_level(files: Files, settings: Json, *, prefix: bool) -> PipelineBackend:
    """Returns the pipeline of a BPE of bytes. `prefix` says whether a space precedes sentences if no setting does."""
    if "tokenizer.json" in files:
        given = _json(files, "tokenizer.json")
        vocabulary, merges, added = given["model"]["vocab"], given["model"]["merges"], given["added_tokens"]
    else:
        text = _file(files, "merges.txt", "tokenizer.json, or vocab.json and merges.txt").decode()
        merges = [line.removesuffix("\r") for line in text.split("\n") if line and not line.startswith("#version")]
        vocabulary, added = _json(files, "vocab.json"), []
    prefix = bool(settings.get("add_prefix_space", prefix))
    bytes_level = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": True}
    content = {
        "model": _bpe(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix=""),
        "normalizer": None,
        "pre_tokenizer": bytes_level,
        "decoder": bytes_level,
    }
    return _pipeline(content, added, vocabulary, settings)


def _as_it_is(files: Files, settings: Json) -> Pair:
    from tokenizers import Tokenizer as Pipeline

    given = _json(files, "tokenizer.json")
    vocabulary = given["model"]["vocab"]
    entries = vocabulary if isinstance(vocabulary, dict) else [piece for piece, _ in vocabulary]
    backend = _pipeline(given, given["added_tokens"], entries, settings)
    whole = Pipeline.from_str(json.dumps(given | {"padding": None}))
    around = whole.encode("").ids
    found = find_specials(backend.specials)
    tokenizer = Tokenizer(backend, add_bos=found.get(BOS) in around, add_eos=found.get(EOS) in around)
    if any(tokenizer.encode([text]) != [whole.encode(text).ids] for text in ("", "a")):
        names = " ".join(str(whole.id_to_token(index)) for index in around)
        raise ValueError(
            f"tokenizer.json: expected a post_processor that adds <bos>, <eos> or both; received one that adds {names}"
        )
    return _both(tokenizer)


def _pipeline(content: Json, added: list[dict[str, Any]], vocabulary: Any, settings: Json) -> PipelineBackend:
    """Returns the pipeline with its special tokens: those that it lists, those of the settings, and those of
    pretraining.

    It leaves out tokens of pretraining without a row in the embedding, such as <mask> in facebook/bart-large-cnn.
    """
    ids = vocabulary if isinstance(vocabulary, dict) else {entry: index for index, entry in enumerate(vocabulary)}
    more = [
        _added(int(index), _content(token), **_flags(token))
        for index, token in settings.get("added_tokens_decoder", {}).items()
    ]
    listed = {token["content"]: token for token in [*added, *more]}
    of_pretraining = {entry for entry in {*ids, *listed} if OF_PRETRAINING.fullmatch(entry)}
    extra = [*(settings.get("extra_special_tokens") or []), *(settings.get("additional_special_tokens") or [])]
    for name in of_pretraining | {*map(_content, extra)} & {*ids, *listed}:
        listed[name] = listed.get(name, _added(ids.get(name, -1), name)) | {"special": True}
    tokens = sorted(listed.values(), key=lambda token: token["id"])
    model = dict(content["model"])
    beyond = {token["content"] for token in tokens if token["id"] >= settings["vocab_size"]} & of_pretraining
    if isinstance(vocabulary, dict):
        model["vocab"] = {entry: index for entry, index in vocabulary.items() if entry not in beyond}
    tokens = [token for token in tokens if token["content"] not in beyond]
    whole = {
        **content,
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "post_processor": None,
        "added_tokens": tokens,
        "model": model,
    }
    return read_pipeline(with_marked_specials(whole))[0]


def _bpe(vocabulary: Json, merges: list[Any], **options: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return usual | options | {"vocab": vocabulary, "merges": merges}


def _unigram(vocabulary: list[Any], unk_id: int) -> dict[str, Any]:
    return {"type": "Unigram", "unk_id": unk_id, "vocab": vocabulary, "byte_fallback": False}


def _map_in(model: bytes) -> list[dict[str, Any]]:
    """Returns the character map of a sentencepiece model, or nothing."""
    character_map = character_map_of(model)
    return [_precompiled(base64.b64encode(character_map).decode("ascii"))] if character_map else []


def _character_maps(given: Json) -> list[dict[str, Any]]:
    """Returns the first compiled character map among a tokenizer.json's normalizers, or nothing."""
    normalizer = given.get("normalizer") or {}
    steps = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    return [_precompiled(step["precompiled_charsmap"]) for step in steps if step.get("type") == "Precompiled"][:1]


def _precompiled(character_map: str) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": character_map}


def _added(index: int, content: str, **flags: bool) -> dict[str, Any]:
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": index, "content": content} | usual | flags


def _flags(token: Any) -> dict[str, bool]:
    return {name: value for name, value in token.items() if isinstance(value, bool)}


# --- any


def _ending_in_eos(backend: Any) -> Tokenizer:
    return Tokenizer(backend, add_bos=False, add_eos=True)


def _ending_in_tag(backend: Any) -> Tokenizer:
    return Tokenizer(backend, add_bos=False, add_eos=True, tag_last=True)


def _both(source: Tokenizer) -> Pair:
    """Returns both tokenizers of one vocabulary; the batch adds the tokens around a target."""
    return source, source.adding(bos=False, eos=False)


def _content(token: Any) -> str:
    """Returns the text of a token, or of its description."""
    return str(token["content"] if isinstance(token, dict) else token)


def _file(files: Files, name: str, wanted: str = "") -> bytes:
    if name not in files:
        raise ValueError(f"expected {wanted or name}; received {', '.join(files)}")
    return files[name]


def _json(files: Files, name: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = parse_json(_file(files, name))
    except ValueError as error:
        raise ValueError(f"{name}: expected JSON ({error})" if name in files else str(error)) from None
    if not isinstance(content, dict):
        raise ValueError(f"{name}: expected a JSON object; received {type(content).__name__}")
    return content


_READERS: dict[str, Callable[[Files, Json], Pair]] = {
    "MarianTokenizer": _marian,
    "M2M100Tokenizer": _m2m_100,
    "NllbTokenizer": _nllb,
    "BartTokenizer": _bart,
    "RobertaTokenizer": _bart,
    "MvpTokenizer": _bart,
    "BlenderbotTokenizer": _blenderbot,
    "MBartTokenizer": _mbart,
    "MBart50Tokenizer": _mbart_50,
    "PLBartTokenizer": _plbart,
    "PegasusTokenizer": _pegasus,
    "FSMTTokenizer": _fsmt,
    "BlenderbotSmallTokenizer": _blenderbot_small,
    "ByT5Tokenizer": _byt5,
    "T5Tokenizer": _t5,
    "TokenizersBackend": _as_it_is,
    "PreTrainedTokenizer": _as_it_is,
}
