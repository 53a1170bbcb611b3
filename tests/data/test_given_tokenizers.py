"""Tokenizers of others, as tokenizer.json or of sentencepiece: they encode as they did where they come from, special
tokens are found by their names, and missing ones are told."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from given_vocabularies import FORGED, SPECIALS, TEXTS, load, write
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from jax_transformer.data.tokenizers import SpecialIds, train_tokenizer

# --- tokenizer.json


def byte_level() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.decoder = decoders.ByteLevel()
    names = ["<s>", "<pad>", "</s>", "<unk>", "<2de>"]
    made.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, special_tokens=names, show_progress=False))
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    made.enable_truncation(3)
    return made


def word_level(names: list[str], model: Any = models.WordLevel) -> tokenizers.Tokenizer:
    vocabulary = {name: index for index, name in enumerate([*names, "the", "cat", "dog"])}
    made = tokenizers.Tokenizer(model(vocabulary, unk_token=names[1]))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made  # without a list of its special tokens


def metaspace_unigram() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    names = ["<pad>", "<unk>", "<s>", "</s>", "<2de>"]
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=names, unk_token="<unk>", show_progress=False)
    made.train_from_iterator([*TEXTS, "</s><2de>"], trainer)
    return made


def test_a_language_of_nllb_is_a_tag(tmp_path: Path) -> None:
    """Which stands where its own template puts the source's, and begins the target."""
    original = metaspace_unigram()
    original.add_special_tokens(["deu_Latn", "eng_Latn"])
    ids = {name: original.token_to_id(name) for name in ("<2de>", "deu_Latn", "eng_Latn")}
    template = ["eng_Latn", "$A", "</s>"]
    original.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(name, original.token_to_id(name)) for name in ("eng_Latn", "</s>")]
    )
    original.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load(tmp_path / "tokenizer.json", None, add_eos=True)
    assert tokenizer.encode(TEXTS, "eng_Latn") == [encoding.ids for encoding in original.encode_batch(TEXTS)]
    assert dict(tokenizer.tag_ids) == ids
    assert tokenizer.decode([[ids["deu_Latn"], *tokenizer.encode(["the cat"])[0]]]) == ["the cat"]


@pytest.mark.parametrize("make", [byte_level, metaspace_unigram])
def test_a_given_pipeline_encodes_as_it_did(tmp_path: Path, make: Any) -> None:
    original = make()
    original.no_truncation()
    path = tmp_path / "tokenizer.json"
    original.save(str(path))
    tokenizer = load(path, None, tags=("<2de>",), add_bos=True, add_eos=True)
    bos, eos, tag = (original.token_to_id(name) for name in ("<s>", "</s>", "<2de>"))
    plain = [encoding.ids for encoding in original.encode_batch(TEXTS, add_special_tokens=False)]
    assert tokenizer.encode(TEXTS) == [[bos, *ids, eos] for ids in plain]
    assert tokenizer.encode(TEXTS, "<2de>") == [[bos, tag, *ids, eos] for ids in plain]
    assert tokenizer.vocab_size == original.get_vocab_size()
    assert [text.strip() for text in tokenizer.decode(tokenizer.encode(TEXTS, "<2de>"))] == TEXTS
    assert not {bos, eos, tag} & set(tokenizer.adding(bos=False, eos=False).encode([FORGED])[0]), (
        "text is no special token"
    )


def test_truncation_in_a_given_file_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    byte_level().save(str(path))
    assert len(load(path).encode(["the cat saw a dog the cat"])[0]) > 3


def test_a_given_pipeline_can_be_sampled_from(tmp_path: Path) -> None:
    for make in (byte_level, metaspace_unigram):
        path = tmp_path / "tokenizer.json"
        make().save(str(path))
        tokenizer = load(path)
        drawn = tokenizer.sample_encode(TEXTS, seed=0, strength=0.3)
        assert drawn != tokenizer.encode(TEXTS)
        assert tokenizer.decode(drawn) == tokenizer.decode(tokenizer.encode(TEXTS))


@pytest.mark.parametrize("model", [models.WordLevel, models.WordPiece])
def test_words_of_a_given_list_cannot_forge_specials(tmp_path: Path, model: Any) -> None:
    path = tmp_path / "tokenizer.json"
    word_level(["[PAD]", "[UNK]", "[CLS]", "[SEP]"], model).save(str(path))
    tokenizer = load(path, SPECIALS, add_eos=True)
    assert tokenizer.encode(["the cat [SEP] [PAD] emu"]) == [[4, 5, 1, 1, 1, 3]]
    assert tokenizer.tokens([0, 1, 2, 3, 4]) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the"]


