"""Diverse beam search gives every hypothesis of transformers 4.55.4 with its score. (`diverse_beams.py` wrote them.)"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diverse_beams import FAMILIES, GOLDENS, MOST
from test_decoding import Search, make_search

from jax_transformer.comparison.gates.tolerances import HYPOTHESIS_SCORE
from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.decoding.generation import generate

pytestmark = pytest.mark.usefixtures("quick_compilation")

FOUND: dict[str, list[dict[str, Any]]] = json.loads(GOLDENS.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@cache
def search_of(family: str, folder: Path) -> Search:
    return make_search(family, folder)


CASES = [
    pytest.param(family, number, marks=() if family == "marian" else pytest.mark.nightly)
    for family in FAMILIES
    for number in range(len(FOUND[family]))
]


@pytest.mark.parametrize(("family", "number"), CASES)
def test_hypotheses_are_those_of_transformers(family: str, number: int, folder: Path) -> None:
    search, case = search_of(family, folder), FOUND[family][number]
    beams = case["ours"]["beam_size"]
    decoding = DecodingConfig(num_return=beams, **{"max_new_tokens": MOST} | case["ours"])
    found = generate(search.model, search.sources, decoding, prefix_ids=[case["prefix"]] * len(search.sources))
    expected = search.padded(np.array(case["sequences"]), search.model.generation.eos_id)
    length = expected.shape[2]
    np.testing.assert_array_equal(found.sequences[:, :, :length], expected)
    assert (found.sequences[:, :, length:] == search.case.config.target_pad_id).all()
    np.testing.assert_allclose(found.scores, case["scores"], rtol=HYPOTHESIS_SCORE, atol=HYPOTHESIS_SCORE)
