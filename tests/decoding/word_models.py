"""Models of ten words that translate into random words."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.data.tokenizers import SpecialIds, train_tokenizer
from jax_transformer.model.functional import init_params
from jax_transformer.storage.model_directory import Model

SPECIALS = SpecialIds(pad=0, unk=1, bos=2, eos=3)
WORDS = "eins zwei drei vier fünf sechs sieben acht neun zehn"
LONGEST = 24


def word_model(source_tags: Sequence[str] = (), target_tags: Sequence[str] = ()) -> Model:
    """Returns a random model of 24 positions whose <eos> is likely."""
    source = train_tokenizer([WORDS], kind="whitespace", specials=SPECIALS, add_eos=True, tags=source_tags)
    target = train_tokenizer([WORDS.upper()], kind="whitespace", specials=SPECIALS, tags=target_tags)
    config = TransformerConfig(
        source_vocab_size=source.vocab_size,
        target_vocab_size=target.vocab_size,
        d_model=16,
        num_heads=2,
        d_ff=16,
        num_encoder_layers=1,
        num_decoder_layers=1,
        max_length=LONGEST,
    )
    params = init_params(config, jax.random.key(0))
    params["head"]["kernel"] = params["head"]["kernel"] * 8.0
    params["head"]["bias"] = params["head"]["bias"].at[SPECIALS.eos].add(14.0)
    return Model(config, params, source, target, GenerationConfig(decoder_start_id=2, eos_id=3))
