"""Decoding with a model: generation, translation, scoring and word alignment.

Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from jax_transformer.config.decoding import DecodingConfig
    from jax_transformer.decoding.alignment import align, pharaoh, word_pairs
    from jax_transformer.decoding.checks import DecodingError
    from jax_transformer.decoding.generation import Generated, generate
    from jax_transformer.decoding.prepared import PreparedModel, prepare
    from jax_transformer.decoding.scoring import Scores, score
    from jax_transformer.decoding.translation import Translation, TranslationError, translate, translate_each

_HOMES = {
    "jax_transformer.config.decoding": ("DecodingConfig",),
    "jax_transformer.decoding.alignment": ("align", "pharaoh", "word_pairs"),
    "jax_transformer.decoding.checks": ("DecodingError",),
    "jax_transformer.decoding.generation": ("Generated", "generate"),
    "jax_transformer.decoding.prepared": ("PreparedModel", "prepare"),
    "jax_transformer.decoding.scoring": ("Scores", "score"),
    "jax_transformer.decoding.translation": ("Translation", "TranslationError", "translate", "translate_each"),
}
__all__ = [
    "DecodingConfig",
    "DecodingError",
    "Generated",
    "PreparedModel",
    "Scores",
    "Translation",
    "TranslationError",
    "align",
    "generate",
    "pharaoh",
    "prepare",
    "score",
    "translate",
    "translate_each",
    "word_pairs",
]
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
