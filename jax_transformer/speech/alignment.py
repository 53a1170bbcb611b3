"""Times of tokens and words, from where chosen heads of cross-attention look in a recording."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding.alignment import traced_weights
from jax_transformer.model.features import Features
from jax_transformer.speech.transcripts import Word

MEDIAN = 7
"""Positions of the median filter that smooths attention over time."""
OPENING, CLOSING = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"
"""Punctuation that belongs to the word after it, and to the one before."""
WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages that write no spaces between words: each character is taken for one."""


def attention_weights(
    config: TransformerConfig, params: Any, source: Features, ids: np.ndarray, heads: tuple[tuple[int, int], ...]
) -> np.ndarray:
    """Returns the cross-attention [H, T, S] of some heads, each a layer and a number, for one source and ids [1, T]."""
    names = [f"decoder.layers.{layer}.cross_attention.weights" for layer, _ in heads]
    reference = config.replace(attention_path="reference")
    weights = traced_weights(reference, params, source, ids, tuple(dict.fromkeys(names)))
    chosen = [np.asarray(weights[name])[0, head] for name, (_, head) in zip(names, heads, strict=True)]
    return np.stack(chosen).astype(np.float32)


def places(weights: np.ndarray) -> np.ndarray:
    """Returns the position in the recording [T] where each token begins.

    Args:
      weights: [H, T, S], attention of the heads that follow the speech. Standardized over the tokens, smoothed by a
        median over time and averaged over the heads, it is the gain of a path that visits all tokens and positions in
        order.

    Example:
      >>> import numpy as np
      >>> from jax_transformer.speech.alignment import places
      >>> places(np.repeat(np.eye(3), 10, axis=1)[None]).tolist()
      [0, 10, 20]
    """
    if weights.shape[1] == 1:
        return np.zeros(1, int)
    wide = weights.astype(np.float64)
    standardized = (wide - wide.mean(axis=1, keepdims=True)) / wide.std(axis=1, keepdims=True)
    tokens, positions = path(-_smoothed(standardized).mean(axis=0))
    return positions[np.flatnonzero(np.diff(tokens, prepend=-1))]


def _smoothed(x: np.ndarray) -> np.ndarray:
    """Returns the medians of x [..., S] over MEDIAN positions, reflected at the ends; a shorter x is unchanged."""
    around = MEDIAN // 2
    if x.shape[-1] <= around:
        return x
    padded = np.pad(x, ((0, 0), (0, 0), (around, around)), mode="reflect")
    medians: np.ndarray = np.median(np.lib.stride_tricks.sliding_window_view(padded, MEDIAN, axis=-1), axis=-1)
    return medians


def path(cost: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows and columns of the cheapest path through cost [T, S], by dynamic time warping.

    A path goes from the first entry to the last, each step by one row, one column, or both. Sums are float32, and a
    column is preferred where steps cost the same, as in transformers.
    """
    rows, columns = cost.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    total[0, 0] = 0
    steps = np.full((rows + 1, columns + 1), 2, np.int8)  # 0: both, 1: a row, 2: a column
    steps[1:, 0] = 1
    for diagonal in range(2, rows + columns + 1):
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        both, row, column = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        step = np.where((both < row) & (both < column), 0, np.where((row < both) & (row < column), 1, 2))
        total[i, j] = cost[i - 1, j - 1] + np.choose(step, [both, row, column])
        steps[i, j] = step
    i, j, visited = rows, columns, []
    while i > 0 or j > 0:
        visited.append((i - 1, j - 1))
        step = steps[i, j]
        i, j = i - (step != 2), j - (step != 1)
    found = np.array(visited[::-1])
    return found[:, 0], found[:, 1]


def words_of(
    tokens: Sequence[int],
    times: Sequence[float],
    end: float,
    decode: Callable[[list[int]], str],
    is_text: Callable[[int], bool],
    language: str | None,
) -> list[Word]:
    """Returns the words of a segment, with their times.

    Args:
      times: of each token, in seconds.
      end: of the segment.
      decode: tokens → text.
      is_text: whether a token is text, no time or special token.
    """
    parts: list[Word] = []
    held: list[int] = []
    start = 0.0
    texts = [number for number, token in enumerate(tokens) if is_text(token)]
    for number in texts:
        start = start if held else times[number]
        held.append(tokens[number])
        text = decode(held)
        if "\ufffd" not in text or number == texts[-1]:  # else a character continues in the next token
            parts.append(Word(text, start, times[number + 1] if number + 1 < len(times) else end))
            held = []
    found = parts if language in WITHOUT_SPACES else _joined(parts, lambda word, text: not _begins_word(text))
    backwards = _joined(found[::-1], lambda word, text: text.startswith(" ") and text.strip() in OPENING, first=False)
    found = _joined(backwards[::-1], lambda word, text: not word.endswith(" ") and text in CLOSING)
    return [Word(word.text, word.start, max(word.start, word.end)) for word in found]


def _begins_word(text: str) -> bool:
    return text.startswith(" ") or text.strip() in string.punctuation


def _joined(words: Sequence[Word], continues: Callable[[str, str], bool], *, first: bool = True) -> list[Word]:
    """Joins each word to the one before it in the list where it `continues` that one.

    Args:
      continues: (the word so far, the next one) → whether they are one.
      first: whether the word before it in the list is the earlier one.
    """
    found: list[Word] = []
    for word in words:
        if found and continues(found[-1].text, word.text):
            early, late = (found[-1], word) if first else (word, found[-1])
            found[-1] = Word(early.text + late.text, early.start, late.end)
        else:
            found.append(word)
    return found
