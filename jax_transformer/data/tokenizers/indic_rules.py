"""The rules by which IndicTrans2's texts are prepared before they are split into pieces, and finished after their
pieces are joined.

Numerals become ASCII digits, and quotes, dashes and spaces of one form. Each script's letters are written in one of
their several forms. Words are set apart from punctuation, and every script whose block in Unicode is laid out as
Devanagari's is written in Devanagari, letter by letter. Finishing turns that around for the target's script. These are
the rules of IndicTransToolkit 1.1.1, without its placeholders for addresses and numbers, and of indic-nlp-library.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from jax_transformer.runtime.extras import require

DEVANAGARI = 0x0900
BLOCKS = {
    "Deva": DEVANAGARI,
    "Beng": 0x0980,
    "Guru": 0x0A00,
    "Gujr": 0x0A80,
    "Orya": 0x0B00,
    "Taml": 0x0B80,
    "Telu": 0x0C00,
    "Knda": 0x0C80,
    "Mlym": 0x0D00,
}
"""Scripts of languages' tags → the first characters of their blocks, whose layout is Devanagari's."""
LETTERS_FOR = {"Mtei": "Deva", "Olck": "Orya"}
"""Scripts of other layouts → those whose letters are written in one form, where they occur among theirs."""
ALIKE = 0x70
"""Number of characters of a block that lie where Devanagari's do."""
ENGLISH = "eng_Latn"
"""The language whose words Moses sets apart."""
MANY_FORMS = ("Arab", "Aran")
"""Scripts whose letters urduhack writes in one form."""
DANDA, DOUBLE_DANDA = "\u0964", "\u0965"

FIRST = [
    (re.compile("\r"), ""),
    (re.compile(r"\(\s*"), "("),
    (re.compile(r"\s*\)"), ")"),
    (re.compile(r"\s:\s?"), ":"),
    (re.compile(r"\s;\s?"), ";"),
    (re.compile("[`\u00b4\u2018\u201a\u2019]"), "'"),
    (re.compile("[\u201e\u201c\u201d\u00ab\u00bb]"), '"'),
    (re.compile("[\u2013\u2014]"), "-"),
    (re.compile("\u00a0(%)"), r"\1"),
    (re.compile("n\u00ba\u00a0"), "n\u00ba "),
    (re.compile("\u00a0\u00baC"), " \u00baC"),
    (re.compile("\u00a0([?!;])"), r"\1"),
    (re.compile(",\u00a0"), ", "),
    (re.compile(" {2,}"), " "),
    (re.compile(r"\) ([.!:?;,])"), r")\1"),
    (re.compile(r"(\d) %"), r"\1%"),
    (re.compile(r'"([,.]+)'), r'\1"'),
    (re.compile("(\\d)\u00a0(\\d)"), r"\1.\2"),
]
"""Patterns and what replaces them, in this order, in texts of all languages."""
NUMERALS = {
    zero + digit: str(digit)
    for zero in (0x0966, 0x09E6, 0x0A66, 0x0AE6, 0x0B66, 0x0CE6, 0x06F0, 0x1C50, 0xABF0)
    for digit in range(10)
}
NUMERALS |= {0x0C66 + digit: str(digit) for digit in range(1, 10)} | {0x0660: "0"}
"""Characters → ASCII digits. (Telugu's zero isn't among the rules, nor are Tamil's and Malayalam's numerals.)"""
COMMON = [
    *((mark, "") for mark in "\ufeff\ufffe\u2060\u00ad"),
    *((space, " ") for space in "\u200b\u00a0"),
    *((joiner, "") for joiner in "\u200c\u200d"),
    *((quote, '"') for quote in "\u201e\u201c\u201d"),
    ("\u2013", "-"),
    ("\u2014", " - "),
    *((quote, "'") for quote in "\u00b4\u2018\u201a\u2019"),
    ("''", '"'),
    ("\u2026", "..."),
]
"""Texts → what replaces them, in this order, in all scripts but Latin and Arabic."""
NUKTA = 0x3C


def _with_nukta(first: int, letters: Sequence[tuple[int, int]]) -> list[tuple[str, str]]:
    """Returns the letters with a dot → the plain letters and the dot, of a block; both by their places in it."""
    return [(chr(first + dotted), chr(first + plain) + chr(first + NUKTA)) for dotted, plain in letters]


def _dandas(script: str) -> list[tuple[str, str]]:
    """Returns the places of a block for ends of sentences → the characters of Devanagari that all scripts use."""
    return [(chr(BLOCKS[script] + 0x64), DANDA), (chr(BLOCKS[script] + 0x65), DOUBLE_DANDA)]


def _pairs(text: str) -> list[tuple[str, str]]:
    """Returns the pairs of a text such as "old=new old=new"."""
    return [(old, new) for old, _, new in (pair.partition("=") for pair in text.split())]


