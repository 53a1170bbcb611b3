"""Vocabularies of others as lists of tokens: the line is the id, special tokens are found by their names, and missing
ones are told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from given_vocabularies import SPECIALS, load, write

from jax_transformer.data.tokenizers import SpecialIds, Tokenizer, load_tokenizer

TORCHTEXT = SpecialIds(pad=1, unk=0, bos=2, eos=3)
ANNOTATED = SpecialIds(pad=2, unk=3, bos=0, eos=1)


@pytest.mark.parametrize(
    ("names", "specials"),
    [
        (["<unk>", "<pad>", "<init>", "<eos>"], TORCHTEXT),
        (["<unk>", "<pad>", "<sos>", "<eos>"], TORCHTEXT),
        (["<unk>", "<pad>", "<bos>", "<eos>"], TORCHTEXT),
        (["<s>", "</s>", "<blank>", "<unk>"], ANNOTATED),
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]"], SPECIALS),
    ],
)
@pytest.mark.parametrize("kind", ["words", "whitespace"])
def test_the_line_is_the_id(tmp_path: Path, names: list[str], specials: SpecialIds, kind: str) -> None:
    path = write(tmp_path / "vocabulary.txt", "\n".join([*names, "the", "cat", "."]) + "\n")
    for given in (specials, None):
        tokenizer = load(path, given, kind=kind, add_eos=True)
        assert tokenizer.vocab_size == 7
        assert tokenizer.encode(["the cat dog ."]) == [[4, 5, specials.unk, 6, specials.eos]]
        assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id) == (specials.pad, specials.unk, specials.bos)
        shown = tokenizer.decode([[specials.bos, 4, 5, specials.unk, specials.eos, specials.pad]])
        assert shown == ["the cat <unk>"]
        forged = tokenizer.encode([" ".join(names)])[0][:-1]
        assert not set(forged) & {specials.pad, specials.bos, specials.eos}


def test_windows_line_ends_and_a_last_line_without_end_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.txt"
    path.write_bytes("\ufeff<pad>\r\n<unk>\r\n<s>\r\n</s>\r\nthe\r\ncat".encode())
    assert load(path, SPECIALS).encode(["cat the"]) == [[5, 4]]


def test_lists_of_characters_have_white_space(tmp_path: Path) -> None:
    path = write(tmp_path / "vocabulary.txt", "<pad>\n<unk>\n<s>\n</s>\n \na\nb\n")
    tokenizer = load(path, SPECIALS, kind="characters")
    assert tokenizer.encode(["a b"]) == [[5, 4, 6]]
    assert tokenizer.decode([[5, 4, 6]]) == ["a b"]


def test_tags_are_lines_too(tmp_path: Path) -> None:
    path = write(tmp_path / "vocabulary.txt", "<pad>\n<unk>\n<s>\n</s>\n<2de>\nthe\n<2fr>\n")
    tokenizer = load(path, SPECIALS, tags=("<2de>",), add_bos=True)
    assert tokenizer.tags == ("<2de>",)
    assert tokenizer.encode(["the <2de> <2fr>"], "<2de>") == [[2, 4, 5, 1, 6]]
    with pytest.raises(
        ValueError, match=r"vocabulary.txt: expected as a source_tag none.*; received <2es>; add it to the file"
    ):
        load(path, SPECIALS, tags=("<2es>",))


def test_a_list_without_specials_takes_them_after_its_end(tmp_path: Path) -> None:
    path = write(tmp_path / "vocabulary.txt", "the\ncat\n")
    tokenizer = load(path, SpecialIds(pad=4, unk=2, bos=3, eos=5), add_eos=True)
    assert tokenizer.encode(["the cat sat"]) == [[0, 1, 2, 5]]
    assert tokenizer.vocab_size == 6
    expected = "set pad_id=2, unk_id=3, bos_id=4, eos_id=5 to have them after its end"
    for specials in (SPECIALS, SpecialIds(pad=5, unk=6, bos=7, eos=8)):
        with pytest.raises(
            ValueError, match=r"vocabulary.txt: expected the special tokens <.*; received none of these"
        ) as error:
            load(path, specials)
        assert expected in str(error.value)


def test_bare_names_are_specials_where_there_are_no_others(tmp_path: Path) -> None:
    path = write(tmp_path / "vocabulary.txt", "UNK\nPAD\nBOS\nEOS\nthe\n")
    tokenizer = load(path, SpecialIds(pad=1, unk=0, bos=2, eos=3))
    assert tokenizer.encode(["the BOS UNK"]) == [[4, 0, 0]]
    path = write(tmp_path / "vocabulary.txt", "<pad>\n<unk>\n<bos>\n<eos>\nPAD\n")
    assert load(path, SPECIALS).encode(["PAD PUT"]) == [[4, 1]]


@pytest.mark.parametrize("kind", ["whitespace", "spacy"])
def test_a_list_may_lack_specials_where_none_are_expected(tmp_path: Path, kind: str) -> None:
    """It then knows its own tokens only, and nothing is taken for <unk>."""
    if kind == "spacy":
        pytest.importorskip("spacy")
    path = write(tmp_path / "vocabulary.txt", "the\n<PAD>\ncat\n<EOS>\n")
    tokenizer = load_tokenizer(path, kind=kind, specials=None, language="en")  # type: ignore[arg-type]
    for same in (tokenizer, Tokenizer.from_json(tokenizer.to_json())):
        assert (same.pad_id, same.unk_id, same.bos_id, same.eos_id) == (1, -1, -1, 3)
        assert same.encode(["the cat", "cat"]) == [[0, 2], [2]]
        assert same.decode([[0, 2, 3, 1, 1]]) == ["the cat"]
        with pytest.raises(
            ValueError, match="expected tokens of the vocabulary only, for it has no <unk>; received 'sat'"
        ):
            same.encode(["the cat", "cat sat mat"])
    assert tokenizer.adding(bos=False, eos=True).encode(["cat"]) == [[2, 3]]
    with pytest.raises(ValueError, match="expected <bos>, to add to sentences; received only <pad>, <eos>"):
        tokenizer.adding(bos=True, eos=True)


def test_a_padding_token_may_be_missing_where_unknown_serves_for_it(tmp_path: Path) -> None:
    path = write(tmp_path / "vocabulary.txt", "<unk>\n<s>\n</s>\nthe\n")
    tokenizer = load(path, SpecialIds(pad=0, unk=0, bos=1, eos=2))
    assert (tokenizer.pad_id, tokenizer.unk_id) == (0, 0)
    with pytest.raises(
        ValueError,
        match=r"vocabulary.txt: expected the special tokens <pad> \(or .*pad_id=4 to have them after its end",
    ):
        load(path, SPECIALS)


def test_ids_that_differ_from_the_config_are_used_with_a_warning(tmp_path: Path) -> None:
    path = write(tmp_path / "vocabulary.txt", "<s>\n</s>\n<blank>\n<unk>\nthe\n")
    message = (
        "vocabulary.txt: expected the special ids pad_id=0, unk_id=1, bos_id=2, eos_id=3; received, and used, the "
        "file's: pad_id=2, "
        "unk_id=3, bos_id=0, eos_id=1"
    )
    with pytest.warns(UserWarning, match=re.escape(message)):
        tokenizer = load_tokenizer(path, kind="whitespace", specials=SPECIALS)
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (2, 3, 0, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "vocabulary.txt: expected a token a line; received an empty file"),
        (
            "<pad>\nthe\ncat\nthe\n",
            "vocabulary.txt:4: expected a token that isn't in a line before; received 'the' again, of line 2",
        ),
        ("<pad>\n\nthe\n", "vocabulary.txt:2: expected one token, without spaces; received ''"),
        ("<pad>\nthe cat\n", "vocabulary.txt:2: expected one token, without spaces; received 'the cat'"),
        (
            "<pad>\n<unk>\n<s>\n</s>\n<bos>\n",
            "vocabulary.txt: expected one <bos> token; received '<bos>' (line 5) and '<s>' (line 3)",
        ),
        (b"<pad>\n\xff\n", "vocabulary.txt:2: expected UTF-8 text; received byte 0xff"),
    ],
)
def test_lists_with_a_mistake_are_refused_with_the_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = tmp_path / "vocabulary.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=re.escape(message)):
        load(path, SPECIALS)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_list_says_nothing_of_merges(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "vocabulary.txt", "<pad>\n<unk>\n<s>\n</s>\nthe\n")
    with pytest.raises(ValueError, match=f"vocabulary.txt: expected the tokenizer words, .*; received '{kind}'"):
        load(path, SPECIALS, kind=kind)
