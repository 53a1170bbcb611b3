"""Builds tokenizers of transformers that are pipelines of the library `tokenizers`."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

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
from jax_transformer.data.tokenizers.load import with_marked_specials
from jax_transformer.data.tokenizers.pipelines import PipelineBackend, read_pipeline
from jax_transformer.data.tokenizers.sentencepiece_model import character_map_of, pieces_of, read_sentencepiece
from jax_transformer.data.tokenizers.special_tokens import BOS, EOS, PLACEHOLDERS, SPACE_MARK, find_specials
from jax_transformer.data.tokenizers.tokenizer import Tokenizer
from jax_transformer.runtime.limits import TOKEN_IDS

MBART_LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
MBART_50_LANGUAGES = (
    f"{MBART_LANGUAGES} af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF "
    "pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
"""The languages of mBART and mBART-50, after the pieces of their sentencepiece models."""
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
WORDS = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]}
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ONE_SPACE = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}


def t5(files: Files, settings: Json) -> Pair:
    if "tokenizer.json" in files:
        given = json_in(files, "tokenizer.json")
        vocabulary, added, normalizers = given["model"]["vocab"], given["added_tokens"], _character_maps(given)
    else:
        model = file_in(files, "spiece.model", "tokenizer.json or spiece.model")
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
    return both(ending_in_eos(_pipeline(content, added, [piece for piece, _ in vocabulary], settings)))


def mbart(files: Files, settings: Json) -> Pair:
    """Builds mBART's tokenizer, whose class has no character map."""
    vocabulary, added, _ = _fairseq_unigram(files, MBART_LANGUAGES.split())
    content = {"model": _unigram(vocabulary, 3), "normalizer": None, "pre_tokenizer": WORDS, "decoder": METASPACE}
    return both(ending_in_tag(_pipeline(content, added, [piece for piece, _ in vocabulary], settings)))


def mbart_50(files: Files, settings: Json) -> Pair:
    vocabulary, added, maps = _fairseq_unigram(files, MBART_50_LANGUAGES.split())
    content = {
        "model": _unigram(vocabulary, 3),
        "normalizer": {"type": "Sequence", "normalizers": [*maps, ONE_SPACE]},
        "pre_tokenizer": METASPACE,
        "decoder": METASPACE,
    }
    return both(ending_in_eos(_pipeline(content, added, [piece for piece, _ in vocabulary], settings)))