DEVANAGARI_DOTS = ((0x29, 0x28), (0x31, 0x30), (0x34, 0x33), (0x58, 0x15), (0x59, 0x16), (0x5A, 0x17), (0x5B, 0x1C))
LETTERS: dict[str, list[tuple[str, str]]] = {
    "Deva": [
        *_pairs("\u0972=\u090f"),
        *_with_nukta(DEVANAGARI, (*DEVANAGARI_DOTS, (0x5C, 0x21), (0x5D, 0x22), (0x5E, 0x2B), (0x5F, 0x2F))),
        ("|", DANDA),
    ],
    "Beng": [
        *_with_nukta(BLOCKS["Beng"], ((0x5C, 0x21), (0x5D, 0x22), (0x5F, 0x2F))),
        *_dandas("Beng"),
        *(("|", DANDA), ("\u09f7", DANDA)),
        *_pairs("\u09c7\u09be=\u09cb \u09c7\u09d7=\u09cc"),
    ],
    "Guru": [
        *_with_nukta(BLOCKS["Guru"], ((0x33, 0x32), (0x36, 0x38), (0x59, 0x16), (0x5A, 0x17), (0x5B, 0x1C))),
        *_with_nukta(BLOCKS["Guru"], ((0x5E, 0x2B),)),
        *_dandas("Guru"),
        ("|", DANDA),
    ],
    "Gujr": _dandas("Gujr"),
    "Orya": [
        *_pairs("\u0b05\u0b3e=\u0b06 \u0b0f\u0b57=\u0b10 \u0b13\u0b57=\u0b14"),
        *_with_nukta(BLOCKS["Orya"], ((0x5C, 0x21), (0x5D, 0x22))),
        *_dandas("Orya"),
        *(("\u0b7c", DANDA), ("\u0b35", "\u0b2c"), ("\u0b47\u0b56", "\u0b58")),
        *_pairs("\u0b47\u0b3e=\u0b4b \u0b47\u0b57=\u0b4c"),
    ],
    "Taml": [
        *_dandas("Taml"),
        *_pairs("\u0b92\u0bd7=\u0b94 \u0bc6\u0bbe=\u0bca \u0bc7\u0bbe=\u0bcb \u0bc6\u0bd7=\u0bcc"),
    ],
    "Telu": [*_dandas("Telu"), ("\u0c46\u0c56", "\u0c48")],
    "Knda": [
        *_dandas("Knda"),
        *_pairs("\u0cbf\u0cd5=\u0cc0 \u0cc6\u0cd5=\u0cc7 \u0cc6\u0cd6=\u0cc8 \u0cc6\u0cc2=\u0cca"),
        *_pairs("\u0cca\u0cd5=\u0ccb"),
    ],
    "Mlym": [
        *_dandas("Mlym"),
        *_pairs("\u0d46\u0d3e=\u0d4a \u0d47\u0d3e=\u0d4b \u0d46\u0d57=\u0d4c \u0d57=\u0d4c"),
    ],
}
"""Script → texts and what replaces them, in this order, after COMMON."""
BEFORE_COMMON = {
    "Guru": [
        *_pairs("\u0a05\u0a3e=\u0a06 \u0a72\u0a3f=\u0a07 \u0a72\u0a40=\u0a08 \u0a73\u0a41=\u0a09"),
        *_pairs("\u0a73\u0a42=\u0a0a \u0a72\u0a47=\u0a0f \u0a05\u0a48=\u0a10 \u0a73\u0a4b=\u0a13"),
        *_pairs("\u0a05\u0a4c=\u0a14"),
    ],
    "Mlym": [
        *_pairs(
            "\u0d23\u0d4d\u200d=\u0d7a \u0d28\u0d4d\u200d=\u0d7b \u0d30\u0d4d\u200d=\u0d7c \u0d32\u0d4d\u200d=\u0d7d"
        ),
        *_pairs("\u0d33\u0d4d\u200d=\u0d7e \u0d15\u0d4d\u200d=\u0d7f"),
    ],
}
"""The same, of those that come before COMMON, which removes joiners."""
PUNCTUATION = re.compile(
    f"([{string.punctuation}{DANDA}{DOUBLE_DANDA}\uaaf1\uaaf0\uabeb\uabec\uabed\uabee\uabef\u1c7e\u1c7f])"
)
NUMBER = re.compile("([0-9]+ [,.:/] )+[0-9]+")
"""A number or date whose parts were set apart."""
ATTACHED = [
    (re.compile(r" ([-/\\]) "), r"\1"),
    (re.compile(f" ([!%)\\]}},.:;>?{DANDA}{DOUBLE_DANDA}])"), r"\1"),
    (re.compile(r"([#$(\[{<@]) "), r"\1"),
]
QUOTES = "'\"`"


def check_language(tag: str, *, prepares: bool) -> None:
    """Checks that there are rules for the language of a tag, such as hin_Deva.

    Raises:
      ValueError: a tag of another form; a script that none of these rules knows.
    """
    script = tag[4:]
    known = (*BLOCKS, *LETTERS_FOR, *MANY_FORMS)
    if script not in known and tag != ENGLISH:
        raise ValueError(
            f"tag: expected {ENGLISH}, or a language in one of the scripts {', '.join(known)}; received {tag!r}"
        )
    if prepares and script in MANY_FORMS:
        raise ValueError(
            f"{tag}: its texts are prepared by urduhack, whose rules aren't here: prepare them by IndicTransToolkit "
            "(IndicProcessor.preprocess_batch), and translate its lines, which begin with both tags, without a source "
            "tag"
        )


