"""jax-transformer plot attention MODEL SENTENCES [options]: selects the weights to draw, and labels their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import tyro

from jax_transformer.commands.picture_options import PictureOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure  # elsewhere imported where something is drawn

    from jax_transformer.data.tokenizers import Tokenizer, Words
    from jax_transformer.pages.attention import Maps
    from jax_transformer.storage.model_directory import Model

PAGE = ".html"
JOINER = "\u200d"
"""Joins emoji into one; invisible like a control character, but harmless."""
WHITE_SPACE = {" ": "␣", "\n": "↵", "\t": "⇥"}


@dataclass(frozen=True)
class AttentionOptions(PictureOptions):
    """Draw a model's attention weights while it translates a sentence greedily: every head of one kind, or one head. An
    .html file shows all kinds, and any number of sentences."""

    model: tyro.conf.Positional[str]
    """Model directory, run directory that contains one, or name on the Hub (owner/name, owner/name@revision)."""
    sentences: tyro.conf.Positional[tuple[str, ...]] = ()
    """Sentences to translate: one, or for a page several."""
    input: str | None = None
    """Text file of more sentences, one on each line, gzipped or not; - for standard input."""
    target: tuple[str, ...] = ()
    """Translation of each sentence to force, instead of the model's own."""
    kind: Literal["cross", "encoder", "decoder"] = "cross"
    """The decoder's attention to the source, or the self-attention of a stack. A page starts with this kind."""
    layer: int | None = None
    """Draw only this layer, from 0. A page starts with it, or by default with the sharpest layer: its weights have the
    least entropy."""
    head: int | None = None
    """Draw only this head, from 0."""
    source_tag: str = ""
    """Token to put before the sentence, such as <2de>, which selects the target language of a multilingual model."""


class Pair(NamedTuple):
    """Holds a sentence, its translation, and the attention weights between them."""

    source: str
    target: str
    maps: dict[str, Maps]
    source_words: Words
    target_words: Words
    pairs: list[tuple[int, int]]
    layer: int
    """The decoder layer whose weights give the pairs."""


def draw(options: AttentionOptions) -> Figure:
    """Draws one kind of attention in one sentence."""
    from jax_transformer.plotting import attention as attention_plots

    sentences = _sentences(options)
    if len(sentences) > 1:
        raise ValueError(
            f"expected one sentence for a picture; received {len(sentences)}: an .html page takes several (-o "
            "attention.html)"
        )
    (pair,) = _pairs(options, sentences)
    return attention_plots.heat_maps(pair.maps[options.kind], layer=options.layer, head=options.head)


def page(options: AttentionOptions) -> str:
    """Returns the page with all kinds of attention in all sentences."""
    from jax_transformer.decoding.alignment import entropies
    from jax_transformer.pages.attention import Alignment, Example, Sentence, render

    pairs = _pairs(options, _sentences(options))
    examples = [
        Example(
            Sentence(pair.source, pair.source_words.texts),
            Sentence(pair.target, pair.target_words.texts),
            pair.maps,
            Alignment(pair.pairs, pair.layer),
        )
        for pair in pairs
    ]
    shown: dict[str, Any] = {"kind": options.kind, "layer": options.layer, "head": options.head}
    if options.layer is None:
        weights = [pair.maps[options.kind].weights for pair in pairs]
        rows = [each.shape[2] for each in weights]
        means = np.average([entropies(each) for each in weights], axis=0, weights=rows)
        shown |= {"layer": int(means.argmin()), "entropies": means.tolist()}
    return render(options.model, examples, shown)


def _sentences(options: AttentionOptions) -> list[str]:
    """Returns the sentences given, and those of the file."""
    from jax_transformer.commands.parallel_text import read_columns

    given, file = list(options.sentences), options.input
    sentences = given + ([line for line in read_columns([file])[0] if line.strip()] if file else [])
    if not sentences:
        raise ValueError("expected a sentence to translate; received none: write one behind the model, or use --input")
    if not all(sentence.strip() for sentence in sentences):
        raise ValueError("expected a sentence to translate; received an empty one")
    if options.target and len(options.target) != len(sentences):
        raise ValueError(
            f"--target: expected a translation for each of {len(sentences)} sentences; received {len(options.target)}"
        )
    return sentences


