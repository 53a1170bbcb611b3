"""Sources of feature vectors: the stem, lengths, and decoding from them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_transformer as jt
from jax_transformer.config import Stem
from jax_transformer.config.flops import forward_flops
from jax_transformer.config.shapes import param_shapes
from jax_transformer.config.validation import ConfigError
from jax_transformer.decoding.checks import DecodingError
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.storage.tensors import PortingError

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

CONFIG = jt.TransformerConfig(
    stem=Stem(features=5), target_vocab_size=11, d_model=8, num_heads=2, d_ff=12, num_encoder_layers=1,
    num_decoder_layers=2, max_length=16, attention_key_bias=False,
)  # fmt: skip
LENGTHS = np.array([21, 14, 9])
IDS = np.array([[1, 3, 4, 7], [1, 5, 0, 0], [1, 9, 9, 0]])


def params_of(config: jt.TransformerConfig) -> dict[str, Any]:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), jt.init_params(config, jax.random.key(3)))


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((3, 21, 5))


@pytest.fixture
def model() -> jt.Model:
    generation = jt.GenerationConfig(decoder_start_id=1, eos_id=2)
    return jt.Model(CONFIG, params_of(CONFIG), None, None, generation)


def test_the_parameters_are_those_that_the_config_says() -> None:
    params = jt.init_params(CONFIG, jax.random.key(0))
    assert {path: leaf.shape for path, leaf in flatten(params).items()} == dict(param_shapes(CONFIG))
    assert "source_embedding" not in params
    assert set(params["decoder"]["layers"]["cross_attention"]["key"]) == {"kernel"}


def test_a_stem_is_two_convolutions(vectors: np.ndarray) -> None:
    """Written out position by position."""
    params = params_of(CONFIG)
    _, trace = jt.apply(CONFIG, params, jt.Features(vectors), IDS, return_trace=True)

    def convolved(x: np.ndarray, part: str, stride: int) -> np.ndarray:
        kernel, bias = (params["stem"][part][name] for name in ("kernel", "bias"))
        padded = np.pad(x, ((0, 0), (1, 1), (0, 0)))
        places = range(0, x.shape[1], stride)
        y = np.stack([sum(padded[:, t + k] @ kernel[k] for k in range(3)) for t in places], axis=1) + bias
        return np.asarray(jax.nn.gelu(y, approximate=False))

    expected = convolved(convolved(vectors, "first", 1), "second", 2) * np.sqrt(8)
    np.testing.assert_allclose(trace["encoder.token_embedding"], expected, rtol=1e-12)
    assert trace["encoder.output"].shape == (3, CONFIG.stem.positions(21), 8)


@pytest.mark.parametrize("more", [1, 2, 7])
def test_padding_changes_nothing(vectors: np.ndarray, more: int) -> None:
    params = params_of(CONFIG)
    logits = jt.apply(CONFIG, params, jt.Features(vectors, LENGTHS), IDS)
    noise = np.random.default_rng(1).standard_normal((3, 21 + more, 5))
    is_real = np.arange(21 + more)[:, None] < LENGTHS[:, None, None]
    longer = np.where(is_real, np.pad(vectors, ((0, 0), (0, more), (0, 0))), noise)
    np.testing.assert_allclose(jt.apply(CONFIG, params, jt.Features(longer, LENGTHS), IDS), logits, rtol=1e-11)
    alone = jt.apply(CONFIG, params, jt.Features(vectors[1:2, :14]), IDS[1:2])
    np.testing.assert_allclose(alone, logits[1:2], rtol=1e-11)


def test_a_model_that_sees_padding_reads_every_vector(vectors: np.ndarray) -> None:
    """As Whisper does, whose features are always of 30 seconds."""
    config = dataclasses.replace(CONFIG, encoder_padding="none", cross_padding="none")
    params = params_of(config)
    full, cut = (jt.apply(config, params, jt.Features(vectors, lengths), IDS) for lengths in (None, LENGTHS))
    np.testing.assert_array_equal(full, cut)


def test_gradients_reach_the_vectors_and_the_stem(vectors: np.ndarray) -> None:
    params = params_of(CONFIG)

    def loss(params: Any, vectors: Any) -> jax.Array:
        return jt.apply(CONFIG, params, jt.Features(vectors, LENGTHS), IDS)[2].sum()

    of_params, of_vectors = jax.grad(loss, argnums=(0, 1))(params, vectors)
    assert all(np.abs(leaf).min() > 0 for leaf in jax.tree.leaves(of_params["stem"]))
    seen = np.abs(of_vectors).sum(axis=-1) > 0
    np.testing.assert_array_equal(seen, (np.arange(21) < 9) & (np.arange(3) == 2)[:, None])


def test_a_key_without_bias_is_one_with_a_bias_of_zeros(vectors: np.ndarray) -> None:
    params, config = params_of(CONFIG), dataclasses.replace(CONFIG, attention_key_bias=None)
    other = params_of(config)
    zeros = {path: np.zeros_like(leaf) for path, leaf in flatten(other).items() if path.endswith("key/bias")}
    assert len(zeros) == 3
    both = unflatten(flatten(params) | zeros)
    features = jt.Features(vectors, LENGTHS)
    np.testing.assert_array_equal(jt.apply(config, both, features, IDS), jt.apply(CONFIG, params, features, IDS))


@pytest.mark.parametrize("padding", ["keys", "none"])
def test_greedy_tokens_are_the_likeliest_of_the_whole_prefix(
    vectors: np.ndarray, model: jt.Model, padding: Any
) -> None:
    config = dataclasses.replace(CONFIG, encoder_padding=padding, cross_padding=padding, decoder_padding="none")
    model = dataclasses.replace(model, config=config)
    features = jt.Features(vectors, LENGTHS)
    tokens = jt.generate(model, features, max_new_tokens=9, suppress_tokens=(2,)).sequences[:, 0]
    inputs = np.concatenate([np.ones((3, 1), int), tokens[:, :-1]], axis=1)
    logits = np.array(jt.apply(config, model.params, features, inputs))
    logits[..., 2] = -np.inf
    np.testing.assert_array_equal(logits.argmax(axis=-1), tokens)


def test_a_row_of_beams_is_the_sentence_alone(vectors: np.ndarray, model: jt.Model) -> None:
    together = jt.generate(model, jt.Features(vectors, LENGTHS), beam_size=3, num_return=3, max_new_tokens=6)
    for row, length in enumerate(LENGTHS):
        alone = jt.generate(
            model, jt.Features(vectors[row, None, :length]), beam_size=3, num_return=3, max_new_tokens=6
        )
        np.testing.assert_array_equal(alone.sequences[0], together.sequences[row])


def test_a_row_of_no_vectors_gives_pads(vectors: np.ndarray, model: jt.Model) -> None:
    lengths = np.array([0, 14, 9])
    for options in ({}, {"beam_size": 2}, {"sampling": True}):
        tokens = jt.generate(model, jt.Features(vectors, lengths), max_new_tokens=4, **options).sequences[:, 0]
        assert tokens.any(axis=1).tolist() == [False, True, True]


def test_scores_are_log_probabilities(vectors: np.ndarray, model: jt.Model) -> None:
    scores = jt.score(model, jt.Features(vectors, LENGTHS), [[3, 4, 2], [5, 2], [9, 9, 2]])
    inputs, targets = np.array([[1, 3, 4], [1, 5, 0], [1, 9, 9]]), np.array([[3, 4, 2], [5, 2, 0], [9, 9, 2]])
    logits = jt.apply(CONFIG, model.params, jt.Features(vectors, LENGTHS), inputs)
    expected = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(scores.token_log_probs[1, :2], expected[1, :2], rtol=1e-6)


def test_suppressed_tokens_never_come(vectors: np.ndarray, model: jt.Model) -> None:
    features = jt.Features(vectors, LENGTHS)
    free = jt.generate(model, features, max_new_tokens=6, suppress_tokens=(0,)).sequences[:, 0]
    first = tuple(set(free[:, 0].tolist()))
    later = jt.generate(model, features, max_new_tokens=6, suppress_tokens=(0,), begin_suppress_tokens=first)
    assert not np.isin(later.sequences[:, 0, 0], first).any()
    prefixed = jt.generate(
        model, features, max_new_tokens=6, begin_suppress_tokens=first, prefix_ids=[[first[0]]] * 3
    ).sequences[:, 0]
    np.testing.assert_array_equal(np.isin(prefixed[:, :2], first), [[True, False]] * 3)
    never = jt.generate(model, features, max_new_tokens=6, beam_size=3, num_return=3, suppress_tokens=first)
    assert not np.isin(never.sequences, first).any()


def test_a_model_directory_keeps_the_stem(model: jt.Model, tmp_path: Path) -> None:
    generation = dataclasses.replace(model.generation, suppress_tokens=(3, 4), begin_suppress_tokens=(5,))
    jt.save_model(dataclasses.replace(model, generation=generation), tmp_path / "model")
    back = jt.load_model(tmp_path / "model")
    assert (back.config, back.generation) == (CONFIG, generation)


def test_no_format_of_tokens_takes_a_stem(model: jt.Model, tmp_path: Path) -> None:
    with pytest.raises(PortingError) as error:
        jt.export_checkpoint(model, tmp_path / "there", "marian")
    assert any(problem.startswith("stem must be None; received Stem(") for problem in error.value.problems)


def test_flops_count_the_convolutions() -> None:
    without = dataclasses.replace(CONFIG, stem=None)
    more = forward_flops(CONFIG, 2, 21, 4) - forward_flops(without, 2, 11, 4)
    assert more == 2 * (2 * 3 * 8 * (5 * 21 + 8 * 11))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stem": Stem(kernel=4)}, "stem.kernel must be odd; received 4"),
        ({"stem": Stem(features=0)}, "stem.features must be at least 1; received 0"),
        ({"stem": Stem(), "source_vocab_size": 5}, "source_vocab_size must be 0 with a stem"),
        ({"stem": Stem(), "share_embeddings": True}, "share_embeddings must be false with a stem"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        jt.TransformerConfig(**options)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.zeros((3, 4), int), r"expected Features\(vectors \[rows, length, 5\].*; received ndarray"),
        (jt.Features(np.zeros((3, 4))), r"received vectors of shape \[3, 4\]"),
        (jt.Features(np.zeros((3, 4, 6))), r"received vectors of shape \[3, 4, 6\]"),
        (jt.Features(np.zeros((3, 0, 5))), r"received vectors of shape \[3, 0, 5\]"),
        (jt.Features(np.zeros((3, 4, 5), int)), "floating-point numbers; received an array of int64"),
        (jt.Features(np.zeros((3, 4, 5)), np.array([4, 4])), r"each of 3 rows; received int64 \[2\]"),
        (jt.Features(np.zeros((3, 4, 5)), np.array([4, 5, 4])), "lengths from 0 to 4; received 5"),
        (jt.Features(np.zeros((3, 40, 5))), r"source_ids has 20 tokens; the position table allows 16"),
    ],
)
def test_wrong_features_are_refused_in_one_line(source: Any, message: str, model: jt.Model) -> None:
    for call in (
        lambda: jt.apply(CONFIG, model.params, source, IDS),
        lambda: jt.generate(model, source, max_new_tokens=2),
    ):
        with pytest.raises(ValueError, match=message) as error:
            call()
        assert "\n" not in str(error.value)


def test_a_model_of_tokens_takes_no_features(vectors: np.ndarray) -> None:
    config = dataclasses.replace(CONFIG, stem=None, source_vocab_size=7)
    with pytest.raises(ValueError, match="expected token ids, since the config has no stem; received Features"):
        jt.apply(config, jt.init_params(config, jax.random.key(0)), jt.Features(vectors), IDS)


def test_features_have_no_ngrams(vectors: np.ndarray, model: jt.Model) -> None:
    with pytest.raises(DecodingError, match="expected 0 for a model whose source is features; received 2"):
        jt.generate(model, jt.Features(vectors), encoder_no_repeat_ngram=2)
