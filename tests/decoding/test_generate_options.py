"""Options of decoding: a model's own hold where none are given, and those that can't be meant are refused with the
reason."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from search_cases import EOS, MOST

from jax_transformer.config.decoding import DecodingConfig, GenerationConfig
from jax_transformer.config.validation import ConfigError
from jax_transformer.decoding.checks import DecodingError
from jax_transformer.decoding.generation import generate
from jax_transformer.decoding.prepared import prepare
from jax_transformer.decoding.scoring import score
from jax_transformer.storage.model_directory import Model

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_size": 0}, "beam_size must be at least 1; received 0"),
        ({"beam_size": 1, "num_return": 2}, "num_return must be at most beam_size=1; received 2"),
        ({"beam_size": 1, "temperature": 0.5}, "temperature must be 1.0 without sampling; received 0.5"),
        ({"sampling": False, "temperature": 0.5}, "temperature must be 1.0 without sampling; received 0.5"),
        ({"sampling": True, "temperature": 0.0}, "temperature must be greater than 0; received 0.0"),
        ({"sampling": True, "beam_size": 4}, "beam_size must be 1 with sampling; received 4"),
        ({"sampling": True, "temperature": 1e-300}, "temperature must be from 1e-30 to 1e.30, for float32"),
        ({"sampling": True, "temperature": math.inf}, "temperature must be from 1e-30 to 1e.30, for float32"),
        ({"beam_size": 2, "length_penalty": math.nan}, "length_penalty must be finite; received nan"),
        ({"beam_size": 2, "length_penalty": -math.inf}, "length_penalty must be finite; received -inf"),
        ({"sampling": True, "top_p": 0.0}, "top_p must be greater than 0 and at most 1; received 0.0"),
        ({"beam_size": 1, "early_stopping": True}, "early_stopping must be false without beams; received True"),
        (
            {"beam_size": 4, "early_stopping": "always"},
            "early_stopping must be true or false or one of never or null; received 'always'",
        ),
        ({"max_new_tokens": 5, "min_new_tokens": 5}, "min_new_tokens must be below max_new_tokens=5; received 5"),
        ({"forced_eos_id": -2}, "forced_eos_id must be at least 0, or -1 for none; received -2"),
        ({"bad_words": ((),)}, "bad_words must be a list of sequences of at least one id"),
    ],
)
def test_configs_that_cannot_be_meant(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DecodingConfig(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoding": DecodingConfig(beam_size=50)}, "beam_size must be at most the target vocabulary's"),
        (
            {"decoding": DecodingConfig(beam_size=2, length_penalty=-1e300)},
            "length_penalty must be from -.* to .*, since float32 holds .*; received -1e.300",
        ),
        ({"decoding": DecodingConfig(beam_size=2, length_penalty=50.0)}, "length_penalty must be .*; received 50"),
        ({"prefix_ids": [[5]]}, "prefix_ids: expected one for each of 16 sentences; received 1"),
        ({"prefix_ids": [[99]] * 16}, "prefix_ids: expected integers from 0 to .*; received 99"),
        ({"decoding": DecodingConfig(forced_bos_id=99)}, "target_ids: expected integers from 0 to .*; received 99"),
        ({"sentence_numbers": [0]}, "sentence_numbers: expected one for each of 16 sentences; received 1"),
        (
            {"prefix_ids": [[5] * 600] * 16},
            "prefix: expected at most .* tokens, to leave room for one more; received 600",
        ),
        (
            {"decoding": DecodingConfig(min_new_tokens=600)},
            "min_new_tokens must be below the .* tokens that fit; received 600",
        ),
    ],
)
def test_options_beyond_the_model_are_refused(
    model: Model, sources: list[list[int]], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DecodingError, match=message):
        generate(model, sources, **options)


def test_without_a_config_a_models_own_options_apply(model: Model, sources: list[list[int]]) -> None:
    """Greedily, where it says nothing."""
    asked = DecodingConfig(beam_size=3, length_penalty=2.0, forced_bos_id=7, max_new_tokens=MOST)
    own = dataclasses.replace(model.generation, beam_size=3, length_penalty=2.0, forced_bos_id=7, max_new_tokens=MOST)
    expected, received = generate(model, sources, asked), generate(dataclasses.replace(model, generation=own), sources)
    np.testing.assert_array_equal(received.sequences, expected.sequences)
    np.testing.assert_array_equal(received.scores, expected.scores)
    assert (received.sequences[:, 0, 0] == 7).all()
    np.testing.assert_array_equal(
        generate(model, sources).sequences, generate(model, sources, DecodingConfig()).sequences
    )


@pytest.mark.parametrize(
    ("source_ids", "message"),
    [
        ([[99]], "source_ids: expected integers from 0 to .*; received 99"),
        ([[-1]], "source_ids: expected integers from 0 to .*; received -1"),
        ([[5, 1 << 70]], "source_ids: expected integers from 0 to"),
        ([[1.5, 2.0]], r"source_ids: expected integers from 0 to .*; received 1\.5"),
        (np.array([5, 6]), r"source_ids: expected \[B, S\]; received \[2\]"),
        (np.ones((2, 3)), "source_ids: expected integers; received float64"),
    ],
)
def test_sources_that_are_none(model: Model, source_ids: Any, message: str) -> None:
    with pytest.raises(DecodingError, match=message):
        generate(model, source_ids)
    with pytest.raises(DecodingError, match=message):
        score(model, source_ids, [[5]] * len(source_ids))


def test_options_go_on_top_of_the_models(model: Model, sources: list[list[int]]) -> None:
    """As keywords, as a config, or both; whatever they don't set is the model's own."""
    own = dataclasses.replace(model.generation, forced_bos_id=7, forced_eos_id=EOS, bad_words=((5,),))
    forcing = dataclasses.replace(model, generation=own)
    everything = {"beam_size": 2, "forced_bos_id": 7, "forced_eos_id": EOS, "bad_words": [[5]], "max_new_tokens": 4}
    expected = generate(model, sources, **everything)
    config = DecodingConfig(beam_size=2, max_new_tokens=4)
    for received in (
        generate(forcing, sources, beam_size=2, max_new_tokens=4),
        generate(forcing, sources, config),
        generate(forcing, sources, DecodingConfig(beam_size=3, max_new_tokens=4), beam_size=2),
        generate(prepare(forcing), sources, config),
    ):
        np.testing.assert_array_equal(received.sequences, expected.sequences)
        np.testing.assert_array_equal(received.scores, expected.scores)
    assert (expected.sequences[:, 0, 0] == 7).all()
    free = generate(forcing, sources, config, forced_bos_id=-1, forced_eos_id=-1, bad_words=())
    np.testing.assert_array_equal(free.sequences, generate(model, sources, config).sequences)


@pytest.mark.parametrize("options", [{}, {"beam_size": 3}, {"beam_size": 2, "semantics": "floydhub"}])
def test_hypotheses_end_with_any_of_several_tokens(
    model: Model, sources: list[list[int]], options: dict[str, Any]
) -> None:
    """The token that sentences go on with ends them here, and only pads follow."""
    free = generate(model, sources, DecodingConfig(max_new_tokens=MOST, **options)).sequences[:, 0]
    tokens, counts = np.unique(free[free != EOS], return_counts=True)
    common = int(tokens[np.argsort(-counts)][0])
    assert common != model.config.target_pad_id or len(tokens) > 1
    common = int(next(token for token in tokens[np.argsort(-counts)] if token != model.config.target_pad_id))
    ended = generate(model, sources, DecodingConfig(max_new_tokens=MOST, more_eos_ids=(common,), **options)).sequences
    rows = [row.tolist() for row in ended[:, 0]]
    assert any(common in row for row in rows)
    for row in rows:
        end = min((row.index(token) for token in (common, EOS) if token in row), default=len(row))
        assert set(row[end + 1 :]) <= {model.config.target_pad_id}


def test_unknown_options_are_refused(model: Model, sources: list[list[int]]) -> None:
    message = r"expected a decoding option; received the unknown name 'beam_sise' \(nearest: beam_size\)"
    with pytest.raises(ConfigError, match=message):
        generate(model, sources, beam_sise=4)


def test_a_model_that_does_not_know_its_ends(model: Model, sources: list[list[int]]) -> None:
    with pytest.raises(
        DecodingError,
        match=r"expected decoder_start_id and eos_id in the model's generation\.json; received None and 3",
    ):
        generate(dataclasses.replace(model, generation=GenerationConfig(eos_id=3)), sources)
