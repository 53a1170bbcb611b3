"""Words cut by lists of merges, and tokens of bytes. (Against transformers: parity_tests.)"""

from __future__ import annotations

import json
import sys

import pytest

from jax_transformer.data.tokenizers import Tokenizer
from jax_transformer.data.tokenizers.byte_tokens import ByteBackend
from jax_transformer.data.tokenizers.hugging_face import read_tokenizers
from jax_transformer.data.tokenizers.merge_lists import MergeListBackend

ENTRIES = ["__null__", "__start__", "__end__", "__unk__", "l@@", "o@@", "lo@@", "low", "w", "n", "o", ".", "'", "s"]
ENTRIES += ["_@@", "n@@", "e@@"]
SPECIALS = {name: index for index, name in enumerate(ENTRIES[:4])}
MERGES = [["l", "o"], ["lo", "w</w>"], ["o", "w</w>"]]


LINE_END = ["_@@", "_@@", "n@@", "e@@", "__unk__", "l@@", "n@@", "_@@", "__unk__"]
"""__newln__, which has no entry as a whole."""


def conversation(merges: list[list[str]] = MERGES) -> Tokenizer:
    backend = MergeListBackend({"kind": "conversation"}, merges, ENTRIES, SPECIALS)
    return Tokenizer(backend, add_bos=False, add_eos=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("low", ["low"]),
        ("LOW low", ["low", "low"]),
        ("lo", ["l@@", "o"]),
        ("olow", ["o@@", "low"]),
        ("lolow", ["lo@@", "low"]),
        ("no. now.", ["n@@", "o", ".", "n@@", "__unk__", "."]),  # "ow" is no entry
        ("low's", ["low", "'", "s"]),
        (".low", ["__unk__", "low"]),  # .@@ is no entry
        ("x", ["__unk__"]),
        ("", []),
        ("__end__", ["_@@", "_@@", "e@@", "n@@", "__unk__", "_@@", "__unk__"]),
        ("\nlow\n\nlow'\nlow\n", ["low", *LINE_END, "low", "'", "low", *LINE_END]),
    ],
)  # fmt: skip
def test_words_are_cut_by_the_most_frequent_merges(text: str, expected: list[str]) -> None:
    tokenizer = conversation()
    for one in (tokenizer, Tokenizer.from_json(tokenizer.to_json())):
        assert one.tokens(one.encode([text])[0]) == expected


def test_the_order_of_merges_counts() -> None:
    tokenizer = conversation([["o", "w</w>"], ["l", "o"]])
    assert tokenizer.tokens(tokenizer.encode(["low"])[0]) == ["l@@", "__unk__"]


def test_pieces_are_joined() -> None:
    tokenizer = conversation()
    assert tokenizer.decode([[1, 6, 8, 7, 11, 3, 2, 0], []]) == ["low low . <unk>", ""]
    assert tokenizer.filled(20).decode([[7, 19]]) == ["low <unk>"]
    with pytest.raises(ValueError, match="expected a bpe or unigram tokenizer; received a list of merges"):
        tokenizer.sample_encode(["low"], seed=0, strength=0.5)


def test_moses_splits_and_joins_as_its_language_does() -> None:
    pytest.importorskip("sacremoses")
    words = ["l&apos;", "eau", "c&apos;", "est", "&apos;s", "Mr.", "it", ",", "Smith", ":", "12"]
    pieces = [f"{word}</w>" for word in words]
    entries = ["<s>", "<pad>", "</s>", "<unk>", *pieces]
    merges = [["e", "s"], ["es", "t</w>"]]
    for piece in pieces:
        symbols = [*piece.removesuffix("</w>")]
        symbols[-1] += "</w>"
        while len(symbols) > 1:
            merges.append(symbols[:2])
            symbols[:2] = ["".join(symbols[:2])]
    english, french = (
        Tokenizer(
            MergeListBackend(
                {"kind": "moses", "language": language, "lowercase": False},
                merges,
                entries,
                {name: index for index, name in enumerate(entries[:4])},
            ),
            add_bos=False,
            add_eos=True,
        )
        for language in ("en", "fr")
    )
    assert english.tokens(english.encode(["it's Mr. Smith，it：１２"])[0]) == [
        "it</w>", "&apos;s</w>", "Mr.</w>", "Smith</w>", ",</w>", "it</w>", ":</w>", "12</w>", "</s>"
    ]  # fmt: skip
    ids = french.encode(["c'est l'eau"])[0]
    assert french.tokens(ids) == ["c&apos;</w>", "est</w>", "l&apos;</w>", "eau</w>", "</s>"]
    assert french.decode([ids]) == ["c'est l'eau"]
    assert english.decode([english.encode(["it's Mr. Smith"])[0]]) == ["it's Mr. Smith"]


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    vocabulary = json.dumps({"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}).encode()
    files = {"vocab-src.json": vocabulary, "vocab-tgt.json": vocabulary, "merges.txt": b"a b 1\n"}
    with pytest.raises(
        ValueError, match=r"sacremoses, which isn't installed \(pip install 'jax-transformer\[moses\]'\)"
    ):
        read_tokenizers({**files, "tokenizer_config.json": b'{"langs": ["en", "de"]}'}, {"model_type": "fsmt"})
    with pytest.raises(ValueError, match=r"langs must be two languages; received \[\"en\"\]"):
        read_tokenizers({**files, "tokenizer_config.json": b'{"langs": ["en"]}'}, {"model_type": "fsmt"})


def test_other_words_are_refused() -> None:
    text = conversation().to_json().replace('"conversation"', '"sentences"')
    with pytest.raises(ValueError, match="words of the kind conversation or moses; received 'sentences'"):
        Tokenizer.from_json(text)
    content = json.loads(conversation().to_json())
    del content["merges"]
    with pytest.raises(ValueError, match="expected 'merges' in a file of the format"):
        Tokenizer.from_json(json.dumps(content))
    with pytest.raises(ValueError, match="expected a vocabulary with <unk>; received one without"):
        MergeListBackend({"kind": "conversation"}, MERGES, ENTRIES, {"__end__": 2})


# --- bytes

BYTE_SPECIALS = {"<pad>": 0, "</s>": 1, "<unk>": 2, "<extra_id_0>": 259}


def byte_tokenizer() -> Tokenizer:
    return Tokenizer(ByteBackend(BYTE_SPECIALS, 3), add_bos=False, add_eos=True)


def test_bytes_are_tokens() -> None:
    tokenizer = byte_tokenizer()
    for one in (tokenizer, Tokenizer.from_json(tokenizer.to_json())):
        assert one.encode(["aé", ""]) == [[100, 198, 172, 1], [1]]
        assert one.decode([[100, 198, 172, 1], [198], [100, 198, 101, 259]]) == ["aé", "", "ab"]
        assert (one.vocab_size, one.tags, one.pad_id, one.unk_id) == (260, (), 0, 2)
        assert one.tokens([0, 100, 259]) == ["<pad>", "a", "<extra_id_0>"]
    assert tokenizer.filled(263).decode([[100, 262]]) == ["a<unk>"]


def test_special_tokens_come_before_and_after_the_bytes() -> None:
    for specials in ({"<pad>": 0, "</s>": 1}, BYTE_SPECIALS | {"<mask>": 261}, {**BYTE_SPECIALS, "<s>": 5}):
        with pytest.raises(ValueError, match="expected special tokens before and after 256 bytes; received the ids"):
            ByteBackend(specials, 3)
