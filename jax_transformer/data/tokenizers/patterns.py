"""Lists regular expressions of well-known tokenizers, reviewed to take time linear in a sentence's length, or at worst
quadratic in a run of spaces."""

from __future__ import annotations

WORD = r"\w+(?:[-'’]\w+|(?<=\d)[.,]\d+)*|[^\w\s]"
# A piece of BPE never mixes letters, digits and other characters, nor spans a space: "dog." and "dog" share their
# pieces.
PIECE = r"▁?(?:[\p{L}\p{M}]+(?:['’][\p{L}\p{M}]+)*|\p{N}+|[^▁\p{L}\p{M}\p{N}]+)|▁"
# The same for unigram, where apostrophes count as other characters: no piece can then span two of these runs, so that a
# whole sentence, which sentencepiece segments, has the same best segmentation.
RUN = r"▁?(?:[\p{L}\p{M}]+|\p{N}+|[^▁\p{L}\p{M}\p{N}]+)|▁"
LITERAL = "(?:pad|unk|bos|eos)>"
BEFORE_LITERAL = f"^<(?={LITERAL}$)"
"""A sentence may contain a special token's text: cut after its "<", the text isn't looked up as a special token."""
AFTER_CUT = rf"(?<=^<| <) (?={LITERAL}(?: |$))"
ANY_CHARACTER = "(?m)."
"""(?m): the dot matches any character, including line ends."""
SPACE_BEFORE_MARK, SPACE_AFTER_BRACKET = r" (?=[.,!?;:)])", r"(?<=\() "

_CONTRACTIONS, _SPACES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"\s*[\r\n]+|\s+(?!\S)|\s+"
FOREIGN = (
    " {2,}",  # T5, NLLB, mBART, XLM-R
    r"\s+",
    r"\s",
    r"\d",
    "[0-9]",
    r"\p{N}",
    r"\p{N}{1,3}",
    r"[^\S\n]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2, RoBERTa, Whisper
    r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",  # CLIP
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",  # GPT-4
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",  # Qwen 2
    r" ?[^(\s|[.,!?…。，、।۔،])]+",  # BLOOM
)

KNOWN_PATTERNS = frozenset(
    (WORD, PIECE, RUN, BEFORE_LITERAL, AFTER_CUT, ANY_CHARACTER, SPACE_BEFORE_MARK, SPACE_AFTER_BRACKET, *FOREIGN)
)
"""Patterns that need no trial."""