def _pairs(options: AttentionOptions, sentences: Sequence[str]) -> list[Pair]:
    from jax_transformer.commands.decode_options import load
    from jax_transformer.decoding.translation import tokenizers_of

    model = load(options.model, options.source_tag)
    tokenizers = tokenizers_of(model)
    _check_choice(model, options)
    source_ids = [
        _source_ids(model, tokenizers[0], sentence, options.source_tag, _where("the sentence", i, sentences))
        for i, sentence in enumerate(sentences)
    ]
    target_ids = _target_ids(model, tokenizers[1], options.target, source_ids)
    return [
        _pair(model, tokenizers, sentence, options.source_tag, *ids)
        for sentence, *ids in zip(sentences, source_ids, target_ids, strict=True)
    ]


def _pair(
    model: Model,
    tokenizers: tuple[Tokenizer, Tokenizer],
    sentence: str,
    source_tag: str,
    source_ids: list[int],
    target_ids: list[int],
) -> Pair:
    from jax_transformer.data.tokenizers import words_of_ids, words_of_text
    from jax_transformer.decoding.alignment import attention, default_layer, word_pairs
    from jax_transformer.decoding.checks import starts_and_ends
    from jax_transformer.pages.attention import Maps

    source_tokenizer, target_tokenizer = tokenizers
    weights, layer = attention(model, source_ids, target_ids), default_layer(model.config)
    source_words = words_of_text(source_tokenizer, sentence, source_tag)
    target_words = words_of_ids(target_tokenizer, target_ids)
    pairs = word_pairs(weights.cross[layer].mean(axis=0), source_words, target_words)

    start_id, _ = starts_and_ends(model)
    source, target = _shown(source_tokenizer, source_ids), _shown(target_tokenizer, target_ids)
    inputs = _shown(target_tokenizer, [start_id, *target_ids[:-1]])
    written = "target token being written"
    maps = {
        "cross": Maps("Cross-attention", weights.cross, target, source, written, "source token"),
        "encoder": Maps("Encoder self-attention", weights.encoder, source, source, "source token", "attended token"),
        "decoder": Maps("Decoder self-attention", weights.decoder, target, inputs, written, "attended token"),
    }
    text = target_tokenizer.decode([target_ids])[0]
    return Pair(sentence, text, maps, source_words, target_words, pairs, layer)


def _check_choice(model: Model, options: AttentionOptions) -> None:
    stack = model.config.encoder if options.kind == "encoder" else model.config.decoder
    own, cross = stack.self_attention, stack.cross_attention
    heads = (cross if options.kind == "cross" and cross is not None else own).num_heads
    for name, given, count in (("layer", options.layer, stack.num_layers), ("head", options.head, heads)):
        if given is not None and not 0 <= given < count:
            raise ValueError(
                f"--{name} must be from 0 to {count - 1} for this model's {options.kind} attention; received {given}"
            )


def _where(what: str, index: int, among: Sequence[str]) -> str:
    """Returns the place of a mistake: `what`, or with several its number."""
    return what if len(among) == 1 else f"{what.removeprefix('the ')} {index + 1}"


def _source_ids(model: Model, tokenizer: Tokenizer, sentence: str, source_tag: str, where: str) -> list[int]:
    from jax_transformer.decoding.padding import limit

    (ids,) = tokenizer.encode([sentence], source_tag)
    most = limit(model, "source")
    if not 1 <= len(ids) <= most:
        raise ValueError(f"{where}: expected from 1 to {most} tokens, the model's longest; received {len(ids)}")
    return ids


def _target_ids(
    model: Model, tokenizer: Tokenizer, targets: Sequence[str], source_ids: list[list[int]]
) -> list[list[int]]:
    """Returns the ids of the targets with their end token, or of the greedy translations, which may have none."""
    from jax_transformer.config.decoding import DecodingConfig
    from jax_transformer.decoding.batches import generate_each
    from jax_transformer.decoding.checks import starts_and_ends
    from jax_transformer.decoding.padding import WITHOUT_TABLE, num_positions

    _, eos_id = starts_and_ends(model)
    most = num_positions(model, "target") or WITHOUT_TABLE
    if not targets:
        return [found[0].ids for found in generate_each(model, source_ids, DecodingConfig(beam_size=1))]
    encoded = tokenizer.adding(bos=False, eos=False).encode(targets)
    for index, ids in enumerate(encoded):
        if len(ids) >= most:
            where = _where("--target", index, targets)
            raise ValueError(f"{where}: expected at most {most - 1} tokens, the model's longest; received {len(ids)}")
    return [[*ids, eos_id] for ids in encoded]


def _shown(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Returns the tokens as labels: white space is visible, and no invisible character changes the layout."""
    return ["".join(map(_visible, token)) for token in tokenizer.tokens(ids)]


def _visible(character: str) -> str:
    if character in WHITE_SPACE:
        return WHITE_SPACE[character]
    return character if character.isprintable() or character == JOINER else "\ufffd"
