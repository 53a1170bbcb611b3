"""Training tokenizers: on any amount of text, the same everywhere, and unigram as sentencepiece does it."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_transformer.data.tokenizers import Kind, SpecialIds, Tokenizer, train_tokenizer, training
from jax_transformer.data.tokenizers.pipelines import make_pipeline
from jax_transformer.data.tokenizers.training import SENTENCEPIECE_RESERVED, train_sentencepiece
from jax_transformer.data.tokenizers.word_counts import count_words, split_words, thinned_counts

SPECIALS = SpecialIds(pad=0, unk=1, bos=2, eos=3)
MULTI30K = Path(os.environ.get("JAX_TRANSFORMER_SHARED", "/nowhere")) / "data" / "multi30k"
NEEDS_MULTI30K = pytest.mark.skipif(
    not MULTI30K.is_dir(), reason="JAX_TRANSFORMER_SHARED names no folder with data/multi30k"
)
SUBWORDS: tuple[Kind, ...] = ("bpe", "unigram")


def lines(name: str) -> list[str]:
    with gzip.open(MULTI30K / f"{name}.gz", "rt", encoding="utf-8") as file:
        return file.read().removesuffix("\n").split("\n")


def generated(count: int) -> Iterator[str]:
    """Sentences of a few words each, of which new ones come all the time."""
    for k in range(count):
        yield f"the cat{k} saw {k % 7} dogs, and the dog{k * k % 1009} saw it."


# --- one pass, nothing kept


@pytest.mark.parametrize("kind", ["words", "whitespace", "characters", *SUBWORDS])
def test_an_iterator_gives_what_a_list_gives(kind: Kind) -> None:
    sentences = list(generated(200))
    size = 120 if kind in SUBWORDS else 0
    expected = train_tokenizer(sentences, kind=kind, specials=SPECIALS, vocab_size=size)
    assert (
        train_tokenizer(iter(sentences), kind=kind, specials=SPECIALS, vocab_size=size).to_json() == expected.to_json()
    )


@pytest.mark.parametrize("kind", SUBWORDS)
def test_the_order_of_the_sentences_makes_no_difference(kind: Kind) -> None:
    sentences = list(generated(200))
    one, other = (
        train_tokenizer(s, kind=kind, specials=SPECIALS, vocab_size=120).to_json() for s in (sentences, sentences[::-1])
    )
    assert one == other


def test_sentences_are_not_kept() -> None:
    """Ten times the text, of the same words, takes no more memory."""
    pipeline = make_pipeline("bpe", "none", False)

    def peak(repeats: int) -> int:
        tracemalloc.start()
        count_words((sentence for _ in range(repeats) for sentence in generated(500)), pipeline, 10_000)
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return taken

    assert peak(20) < 1.5 * peak(2)


@given(st.lists(st.text("ab. ▁'1é\u0301\u2028", max_size=12)), st.sampled_from(["none", "nfc", "nfkc"]), st.booleans())
@settings(deadline=None)
def test_counts_equal_the_pipeline(sentences: list[str], normalization: Any, lowercase: bool) -> None:
    pipeline = make_pipeline("bpe", normalization, lowercase)
    expected = Counter(word for sentence in sentences for word in split_words(sentence, pipeline))
    assert count_words(sentences, pipeline, 1000) == (expected, set())


def test_more_words_than_are_kept_are_thinned() -> None:
    """Frequent ones keep their counts, rare ones are a sample of the whole text, and no character is lost."""
    pipeline = make_pipeline("bpe", "none", False)
    rare = ["".join("abcdefghij"[int(digit)] for digit in f"{k:04}") for k in range(5000)]
    sentences = [f"the {word} the" for word in rare] + ["x 你 y"] + ["the end"] * 3000
    kept, given_up = count_words(sentences, pipeline, 500)
    assert 100 < len(kept) <= 500
    assert (kept["▁the"], kept["▁end"]) == (13_000, 3000)
    assert {*"▁theabcdefghijx你ynd"} == {character for word in kept for character in word} | given_up
    places = [k for k, word in enumerate(rare) if f"▁{word}" in kept]
    assert [sum(start <= k < start + 1000 for k in places) > 10 for start in range(0, 5000, 1000)] == [True] * 5


def test_thinned_counts_are_in_proportion() -> None:
    counts = {"the": 9000, "cat": 30} | {f"word{k}": 1 for k in range(1000)}
    assert thinned_counts(counts, 100_000) == counts
    thinned = thinned_counts(counts, 3500)  # a tenth
    assert thinned["the"] == 900
    assert thinned["cat"] == 3
    assert 60 < len(thinned) - 2 < 140
    assert set(thinned.values()) == {900, 3, 1}


def test_characters_of_words_given_up_are_still_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MOST_WORDS", dict.fromkeys(SUBWORDS, 300))
    monkeypatch.setattr(training, "MOST_CHARACTERS", 500)
    sentences = [*generated(1000), *(f"{chr(0x4E00 + k)}ab" for k in range(200))]
    for kind in SUBWORDS:
        tokenizer = train_tokenizer(sentences, kind=kind, specials=SPECIALS, vocab_size=500)
        assert tokenizer.decode(tokenizer.encode(sentences)) == sentences


# --- unigram


@pytest.mark.parametrize("text", ["a\tb", "▅ ab", "a\nb\r", "\u2028", "\0 a", "\x1f\x1e", "ab<unk>"])
def test_unigram_learns_what_sentencepiece_has_other_uses_for(text: str) -> None:
    tokenizer = train_tokenizer([text, *generated(200)], kind="unigram", specials=SPECIALS, vocab_size=60)
    assert tokenizer.decode(tokenizer.encode([text])) == [text]
    assert tokenizer.vocab_size == 60


def test_unigram_without_rare_pieces() -> None:
    sentences = list(generated(300))

    def rarest_use(least: int) -> int:
        tokenizer = train_tokenizer(sentences, kind="unigram", specials=SPECIALS, vocab_size=200, min_frequency=least)
        assert tokenizer.decode(tokenizer.encode(sentences)) == sentences
        counts = Counter(index for ids in tokenizer.encode(sentences) for index in ids)
        longer = [index for index in range(4, tokenizer.vocab_size) if len(tokenizer.tokens([index])[0]) > 1]
        return min(counts[index] for index in longer)

    assert rarest_use(1) < 20 <= rarest_use(20)


@NEEDS_MULTI30K
@pytest.mark.parametrize("language", ["de", "en"])
def test_unigram_encodes_as_sentencepiece_does(language: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sentence of Multi30k, with the model that sentencepiece trained, in its own program and in ours."""
    trained: list[bytes] = []

    def kept(*arguments: Any) -> bytes:
        trained.append(train_sentencepiece(*arguments))
        return trained[-1]

    monkeypatch.setattr(training, "train_sentencepiece", kept)
    sentences = lines(f"train.{language}")
    tokenizer = train_tokenizer(sentences, kind="unigram", specials=SPECIALS, vocab_size=4000)
    assert tokenizer.decode(tokenizer.encode(sentences)) == sentences
    texts = [
        text for text in [*sentences, *lines(f"test_2016_flickr.{language}")] if not set(text) & SENTENCEPIECE_RESERVED
    ]
    assert len(texts) > 29_900
    processor = sentencepiece.SentencePieceProcessor(model_proto=trained[0])
    theirs = processor.encode(["▁" + text.replace(" ", "▁") for text in texts])
    our_ids = {token: index for index, token in enumerate(tokenizer.tokens(range(tokenizer.vocab_size)))}
    renumbered = [our_ids[processor.id_to_piece(index)] for index in range(len(processor))]
    pairs = [
        (ours, [renumbered[index] for index in ids]) for ours, ids in zip(tokenizer.encode(texts), theirs, strict=True)
    ]
    differing = [(first, second) for first, second in pairs if first != second]
    assert all(sorted(first) == sorted(second) for first, second in differing), (
        "only pieces in another order, equally likely: 00 0 or 0 00"
    )
    assert len(differing) <= 2, "which the rounding decides, in sentencepiece by all that stands before"


