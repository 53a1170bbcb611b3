"""Which word each token belongs to, of every kind of tokenizer: from a text, and from ids."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Pipeline
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from jax_transformer.data.tokenizers import (
    Kind,
    SpecialIds,
    Tokenizer,
    Words,
    load_tokenizer,
    train_tokenizer,
    words_of_ids,
    words_of_text,
)
from jax_transformer.data.tokenizers.words import NO_WORD

SPECIALS = SpecialIds(pad=0, unk=1, bos=2, eos=3)
TEXT = "Well, the old-dog didn't (really)  see it!"
TEXTS = [TEXT, "the cat saw a dog .", "我们爱你。 ok", "dogs didn't see old cats"] * 5
WORDS = ["Well,", "the", "old-dog", "didn't", "(really)", "see", "it!"]


def trained(kind: Kind, **options: Any) -> Tokenizer:
    size = {"bpe": 70, "unigram": 60}.get(kind, 0)
    return train_tokenizer(
        TEXTS, kind=kind, specials=SPECIALS, vocab_size=size, language="en", tags=["<2de>"], add_eos=True, **options
    )


def given_file(path: Path, pipeline: Pipeline) -> Tokenizer:
    pipeline.save(str(path / "tokenizer.json"))
    return load_tokenizer(path / "tokenizer.json", kind="words", specials=None, add_bos=True, add_eos=True)


NAMES = ["<pad>", "<unk>", "<s>", "</s>", "<2de>"]


def byte_level(path: Path) -> Tokenizer:
    pipeline = Pipeline(models.BPE(unk_token="<unk>"))
    pipeline.pre_tokenizer, pipeline.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    pipeline.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=300, special_tokens=NAMES, initial_alphabet=alphabet, show_progress=False)
    )
    return given_file(path, pipeline)


def metaspace(path: Path) -> Tokenizer:
    pipeline = Pipeline(models.Unigram())
    pipeline.pre_tokenizer, pipeline.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    pipeline.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=70, special_tokens=NAMES, unk_token="<unk>", show_progress=False)
    )
    return given_file(path, pipeline)


def word_piece(path: Path) -> Tokenizer:
    """As BERT's: lowercased, punctuation apart."""
    pipeline = Pipeline(models.WordPiece(unk_token="<unk>"))
    pipeline.normalizer, pipeline.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    pipeline.decoder = decoders.WordPiece()
    pipeline.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=70, special_tokens=NAMES, show_progress=False)
    )
    return given_file(path, pipeline)


def sentencepiece_model(path: Path, **options: Any) -> Tokenizer:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=model,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        pad_id=3,
        control_symbols=["<2de>"],
        **{"vocab_size": 70} | options,
    )
    (path / "spm.model").write_bytes(model.getvalue())
    return load_tokenizer(path / "spm.model", kind="words", specials=None, add_bos=True, add_eos=True)


MAKERS: dict[str, Any] = {
    **{kind: lambda path, kind=kind: trained(kind) for kind in ("words", "whitespace", "characters", "bpe", "unigram")},
    "spacy": lambda path: pytest.importorskip("spacy") and trained("spacy"),
    "lowercased": lambda path: trained("bpe", lowercase=True, normalization="nfkc"),
    "byte_level": byte_level,
    "metaspace": metaspace,
    "word_piece": word_piece,
    "sentencepiece_unigram": sentencepiece_model,
    "sentencepiece_bpe": lambda path: sentencepiece_model(path, model_type="bpe", vocab_size=330, byte_fallback=True),
}


@pytest.fixture(params=MAKERS)
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    return MAKERS[request.param](tmp_path)


