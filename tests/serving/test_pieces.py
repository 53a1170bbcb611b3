"""Pieces of a growing text: joined, they are the text, whatever tokens it comes in."""

from __future__ import annotations

import importlib.util

import pytest

from jax_transformer.data.tokenizers import SpecialIds, Tokenizer, train_tokenizer
from jax_transformer.data.tokenizers.byte_tokens import ByteBackend
from jax_transformer.serving.pieces import HELD, Pieces

TEXTS = [
    "Der alte Mann sieht einen Hund, und (wer?) schläft ein.",
    "I don't know: it's the horse's “own” idea …",
    "日本語の文章には空白がありません。それでも少しずつ届きます。",
    "🙂 naïve 👩‍👩‍👧 Zoë",
    "  two  spaces ",
    "Donaudampfschifffahrtsgesellschaftskapitän",
    "",
]
KINDS = ["words", "whitespace", "characters", "bpe", "unigram", "bytes"]


def trained(kind: str) -> Tokenizer:
    specials = SpecialIds(pad=0, unk=1, bos=2, eos=3)
    if kind == "bytes":
        backend = ByteBackend({"<pad>": 0, "<eos>": 1, "<unk>": 2}, 3)
        return Tokenizer(backend, add_bos=False, add_eos=False)
    sizes = {"vocab_size": 400} if kind in ("bpe", "unigram") else {}
    return train_tokenizer(TEXTS * 3, kind=kind, specials=specials, **sizes)  # type: ignore[arg-type]


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Returns the pieces of ids that come one by one."""
    pieces = Pieces()
    found = [pieces.add(tokenizer.decode([ids[:count]])[0]) for count in range(1, len(ids) + 1)]
    return [*found, pieces.end(tokenizer.decode([ids])[0].rstrip())]


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_join_to_the_text(kind: str) -> None:
    tokenizer = trained(kind)
    for text in TEXTS:
        (ids,) = tokenizer.encode([text])
        whole = tokenizer.decode([ids])[0].rstrip()
        found = streamed(tokenizer, ids)
        assert "".join(found) == whole
        assert not any("�" in piece for piece in found)
        assert sum(map(bool, found)) > 1 or len(whole) <= 2 * HELD


def test_pieces_join_to_the_text_of_moses() -> None:
    """Its detokenizer closes up quotes and clitics."""
    if importlib.util.find_spec("sacremoses") is None:
        pytest.skip("the package sacremoses is not installed")
    from jax_transformer.data.tokenizers.merge_lists import MosesWords

    words = MosesWords("en", lowercase=False)
    for text in ['He said " it \'s fine " and "so" (well) left, I do n\'t know .', "a ' b ' c", '" " "']:
        entries = [f"{word}</w>" for word in text.split()]
        pieces = Pieces()
        found = [pieces.add(words.join(entries[:count])) for count in range(1, len(entries) + 1)]
        assert "".join([*found, pieces.end(words.join(entries))]) == words.join(entries)


def test_bytes_of_a_character_are_not_sent_apart() -> None:
    """A byte-level decoder shows the mark U+FFFD until the last byte of a character is there."""
    data = "Grüße an 👩‍👩‍👧!".encode()
    pieces = Pieces()
    found = [pieces.add(data[:count].decode("utf-8", "replace")) for count in range(1, len(data) + 1)]
    found.append(pieces.end(data.decode()))
    assert "".join(found) == data.decode()
    assert not any("�" in piece for piece in found)


def test_a_text_that_changes_ends_the_pieces() -> None:
    pieces = Pieces()
    assert pieces.add("one two three") == "one two"
    assert pieces.add("ONE two three four") == ""
    assert pieces.end("ONE two three four") == ""
