"""Chronos-T5: ids, values, logits and forecasts of chronos-forecasting 1.5.3. (`chronos_forecasts.py` wrote them.)"""

from __future__ import annotations

import json
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from chronos_forecasts import GOLDENS, LEVELS, MODELS, STEPS, VOCABULARY, compute, make_model, make_series

import jax_transformer as jt
from jax_transformer.forecasting import Forecast, decode_series, encode_series

pytestmark = pytest.mark.usefixtures("quick_compilation")

FOUND: dict[str, Any] = json.loads(GOLDENS.read_text(encoding="utf-8"))
FLOAT32 = 2e-5
"""Most difference of logits and outputs of the encoder, by the largest: float32 in both programs."""
ROUNDING = 4e-7
"""Most relative difference of a scale: PyTorch sums in float32."""


@cache
def model_of(name: str) -> jt.Model:
    return make_model(**MODELS[name])


@pytest.mark.parametrize("name", MODELS)
def test_ids_and_scales_are_those_of_the_package(name: str) -> None:
    encoded, expected = encode_series(model_of(name), make_series()), FOUND["models"][name]
    np.testing.assert_array_equal(encoded.ids, expected["ids"])
    np.testing.assert_array_equal(encoded.ids != 0, expected["mask"])
    np.testing.assert_allclose(encoded.scales, expected["scales"], rtol=ROUNDING)


@pytest.mark.parametrize("name", MODELS)
def test_values_have_the_bits_of_the_package(name: str) -> None:
    expected = FOUND["models"][name]
    ids = np.tile(np.arange(1, VOCABULARY - 1), (len(expected["ids"]), 1))
    values = decode_series(model_of(name), ids, np.array(expected["scales"], np.float32))
    np.testing.assert_array_equal(values, np.array(expected["values"], np.float32))


@pytest.mark.parametrize("name", MODELS)
def test_embeddings_and_logits_are_those_of_the_package(name: str) -> None:
    model, expected = model_of(name), FOUND["models"][name]
    ids, mask = np.array(expected["ids"]), np.array(expected["mask"])
    encoded = np.asarray(jax.jit(jt.encode, static_argnums=0)(model.config, model.params, ids))
    wanted = np.array(expected["embedding"], np.float32)
    assert np.abs(encoded[:2] - wanted)[mask[:2]].max() < FLOAT32 * np.abs(wanted).max()
    decoder = np.tile(expected["decoder"], (len(ids), 1))
    logits = np.asarray(jax.jit(jt.apply, static_argnums=0)(model.config, model.params, ids, decoder))
    wanted = np.array(expected["logits"], np.float32)
    assert np.abs(logits - wanted).max() < FLOAT32 * np.abs(wanted).max()


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", MODELS)
def test_the_most_probable_values_are_those_of_the_package(name: str, steps: int) -> None:
    """Twenty steps are four blocks, which read the medians of those before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = jt.forecast(model_of(name), make_series(), steps, num_samples=1, top_k=1)
    expected = np.array(FOUND["models"][name]["greedy"][str(steps)], np.float32)
    np.testing.assert_allclose(found.samples[:, 0], expected, rtol=4 * ROUNDING)


def test_quantiles_are_those_of_the_package() -> None:
    drawn = Forecast(np.array(FOUND["samples"], np.float32))
    np.testing.assert_allclose(drawn.quantiles(LEVELS), FOUND["quantiles"], atol=1e-6)


def test_the_installed_package_computes_the_same() -> None:
    pytest.importorskip("chronos", reason="compares with chronos-forecasting")
    computed = json.loads(json.dumps(compute()))
    for name, expected in FOUND["models"].items():
        for key in ("ids", "mask"):
            assert computed["models"][name][key] == expected[key]
        for key in ("scales", "values", "embedding", "logits"):
            wanted = np.array(expected[key])
            np.testing.assert_allclose(computed["models"][name][key], wanted, atol=FLOAT32 * np.abs(wanted).max())


def test_a_directory_for_the_package_comes_back(tmp_path: Path) -> None:
    """A model that was never ported is written with `chronos_config`; ported, it is the same, and written the same."""
    model = model_of("untied")
    jt.export_checkpoint(model, tmp_path / "chronos", "t5")
    ported = jt.import_checkpoint(tmp_path / "chronos")
    assert ported.generation.series == model.generation.series
    jt.export_checkpoint(ported, tmp_path / "again")
    texts = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("chronos", "again")]
    assert texts[0] == texts[1]
    assert texts[0]["chronos_config"]["tokenizer_kwargs"] == {"high_limit": 15.0, "low_limit": -15.0}
    tensors = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("chronos", "again")]
    assert tensors[0] == tensors[1]
