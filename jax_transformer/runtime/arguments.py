"""Checks of arguments that many functions take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def check_texts(name: str, texts: Iterable[str]) -> list[str]:
    """Returns the texts as a list.

    Raises:
      ValueError: one string, whose characters would count as texts; something else than strings.
    """
    if isinstance(texts, str):
        raise ValueError(f"{name}: expected a list of strings; received one string: write [{_shortened(texts)}]")
    if not isinstance(texts, Iterable) or isinstance(texts, bytes):
        raise ValueError(f"{name}: expected a list of strings; received {type(texts).__name__}")
    listed = list(texts)
    for i, text in enumerate(listed, 1):
        if not isinstance(text, str):
            raise ValueError(f"{name}: expected a list of strings; received {type(text).__name__} in place {i}")
    return listed


def check_id_lists(name: str, sequences: Any) -> None:
    """Raises ValueError unless `sequences` is a sequence of sequences; their items aren't looked at."""
    if isinstance(sequences, str | bytes) or not hasattr(sequences, "__len__") or not hasattr(sequences, "__iter__"):
        raise ValueError(f"{name}: expected a list of each sentence's ids; received {type(sequences).__name__}")
    for i, ids in enumerate(sequences, 1):
        if isinstance(ids, str):
            raise ValueError(f"{name}: expected a list of each sentence's ids; received the text {_shortened(ids)}")
        if not hasattr(ids, "__len__"):
            raise ValueError(
                f"{name}: expected a list of each sentence's ids, such as [[4, 5]]; received {type(ids).__name__} in "
                f"place {i}"
            )


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")
