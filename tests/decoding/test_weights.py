"""A model's weights are made ready for decoding once, and given up with the model."""

from __future__ import annotations

import dataclasses
import gc
from concurrent.futures import ThreadPoolExecutor

import jax

from jax_transformer.config.model import GenerationConfig, TransformerConfig
from jax_transformer.decoding import weights
from jax_transformer.decoding.weights import params_of, weights_of
from jax_transformer.model.functional import init_params
from jax_transformer.storage.model_directory import Model

CONFIG = TransformerConfig(source_vocab_size=5, target_vocab_size=6, d_model=4, num_heads=2, d_ff=8, max_length=8)


def test_they_last_as_long_as_their_model() -> None:
    model = Model(
        CONFIG, init_params(CONFIG, jax.random.key(0)), None, None, GenerationConfig(decoder_start_id=0, eos_id=1)
    )
    before = len(weights._KEPT)
    kept = weights_of(model)
    assert weights_of(model) is kept
    assert weights_of(dataclasses.replace(model)) is not kept
    gc.collect()
    assert len(weights._KEPT) == before + 1
    del model
    gc.collect()
    assert len(weights._KEPT) == before


def test_a_model_that_is_decoded_without_a_cache_has_no_layers_apart() -> None:
    config = dataclasses.replace(CONFIG, decoder_causal=False)
    model = Model(
        config, init_params(config, jax.random.key(0)), None, None, GenerationConfig(decoder_start_id=0, eos_id=1)
    )
    assert weights_of(model).layers is None


def test_threads_share_them() -> None:
    models = [
        Model(
            CONFIG, init_params(CONFIG, jax.random.key(0)), None, None, GenerationConfig(decoder_start_id=0, eos_id=1)
        )
    ]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: params_of(models[0]), range(32)))
    assert all(params is found[0] for params in found)
    models.clear()
    gc.collect()  # a second finalizer would complain here
