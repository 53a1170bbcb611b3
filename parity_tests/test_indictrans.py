"""IndicTrans2: logits, gradients and tokens of its own program. (`indictrans_program.py` wrote them.)"""

from __future__ import annotations

import dataclasses
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from indictrans_program import BEAMS, GOLDENS, NEW_TOKENS, NO_REPEAT, PAD, SIZES, make_directory, make_ids

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.model.functional import apply
from jax_transformer.parity.backends.families import exported_module
from jax_transformer.parity.backends.jax_sides import JaxSide, cast
from jax_transformer.parity.problems import Problem
from jax_transformer.porting import export_checkpoint, import_checkpoint
from jax_transformer.porting.dialects import get_dialect
from jax_transformer.porting.state_dicts import state_dict_from_params
from jax_transformer.storage.model_directory import Model
from jax_transformer.storage.tensor_files import read_tensors

pytestmark = pytest.mark.usefixtures("quick_compilation")

FOUND: list[dict[str, Any]] = json.loads(GOLDENS.read_text(encoding="utf-8"))
ALL = range(len(SIZES))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("indictrans")


@cache
def model_of(size: int, folder: Path) -> Model:
    return import_checkpoint(make_directory(size, folder))


def problem_of(size: int, model: Model) -> Problem:
    return Problem("own weights", model.params, *make_ids(size))


@pytest.mark.parametrize("size", ALL)
def test_logits_and_gradients_are_those_of_its_program(size: int, folder: Path) -> None:
    model, expected = model_of(size, folder), FOUND[size]
    source, target, labels = make_ids(size)

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        logits = apply(model.config, params, source, target)
        likelihoods = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], 2)[..., 0]
        return -jnp.mean(likelihoods, where=labels != PAD), logits

    params = cast(model.params, "float64")
    (mean, logits), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    assert compare(np.asarray(logits), np.array(expected["logits"])).within(FLOAT64_RELATIVE_RMS)
    assert float(mean) == pytest.approx(expected["loss"], rel=FLOAT64_RELATIVE_RMS)
    by_name = [
        state_dict_from_params(model.config, leaves, "indictrans", expected["products"])
        for leaves in (gradients | {"constants": params["constants"]}, params)
    ]
    products = {name: float((by_name[0][name] * by_name[1][name]).sum()) for name in expected["products"]}
    largest = max(map(abs, products.values()))
    for name, product in expected["products"].items():
        assert abs(products[name] - product) <= FLOAT64_RELATIVE_RMS * largest, name


@pytest.mark.parametrize("size", ALL)
def test_the_reference_of_the_installed_transformers_computes_them_too(size: int, folder: Path) -> None:
    module: Any = exported_module(model_of(size, folder), get_dialect("indictrans")).double()
    source, target, _ = map(torch.from_numpy, make_ids(size))
    with torch.no_grad():
        logits = module(source, source != PAD, target, use_cache=False).logits
    assert compare(logits.numpy(), np.array(FOUND[size]["logits"])).within(FLOAT64_RELATIVE_RMS)


@pytest.mark.parametrize("beams", [1, BEAMS])
@pytest.mark.parametrize("size", ALL)
def test_tokens_are_those_of_its_program(size: int, beams: int, folder: Path) -> None:
    """Its program decodes in float64 with a cache, as this one does."""
    model = model_of(size, folder)
    assert (model.generation.decoder_start_id, model.generation.eos_id) == (2, 2)
    generation = dataclasses.replace(model.generation, eos_id=FOUND[size]["end"])
    wide = dataclasses.replace(model, params=cast(model.params, "float64"), generation=generation)
    options = DecodingConfig(
        beam_size=beams, max_new_tokens=NEW_TOKENS, no_repeat_ngram=NO_REPEAT, early_stopping=beams > 1
    )
    tokens = JaxSide("jax", wide).decode(problem_of(size, wide), options).ids
    tokens = np.pad(tokens, ((0, 0), (0, NEW_TOKENS - tokens.shape[1])), constant_values=PAD)
    np.testing.assert_array_equal(tokens, FOUND[size]["greedy" if beams == 1 else "beams"])


@pytest.mark.parametrize("size", ALL)
def test_a_directory_returns_with_its_bits(size: int, folder: Path) -> None:
    """Its program loads both (`indictrans_program.py`, with a second folder)."""
    model, kept = model_of(size, folder), os.environ.get("JAX_TRANSFORMER_INDICTRANS")
    back = Path(kept or folder) / f"back_{size}"
    export_checkpoint(model, back)
    first, second = (read_tensors(path / "model.safetensors") for path in (folder / f"indictrans_{size}", back))
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert json.loads((back / "config.json").read_text()).items() >= SIZES[size].items()

    fresh = Path(kept or folder) / f"fresh_{size}"
    export_checkpoint(dataclasses.replace(model, origin=None), fresh, "indictrans")
    third = read_tensors(fresh / "model.safetensors")
    assert third.keys() == first.keys()
    assert import_checkpoint(fresh).config == model.config
