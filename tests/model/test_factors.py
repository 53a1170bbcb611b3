"""Factors of token embeddings and of relative-position biases: as if their tables were multiplied, but only there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import functional
from jax_transformer.runtime.trees import flatten, unflatten

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

FACTORS = {"embedding_factor": 0.5, "decoder_embedding_factor": 3.0}


def scaled(params: Any, factors: Mapping[str, float]) -> Any:
    """The parameters with these leaves multiplied."""
    leaves = flatten(params)
    assert leaves.keys() >= factors.keys()
    return unflatten({path: leaf * factors.get(path, 1.0) for path, leaf in leaves.items()})


def same(received: Any, expected: Any) -> bool:
    return compare(np.asarray(received), np.asarray(expected)).within(FLOAT64_RELATIVE_RMS)


def test_each_stack_multiplies_its_own_tokens(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    params = random_params(config)
    plain = dataclasses.replace(config, scale_embedding=False)
    tables = {"source_embedding/embedding": 0.5, "target_embedding/embedding": 3.0}
    expected = functional.apply(plain, scaled(params, tables), *ids)
    assert same(functional.apply(dataclasses.replace(config, **FACTORS), params, *ids), expected)
    assert not same(functional.apply(dataclasses.replace(config, embedding_factor=0.5), params, *ids), expected)


def test_a_factor_is_not_rounded_to_bfloat16(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    """√768 would be larger by 0.13 %."""
    factor = float(np.sqrt(768))
    narrow = dataclasses.replace(config, embedding_factor=factor, compute_dtype="bfloat16")
    params = random_params(narrow)
    _, trace = functional.apply(narrow, params, *ids, return_trace=True)
    rows = params["source_embedding"]["embedding"][ids[0]].astype("bfloat16")
    expected = (np.asarray(rows, np.float32) * np.float32(factor)).astype(rows.dtype)
    np.testing.assert_array_equal(np.asarray(trace["encoder.token_embedding"]), expected)


def test_a_shared_and_tied_table_stays_unscaled(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    """The factors enter neither the other stack nor the head."""
    sizes = {"source_vocab_size": 13, "target_vocab_size": 13}
    tied = dataclasses.replace(config, **sizes, share_embeddings=True, tie_head=True, **FACTORS)
    params = random_params(tied)
    leaves = flatten(params)
    table = leaves.pop("shared_embedding/embedding")
    tables = {"source_embedding/embedding": 0.5 * table, "target_embedding/embedding": 3.0 * table}
    leaves["head/bias"] = leaves.pop("head_bias")
    plain = dataclasses.replace(config, **sizes, scale_embedding=False)
    apart = unflatten({**leaves, **tables, "head/kernel": table.T})
    assert same(functional.apply(tied, params, *ids), functional.apply(plain, apart, *ids))


@pytest.mark.parametrize("per_layer", [False, True])
def test_relative_biases_are_multiplied(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any], per_layer: bool
) -> None:
    config = dataclasses.replace(
        config,
        position_kind="relative_bias",
        relative_buckets=6,
        relative_max_distance=5,
        relative_bias_per_layer=per_layer,
    )
    params = random_params(config)
    tables = {path: 2.5 for path in flatten(params) if "relative_bias" in path}
    expected = functional.apply(config, scaled(params, tables), *ids)
    assert same(functional.apply(dataclasses.replace(config, relative_bias_factor=2.5), params, *ids), expected)