def made_of(words: Words, tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """What the tokens of each word give, without white space."""
    return [
        "".join(
            tokenizer.decode([[index for index, at in zip(ids, words.numbers, strict=True) if at == number]])[0].split()
        )
        for number in range(len(words.texts))
    ]


@pytest.mark.parametrize("tag", ["", "<2de>"])
def test_words_of_a_text_are_runs_between_white_space(tokenizer: Tokenizer, tag: str) -> None:
    ids = tokenizer.encode([TEXT], tag)[0]
    words = words_of_text(tokenizer, TEXT, tag)
    assert words.texts == WORDS
    assert [word.lower() for word in made_of(words, tokenizer, ids)] == [word.lower() for word in WORDS]
    belongs = [index not in tokenizer.hidden_ids for index in ids]
    assert [number != NO_WORD for number in words.numbers] == belongs, "all tokens but <bos>, <eos> and tags"
    assert list(words.numbers[belongs]) == sorted(words.numbers[belongs])


def test_words_of_ids_equal_the_words_of_their_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode([TEXT], "<2de>")[0]
    words = words_of_ids(tokenizer, ids)
    assert words.texts == tokenizer.decode([ids])[0].split()
    if words.texts == WORDS:  # else some are more: "old - dog", "( really )"
        assert list(words.numbers) == list(words_of_text(tokenizer, TEXT, "<2de>").numbers)
    assert made_of(words, tokenizer, ids) == ["".join(word.split()) for word in words.texts]
    assert [number != NO_WORD for number in words.numbers] == [index not in tokenizer.hidden_ids for index in ids]


@pytest.mark.parametrize("kind", ["characters", "bpe", "unigram", "sentencepiece_unigram", "sentencepiece_bpe"])
def test_where_no_spaces_are_written_tokens_are_words(tmp_path: Path, kind: str) -> None:
    tokenizer, text = MAKERS[kind](tmp_path), "我们爱你。 ok 爱"
    ids = tokenizer.encode([text])[0]
    for words in (words_of_text(tokenizer, text), words_of_ids(tokenizer, ids)):
        assert "".join(words.texts) == "我们爱你。ok爱"
        assert made_of(words, tokenizer, ids) == words.texts
        assert words.texts[-3:] == ["。", "ok", "爱"]
        assert words.texts[0] in ("我", "我们", "我们爱", "我们爱你")
        assert set(range(len(words.texts))) <= set(words.numbers)


def test_bytes_of_a_character_make_up_one_word(tmp_path: Path) -> None:
    tokenizer, text = byte_level(tmp_path), "龘靐 😀 ok"
    ids = tokenizer.encode([text])[0]
    for words in (words_of_text(tokenizer, text), words_of_ids(tokenizer, ids)):
        assert words.texts == ["龘", "靐", "😀", "ok"]
        assert list(words.numbers) == [NO_WORD, *[0] * 3, *[1] * 3, *[2] * 5, *[3] * (len(ids) - 13), NO_WORD]


TOKENIZERS = [trained("characters"), trained("bpe"), trained("whitespace")]


@given(st.text("adeog 我们爱☃.' \u00a0\n"))
def test_any_text_has_its_words(text: str) -> None:
    """Those of its ids are as many, where nothing is unknown; and each token's number is that of a word, or none."""
    for tokenizer in TOKENIZERS:
        ids = tokenizer.encode([text])[0]
        for words in (words_of_text(tokenizer, text), words_of_ids(tokenizer, ids)):
            assert len(words.numbers) == len(ids)
            assert all(NO_WORD <= number < len(words.texts) for number in words.numbers)
            assert not any(word.split() != [word] for word in words.texts)
        assert "".join(words_of_text(tokenizer, text).texts) == "".join(text.split())


def test_unknown_words_are_words() -> None:
    tokenizer = trained("whitespace")
    assert words_of_text(tokenizer, "the ☃ dog").numbers.tolist() == [0, 1, 2, NO_WORD]
    words = words_of_ids(tokenizer, [1, *tokenizer.encode(["dog"])[0]])
    assert words.texts == ["<unk>", "dog"]
    assert words.numbers.tolist() == [0, 1, NO_WORD]


def test_an_unknown_token_of_several_characters_is_one_word() -> None:
    """Its beginning has the same id as the whole."""
    words = words_of_text(trained("whitespace"), "the 你好 dog")
    assert words.texts == ["the", "你好", "dog"]
    assert words.numbers.tolist() == [0, 1, 2, NO_WORD]


def test_without_words_no_token_has_one() -> None:
    for tokenizer in TOKENIZERS:
        assert words_of_text(tokenizer, " ").texts == []
        assert set(words_of_text(tokenizer, " ").numbers) == {NO_WORD}
        assert words_of_ids(tokenizer, []).numbers.tolist() == []


def test_a_token_across_a_space_belongs_to_the_later_word(tmp_path: Path) -> None:
    tokenizer = sentencepiece_model(tmp_path, split_by_whitespace=False, vocab_size=110)
    text = "see old cats"
    tokens = tokenizer.tokens(tokenizer.encode([text])[0])
    (across,) = (i for i, token in enumerate(tokens) if "e▁o" in token)
    words = words_of_text(tokenizer, text)
    assert words.texts == ["see", "old", "cats"]
    assert words.numbers[across - 1 : across + 2].tolist() == [0, 1, 2]


def test_white_space_at_the_end_of_a_token_is_no_part_of_the_next_word(tmp_path: Path) -> None:
    tokenizer = sentencepiece_model(tmp_path, treat_whitespace_as_suffix=True)
    text = "dogs didn't see old cats"
    ids = tokenizer.encode([text])[0]
    assert any(token.endswith("▁") for token in tokenizer.tokens(ids)[:-3])
    for words in (words_of_text(tokenizer, text), words_of_ids(tokenizer, ids)):
        assert words.texts == text.split()
        assert made_of(words, tokenizer, ids) == words.texts
