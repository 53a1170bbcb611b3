"""Forecasts: values as ids and back, draws, blocks of long horizons, and what is refused."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest

import jax_transformer as jt
from jax_transformer.config import SeriesTokens, Stem
from jax_transformer.config.validation import ConfigError
from jax_transformer.decoding.generation import Generated
from jax_transformer.forecasting import Forecast, decode_series, encode_series, forecast, prediction

pytestmark = pytest.mark.usefixtures("quick_compilation")

CONTEXT, STEPS, PAD, END, NAN = 12, 4, 0, 1, float("nan")
TOKENS = SeriesTokens(num_tokens=34, context_length=CONTEXT, prediction_length=STEPS, num_samples=8)  # 1 apart
CONFIG = jt.TransformerConfig(
    source_vocab_size=40, target_vocab_size=40, source_pad_id=PAD, target_pad_id=PAD, d_model=8, num_heads=2, d_ff=8,
    num_encoder_layers=1, num_decoder_layers=1, position_kind="relative_bias", decoder_padding="none",
)  # fmt: skip
WAVE = np.sin(np.arange(20) / 2).astype(np.float32)


@pytest.fixture(scope="module")
def model() -> jt.Model:
    params = jax.tree.map(lambda leaf: 2 * leaf, jt.init_params(CONFIG, jax.random.key(3)))
    return jt.Model(CONFIG, params, None, None, jt.GenerationConfig(decoder_start_id=PAD, eos_id=END, series=TOKENS))


def with_series(model: jt.Model, **changes: Any) -> jt.Model:
    tokens = dataclasses.replace(TOKENS, **changes)
    return dataclasses.replace(model, generation=dataclasses.replace(model.generation, series=tokens))


# --- values and ids


@pytest.mark.parametrize(
    ("series", "ids", "scale"),
    [
        ([2.0, NAN, -6.0], [19, PAD, 17, END], 4.0),  # bins at 0 (id 18), 1 (id 19), …; 0.5 belongs to 1
        ([NAN, 4.0], [PAD, 19, END], 4.0),
        ([0.0, 0.0], [18, 18, END], 1.0),
        ([*[0.0] * 11, 12.0], [*[18] * 11, 18 + 12, END], 1.0),
        ([*range(-100, 0), *[0.0] * 11, 12.0], [*[18] * 11, 18 + 12, END], 1.0),  # read from the right
        ([-1.0, 1.0, 1.0, 1.0], [17, 19, 19, 19, END], 1.0),
    ],
)
def test_a_value_is_the_id_of_its_bin(model: jt.Model, series: list[float], ids: list[int], scale: float) -> None:
    encoded = encode_series(model, series)
    assert (encoded.ids.tolist(), encoded.scales.tolist()) == ([ids], [scale])


def test_values_beyond_the_bins_belong_to_the_outer_ones(model: jt.Model) -> None:
    narrow = with_series(model, low=-1.0, high=1.5, num_tokens=9)  # -1, -0.5, …, 1.5: ids 3 to 8
    assert encode_series(narrow, [-9.0, 0.0, 0.0, 9.0, 1.0]).ids.tolist() == [[3, 5, 5, 8, 6, END]]


def test_a_shorter_series_is_padded_on_the_left(model: jt.Model) -> None:
    both = encode_series(model, [WAVE[:9], WAVE[:5]])
    (alone,) = encode_series(model, WAVE[:5]).ids.tolist()
    assert both.ids[1].tolist() == [PAD] * 4 + alone
    assert encode_series(model, WAVE[:5], length=7).ids.tolist() == [[PAD] * 2 + alone]
    assert encode_series(model, WAVE[:5], length=99).ids.shape == (1, CONTEXT + 1)
    assert encode_series(with_series(model, ends=False), WAVE[:5]).ids.tolist() == [alone[:-1]]


def test_a_value_comes_back_as_the_center_of_its_bin(model: jt.Model) -> None:
    values = np.random.default_rng(0).uniform(-5, 5, (3, CONTEXT)).astype(np.float32)
    ids, scales = encode_series(model, values)
    back = decode_series(model, ids[:, :-1], scales)
    assert (np.abs(back - values) <= scales[:, None] * 0.5 * (1 + 1e-6)).all()  # bins are 1 apart
    assert np.abs(back - values).max() > 0.3 * scales.min()


def test_special_ids_count_as_the_lowest_bin(model: jt.Model) -> None:
    scales = np.array([2.0], np.float32)
    assert decode_series(model, np.array([[PAD, END, 2, 3, 4, 33, 39]]), scales).tolist() == [
        [-30.0, -30.0, -30.0, -30.0, -28.0, 30.0, 30.0]
    ]


# --- draws


def test_forecasts_have_the_settings_of_the_model_unless_given(model: jt.Model) -> None:
    usual = jt.forecast(model, WAVE)
    assert usual.samples.shape == (1, 8, STEPS)
    np.testing.assert_array_equal(np.sort(jt.forecast(model, WAVE, 2).samples[..., 0]), np.sort(usual.samples[..., 0]))
    options: dict[str, Any] = {"num_samples": 5, "temperature": 0.3, "top_k": 4, "top_p": 0.4}
    drawn = jt.forecast(with_series(model, **options), WAVE)
    assert drawn.samples.shape == (1, 5, STEPS)
    assert_same(drawn, jt.forecast(model, WAVE, **options))
    assert len(np.unique(drawn.samples)) < len(np.unique(usual.samples))


def assert_same(one: Forecast, other: Forecast) -> None:
    np.testing.assert_array_equal(one.samples, other.samples)


def test_draws_depend_on_the_seed_and_not_on_the_batch(model: jt.Model) -> None:
    series = [WAVE, WAVE[:7], WAVE[3:9]]
    first, same, other = (forecast(model, series, seed=seed) for seed in (1, 1, 2))
    assert_same(first, same)
    assert (first.samples != other.samples).any()
    assert_same(forecast(model, series, seed=1, batch_size=1), first)
    np.testing.assert_array_equal(forecast(model, WAVE, seed=1).samples, first.samples[:1])


def test_many_futures_are_drawn_in_parts(model: jt.Model) -> None:
    drawn = forecast(model, WAVE, num_samples=2 * prediction.MOST_DRAWN, top_k=0).samples[0]
    assert len(np.unique(drawn, axis=0)) > prediction.MOST_DRAWN  # no part repeats another


def test_the_end_is_never_drawn(model: jt.Model) -> None:
    likely, unlikely = (forecast(with_bias(model, value), WAVE).samples[0].tolist() for value in (50.0, -50.0))
    assert sorted(likely) == sorted(unlikely)


def with_bias(model: jt.Model, value: float) -> jt.Model:
    head = model.params["head"]
    return dataclasses.replace(model, params=model.params | {"head": head | {"bias": head["bias"].at[END].set(value)}})


def test_settings_for_text_do_not_change_forecasts(model: jt.Model) -> None:
    generation = dataclasses.replace(model.generation, no_repeat_ngram=1, min_new_tokens=3, forced_bos_id=9)
    assert_same(forecast(dataclasses.replace(model, generation=generation), WAVE), forecast(model, WAVE))


# --- long horizons


def test_a_long_forecast_goes_on_from_its_own_values(model: jt.Model) -> None:
    with pytest.warns(UserWarning, match="trained for 4 steps; it predicts 9 in blocks"):
        whole = forecast(model, [WAVE, WAVE[:5]], 9, num_samples=1, top_k=1)
    rows, parts = [WAVE, WAVE[:5]], []
    for steps in (4, 4, 1):
        parts.append(forecast(model, rows, steps, num_samples=1, top_k=1).samples[:, 0])
        rows = [np.concatenate(pair) for pair in zip(rows, parts[-1], strict=True)]
    np.testing.assert_array_equal(whole.samples[:, 0], np.concatenate(parts, axis=1))


def test_blocks_read_lower_medians_and_join_draws_at_random(model: jt.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = []

    def draw(model: Any, source: Any, decoding: Any, **_: Any) -> Generated:
        sources.append(source)
        each = 18 + np.arange(decoding.num_return)[None, :, None]
        return Generated(np.tile(each, (len(source), 1, decoding.max_new_tokens)), np.zeros((len(source), 1)))

    monkeypatch.setattr(prediction, "generate", draw)
    with pytest.warns(UserWarning, match="predicts 8 in blocks"):
        drawn = forecast(model, [1.0] * 5, 8, num_samples=6).samples[0]
    lower = [1.0] * 5 + [2.0] * 4  # of 0 to 5
    np.testing.assert_array_equal(sources[1], encode_series(model, lower).ids)
    first, second = drawn[:, 0].tolist(), (drawn[:, 4] / np.float32(13 / 9)).round().tolist()
    assert sorted(first) == sorted(second) == [0, 1, 2, 3, 4, 5]
    assert first != second != sorted(second)


def test_a_forecast_within_the_training_length_warns_of_nothing(model: jt.Model) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forecast(model, WAVE, STEPS)


# --- results


def test_quantiles_interpolate_between_samples() -> None:
    drawn = Forecast(np.array([[[1.0, 5.0], [3.0, 5.0], [2.0, 6.0], [9.0, 6.0]]], np.float32))
    np.testing.assert_allclose(drawn.quantiles([0.0, 0.5, 1.0]), [[[1.0, 2.5, 9.0], [5.0, 5.5, 6.0]]])
    np.testing.assert_allclose(drawn.quantiles([0.1])[0, 0], [1.3])
    np.testing.assert_allclose((drawn.median, drawn.mean), ([[2.5, 5.5]], [[3.75, 5.5]]))
    assert drawn.quantiles([0.1]).dtype == drawn.mean.dtype == np.float32


# --- mistakes


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ([], "series: expected at least one; received none"),
        (np.zeros((0, 3)), "series: expected at least one; received none"),
        ([[1.0], []], "series 1: expected at least one value; received none"),
        ([[1.0], [NAN, NAN]], "series 1: expected at least one value; received 2 that are NaN"),
        ([[1.0, *[NAN] * 12]], "series 0: expected at least one value among the last 12, which the model reads"),
        ([[1.0, float("inf")]], "series 0: expected finite values .* received infinity"),
        ([1.0, 1e39], "series 0: expected finite values that float32 holds"),
        ([["a"]], r"series 0: expected numbers \[T\]; received <U1 \[1\]"),
        ([[[1.0]]], r"series 0: expected numbers \[T\]; received float64 \[1, 1\]"),
        ("12", "series: expected an array .* received str"),
        (None, "series: expected an array .* received NoneType"),
    ],
)
def test_series_that_cannot_be_read_are_refused(model: jt.Model, series: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        forecast(model, series)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prediction_length": 0}, "prediction_length must be at least 1; received 0"),
        ({"num_samples": 0}, "num_samples must be at least 1; received 0"),
        ({"batch_size": 0}, "batch_size must be at least 1; received 0"),
        ({"temperature": 0.0}, "temperature must be from 1e-30 to .*; received 0.0"),
        ({"top_k": -1}, "top_k must be at least 0; received -1"),
        ({"top_p": 0.0}, "top_p must be greater than 0 and at most 1; received 0.0"),
        ({"seed": -1}, "seed must be at least 0; received -1"),
    ],
)
def test_options_out_of_range_are_refused(model: jt.Model, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        forecast(model, WAVE, **options)


@pytest.mark.parametrize("levels", [[], [0.5, 1.1], [-0.1], [NAN]])
def test_levels_outside_of_0_to_1_are_refused(levels: Sequence[float]) -> None:
    with pytest.raises(ValueError, match="quantiles: expected levels from 0 to 1; received"):
        Forecast(np.zeros((1, 2, 3), np.float32)).quantiles(levels)


@pytest.mark.parametrize(
    ("generation", "config", "message"),
    [
        ({"series": None}, {}, "expected a model of time series, such as a Chronos-T5; received one without `series`"),
        ({"eos_id": 2}, {}, "expected the end among the 2 special ids; received 2"),
        ({}, {"source_pad_id": 3, "target_pad_id": 3}, "expected the pad among the 2 special ids; received 3"),
        ({}, {"target_pad_id": 1}, "one pad for source and target"),
        ({"series": dataclasses.replace(TOKENS, num_tokens=41)}, {}, "expected at most 40 tokens, .*; received 41"),
        ({"max_decode_length": 3}, {}, "prediction_length: expected at most the 3 tokens that the model decodes"),
    ],
)
def test_other_models_are_refused(model: jt.Model, generation: Any, config: Any, message: str) -> None:
    other = dataclasses.replace(
        model,
        generation=dataclasses.replace(model.generation, **generation),
        config=dataclasses.replace(model.config).replace(**config),
    )
    with pytest.raises(ValueError, match=message):
        forecast(other, WAVE)


def test_a_model_of_features_is_refused(model: jt.Model) -> None:
    config = CONFIG.replace(stem=Stem(features=3), source_vocab_size=0)
    with pytest.raises(ValueError, match="expected a model that reads ids"):
        encode_series(dataclasses.replace(model, config=config), WAVE)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_tokens": 4}, "num_tokens must be at least 5, for two bins; received 4"),
        ({"context_length": 0}, "context_length must be at least 1"),
        ({"low": 2.0, "high": 2.0}, "low must be below high, and both finite; received 2.0 and 2.0"),
        ({"high": float("inf")}, "low must be below high, and both finite"),
        ({"top_k": 1.5}, "top_k must be an integer; received 1.5"),
        ({"num_special": 0}, "num_special must be at least 1"),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(TOKENS, **fields)


def test_settings_of_a_file_are_checked() -> None:
    with pytest.raises(ConfigError, match="series: unknown field bins; missing field prediction_length"):
        jt.GenerationConfig(series={"num_tokens": 9, "context_length": 3, "bins": 1})  # type: ignore[arg-type]


def test_values_to_predict_have_the_scales_of_what_they_continue(model: jt.Model) -> None:
    future = [[2.0, NAN], [-30.0, 400.0]]
    assert encode_series(model, future, scales=np.array([2.0, 10.0])).ids.tolist() == [[19, PAD, END], [15, 33, END]]
    assert encode_series(model, [1.0, -1.0], scales=np.array([1e-30])).ids.tolist() == [[33, 2, END]]
    longer = np.ones(CONTEXT + 3)
    assert encode_series(model, longer, scales=np.array([1.0])).ids.shape == (1, CONTEXT + 4)


@pytest.mark.parametrize("scales", [[1.0, 2.0], [0.0], [NAN], [[1.0]]])
def test_impossible_scales_are_refused(model: jt.Model, scales: Any) -> None:
    with pytest.raises(ValueError, match="scales: expected 1 positive numbers; received"):
        encode_series(model, WAVE, scales=np.array(scales))