# --- the same everywhere


SCRIPT = """
import gzip, hashlib, sys
from jax_transformer.data.tokenizers import SpecialIds, train_tokenizer
with gzip.open(sys.argv[1], "rt", encoding="utf-8") as file:
    sentences = file.read().split("\\n")[:4000]
for kind in ("words", "whitespace", "characters", "bpe", "unigram"):
    options = dict(vocab_size=1500) if kind in ("bpe", "unigram") else {}
    specials, tag = SpecialIds(0, 1, 2, 3), "<2de>"
    tokenizer = train_tokenizer(sentences, kind=kind, specials=specials, normalization="nfkc", tags=[tag], **options)
    drawn = tokenizer.sample_encode(sentences, seed=(1, 2), strength=0.1) if options else []
    print(kind, *(hashlib.sha256(text.encode()).hexdigest() for text in (tokenizer.to_json(), str(drawn))))
"""


@NEEDS_MULTI30K
def test_real_text_gives_the_same_bytes_in_every_process() -> None:
    outputs = []
    for seed, threads in (("1", "1"), ("2", "4")):
        environment = os.environ | {
            "PYTHONPATH": ":".join(sys.path),
            "PYTHONHASHSEED": seed,
            "RAYON_NUM_THREADS": threads,
        }
        command = [sys.executable, "-c", SCRIPT, str(MULTI30K / "train.de.gz")]
        outputs.append(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)
    assert len(outputs[0].splitlines()) == 5
    assert outputs[0] == outputs[1]


