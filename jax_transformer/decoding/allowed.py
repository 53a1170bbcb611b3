"""Next tokens that a function of the caller's allows; it runs on the host, between the steps of a compiled search."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from jax_transformer.decoding.checks import DecodingError

AllowedTokens = Callable[[int, list[int]], Iterable[int]]
"""(the sentence's number, the ids so far without the start token) → the ids that may come next."""
NOT_ASKED = -1
"""In place of a sentence's number: any token may come next."""


class Allowed:
    """Asks a function which tokens may come next.

    It is a part of a compiled program, and keeps what the function raises until the search can raise it.
    """

    def __init__(self, function: AllowedTokens) -> None:
        self._function = function
        self._errors: list[Exception] = []

    def mask(self, vocabulary: int, numbers: jax.Array, tokens: jax.Array, column: jax.Array) -> jax.Array:
        """Returns which tokens may stand in a column, [B, K, vocabulary] bool.

        Args:
          numbers: [B], the sentences' numbers, or NOT_ASKED.
          tokens: [B, K, T], the targets so far.
        """

        def asked(*arrays: Any) -> np.ndarray:
            sentences, targets, end = map(np.asarray, arrays)
            found = np.ones((*targets.shape[:2], vocabulary), bool)
            for row, number in enumerate(sentences.tolist()):
                for beam, ids in enumerate(targets[row, :, : int(end)].tolist()):
                    if number != NOT_ASKED and not self._errors:
                        found[row, beam] = self._ask(vocabulary, number, ids)
            return found

        shape = jax.ShapeDtypeStruct((*tokens.shape[:2], vocabulary), np.bool_)
        mask: jax.Array = jax.pure_callback(asked, shape, numbers, tokens, column)
        return mask

    def _ask(self, vocabulary: int, number: int, ids: list[int]) -> np.ndarray:
        mask = np.zeros(vocabulary, bool)
        try:
            allowed = [int(token) for token in self._function(number, ids)]
            wrong = [token for token in allowed if not 0 <= token < vocabulary]
            if wrong or not allowed:
                raise DecodingError(
                    f"allowed: expected ids below {vocabulary}, the size of the target's vocabulary, and at least one; "
                    f"received {wrong[0] if wrong else 'none'} for sentence {number} after {ids}"
                )
        except Exception as error:  # raised when the search can
            self._errors.append(error)
            return ~mask
        mask[allowed] = True
        return mask

    def check(self) -> None:
        """Raises what the function raised, or DecodingError for ids that can't be used."""
        if self._errors:
            error = self._errors[0]
            self._errors.clear()
            raise error


@lru_cache(maxsize=32)
def allowed_by(function: AllowedTokens) -> Allowed:
    """Returns what asks this function: the same for the same one, so that its programs are compiled once."""
    return Allowed(function)
