"""What tests of decoding share: a model whose sentences end, and sentences for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from search_cases import EOS, START

from jax_transformer.config.decoding import GenerationConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.storage.model_directory import Model


@pytest.fixture(scope="module")
def params(x64: None, config: TransformerConfig, random_params: Callable[..., Any]) -> Any:
    """Random weights whose attention is sharp and whose source matters, so that some sentences end early, with id 3,
    and some don't."""
    params = random_params(config, seed=11)
    layers = params["decoder"]["layers"]
    for attention in ("self_attention", "cross_attention"):
        layers[attention]["query"]["kernel"] *= 4.0
    layers["cross_attention"]["output"]["kernel"] *= 4.0
    params["head"]["bias"][EOS] = 0.0
    return params


@pytest.fixture(scope="module")
def model(config: TransformerConfig, params: Any) -> Model:
    return Model(config, params, None, None, GenerationConfig(decoder_start_id=START, eos_id=EOS))


@pytest.fixture(scope="module")
def sources(config: TransformerConfig) -> list[list[int]]:
    """Sixteen sentences of 1 to 6 tokens."""
    rng = np.random.default_rng(0)
    real = [i for i in range(config.source_vocab_size) if i != config.source_pad_id]
    return [row[: rng.integers(1, 7)].tolist() for row in rng.choice(real, (16, 6))]
