"""Decoding, tokenizers and batches name what they were given in place of a model, of sentences or of ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_transformer as jt
from jax_transformer.data import SpecialIds, make_batch, train_tokenizer
from jax_transformer.data.tokenizers import Tokenizer
from jax_transformer.decoding import align, translate_each

pytestmark = pytest.mark.usefixtures("quick_compilation")

SPECIALS = SpecialIds(0, 1, 2, 3)


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return train_tokenizer(["Who sleeps ?", "Wer schläft ?"], kind="whitespace", specials=SPECIALS)


@pytest.fixture(scope="module")
def model(words: Tokenizer) -> jt.Model:
    size = words.vocab_size
    config = jt.TransformerConfig(
        source_vocab_size=size, target_vocab_size=size, d_model=8, num_heads=2, d_ff=8, num_encoder_layers=1,
        num_decoder_layers=1,
    )  # fmt: skip
    params = jt.init_params(config, jax.random.key(0))
    return jt.Model(config, params, words, words, jt.GenerationConfig(decoder_start_id=2, eos_id=3, max_new_tokens=3))


ONE_STRING = r"sentences: expected a list of strings; received one string: write \['Who sleeps \?'\]"


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [
        ("Who sleeps ?", ONE_STRING),
        (b"Who sleeps ?", "expected a list of strings; received bytes"),
        (None, "received NoneType"),
        (7, "received int"),
        (["Who", 7], "received int in place 2"),
        ([["Who", "sleeps"]], "received list in place 1"),
        ([b"Who"], "received bytes in place 1"),
    ],
)
def test_arguments_other_than_lists_of_sentences_are_refused(model: jt.Model, sentences: Any, expected: str) -> None:
    for function in (jt.translate, translate_each):
        with pytest.raises(ValueError, match=expected):
            function(model, sentences)
    with pytest.raises(ValueError, match=expected):
        model.source_tokenizer.encode(sentences)  # type: ignore[union-attr]


def test_sentences_may_be_any_iterable(model: jt.Model) -> None:
    """A generator used to give an empty translation."""
    expected = jt.translate(model, ["Who sleeps ?", "sleeps"])
    assert expected[0]
    assert jt.translate(model, (text for text in ("Who sleeps ?", "sleeps"))) == expected
    assert jt.translate(model, np.array(["Who sleeps ?", "sleeps"])) == expected


@pytest.mark.parametrize("value", ["runs/demo", None, {"encoder": {}}, jt.TransformerConfig()])
def test_arguments_other_than_models_are_refused(value: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: jt.translate(value, ["Who"]),
        lambda: translate_each(value, ["Who"]),
        lambda: jt.generate(value, [[4]]),
        lambda: jt.score(value, [[4]], [[4]]),
        lambda: align(value, [[4]], [[4]]),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"model: expected a Model, .* received {type(value).__name__}"):
            call()
    with pytest.raises(ValueError, match="save_model: expected a Model and a path; received"):
        jt.save_model(value, "nowhere")


def test_a_config_and_parameters_in_place_of_a_model_are_named(model: jt.Model) -> None:
    wrong: Any = model.config
    with pytest.raises(ValueError, match=r"Model\(config, params, .*; received TransformerConfig"):
        jt.generate(wrong, model.params, [[4, 5]])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([4, 5], "expected a list of each sentence's ids, such as .*; received int in place 1"),
        ("Who", "received str"),
        (["Who"], "received the text 'Who'"),
        (None, "received NoneType"),
        ([[4.0, 5.0]], "expected integers from 0 to 8; received 4.0"),
        ([[4, 9]], "expected integers from 0 to 8; received 9"),
        ([[-1]], "expected integers from 0 to 8; received -1"),
        (np.array([4, 5]), r"expected \[B, S\]; received \[2\]"),
        (np.array([[4.0]]), "expected integers; received float64"),
    ],
)
def test_arguments_other_than_batches_of_ids_are_refused(model: jt.Model, ids: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=rf"source_ids: .*{expected}|source_ids: {expected}"):
        jt.generate(model, ids)
    with pytest.raises(ValueError, match=expected):
        jt.score(model, ids, [[4]])
    if not isinstance(ids, np.ndarray):
        with pytest.raises(ValueError, match=rf"prefix_ids: .*{expected}" if ids is not None else "expected"):
            jt.generate(model, [[4]], prefix_ids=[[9]] if ids is None else ids)


def test_arrays_of_jax_are_ids_too(model: jt.Model) -> None:
    expected = jt.generate(model, [[4, 5]]).sequences
    assert np.array_equal(jt.generate(model, jnp.array([[4, 5]])).sequences, expected)
    for wrong, message in ((jnp.array([[400]]), "received 400"), (jnp.array([4]), r"received \[1\]")):
        with pytest.raises(ValueError, match=message):
            jt.generate(model, wrong)


def test_a_start_outside_of_the_vocabulary_is_named(model: jt.Model) -> None:
    generation = jt.GenerationConfig(decoder_start_id=9, eos_id=3)
    outside = jt.Model(model.config, model.params, None, None, generation)
    for decode in (lambda: jt.generate(outside, [[4]]), lambda: jt.score(outside, [[4]], [[4]])):
        with pytest.raises(ValueError, match="decoder_start_id must be below target_vocab_size=9; received 9"):
            decode()


def test_options_in_a_dict_are_named(model: jt.Model) -> None:
    options: Any = {"beam_size": 2}
    calls: list[tuple[Any, Any]] = [(jt.generate, [[4]]), (jt.translate, ["Who"]), (translate_each, ["Who"])]
    for function, given in calls:
        with pytest.raises(ValueError, match=r"decoding: expected a DecodingConfig, .* received dict"):
            function(model, given, options)


@pytest.mark.parametrize("ids", [[4, 5], [[4.5]], ["ab"], [None]])
def test_ids_that_a_tokenizer_cannot_decode_are_refused(words: Tokenizer, ids: Any) -> None:
    with pytest.raises(ValueError, match="token ids: expected a list of integers for each sequence"):
        words.decode(ids)


def test_a_tokenizer_is_not_trained_on_the_characters_of_a_string() -> None:
    with pytest.raises(ValueError, match="sentences: expected a list of strings, or another iterable; received one"):
        train_tokenizer("Who sleeps ?", kind="whitespace", specials=SPECIALS)


@pytest.mark.parametrize("wrong", [[4, 5], "ab", ["ab"], [[4.7]], [["a"]], [[[4]]]])
def test_a_batch_is_made_of_integers(wrong: Any) -> None:
    """A fraction used to be cut off."""
    with pytest.raises(ValueError, match="source: expected"):
        make_batch(wrong, [[4]])
    with pytest.raises(ValueError, match="target: expected"):
        make_batch([[4]], wrong)


def test_training_arguments_are_refused_by_name(model: jt.Model) -> None:
    wrong: Any = "adam"
    for function in (jt.make_train_step, jt.init_state):
        with pytest.raises(ValueError, match=rf"{function.__name__}: optimizer: expected an Optax .* received str"):
            function(model.config, optimizer=wrong)
        with pytest.raises(ValueError, match=rf"{function.__name__}: config: expected a TransformerConfig, .* Model"):
            function(model, jt.TrainConfig())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="train: config: expected a RunConfig; received TransformerConfig"):
        jt.train(model.config)  # type: ignore[arg-type]


# --- sentences that a model can't read


def test_mostly_unknown_sentences_warn(model: jt.Model) -> None:
    with pytest.warns(UserWarning, match=r"^sentence 2: 2 of 3 tokens are unknown to the model; sentence 3: 1 of 1 "):
        jt.translate(model, ["Who sleeps ?", "你好 世界 ?", "Wort", "Who knows ?"])
    assert len(jt.translate(model, ["Who sleeps ?", "Who knows ?", ""])) == 3


def test_sequences_of_the_source_are_kept_out_only_where_its_ids_are_the_targets(model: jt.Model) -> None:
    assert jt.translate(model, ["Who sleeps ?"], encoder_no_repeat_ngram=2)
    other = train_tokenizer(["schläft Wer ? sleeps"], kind="whitespace", specials=SPECIALS)
    two = dataclasses.replace(model, target_tokenizer=other.filled(model.config.target_vocab_size))
    with pytest.raises(ValueError, match="expected a model with one vocabulary for both; this one has two"):
        jt.translate(two, ["Who sleeps ?"], encoder_no_repeat_ngram=2)