# --- spaCy


@pytest.fixture
def german() -> Tokenizer:
    pytest.importorskip("spacy", reason="spaCy isn't installed")
    return train_tokenizer(
        ["Der Hund, z.B. ein Dackel, bellt (laut).", "Das geht's!  Ja?"],
        kind="spacy",
        specials=SPECIALS,
        language="de",
        tags=["<2en>"],
    )


def test_spacy_splits_by_the_rules_of_its_language(german: Tokenizer) -> None:
    ids = german.encode(["Der Dackel, z.B., bellt."])[0]
    assert german.tokens(ids) == ["Der", "Dackel", ",", "z.B.", ",", "bellt", "."]
    assert german.decode([ids]) == ["Der Dackel, z.B., bellt."]
    assert german.decode(german.encode(["Ein  Hund (laut)"])) == ["<unk> Hund (laut)"]
    english = train_tokenizer(
        ["I don't know, it's z.B. here (and there)."], kind="spacy", specials=SPECIALS, language="en"
    )
    assert english.tokens(english.encode(["don't it's"])[0]) == ["do", "n't", "it", "'s"]
    assert english.decode(english.encode(["I don't know, it's here (and there)."])) == [
        "I don't know, it's here (and there)."
    ]


def test_spacy_orders_and_bounds_its_vocabulary() -> None:
    pytest.importorskip("spacy", reason="spaCy isn't installed")
    sentences = ["b b b a a c", "c d"]
    whole = train_tokenizer(sentences, kind="spacy", specials=SPECIALS, language="en")
    assert whole.tokens(range(whole.vocab_size)) == ["<pad>", "<unk>", "<bos>", "<eos>", "b", "a", "c", "d"]
    assert train_tokenizer(sentences, kind="spacy", specials=SPECIALS, language="en", vocab_size=6).tokens([4, 5]) == [
        "b",
        "a",
    ]
    assert train_tokenizer(sentences, kind="spacy", specials=SPECIALS, language="en", min_frequency=2).vocab_size == 7


def test_spacy_of_another_version_gives_a_warning(german: Tokenizer) -> None:
    text = re.sub('"spacy_version": "[^"]*"', '"spacy_version": "2.1.9"', german.to_json())
    older = Tokenizer.from_json(text)
    assert older.decode([[4, 5]]) == german.decode([[4, 5]]), "without loading spaCy"
    with pytest.warns(
        UserWarning, match=r"tokenizer: expected spaCy 2\.1, with which this vocabulary was made; received 3\."
    ):
        older.encode(["Der Hund"])
    assert older.to_json() == text, "the version stays that of the vocabulary"
    patched = re.sub(r'"spacy_version": "(\d+\.\d+)[^"]*"', r'"spacy_version": "\1.999"', german.to_json())
    assert Tokenizer.from_json(patched).encode(["Der Hund"]) == german.encode(["Der Hund"]), (
        "a patch release makes no difference"
    )


def test_spacy_without_a_language_it_knows_is_refused() -> None:
    pytest.importorskip("spacy", reason="spaCy isn't installed")
    for language, message in (
        ("", "expected a code such as 'en'"),
        ("qq", "expected one whose rules spaCy has; received 'qq'"),
    ):
        with pytest.raises(ValueError, match=f"language: {message}"):
            train_tokenizer(["a b"], kind="spacy", specials=SPECIALS, language=language)


def test_missing_spacy_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax_transformer.data.tokenizers.spacy_rules import _load_spacy

    _load_spacy.cache_clear()
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(ImportError, match=r"spacy, which isn't installed: .*\[spacy\]"):
        train_tokenizer(["a b"], kind="spacy", specials=SPECIALS, language="en")


def test_a_file_of_spacy_decodes_without_spacy(monkeypatch: pytest.MonkeyPatch, german: Tokenizer) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    again = Tokenizer.from_json(german.to_json())
    assert again.decode([[4, 5, 3]]) == german.decode([[4, 5]])