def _fairseq_unigram(
    files: Files, languages: Sequence[str]
) -> tuple[list[Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the vocabulary, added tokens and character map of a tokenizer.json or a sentencepiece model, whose pieces
    the languages follow."""
    if "tokenizer.json" in files:
        given = json_in(files, "tokenizer.json")
        return given["model"]["vocab"], given["added_tokens"], _character_maps(given)
    model = file_in(files, "sentencepiece.bpe.model", "tokenizer.json or sentencepiece.bpe.model")
    read_sentencepiece(model)
    own = [[piece.text, piece.score] for piece in pieces_of(model)[3:]]
    vocabulary = [*([name, 0.0] for name in FAIRSEQ_SPECIALS), *own, *([name, 0.0] for name in (*languages, "<mask>"))]
    named = {*FAIRSEQ_SPECIALS, *languages, "<mask>"}
    added = [_added(index, piece) for index, (piece, _) in enumerate(vocabulary) if piece in named]
    return vocabulary, added, _map_in(model)


def pegasus(files: Files, settings: Json) -> Pair:
    if "tokenizer.json" in files:
        given = json_in(files, "tokenizer.json")
        vocabulary, added, maps = given["model"]["vocab"], given["added_tokens"], _character_maps(given)
    else:
        model = file_in(files, "spiece.model", "tokenizer.json or spiece.model")
        read_sentencepiece(model)
        offset = settings.get("offset", 103)
        TOKEN_IDS.check(offset, f"{SETTINGS}: offset")
        own = [[piece.text, piece.score] for piece in pieces_of(model)]
        placeholders = ["<mask_1>", "<mask_2>", *(f"<unk_{i}>" for i in range(2, offset))]
        vocabulary = [*own[:2], *([name, 0.0] for name in placeholders), *own[2:]]
        named = {"<pad>", "</s>", "<unk>", *placeholders}
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
    return both(ending_in_eos(_pipeline(content, added, entries, settings)))


def nllb(files: Files, settings: Json) -> Pair:
    given = json_in(files, "tokenizer.json")
    maps = _character_maps(given)
    content = {
        "model": _bpe(given["model"]["vocab"], given["model"]["merges"], unk_token="<unk>", fuse_unk=True),
        "normalizer": {"type": "Sequence", "normalizers": [*maps, ONE_SPACE]} if maps else None,
        "pre_tokenizer": METASPACE,
        "decoder": METASPACE,
    }
    return both(ending_in_eos(_pipeline(content, given["added_tokens"], given["model"]["vocab"], settings)))


def bart(files: Files, settings: Json) -> Pair:
    return both(Tokenizer(_byte_level(files, settings, prefix=False), add_bos=True, add_eos=True))


def bert(files: Files, settings: Json) -> Pair:
    if "tokenizer.json" in files:
        given = json_in(files, "tokenizer.json")
        vocabulary, added = given["model"]["vocab"], given["added_tokens"]
    else:
        text = file_in(files, "vocab.txt", "tokenizer.json or vocab.txt").decode()
        vocabulary, added = {entry: index for index, entry in enumerate(text.removesuffix("\n").split("\n"))}, []
        added = [_added(vocabulary[name], name) for name in BERT_SPECIALS if name in vocabulary]
    content = {
        "model": {
            "type": "WordPiece",
            "vocab": vocabulary,
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": bool(settings.get("tokenize_chinese_chars", True)),
            "strip_accents": settings.get("strip_accents"),
            "lowercase": bool(settings.get("do_lower_case", True)),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    }
    return both(Tokenizer(_pipeline(content, added, vocabulary, settings), add_bos=True, add_eos=True))


def gemma(files: Files, settings: Json) -> Pair:
    """Builds Gemma's tokenizer, whose BPE merges across words and falls back to bytes. tokenizer_config.json says what
    is added around a sentence or, if it doesn't, the post_processor of tokenizer.json does."""
    given = json_in(files, "tokenizer.json")
    vocabulary, added = given["model"]["vocab"], given["added_tokens"]
    content = {
        "version": "1.0",
        "model": _bpe(vocabulary, given["model"]["merges"], unk_token="<unk>", fuse_unk=True, byte_fallback=True),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK},
        "pre_tokenizer": None,  # transformers splits at spaces, of which the normalizer leaves none
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
    }
    around = {f"add_{name}": bool(settings.get(f"add_{name}_token", False)) for name in ("bos", "eos")}
    if any(f"{name}_token" in settings for name in around):
        return both(Tokenizer(_pipeline(content, added, vocabulary, settings), **around))
    content |= {"added_tokens": added, "post_processor": given.get("post_processor")}
    return both(with_own_template(content, settings, takes_tag=False))


def blenderbot(files: Files, settings: Json) -> Pair:
    """Builds Blenderbot's tokenizer. A tokenizer.json may lack the final </s>. (From vocab.json and merges.txt,
    transformers 5 adds no </s>, unlike its documentation and transformers 4.)"""
    post = json_in(files, "tokenizer.json").get("post_processor") if "tokenizer.json" in files else None
    backend = _byte_level(files, settings, prefix=True)
    return both(Tokenizer(backend, add_bos=False, add_eos="tokenizer.json" not in files or "</s>" in json.dumps(post)))


def _byte_level(files: Files, settings: Json, *, prefix: bool) -> PipelineBackend:
    """Builds the pipeline of a byte-level BPE. `prefix`: whether a space precedes sentences by default."""
    if "tokenizer.json" in files:
        given = json_in(files, "tokenizer.json")
        vocabulary, merges, added = given["model"]["vocab"], given["model"]["merges"], given["added_tokens"]
    else:
        text = file_in(files, "merges.txt", "tokenizer.json, or vocab.json and merges.txt").decode()
        merges = [line.removesuffix("\r") for line in text.split("\n") if line and not line.startswith("#version")]
        vocabulary, added = json_in(files, "vocab.json"), []
    prefix = bool(settings.get("add_prefix_space", prefix))
    bytes_level = {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": True}
    content = {
        "model": _bpe(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix=""),
        "normalizer": None,
        "pre_tokenizer": bytes_level,
        "decoder": bytes_level,
    }
    return _pipeline(content, added, vocabulary, settings)


def unchanged(files: Files, settings: Json) -> Pair:
    """Takes the pipeline of a tokenizer.json as it is. Raises ValueError if its post_processor adds more than <bos> and
    <eos>."""
    return both(with_own_template(json_in(files, "tokenizer.json"), settings, takes_tag=False))


def with_own_template(given: Json, settings: Json, *, takes_tag: bool) -> Tokenizer:
    """Returns the tokenizer of the pipeline in a tokenizer.json, which adds what its post_processor adds.

    Args:
      given: the content of the file.
      settings: the number of rows as vocab_size, and what tokenizer_config.json says of special tokens.
      takes_tag: accept a post_processor that also adds a tag, before the sentence or after <eos>. `encode` adds it only
        if it is named.

    Raises:
      ValueError: a post_processor that adds other tokens.
    """
    from tokenizers import Tokenizer as Pipeline

    vocabulary = given["model"]["vocab"]
    entries = vocabulary if isinstance(vocabulary, dict) else [piece for piece, _ in vocabulary]
    backend = _pipeline(given, given["added_tokens"], entries, settings)
    whole = Pipeline.from_str(json.dumps({**given, "padding": None, "truncation": None}))
    around = whole.encode("").ids
    found = find_specials(backend.specials)
    adds = {"add_bos": found.get(BOS) in around, "add_eos": found.get(EOS) in around}
    tokenizer = Tokenizer(backend, **adds)
    tag = next((tag for tag, index in tokenizer.tag_ids.items() if index in around), "") if takes_tag else ""
    if tag and adds["add_eos"] and around.index(tokenizer.tag_ids[tag]) > around.index(tokenizer.eos_id):
        tokenizer = Tokenizer(backend, **adds, tag_last=True)
    if any(tokenizer.encode([text], tag) != [whole.encode(text).ids] for text in ("", "a")):
        names = " ".join(str(whole.id_to_token(index)) for index in around)
        tags = " and a tag" if takes_tag else ""
        raise ValueError(
            f"tokenizer.json: expected a post_processor that adds <bos>, <eos> or both{tags}; received one that adds "
            f"{names}"
        )
    return tokenizer


def _pipeline(content: Json, added: list[dict[str, Any]], vocabulary: Any, settings: Json) -> PipelineBackend:
    """Builds the pipeline with its special tokens: those that it lists, those of the settings, and the placeholders of
    pretraining.

    Leaves out placeholders without a row in the embedding, such as <mask> in facebook/bart-large-cnn.
    """
    ids = vocabulary if isinstance(vocabulary, dict) else {entry: index for index, entry in enumerate(vocabulary)}
    more = [
        _added(int(index), content_of(token), **_flags(token))
        for index, token in settings.get("added_tokens_decoder", {}).items()
    ]
    listed = {token["content"]: token for token in [*added, *more]}
    placeholders = {entry for entry in {*ids, *listed} if PLACEHOLDERS.fullmatch(entry)}
    extra = [*(settings.get("extra_special_tokens") or []), *(settings.get("additional_special_tokens") or [])]
    for name in placeholders | {*map(content_of, extra)} & {*ids, *listed}:
        listed[name] = listed.get(name, _added(ids.get(name, -1), name)) | {"special": True}
    tokens = sorted(listed.values(), key=lambda token: token["id"])
    model = dict(content["model"])
    beyond = {token["content"] for token in tokens if token["id"] >= settings["vocab_size"]} & placeholders
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
    """Returns a step with the character map of a sentencepiece model, or no step."""
    character_map = character_map_of(model)
    return [_precompiled(base64.b64encode(character_map).decode("ascii"))] if character_map else []


def _character_maps(given: Json) -> list[dict[str, Any]]:
    """Returns a step with the first compiled character map among a tokenizer.json's normalizers, or no step."""
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