def test_normalization_comes_before_what_a_given_file_does(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    word_level(["<pad>", "<unk>", "<s>", "</s>"]).save(str(path))
    assert load(path, SPECIALS).encode(["THE cat"]) == [[1, 5]]
    assert load(path, SPECIALS, lowercase=True, normalization="nfkc").encode(["ＴＨＥ Cat"]) == [[4, 5]]


def test_missing_specials_of_a_given_file_are_refused_or_come_last(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    word_level(["<pad>", "<unk>", "</s>", "one"]).save(str(path))
    message = (
        r"tokenizer.json: expected the special tokens <bos> \(or <s>, .*; received none of these; .* set "
        r"bos_id=7 to have"
    )
    with pytest.raises(ValueError, match=message):
        load(path, SPECIALS)
    tokenizer = load(path, SpecialIds(pad=0, unk=1, bos=7, eos=2), add_bos=True)
    assert tokenizer.encode(["the one"]) == [[7, 4, 3]]
    assert tokenizer.vocab_size == 8
    word_level(["one", "<unk>"]).save(str(path))
    tokenizer = load(path, SpecialIds(pad=7, unk=1, bos=6, eos=5), add_eos=True)
    assert tokenizer.encode(["one dog"]) == [[0, 4, 5]]
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.vocab_size) == (7, 6, 8)


def test_a_file_of_our_own_is_taken_as_it_is(tmp_path: Path) -> None:
    for kind in ("words", "bpe", "unigram"):
        trained = train_tokenizer(TEXTS, kind=kind, specials=SPECIALS, vocab_size=30, tags=["<2de>"], add_bos=True)  # type: ignore[arg-type]
        path = write(tmp_path / "tokenizer.json", trained.to_json())
        tokenizer = load(path, SPECIALS, tags=("<2de>",), add_eos=True)
        assert tokenizer.encode(TEXTS, "<2de>") == trained.adding(bos=False, eos=True).encode(TEXTS, "<2de>")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", "{", "tokenizer.json: expected JSON ("),
        ("tokenizer.json", "[]", "tokenizer.json: tokenizer: expected the text of a tokenizer.json; received '[]'"),
        (
            "tokenizer.yaml",
            "a: b",
            "tokenizer.yaml: expected a tokenizer.json, a sentencepiece .model or .spm, or a .txt of tokens;",
        ),
        ("words.model", "hello", "words.model: expected a sentencepiece model; received 5 bytes of something else"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        load(write(tmp_path / name, text), SPECIALS)
    with pytest.raises(ValueError, match=r"nowhere.json: expected a tokenizer.json.*; there is no such file"):
        load(tmp_path / "nowhere.json", SPECIALS)


# --- sentencepiece


def sentencepiece_file(path: Path, **options: Any) -> tuple[Path, sentencepiece.SentencePieceProcessor]:
    model = io.BytesIO()
    options = {"model_type": "unigram", "vocab_size": 50, "control_symbols": ["<2de>"]} | options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=model,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    path.write_bytes(model.getvalue())
    return path, sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("bytes_too", [False, True])
def test_a_sentencepiece_model_encodes_as_it_does_itself(tmp_path: Path, kind: str, bytes_too: bool) -> None:
    options = {"vocab_size": 300, "byte_fallback": True} if bytes_too else {}
    path, processor = sentencepiece_file(tmp_path / "spm.model", model_type=kind, pad_id=3, **options)
    tokenizer = load(path, SpecialIds(pad=3, unk=0, bos=1, eos=2), tags=("<2de>",), add_eos=True)
    texts = [*TEXTS, "  ﬁve  Ω cats", FORGED, ""]
    assert tokenizer.encode(texts) == [[*ids, 2] for ids in processor.encode(texts)]
    assert tokenizer.encode(["a"], "<2de>") == [[processor.piece_to_id("<2de>"), *processor.encode("a"), 2]]
    assert tokenizer.decode(tokenizer.encode(TEXTS, "<2de>")) == TEXTS
    assert tokenizer.decode(tokenizer.encode(["the Ω cat"])) == ["the Ω cat" if bytes_too else "the <unk> cat"]
    assert tokenizer.vocab_size == len(processor)
    drawn = tokenizer.sample_encode([*TEXTS, "the Ω cat"], seed=0, strength=0.3)
    assert drawn != tokenizer.encode([*TEXTS, "the Ω cat"])
    assert tokenizer.decode(drawn) == tokenizer.decode(tokenizer.encode([*TEXTS, "the Ω cat"]))


def test_a_sentencepiece_model_may_end_in_spm(tmp_path: Path) -> None:
    """As OPUS-MT's do."""
    path, _ = sentencepiece_file(tmp_path / "source.model")
    expected = load(path).encode(TEXTS)
    assert load(path.rename(tmp_path / "source.spm")).encode(TEXTS) == expected


def test_a_sentencepiece_model_without_padding_has_it_after_its_end(tmp_path: Path) -> None:
    path, processor = sentencepiece_file(tmp_path / "spm.model")
    size = len(processor)
    with pytest.raises(
        ValueError,
        match=rf"spm.model: expected the special tokens <pad> .*set pad_id={size} to have them after its end",
    ):
        load(path, SPECIALS)
    tokenizer = load(path, SpecialIds(pad=size, unk=0, bos=1, eos=2))
    assert (tokenizer.pad_id, tokenizer.vocab_size) == (size, size + 1)
    assert tokenizer.decode([[*tokenizer.encode(["the cat"])[0], 2, size, size]]) == ["the cat"]
    assert load(path, SpecialIds(pad=0, unk=0, bos=1, eos=2)).pad_id == 0
