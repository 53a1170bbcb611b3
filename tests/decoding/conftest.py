"""What tests of decoding share: a model whose sentences end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jax_transformer.config.model import TransformerConfig

EOS = 3


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