def prepare(text: str, tag: str) -> str:
    """Returns a text in the form that IndicTrans2 reads, in the language of a tag.

    Raises:
      ValueError: no rules for the language; English without sacremoses.

    Example:
      >>> prepare("வணக்கம், உலகம்!", "tam_Taml")
      'वणक्कम् , उलकम् !'
    """
    check_language(tag, prepares=True)
    for pattern, replacement in FIRST:
        text = pattern.sub(replacement, text)
    text = text.strip().translate(NUMERALS)
    if tag == ENGLISH:
        normalizer, tokenizer, _ = _moses()
        words: list[str] = tokenizer.tokenize(normalizer.normalize(text.strip()), escape=False)
        return " ".join(words).strip()
    script = LETTERS_FOR.get(tag[4:], tag[4:])
    text = _replaced(text.strip(), (*BEFORE_COMMON.get(script, ()), *COMMON, *LETTERS.get(script, ())))
    first = BLOCKS.get(script)
    if first is not None:  # a colon after a letter is a visarga
        text = re.sub(f"([{chr(first)}-{chr(first + 0x7F)}]):", rf"\1{chr(first + 3)}", text)
    text = _words(text)
    if tag[4:] in BLOCKS:
        text = _moved(text, BLOCKS[tag[4:]], DEVANAGARI).replace(" \u094d ", "\u094d")
    return text.strip()


def finish(text: str, tag: str) -> str:
    """Returns a text of IndicTrans2's pieces as it is written in the language of a tag.

    Raises:
      ValueError: no rules for the language; English without sacremoses.

    Example:
      >>> finish("वणक्कम् , उलकम् !", "tam_Taml")
      'வணக்கம், உலகம்!'
    """
    check_language(tag, prepares=False)
    language, _, script = tag.partition("_")
    if script in MANY_FORMS:
        text = _replaced(text, [*((f" {mark}", mark) for mark in "\u061f\u06d4\u060c"), ("\u066e\u06ea", "\u0620")])
    if language == "ory":
        text = text.replace("\u0b2f\u0b3c", "\u0b5f")
    if tag == ENGLISH:
        joined: str = _moses()[2].detokenize(text.split(" "))
        return joined
    written = LETTERS_FOR.get(script, script)
    if written in BLOCKS:
        text = _moved(text, DEVANAGARI, BLOCKS[written], _tamil if written == "Taml" else None)
    text = _numbers_joined(text)
    for pattern, replacement in ATTACHED:
        text = pattern.sub(replacement, text)
    for quote in QUOTES:
        text = _quotes_attached(text, quote)
    return text


@cache
def _moses() -> tuple[Any, Any, Any]:
    """Returns what normalizes, splits and joins English."""
    require("sacremoses", "English of IndicTrans2")
    import sacremoses

    return sacremoses.MosesPunctNormalizer(), sacremoses.MosesTokenizer("en"), sacremoses.MosesDetokenizer("en")


def _replaced(text: str, pairs: Sequence[tuple[str, str]]) -> str:
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def _words(text: str) -> str:
    """Sets punctuation apart by spaces, but in numbers and dates."""
    apart = PUNCTUATION.sub(r" \1 ", text.replace("\t", " "))
    return _numbers_joined(re.sub(" +", " ", apart).strip(" "))


def _numbers_joined(text: str) -> str:
    """Removes spaces in numbers and dates, except from one at the very start."""
    return NUMBER.sub(lambda found: found[0].replace(" ", "") if found.start() else found[0], text)


def _moved(text: str, first: int, other: int, changed: Callable[[int], int] | None = None) -> str:
    """Returns the text with characters of one block in the same places of another one.

    Args:
      changed: returns the place to take instead, for a script without some letters.
    """
    places = [(character, ord(character) - first) for character in text]
    return "".join(
        chr(other + (place if changed is None else changed(place)))
        if 0 <= place < ALIKE and character not in (DANDA, DOUBLE_DANDA)
        else character
        for character, place in places
    )


def _tamil(place: int) -> int:
    """Returns the letter that Tamil has for one that it lacks: the unvoiced one for voiced and aspirated ones."""
    if 0x15 <= place <= 0x28 and place != 0x1C and (place - 0x15) % 5 in (1, 2, 3):
        return 0x15 + 5 * ((place - 0x15) // 5)
    return {0x2B: 0x2A, 0x2C: 0x2A, 0x2D: 0x2A, 0x36: 0x37}.get(place, place)


def _quotes_attached(text: str, quote: str) -> str:
    """Attaches quotes of one kind to the word after and before them, in turn."""
    parts = text.split(quote)
    if len(parts) == 1:
        return text
    opened = parts[0]
    for number, part in enumerate(parts[1:]):
        if number % 2:
            opened = opened.removesuffix(" ") + quote + part
        else:
            opened += quote + part.removeprefix(" ")
    return opened
