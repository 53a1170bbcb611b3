"""Tokenizers: what comes back, which ids there are, and that text can't forge a special token."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from jax_transformer.data.tokenizers import Kind, SpecialIds, Tokenizer, train_tokenizer

KINDS = get_args(Kind)
SPECIALS = SpecialIds(pad=0, unk=1, bos=2, eos=3)
TORCHTEXT = SpecialIds(pad=1, unk=0, bos=2, eos=3)
SHARED_ID = SpecialIds(pad=0, unk=0, bos=1, eos=2)
ALPHABET = "abcdeé 你.,!?'’-()<>12\u2028\u00a0"
CORPUS = [ALPHABET, "the cat saw the dog .", "the dog saw a cat !", "bad cab", "a cat"] * 3
FORGED = "<eos> <bos> a <pad> x<eos>y <unk><unk>"


def trained(kind: Kind, sentences: list[str] = CORPUS, specials: SpecialIds = SPECIALS, **options: int | bool) -> Tokenizer:
    vocab_size = int(options.pop("vocab_size", 60 if kind == "bpe" else 0))
    return train_tokenizer(sentences, kind=kind, specials=specials, vocab_size=vocab_size, **options)  # type: ignore[arg-type]


BPE = trained("bpe")
CHARACTERS = trained("characters")
WHITESPACE = trained("whitespace", ["a b c <eos> <pad> < eos> x<eos>"])


@given(st.text(ALPHABET))
def test_bpe_and_characters_keep_every_known_character(text: str) -> None:
    for tokenizer in (BPE, CHARACTERS):
        assert tokenizer.decode(tokenizer.encode([text])) == [text]


@given(st.text(min_size=1))
def test_characters_are_code_points(text: str) -> None:
    tokenizer = trained("characters", [text])
    assert tokenizer.tokens(tokenizer.encode([text])[0]) == list(text)
    assert tokenizer.vocab_size == 4 + len(set(text))


@given(st.lists(st.sampled_from(["a", "b", "c", "<eos>", "<pad>", "x<eos>"])), st.sampled_from([" ", "  ", "\t"]))
def test_whitespace_keeps_the_tokens(tokens: list[str], space: str) -> None:
    assert WHITESPACE.decode(WHITESPACE.encode([space.join(tokens)])) == [" ".join(tokens)]


def test_bpe_loses_only_its_own_space_mark() -> None:
    tokenizer = trained("bpe", ["a ▁b"])
    assert tokenizer.decode(tokenizer.encode(["a▁b"])) == ["a b"]


@pytest.mark.parametrize(
    ("text", "tokens", "decoded"),
    [
        ("I don't know.", ["I", "don't", "know", "."], "I don't know."),
        ("A well-known (old) man,right?", ["A", "well-known", "(", "old", ")", "man", ",", "right", "?"], "A well-known (old) man, right?"),
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
    assert tokenizer.tokens(tokenizer.encode(["dog. don't 12a, dog"])[0]) == ["▁dog", ".", "▁don't", "▁12", "a", ",", "▁dog"]


# --- ids


@given(st.lists(st.lists(st.sampled_from("abcdefg"), min_size=1).map(" ".join), min_size=1))
def test_ids_are_by_frequency_then_code_point(sentences: list[str]) -> None:
    counts = Counter(" ".join(sentences).split())
    expected = sorted(counts, key=lambda token: (-counts[token], token))
    tokenizer = trained("whitespace", sentences)
    assert tokenizer.tokens(range(4, tokenizer.vocab_size)) == expected


def test_bpe_ids_are_by_frequency_in_the_encoded_text_then_code_point() -> None:
    counts = Counter(token for ids in BPE.encode(CORPUS) for token in BPE.tokens(ids))
    tokens = BPE.tokens(range(4, BPE.vocab_size))
    assert tokens == sorted(tokens, key=lambda token: (-counts[token], token))
    assert any(len(token) > 2 for token in tokens), "merges were learned"


@given(st.permutations(range(6)), st.booleans(), st.sampled_from(KINDS))
def test_specials_have_their_ids_and_the_rest_fills_the_gaps(ids: list[int], shared: bool, kind: Kind) -> None:
    specials = SpecialIds(pad=ids[1] if shared else ids[0], unk=ids[1], bos=ids[2], eos=ids[3])
    size: dict[str, Any] = {"vocab_size": 60 - shared} if kind == "bpe" else {}  # room for as many pieces, with <pad> or without
    tokenizer = trained(kind, specials=specials, **size)
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (specials.pad, ids[1], ids[2], ids[3])
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
    if kind != "bpe":  # the two rarest gave way
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
            if seen and kind in ("bpe", "characters", "whitespace"):
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


# --- files and repeatability


@pytest.mark.parametrize("kind", KINDS)
def test_json_holds_everything(kind: Kind, tmp_path: Path) -> None:
    tokenizer = trained(kind, specials=TORCHTEXT, add_bos=True, add_eos=True, lowercase=True)
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.to_json(), encoding="utf-8")
    standard = tokenizers.Tokenizer.from_file(str(path))
    again = Tokenizer.from_json(path.read_text(encoding="utf-8"))
    texts = ["The cat saw, a DOG!", "(Ω) dé", ""]
    ids = tokenizer.encode(texts)
    assert again.encode(texts) == [encoding.ids for encoding in standard.encode_batch(texts)] == ids
    assert again.to_json() == tokenizer.to_json()
    assert again.decode(ids) == tokenizer.decode(ids)
    assert standard.decode(standard.encode("the dog saw a cat").ids) == "the dog saw a cat"
    assert {name: standard.token_to_id(name) for name in ("<unk>", "<pad>", "<bos>", "<eos>")} == TORCHTEXT.names()


@pytest.mark.parametrize(
    "text", ["", "{}", "words", '{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"}}']
)
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"tokenizer: expected .*; received"):
        Tokenizer.from_json(text)


def test_training_is_the_same_in_every_process() -> None:
    script = (
        "from jax_transformer.data.tokenizers import *\n"
        "words = ['%s%s%s' % (a, b, c) for a in 'abcdefgh' for b in 'xyzuv' for c in 'klmn']\n"
        "sentences = [' '.join(words[k::7]) for k in range(7)] * 3\n"
        "for kind in ('words', 'bpe'):\n"
        "    print(train_tokenizer(sentences, kind=kind, specials=SpecialIds(0, 1, 2, 3), vocab_size=90).to_json())\n"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads},
            stdout=subprocess.PIPE,
        )
        for seed, threads in (("1", "1"), ("2", "3"))
    ]
    first, second = (run.communicate(timeout=60)[0] for run in runs)
    assert all(run.returncode == 0 for run in runs)
    assert first == second


# --- refusals


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("morphemes", {}, "expected one of words, whitespace, characters, bpe; received 'morphemes'"),
        ("words", {"vocab_size": 4}, "expected more than the 4 special tokens; received 4"),
        ("bpe", {"vocab_size": 0}, "expected more than the 4 special tokens; received 0"),
        ("bpe", {"vocab_size": 11}, "expected more than 11 for bpe, 4 special tokens and the 7 characters of the training text; received"),
        ("words", {"min_frequency": 9}, "expected a token seen 9 times or more; received none"),
        ("words", {"specials": SpecialIds(0, 1, 2, 500)}, "expected ids below the vocabulary's size, 9; received {'<eos>': 500}"),
    ],
)  # fmt: skip
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
