"""Prepares a corpus with tokenizers given as objects instead of files."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, TypeVar

from jax_transformer.config.data import CorpusConfig, DataConfig
from jax_transformer.data.text_files import CorpusError
from jax_transformer.data.token_pairs import SIDES
from jax_transformer.data.tokenizers import Tokenizer
from jax_transformer.data.tokenizers.objects import AnyTokenizer, given_tokenizer

Corpus = TypeVar("Corpus", bound=CorpusConfig)
OBJECT = "given as an object"
"""What a config names as a tokenizer until a run directory keeps it."""
OF_TEXT = ("lowercase", "normalization", "source_tokenizer", "target_tokenizer")
"""Options that tokenizers given as objects leave unset."""


class GivenPair(NamedTuple):
    """Holds the tokenizers given for a corpus."""

    source: Tokenizer
    target: Tokenizer

    def texts(self) -> dict[str, str]:
        """Returns the text of each tokenizer's file by the option that names it."""
        return {f"{side}_tokenizer": getattr(self, side).to_json() for side in SIDES}


def take_tokenizers(
    config: DataConfig, source: AnyTokenizer | None, target: AnyTokenizer | None
) -> tuple[DataConfig, GivenPair | None]:
    """Returns the config of a corpus that uses the given tokenizers, and these; without any, the config as it is.

    The config names OBJECT as tokenizers to use as stored. A language that an object puts around sentences becomes the
    tag of the corpora that name none.

    Raises:
      CorpusError: one tokenizer without the other; a config that names tokenizers, or changes the text before them;
        different tokenizers for a joint vocabulary.
      ValueError: see `as_tokenizer`; a tokenizer that can't sample subwords, if the config does.
    """
    if source is None and target is None:
        return config, None
    if source is None or target is None:
        which = SIDES[source is None]
        raise CorpusError(
            f"source_tokenizer and target_tokenizer: expected both, or neither; received the {which}'s alone. Give one "
            "object for both if source and target share it."
        )
    usual = DataConfig()
    if given := [name for name in OF_TEXT if getattr(config, name) != getattr(usual, name)]:
        raise CorpusError(
            f"data.{given[0]}: expected it unset with tokenizers given as objects, which define it; received "
            f"{getattr(config, given[0])!r}"
        )
    made = given_tokenizer(source, "source"), given_tokenizer(target, "target")
    pair = GivenPair(*(each.tokenizer for each in made))
    if config.joint_vocabulary and not pair.source.has_vocabulary_of(pair.target):
        raise CorpusError(
            "joint_vocabulary: expected a source_tokenizer and a target_tokenizer with the same tokens under the same "
            f"ids; received others ({pair.source.vocab_size:,} and {pair.target.vocab_size:,} tokens). Give one object "
            "for both, or set joint_vocabulary to false."
        )
    if config.subword_sampling:
        for tokenizer in pair:
            tokenizer.sample_encode([], seed=0, strength=config.subword_sampling)  # raises an error if it can't
    source_tag, target_tag = (each.tag for each in made)

    def tagged(corpus: Corpus) -> Corpus:
        return dataclasses.replace(
            corpus, source_tag=corpus.source_tag or source_tag, target_tag=corpus.target_tag or target_tag
        )

    more = tuple(map(tagged, config.more))
    named = dataclasses.replace(
        config, more=more, source_tokenizer=OBJECT, target_tokenizer=OBJECT, tokenizers_as_stored=True
    )
    return tagged(named), pair
