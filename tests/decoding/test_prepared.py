"""A model is prepared for decoding once, and the result lasts as long as the model."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.decoding import beam
from jax_transformer.decoding.generation import generate
from jax_transformer.decoding.prepared import PreparedModel, prepare
from jax_transformer.decoding.scoring import score
from jax_transformer.model.functional import init_params
from jax_transformer.storage.model_directory import Model

pytestmark = pytest.mark.usefixtures("quick_compilation")

CONFIG = TransformerConfig(source_vocab_size=5, target_vocab_size=6, d_model=4, num_heads=2, d_ff=8, max_length=8)


def make_model(config: TransformerConfig = CONFIG) -> Model:
    generation = GenerationConfig(decoder_start_id=0, eos_id=1)
    return Model(config, init_params(config, jax.random.key(0)), None, None, generation)


def test_a_prepared_model_lives_as_long_as_its_model() -> None:
    model = make_model()
    prepared = prepare(model)
    assert prepare(model) is prepared is prepare(prepared)
    assert prepared.weights is prepared.weights
    watched = weakref.ref(prepared)
    del prepared
    gc.collect()
    assert watched() is not None
    del model
    gc.collect()
    assert watched() is None


def test_another_model_is_prepared_separately() -> None:
    model = make_model()
    prepared = prepare(model)
    other = dataclasses.replace(model, params=jax.tree.map(lambda leaf: leaf * 0, model.params))
    assert prepare(other) is not prepared
    assert not any(leaf.any() for leaf in jax.tree.leaves(prepare(other).params))
    assert dataclasses.replace(prepared, params=other.params).weights.params is other.params
    assert "_prepared" not in repr(model)


def test_a_prepared_model_replaces_its_model() -> None:
    model = make_model()
    prepared, sources = PreparedModel(**vars(prepare(model))), [[2, 3], [4]]
    expected, received = generate(model, sources), generate(prepared, sources)
    np.testing.assert_array_equal(received.sequences, expected.sequences)
    targets = [[2, 1], [3]]
    np.testing.assert_array_equal(score(prepared, sources, targets).log_probs, score(model, sources, targets).log_probs)


def test_decoding_again_compiles_nothing_and_prepares_nothing() -> None:
    model = make_model()
    generate(model, [[2, 3]], beam_size=2, max_new_tokens=3)
    prepared = prepare(model)
    weights, programs = prepared.weights, beam.run._cache_size()
    generate(model, [[3, 2]], beam_size=2, max_new_tokens=3)
    assert beam.run._cache_size() == programs
    assert prepare(model) is prepared
    assert prepared.weights is weights


def test_a_model_that_is_decoded_without_a_cache_has_no_layers_apart() -> None:
    assert prepare(make_model(dataclasses.replace(CONFIG, decoder_causal=False))).weights.layers is None


def test_other_generation_settings_share_the_weights() -> None:
    prepared = prepare(make_model())
    other = prepared.with_generation(dataclasses.replace(prepared.generation, max_decode_length=2))
    assert other.weights is prepared.weights
    assert generate(other, [[2, 3]]).sequences.shape[-1] == 2


def test_threads_share_it() -> None:
    model = make_model()
    with ThreadPoolExecutor(8) as pool:
        prepared = list(pool.map(lambda _: prepare(model), range(32)))
    assert all(each is prepared[0] for each in prepared)
