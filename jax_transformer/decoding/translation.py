"""From sentences to sentences: batching by length, decoding, and putting the results back in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.decoding.batches import MOST_TOKENS, generate_each
from jax_transformer.decoding.checks import DecodingError
from jax_transformer.decoding.padding import limit
from jax_transformer.decoding.splitting import split_sentences
from jax_transformer.storage.model_directory import Model

if TYPE_CHECKING:
    from jax_transformer.data.tokenizers import Tokenizer


class TranslationError(DecodingError):
    """Sentences that the model can't translate."""


class Hypothesis(NamedTuple):
    """One way to translate a sentence, or a part of it."""

    text: str
    ids: list[int]
    """Without the start token; the end token last, if it was reached."""
    score: float
    """See DecodingConfig."""


class Part(NamedTuple):
    """What is decoded at once: a sentence, or of one that is too long some."""

    source_ids: list[int]
    source: str
    space: str
    """What stands between it and the next part."""
    hypotheses: list[Hypothesis]
    """The best first."""


class Translation(NamedTuple):
    """What became of a sentence."""

    parts: list[Part]
    """In order; none of a blank sentence, nor with a problem."""
    problem: str = ""
    """Why it can't be translated; "" if it can."""

    def text(self, rank: int = 0) -> str:
        """Of the best hypothesis, or another one, of each part."""
        return "".join(part.hypotheses[rank].text + part.space for part in self.parts).rstrip()

    def score(self, rank: int = 0) -> float:
        """The sum of the parts'."""
        return sum(part.hypotheses[rank].score for part in self.parts)


def translate(
    model: Model,
    sentences: Sequence[str],
    decoding: DecodingConfig | None = None,
    *,
    rows: int = 64,
    source_tag: str = "",
    on_batch: Callable[[int], None] | None = None,
) -> list[str]:
    """The best translation of each sentence, in order; an empty (or blank) sentence gives an empty one.

    Args:
      decoding, rows, source_tag, on_batch: as of `translate_each`.

    Raises:
      TranslationError: a sentence is longer than the model takes, named by its number (from 1); and as
        `translate_each`.
    """
    parts, problems = _parts(model, sentences, source_tag, split_long=False)
    if problems:
        listed = "; ".join(f"sentence {i + 1}: {problem}" for i, problem in list(problems.items())[:5])
        raise TranslationError(f"{listed}; split or leave them out")
    _fill(model, parts, decoding, rows=rows, on_batch=on_batch)
    return [Translation(of_sentence).text() for of_sentence in parts]


def translate_each(
    model: Model,
    sentences: Sequence[str],
    decoding: DecodingConfig | None = None,
    *,
    rows: int = 64,
    batch_tokens: int = MOST_TOKENS,
    source_tag: str = "",
    prefix: str = "",
    split_long: bool = False,
    first_number: int = 0,
    on_batch: Callable[[int], None] | None = None,
) -> list[Translation]:
    """What becomes of each sentence, in order. Sentences of similar lengths are decoded together; that changes none of
    them.

    Args:
      decoding, rows, batch_tokens: as of `generate_each`.
      source_tag: put before every sentence: tells a multilingual model the target language. "" for none.
      prefix: what every translation begins with.
      split_long: translate a line that is longer than the model takes sentence by sentence, cut where sentences end in
        it.
      first_number: of the first sentence, by which drawing differs from that of the others.
      on_batch: called after each batch with the number of sentences, or parts of such, that it held.

    Raises:
      TranslationError: the model has no tokenizers; a prefix that the vocabulary doesn't have.
      DecodingError: see `generate`.
      ValueError: a source_tag that the model doesn't have.
    """
    parts, problems = _parts(model, sentences, source_tag, split_long)
    _fill(
        model,
        parts,
        decoding,
        rows=rows,
        batch_tokens=batch_tokens,
        prefix_ids=_prefix_ids(model, prefix),
        first_number=first_number,
        on_batch=on_batch,
    )
    return [Translation(of_sentence, problems.get(i, "")) for i, of_sentence in enumerate(parts)]


def tokenizers_of(model: Model) -> tuple[Tokenizer, Tokenizer]:
    """Of source and target. Raises TranslationError for a model without them."""
    if model.source_tokenizer is None or model.target_tokenizer is None:
        raise TranslationError(
            "expected a model with tokenizers; this one has none: train it here, or port it together with its "
            "vocabularies"
        )
    return model.source_tokenizer, model.target_tokenizer


def _parts(
    model: Model, sentences: Sequence[str], source_tag: str, split_long: bool
) -> tuple[list[list[Part]], dict[int, str]]:
    """The parts of each sentence, without hypotheses yet; and by the sentence's index what keeps it from being
    translated."""
    tokenizer, most = tokenizers_of(model)[0], limit(model, "source")
    parts: list[list[Part]] = [[] for _ in sentences]
    problems = {}
    filled = [i for i, sentence in enumerate(sentences) if sentence.strip()]
    for i, ids in zip(filled, tokenizer.encode([sentences[i] for i in filled], source_tag), strict=True):
        parts[i] = [Part(ids, sentences[i], "", [])]
        if len(ids) > most and split_long:
            texts = split_sentences(sentences[i])
            encoded = tokenizer.encode([text.rstrip() for text in texts], source_tag)
            parts[i] = [
                Part(ids, text.rstrip(), text[len(text.rstrip()) :], [])
                for ids, text in zip(encoded, texts, strict=True)
            ]
        longest = max(len(part.source_ids) for part in parts[i])
        if longest > most:
            parts[i] = []
            problems[i] = (
                f"expected at most {most} tokens, the model's longest; received {longest}"
                + " without an end" * split_long
            )
    return parts, problems


def _fill(
    model: Model, parts: list[list[Part]], decoding: DecodingConfig | None, first_number: int = 0, **batching: Any
) -> None:
    """Adds the hypotheses to the parts of each sentence; batching: as of `generate_each`."""
    flat = [(number, part) for number, of_sentence in enumerate(parts, first_number) for part in of_sentence]
    found = generate_each(
        model, [part.source_ids for _, part in flat], decoding, numbers=[number for number, _ in flat], **batching
    )
    for (_, part), hypotheses in zip(flat, found, strict=True):
        texts = tokenizers_of(model)[1].decode([ids for ids, _ in hypotheses])
        part.hypotheses.extend(Hypothesis(text, *each) for text, each in zip(texts, hypotheses, strict=True))


def _prefix_ids(model: Model, prefix: str) -> list[int]:
    tokenizer = tokenizers_of(model)[1].adding(bos=False, eos=False)
    (ids,) = tokenizer.encode([prefix])
    if tokenizer.unk_id in ids:
        unknown = next(word for word in prefix.split() or [prefix] if tokenizer.unk_id in tokenizer.encode([word])[0])
        raise TranslationError(
            f"prefix: expected tokens of the target vocabulary; received {unknown!r}, which it doesn't have"
        )
    return ids
