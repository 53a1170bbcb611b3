"""A small model, and what a run knows of it."""

from __future__ import annotations

import jax

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import DataConfig
from jax_transformer.data.tokenizers import SpecialIds, train_tokenizer
from jax_transformer.model import functional
from jax_transformer.storage.model_directory import Model

WORDS = "eins zwei drei vier fünf sechs sieben acht neun zehn"
SCORES = {
    "bleu": 31.25,
    "chrf": 55.5,
    "exact_match": 10.0,
    "bleu_signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
    "chrf_signature": "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0",
    "sentences": 4,
    "too_long": 0,
}
DATA = DataConfig(dataset="someone/corpus", dataset_config="de-en", source_language="en", target_language="de")


def make_model(seed: int = 0) -> Model:
    """Returns a random model that translates words into words."""
    specials = SpecialIds(pad=0, unk=1, bos=2, eos=3)
    source = train_tokenizer([WORDS], kind="whitespace", specials=specials, add_eos=True)
    target = train_tokenizer([WORDS.upper()], kind="whitespace", specials=specials)
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 16, "num_encoder_layers": 1, "num_decoder_layers": 1}
    config = TransformerConfig(
        source_vocab_size=source.vocab_size,
        target_vocab_size=target.vocab_size,
        max_length=24,
        final_norm=True,
        **sizes,
    )
    params = jax.device_get(functional.init_params(config, jax.random.key(seed)))
    training = {"step": 300, "checkpoints": [300], "valid_loss": 1.5, "scores": {"test": SCORES}}
    generation = GenerationConfig(decoder_start_id=2, eos_id=3)
    return Model(config, params, source, target, generation, training=training)
