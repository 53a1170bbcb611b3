"""Rules by which texts in a language get the form that a model reads; a backend names them in its file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from jax_transformer.data.tokenizers import indic_rules


class LanguageRules(Protocol):
    """Turns texts in a language into the form that a model reads, and back. A backend with such rules has them as
    `language_rules`."""

    def prepare(self, text: str, tag: str) -> str:
        """Returns a text in the language of a tag as it is split into pieces. Raises ValueError if there are no rules
        for it."""

    def finish(self, text: str, tag: str) -> str:
        """Returns the text of pieces as it is written in the language of a tag. Raises as `prepare` does."""


RULES: Mapping[str, LanguageRules] = {"indictrans": indic_rules}
"""Name of rules for languages → the module that has them."""
