"""Tokenizers: what comes back, which ids there are, and that text can't forge a special token."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from jax_transformer.data.tokenizers import Kind, SpecialIds, Tokenizer, train_tokenizer
from jax_transformer.data.tokenizers.tokenizer import read_backend

HAS_SPACY = importlib.util.find_spec("spacy") is not None
AVAILABLE: list[Kind] = [kind for kind in get_args(Kind) if kind != "spacy" or HAS_SPACY]
NEEDS_SPACY = pytest.mark.skipif(not HAS_SPACY, reason="spaCy isn't installed")
KINDS = [pytest.param(kind, marks=NEEDS_SPACY if kind == "spacy" else ()) for kind in get_args(Kind)]
SUBWORDS = ("bpe", "unigram")
SPECIALS = SpecialIds(pad=0, unk=1, bos=2, eos=3)
TORCHTEXT = SpecialIds(pad=1, unk=0, bos=2, eos=3)
SHARED_ID = SpecialIds(pad=0, unk=0, bos=1, eos=2)
ALPHABET = "abcdeé 你.,!?'’-()<>12\u2028\u00a0"
CORPUS = [ALPHABET, "the cat saw the dog .", "the dog saw a cat !", "bad cab", "a cat"] * 3
FORGED = "<eos> <bos> a <pad> x<eos>y <unk><unk>"


def trained(
    kind: Kind, sentences: list[str] = CORPUS, specials: SpecialIds = SPECIALS, **options: int | bool
) -> Tokenizer:
    vocab_size = int(options.pop("vocab_size", 60 if kind in SUBWORDS else 0))
    return train_tokenizer(sentences, kind=kind, specials=specials, vocab_size=vocab_size, language="en", **options)  # type: ignore[arg-type]


BPE = trained("bpe")
UNIGRAM = trained("unigram")
CHARACTERS = trained("characters")
WHITESPACE = trained("whitespace", ["a b c <eos> <pad> < eos> x<eos>"])


@given(st.text(ALPHABET))
def test_subwords_and_characters_keep_every_known_character(text: str) -> None:
    for tokenizer in (BPE, UNIGRAM, CHARACTERS):
        assert tokenizer.decode(tokenizer.encode([text])) == [text]


@given(st.text(min_size=1))
def test_characters_are_code_points(text: str) -> None:
    tokenizer = trained("characters", [text])
    assert tokenizer.tokens(tokenizer.encode([text])[0]) == list(text)
    assert tokenizer.vocab_size == 4 + len(set(text))


@given(st.lists(st.sampled_from(["a", "b", "c", "<eos>", "<pad>", "x<eos>"])), st.sampled_from([" ", "  ", "\t"]))
def test_whitespace_keeps_the_tokens(tokens: list[str], space: str) -> None:
    assert WHITESPACE.decode(WHITESPACE.encode([space.join(tokens)])) == [" ".join(tokens)]


@pytest.mark.parametrize("kind", SUBWORDS)
def test_subwords_lose_only_their_own_space_mark(kind: Kind) -> None:
    tokenizer = trained(kind, ["a ▁b"])
    assert tokenizer.decode(tokenizer.encode(["a▁b"])) == ["a b"]


@pytest.mark.parametrize(
    ("text", "tokens", "decoded"),
    [
        ("I don't know.", ["I", "don't", "know", "."], "I don't know."),
        (
            "A well-known (old) man,right?",
            ["A", "well-known", "(", "old", ")", "man", ",", "right", "?"],
            "A well-known (old) man, right?",
        ),
        ("it’s 3.14 or 1,000!", ["it’s", "3.14", "or", "1,000", "!"], "it’s 3.14 or 1,000!"),
        ("No -- 'never'...", ["No", "-", "-", "'", "never", "'", ".", ".", "."], "No - - ' never '..."),
        ("two , pre-split : words ;", ["two", ",", "pre-split", ":", "words", ";"], "two, pre-split: words;"),
        ("naïve naïve Straße", ["naïve", "naïve", "Straße"], "naïve naïve Straße"),
    ],
)
def test_words_split_off_punctuation(text: str, tokens: list[str], decoded: str) -> None:
    tokenizer = trained("words", [text])
    ids = tokenizer.encode([text])
    assert tokenizer.tokens(ids[0]) == tokens
    assert tokenizer.decode(ids) == [decoded]


def test_bpe_pieces_stay_within_words() -> None:
    tokenizer = trained("bpe", ["dog. dog, don't 12a well-known"] * 50, vocab_size=80)
    assert tokenizer.tokens(tokenizer.encode(["dog. don't 12a, dog"])[0]) == [
        "▁dog",
        ".",
        "▁don't",
        "▁12",
        "a",
        ",",
        "▁dog",
    ]


# --- ids


@given(st.lists(st.lists(st.sampled_from("abcdefg"), min_size=1).map(" ".join), min_size=1))
def test_ids_are_by_frequency_then_code_point(sentences: list[str]) -> None:
    counts = Counter(" ".join(sentences).split())
    expected = sorted(counts, key=lambda token: (-counts[token], token))
    tokenizer = trained("whitespace", sentences)
    assert tokenizer.tokens(range(4, tokenizer.vocab_size)) == expected


@pytest.mark.parametrize("tokenizer", [BPE, UNIGRAM])
def test_ids_of_subwords_are_by_frequency_in_the_encoded_text_then_code_point(tokenizer: Tokenizer) -> None:
    counts = Counter(token for ids in tokenizer.encode(CORPUS) for token in tokenizer.tokens(ids))
    tokens = tokenizer.tokens(range(4, tokenizer.vocab_size))
    assert tokens == sorted(tokens, key=lambda token: (-counts[token], token))
    assert any(len(token) > 2 for token in tokens), "longer pieces were learned"


@settings(deadline=None)  # spaCy takes seconds to load
@given(st.permutations(range(6)), st.booleans(), st.sampled_from(AVAILABLE))
def test_specials_have_their_ids_and_the_rest_fills_the_gaps(ids: list[int], shared: bool, kind: Kind) -> None:
    specials = SpecialIds(pad=ids[1] if shared else ids[0], unk=ids[1], bos=ids[2], eos=ids[3])
    size: dict[str, Any] = (
        {"vocab_size": 60 - shared} if kind in SUBWORDS else {}
    )  # room for as many pieces, with <pad> or without
    tokenizer = trained(kind, specials=specials, **size)
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (
        specials.pad,
        ids[1],
        ids[2],
        ids[3],
    )
    tokens = tokenizer.tokens(range(tokenizer.vocab_size))
    assert len(set(tokens)) == len(tokens)
    assert [tokens[index] for index in ids[1:4]] == ["<unk>", "<bos>", "<eos>"]
    assert ("<pad>" in tokens) == (not shared)
    plain = trained(kind)
    assert [token for token in tokens if token not in specials.names()] == plain.tokens(range(4, plain.vocab_size))


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_is_bounded(kind: Kind) -> None:
    whole = trained(kind)
    size = whole.vocab_size - 2
    small = trained(kind, vocab_size=size)
    assert small.vocab_size == size
    if kind not in SUBWORDS:  # the two rarest gave way
        assert small.tokens(range(size)) == whole.tokens(range(size))


def test_rare_tokens_become_unknown() -> None:
    tokenizer = trained("whitespace", ["a a a b b c"], min_frequency=2)
    assert tokenizer.encode(["a b c"]) == [[4, 5, 1]]
    assert tokenizer.decode([[4, 5, 1]]) == ["a b <unk>"]


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_characters_are_shown(kind: Kind) -> None:
    tokenizer = trained(kind)
    assert "<unk>" in tokenizer.decode(tokenizer.encode(["cat Ω"]))[0]


def test_lowercasing() -> None:
    tokenizer = trained("words", ["The CAT"], lowercase=True)
    assert tokenizer.decode(tokenizer.encode(["tHE cAt"])) == ["the cat"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("normalization", "same"), [("none", "ﬁné Né"), ("nfc", "ﬁné Né"), ("nfkc", "finé Né")])
def test_normalization_is_part_of_the_tokenizer(kind: Kind, normalization: Any, same: str) -> None:
    given = "ﬁne\u0301 Ne\u0301"
    composed = "ﬁne\u0301 Ne\u0301" if normalization == "none" else same
    tokenizer = trained(kind, [given, "x y z"] * 3, normalization=normalization)
    for received in (tokenizer, Tokenizer.from_json(tokenizer.to_json())):
        assert received.encode([given]) == received.encode([composed])
        assert received.decode(received.encode([composed])) == received.decode(received.encode([given]))
        assert (composed.split()[1] in received.decode(received.encode([given]))[0]) or kind == "words"
    if normalization == "nfkc":
        folded = trained(kind, [given, "x y z"] * 3, normalization="nfkc", lowercase=True)
        assert folded.decode(folded.encode([given])) == ["finé né"]


# --- special tokens


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("specials", [SPECIALS, TORCHTEXT, SHARED_ID])
@pytest.mark.parametrize("seen", [True, False])
def test_text_cannot_forge_a_special_token(kind: Kind, specials: SpecialIds, seen: bool) -> None:
    tokenizer = trained(kind, CORPUS + [FORGED, FORGED.upper()] * 50 * seen, specials, lowercase=True)
    for text in (FORGED, FORGED.upper()):
        for reloaded in (tokenizer, Tokenizer.from_json(tokenizer.to_json())):
            ids = reloaded.encode([text])[0]
            forbidden = {specials.bos, specials.eos}
            if seen or specials.pad != specials.unk:  # text seen in training has no unknown token either
                forbidden |= {specials.pad, *([specials.unk] if seen else [])}
            assert not forbidden & set(ids), reloaded.tokens(ids)
            if seen and kind in ("bpe", "unigram", "characters", "whitespace"):
                assert reloaded.decode([ids]) == [FORGED]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("bos", "eos"), [(False, False), (True, False), (False, True), (True, True)])
def test_bos_and_eos_are_added_where_asked(kind: Kind, bos: bool, eos: bool) -> None:
    plain = trained(kind).encode(["a cat", ""])
    expected = [[2] * bos + ids + [3] * eos for ids in plain]
    assert trained(kind, add_bos=bos, add_eos=eos).encode(["a cat", ""]) == expected
    assert trained(kind, add_bos=not bos, add_eos=not eos).adding(bos=bos, eos=eos).encode(["a cat", ""]) == expected


def test_decoding_drops_specials_wherever_they_stand() -> None:
    a, b = WHITESPACE.encode(["a b"])[0]
    assert WHITESPACE.decode([[2, a, 0, 0, 3, b, 3, 0, 0], [0], []]) == ["a b", "", ""]


def test_a_shared_pad_id_is_padding_at_the_end_only() -> None:
    tokenizer = trained("whitespace", ["a b"], SHARED_ID)
    a, b = tokenizer.encode(["a b"])[0]
    assert tokenizer.decode([[1, a, 0, b, 0, 2, 0, 0], [a, 0, 0], [0]]) == ["a <unk> b <unk>", "a", ""]


@pytest.mark.parametrize("outside", [-1, 60, 1000])
def test_ids_outside_the_vocabulary_are_refused(outside: int) -> None:
    for call in (lambda: BPE.decode([[5, outside]]), lambda: BPE.tokens([5, outside])):
        with pytest.raises(ValueError, match=f"expected 0 to 59 .*; received {outside}"):
            call()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("add_bos", [False, True])
def test_tags_come_after_bos_and_before_the_sentence(kind: Kind, add_bos: bool) -> None:
    tags = ("<2de>", "en", "a")  # the last are words of the text, too
    tokenizer = trained(kind, [*CORPUS, "en <2de> en"], tags=tags, add_bos=add_bos, add_eos=True)
    assert tokenizer.tags == Tokenizer.from_json(tokenizer.to_json()).tags == tags
    texts = ["en a cat <2de>", "<2de>", ""]
    plain = tokenizer.encode(texts)
    tag_ids = [4, 5, 6]
    assert tokenizer.tokens(tag_ids) == list(tags)
    assert not {index for ids in plain for index in ids} & set(tag_ids), "text is no tag"
    for tag, index in zip(tags, tag_ids, strict=True):
        expected = [[*ids[:add_bos], index, *ids[add_bos:]] for ids in plain]
        assert tokenizer.encode(texts, tag) == expected
        assert Tokenizer.from_json(tokenizer.to_json()).encode(texts, tag=tag) == expected
        assert tokenizer.decode(expected) == tokenizer.decode(plain)


@pytest.mark.parametrize("add_bos", [False, True])
def test_a_tag_may_come_after_eos(add_bos: bool) -> None:
    trained_one = trained("bpe", tags=["<2de>"], add_bos=add_bos, add_eos=True)
    backend, _ = read_backend(trained_one.to_json())
    tokenizer = Tokenizer(backend, add_bos=add_bos, add_eos=True, tag_last=True)
    assert not trained_one.tag_is_last
    for one in (tokenizer, Tokenizer.from_json(tokenizer.to_json()), tokenizer.filled(tokenizer.vocab_size + 1)):
        assert one.tag_is_last
        assert one.encode(["a cat"]) == trained_one.encode(["a cat"])
        assert one.encode(["a cat"], "<2de>") == [[*trained_one.encode(["a cat"])[0], one.tag_ids["<2de>"]]]
    plain = tokenizer.adding(bos=False, eos=False)
    for one in (plain, Tokenizer.from_json(plain.to_json())):
        assert one.tag_is_last
        assert one.encode(["a cat"]) == trained("bpe", tags=["<2de>"]).encode(["a cat"])


def test_unknown_tags_are_refused() -> None:
    tagged = trained("words", tags=["<2de>", "<2fr>", "<2de>"])
    for tag in ("<2es>", "the", "<pad>", "<unk>"):
        with pytest.raises(ValueError, match=f"source tag: expected one of <2de>, <2fr>; received '{tag}'"):
            tagged.encode(["a cat"], tag)
        with pytest.raises(
            ValueError, match=f"source tag: expected none, for the vocabulary has no tags; received '{tag}'"
        ):
            trained("words").encode(["a cat"], tag)


# --- files and repeatability


@pytest.mark.parametrize("kind", KINDS)
def test_json_holds_everything(kind: Kind, tmp_path: Path) -> None:
    tokenizer = trained(kind, specials=TORCHTEXT, add_bos=True, add_eos=True, lowercase=True)
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_json(), encoding="utf-8")
    again = Tokenizer.from_json(path.read_text(encoding="utf-8"))
    texts = ["The cat saw, a DOG!", "(Ω) dé", ""]
    ids = tokenizer.encode(texts)
    assert again.encode(texts) == ids
    assert again.to_json() == tokenizer.to_json()
    assert again.decode(ids) == tokenizer.decode(ids)
    if kind == "spacy":
        return  # a format of its own
    standard = tokenizers.Tokenizer.from_file(str(path))
    assert [encoding.ids for encoding in standard.encode_batch(texts)] == ids
    assert standard.decode(standard.encode("the dog saw a cat").ids) == "the dog saw a cat"
    assert {name: standard.token_to_id(name) for name in ("<unk>", "<pad>", "<bos>", "<eos>")} == TORCHTEXT.names()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "words",
        '{"format": "something else"}',
        '{"format": "jax-transformer spacy 1"}',
        '{"format": "jax-',
    ],
)
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"tokenizer: expected .*; received"):
        Tokenizer.from_json(text)


def test_training_is_the_same_in_every_process() -> None:
    script = (
        "from jax_transformer.data.tokenizers import *\n"
        "words = ['%s%s%s' % (a, b, c) for a in 'abcdefgh' for b in 'xyzuv' for c in 'klmn']\n"
        "sentences = [' '.join(words[k::7]) for k in range(7)] * 3\n"
        f"for kind in {AVAILABLE}:\n"
        "    print(train_tokenizer(sentences, kind=kind, specials=SpecialIds(0, 1, 2, 3), vocab_size=90, "
        "language='en').to_json())\n"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads},
            stdout=subprocess.PIPE,
        )
        for seed, threads in (("1", "1"), ("2", "3"))
    ]
    first, second = (run.communicate(timeout=300)[0] for run in runs)
    assert all(run.returncode == 0 for run in runs)
    assert first == second


# --- refusals


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("morphemes", {}, "expected one of words, whitespace, characters, bpe, unigram, spacy; received 'morphemes'"),
        ("words", {"vocab_size": 4}, "expected more than the 4 special tokens; received 4"),
        ("bpe", {"vocab_size": 0}, "expected more than the 4 special tokens; received 0"),
        (
            "bpe",
            {"vocab_size": 11},
            "expected more than 11 for bpe, 4 special tokens and the 7 characters of the training text; received",
        ),
        (
            "unigram",
            {"vocab_size": 11},
            "expected more than 11 for unigram, 4 special tokens and the 7 characters of the training text",
        ),
        (
            "words",
            {"tags": ["<2a>"], "vocab_size": 5},
            "expected more than the 4 special tokens and 1 tags; received 5",
        ),
        (
            "words",
            {"tags": ["<2 a>"]},
            "expected one token without spaces, and no special token's name, such as <2de>; received '<2 a>'",
        ),
        ("words", {"tags": ["</s>"]}, "no special token's name, such as <2de>; received '</s>'"),
        ("words", {"normalization": "nfd"}, "normalization: expected one of none, nfc, nfkc; received 'nfd'"),
        ("words", {"min_frequency": 9}, "expected a token seen 9 times or more; received none"),
        (
            "words",
            {"specials": SpecialIds(0, 1, 2, 500)},
            "expected ids below the vocabulary's size, 9; received {'<eos>': 500}",
        ),
    ],
)
def test_impossible_vocabularies_are_refused(kind: Kind, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        trained(kind, ["ab cd ef", "ab f a"], **options)


@pytest.mark.parametrize("kind", KINDS)
def test_text_without_a_token_is_refused(kind: Kind) -> None:
    with pytest.raises(ValueError, match="expected a token"):
        trained(kind, ["", ""])


@pytest.mark.parametrize("ids", [(0, 1, 1, 2), (0, 1, 0, 2), (0, 1, 2, -1)])
def test_special_ids_differ(ids: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="only pad may equal unk"):
        SpecialIds(*ids)
