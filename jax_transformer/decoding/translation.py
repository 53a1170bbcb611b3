"""Translation of texts: tokenizing, batching by length, decoding, and restoring the order."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from jax_transformer.config.decoding import DecodingConfig, DecodingOptions
from jax_transformer.decoding.batches import MOST_TOKENS, Decoded, generate_each
from jax_transformer.decoding.checks import DecodingError, merged_options
from jax_transformer.decoding.padding import limit
from jax_transformer.decoding.prepared import prepare
from jax_transformer.runtime.arguments import check_texts
from jax_transformer.storage.model_directory import Model

if TYPE_CHECKING:
    from jax_transformer.data.tokenizers import Tokenizer


_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])[”’」』）]*\s*")
"""The end of a sentence with the white space after it: a full stop, and any closing quotes or brackets."""


class TranslationError(DecodingError):
    """Raised when a model can't translate a sentence.

    Example:
      >>> issubclass(TranslationError, ValueError)
      True
    """


class Hypothesis(NamedTuple):
    """Holds one translation of a sentence, or of a part of it."""

    text: str
    ids: list[int]
    """Ids without the start token, up to and with the end token if there is one."""
    score: float
    """See DecodingConfig."""


class Part(NamedTuple):
    """Holds a sentence, or a separately decoded part of a long one."""

    source_ids: list[int]
    source: str
    space: str
    """White space between this part and the next."""
    hypotheses: list[Hypothesis]
    """Best first."""


class Translation(NamedTuple):
    """Holds the result for one sentence.

    Example:
      >>> Translation([], problem="expected at most 30 tokens, the model's longest; received 41").text()
      ''
    """

    parts: list[Part]
    """In order; empty for a blank sentence, or with a problem."""
    problem: str = ""
    """Reason why the sentence can't be translated, or ""."""

    def text(self, rank: int = 0) -> str:
        """Returns the text of each part's hypothesis of this rank, joined."""
        return "".join(part.hypotheses[rank].text + part.space for part in self.parts).rstrip()

    def score(self, rank: int = 0) -> float:
        """Returns the sum of the parts' scores."""
        return sum(part.hypotheses[rank].score for part in self.parts)


def translate(
    model: Model,
    sentences: Iterable[str],
    decoding: DecodingConfig | None = None,
    *,
    rows: int = 64,
    source_tag: str = "",
    on_batch: Callable[[int], None] | None = None,
    **options: Unpack[DecodingOptions],
) -> list[str]:
    """Translates sentences; returns the best translation of each, in order. A blank sentence gives "".

    Warns of sentences whose tokens are mostly unknown to the model.

    Settings in order of precedence: the options, `decoding`, the model's `generation.json`, the defaults.

    Args:
      model: a Model, or a PreparedModel, with tokenizers.
      sentences: the texts.
      decoding: decoding options as a config.
      rows: most sentences to decode at once.
      source_tag: token to put before every sentence; names the target language for a multilingual model. "" for none.
      on_batch: called when sentences have ended, with their number.
      **options: fields of DecodingConfig, such as beam_size=4.

    Raises:
      TranslationError: a sentence is too long for the model (named by its number, from 1); no tokenizers.
      ConfigError, DecodingError: see `generate`.
      ValueError: the model doesn't have the source_tag; `sentences` is one string, or holds something else.

    Example:
      >>> import jax
      >>> from jax_transformer.config.decoding import GenerationConfig
      >>> from jax_transformer.config.model import TransformerConfig
      >>> from jax_transformer.data.tokenizers import SpecialIds, train_tokenizer
      >>> from jax_transformer.model.functional import init_params
      >>> specials = SpecialIds(pad=1, unk=0, bos=2, eos=3)
      >>> words = train_tokenizer(["a b c"], kind="whitespace", specials=specials, vocab_size=7)
      >>> config = TransformerConfig(source_vocab_size=7, target_vocab_size=7, source_pad_id=1, target_pad_id=1,
      ...                            d_model=8, num_heads=2, d_ff=8, num_encoder_layers=1, num_decoder_layers=1)
      >>> generation = GenerationConfig(decoder_start_id=2, eos_id=3)
      >>> model = Model(config, init_params(config, jax.random.key(0)), words, words, generation)
      >>> len(translate(model, ["a b", "", "c"], beam_size=2, max_new_tokens=3))
      3
    """
    model = prepare(model)
    sentences, decoding = check_texts("sentences", sentences), merged_options(decoding, options)
    parts, problems = sentence_parts(model, sentences, source_tag, split_long=False)
    if problems:
        listed = "; ".join(f"sentence {i + 1}: {problem}" for i, problem in list(problems.items())[:5])
        raise TranslationError(f"{listed}; split or leave them out")
    unknown = [f"sentence {i}: {what}" for i, each in enumerate(parts, 1) if (what := unknown_tokens(model, each))]
    if unknown:
        more = f"; and {len(unknown) - 3:,} more" if len(unknown) > 3 else ""
        warnings.warn(f"{'; '.join(unknown[:3])}{more}: is it the model's language and script?", stacklevel=2)
    _fill(model, parts, decoding, rows=rows, on_batch=on_batch)
    return [Translation(each).text() for each in parts]


