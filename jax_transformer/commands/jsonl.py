"""Details of translations for JSON: scores, tokens, log-probabilities and alignments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jax_transformer.data.tokenizers import Words, words_of_ids, words_of_text
from jax_transformer.decoding.alignment import Pair, align, pharaoh, word_pairs
from jax_transformer.decoding.pairs import score_ids
from jax_transformer.decoding.translation import Translation, tokenizers_of
from jax_transformer.storage.model_directory import Model


def describe(model: Model, translations: Sequence[Translation], source_tag: str = "") -> Iterator[list[dict[str, Any]]]:
    """Yields the hypotheses of each translation, best first, as dicts with these keys:

    text: the text of all parts.
    score: the sum of the parts' scores; see DecodingConfig.
    tokens, token_log_probs: all tokens, the end token of each part included.
    alignment: pairs of source and target words as `pharaoh` writes them, from `align` and `word_pairs`, numbered across
      the parts.
    """
    flat = [
        (part, hypothesis)
        for translation in translations
        for part in translation.parts
        for hypothesis in part.hypotheses
    ]
    sources, targets = [part.source_ids for part, _ in flat], [hypothesis.ids for _, hypothesis in flat]
    source_tokenizer, target_tokenizer = tokenizers_of(model)
    each = []
    for (part, (_, ids, _)), log_probs, weights in zip(
        flat, score_ids(model, sources, targets), align(model, sources, targets), strict=True
    ):
        source, target = words_of_text(source_tokenizer, part.source, source_tag), words_of_ids(target_tokenizer, ids)
        each.append(
            _Described(
                target_tokenizer.tokens(ids), log_probs.tolist(), source, target, word_pairs(weights, source, target)
            )
        )

    remaining = iter(each)
    for translation in translations:
        by_part = [[next(remaining) for _ in part.hypotheses] for part in translation.parts]
        yield [_fields(translation, rank, parts) for rank, parts in enumerate(zip(*by_part, strict=True))]


class _Described(NamedTuple):
    """Holds one hypothesis of a part."""

    tokens: list[str]
    log_probs: list[float]
    source: Words
    target: Words
    pairs: list[Pair]


def _fields(translation: Translation, rank: int, parts: Sequence[_Described]) -> dict[str, Any]:
    pairs: list[Pair] = []
    source_words = target_words = 0
    for part in parts:
        pairs += [(source + source_words, target + target_words) for source, target in part.pairs]
        source_words, target_words = source_words + len(part.source.texts), target_words + len(part.target.texts)
    return {
        "text": translation.text(rank),
        "score": round(translation.score(rank), 6),
        "tokens": [token for part in parts for token in part.tokens],
        "token_log_probs": [round(value, 6) for part in parts for value in part.log_probs],
        "alignment": pharaoh(pairs),
    }
