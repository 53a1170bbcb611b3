"""jax-transformer plot attention MODEL SENTENCE [options]: selects the weights to draw, and labels their tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

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
    .html file shows all kinds."""

    model: tyro.conf.Positional[str]
    """Model directory, run directory that contains one, or name on the Hub (owner/name, owner/name@revision)."""
    sentence: tyro.conf.Positional[str]
    """Sentence to translate."""
    target: str | None = None
    """Translation to force, instead of the model's own."""
    kind: Literal["cross", "encoder", "decoder"] = "cross"
    """The decoder's attention to the source, or the self-attention of a stack. A page starts with this kind."""
    layer: int | None = None
    """Draw only this layer, from 0."""
    head: int | None = None
    """Draw only this head, from 0."""
    source_tag: str = ""
    """Token to put before the sentence, such as <2de>, which selects the target language of a multilingual model."""


class Pair(NamedTuple):
    """Holds a sentence, its translation, and the attention weights between them."""

    target: str
    maps: dict[str, Maps]
    source_words: Words
    target_words: Words
    pairs: list[tuple[int, int]]
    layer: int
    """The decoder layer whose weights give the pairs."""


def draw(options: AttentionOptions) -> Figure:
    """Draws one kind of attention."""
    from jax_transformer.plotting import attention as attention_plots

    maps = _pair(options).maps[options.kind]
    return attention_plots.heat_maps(maps, layer=options.layer, head=options.head)


def page(options: AttentionOptions) -> str:
    """Returns the page with all kinds of attention."""
    from jax_transformer.pages.attention import Alignment, Sentence, render

    pair = _pair(options)
    shown = {
        "kind": options.kind,
        "layer": pair.layer if options.layer is None else options.layer,
        "head": options.head,
    }
    source, target = Sentence(options.sentence, pair.source_words.texts), Sentence(pair.target, pair.target_words.texts)
    return render(options.model, source, target, pair.maps, Alignment(pair.pairs, pair.layer), shown)


def _pair(options: AttentionOptions) -> Pair:
    from jax_transformer.commands.decode_options import load
    from jax_transformer.data.tokenizers import words_of_ids, words_of_text
    from jax_transformer.decoding.alignment import attention, default_layer, word_pairs
    from jax_transformer.decoding.checks import starts_and_ends
    from jax_transformer.decoding.translation import tokenizers_of
    from jax_transformer.pages.attention import Maps

    if not options.sentence.strip():
        raise ValueError("expected a sentence to translate; received an empty one")
    model = load(options.model, options.source_tag)
    source_tokenizer, target_tokenizer = tokenizers_of(model)
    _check_choice(model, options)
    source_ids = _source_ids(model, source_tokenizer, options)
    target_ids = _target_ids(model, target_tokenizer, options, source_ids)
    weights, layer = attention(model, source_ids, target_ids), default_layer(model.config)
    source_words = words_of_text(source_tokenizer, options.sentence, options.source_tag)
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
    return Pair(target_tokenizer.decode([target_ids])[0], maps, source_words, target_words, pairs, layer)


def _check_choice(model: Model, options: AttentionOptions) -> None:
    stack = model.config.encoder if options.kind == "encoder" else model.config.decoder
    own, cross = stack.self_attention, stack.cross_attention
    heads = (cross if options.kind == "cross" and cross is not None else own).num_heads
    for name, given, count in (("layer", options.layer, stack.num_layers), ("head", options.head, heads)):
        if given is not None and not 0 <= given < count:
            raise ValueError(
                f"--{name} must be from 0 to {count - 1} for this model's {options.kind} attention; received {given}"
            )


def _source_ids(model: Model, tokenizer: Tokenizer, options: AttentionOptions) -> list[int]:
    from jax_transformer.decoding.padding import limit

    (ids,) = tokenizer.encode([options.sentence], options.source_tag)
    most = limit(model, "source")
    if not 1 <= len(ids) <= most:
        raise ValueError(f"the sentence: expected from 1 to {most} tokens, the model's longest; received {len(ids)}")
    return ids


def _target_ids(model: Model, tokenizer: Tokenizer, options: AttentionOptions, source_ids: list[int]) -> list[int]:
    """Returns the ids of the target with its end token, or of the greedy translation, which may have none."""
    from jax_transformer.config.decoding import DecodingConfig
    from jax_transformer.decoding.batches import generate_each
    from jax_transformer.decoding.checks import starts_and_ends
    from jax_transformer.decoding.padding import WITHOUT_TABLE, num_positions

    _, eos_id = starts_and_ends(model)
    most = num_positions(model, "target") or WITHOUT_TABLE
    if options.target is None:
        return generate_each(model, [source_ids], DecodingConfig(beam_size=1))[0][0].ids
    (ids,) = tokenizer.adding(bos=False, eos=False).encode([options.target])
    if len(ids) >= most:
        raise ValueError(f"--target: expected at most {most - 1} tokens, the model's longest; received {len(ids)}")
    return [*ids, eos_id]


def _shown(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Returns the tokens as labels: white space is visible, and no invisible character changes the layout."""
    return ["".join(map(_visible, token)) for token in tokenizer.tokens(ids)]


def _visible(character: str) -> str:
    if character in WHITE_SPACE:
        return WHITE_SPACE[character]
    return character if character.isprintable() or character == JOINER else "\ufffd"