def translate_each(
    model: Model,
    sentences: Iterable[str],
    decoding: DecodingConfig | None = None,
    *,
    rows: int = 64,
    batch_tokens: int = MOST_TOKENS,
    source_tag: str = "",
    prefix: str = "",
    split_long: bool = False,
    first_number: int = 0,
    on_batch: Callable[[int], None] | None = None,
    **options: Unpack[DecodingOptions],
) -> list[Translation]:
    """Translates each sentence, or reports why it can't. Batching by length changes no translation.

    Args:
      decoding: decoding options, merged with the model's own as `generate` merges them.
      rows: most sentences to decode at once.
      batch_tokens: most source tokens to decode at once, padding counted.
      source_tag: token to put before every sentence; names the target language for a multilingual model. "" for none.
      prefix: text that every translation begins with.
      split_long: split a line that is too long for the model into sentences.
      first_number: number of the first sentence; random draws depend on a sentence's number.
      on_batch: called when sentences, or parts of sentences, have ended, with their number.
      **options: fields of DecodingConfig, such as beam_size=4.

    Raises:
      TranslationError: the model has no tokenizers; the vocabulary doesn't have the prefix.
      DecodingError: see `generate`.
      ValueError: the model doesn't have the source_tag; `sentences` is one string, or holds something else.

    Example:
      >>> import jax
      >>> from jax_transformer import GenerationConfig, Model, TransformerConfig, init_params
      >>> from jax_transformer.data import SpecialIds, train_tokenizer
      >>> words = train_tokenizer(["Who sleeps ?", "Wer schläft ?"], kind="whitespace", specials=SpecialIds(0, 1, 2, 3))
      >>> config = TransformerConfig(source_vocab_size=words.vocab_size, target_vocab_size=words.vocab_size, d_model=8,
      ...                            num_heads=2, d_ff=8, num_encoder_layers=1, num_decoder_layers=1)
      >>> model = Model(config, init_params(config, jax.random.key(0)), words, words,
      ...               GenerationConfig(decoder_start_id=2, eos_id=3))
      >>> [len(each.parts) for each in translate_each(model, ["Who sleeps ?", ""], beam_size=2, max_new_tokens=3)]
      [1, 0]
    """
    model = prepare(model)
    sentences, decoding = check_texts("sentences", sentences), merged_options(decoding, options)
    parts, problems = sentence_parts(model, sentences, source_tag, split_long)
    _fill(
        model,
        parts,
        decoding,
        rows=rows,
        batch_tokens=batch_tokens,
        prefix_ids=encode_prefix(model, prefix),
        first_number=first_number,
        on_batch=on_batch,
    )
    return [Translation(each, problems.get(i, "")) for i, each in enumerate(parts)]


def unknown_tokens(model: Model, parts: Sequence[Part]) -> str:
    """Returns "", or the count of unknown tokens if they are more than half: such a translation reflects little of the
    sentence."""
    tokenizer = tokenizers_of(model)[0]
    ids = [index for part in parts for index in part.source_ids if index not in tokenizer.hidden_ids]
    unknown = ids.count(tokenizer.unk_id)
    return f"{unknown} of {len(ids)} tokens are unknown to the model" if 2 * unknown > len(ids) else ""


def tokenizers_of(model: Model) -> tuple[Tokenizer, Tokenizer]:
    """Returns the tokenizers of source and target. Raises TranslationError for a model without them."""
    if model.source_tokenizer is None or model.target_tokenizer is None:
        raise TranslationError(
            "expected a model with tokenizers; this one has none: train it here, or port it together with its "
            "vocabularies"
        )
    return model.source_tokenizer, model.target_tokenizer


def split_sentences(text: str) -> list[str]:
    """Splits a text after the ends of its sentences. Joined, the parts give the text again.

    Abbreviations aren't known: "Dr. Who" is split after the full stop.
    """
    cuts = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    return [text[start:stop] for start, stop in pairwise(cuts) if start < stop]


def sentence_parts(
    model: Model, sentences: Sequence[str], source_tag: str, split_long: bool
) -> tuple[list[list[Part]], dict[int, str]]:
    """Returns the parts of each sentence, still without hypotheses, and the problems by the sentence's index."""
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
    """Adds hypotheses to the parts of each sentence. Passes `batching` to `generate_each`."""
    flat = [(number, part) for number, each in enumerate(parts, first_number) for part in each]
    decoded = generate_each(
        model, [part.source_ids for _, part in flat], decoding, numbers=[number for number, _ in flat], **batching
    )
    hypotheses = iter(with_texts(model, [one for each in decoded for one in each]))
    for (_, part), each in zip(flat, decoded, strict=True):
        part.hypotheses.extend(islice(hypotheses, len(each)))


def with_texts(model: Model, decoded: Sequence[Decoded]) -> list[Hypothesis]:
    """Returns the hypotheses with their texts."""
    texts = tokenizers_of(model)[1].decode([ids for ids, _ in decoded])
    return [Hypothesis(text, *each) for text, each in zip(texts, decoded, strict=True)]


def encode_prefix(model: Model, prefix: str) -> list[int]:
    """Returns the ids of a prefix. Raises TranslationError for words that the target vocabulary doesn't have."""
    tokenizer = tokenizers_of(model)[1].adding(bos=False, eos=False)
    (ids,) = tokenizer.encode([prefix])
    if tokenizer.unk_id in ids:
        unknown = next(word for word in prefix.split() or [prefix] if tokenizer.unk_id in tokenizer.encode([word])[0])
        raise TranslationError(
            f"prefix: expected tokens of the target vocabulary; received {unknown!r}, which it doesn't have"
        )
    return ids
