"""A difference is placed at the first operation that reaches the output. Rows of padding, which nobody reads, may
differ before it."""

from __future__ import annotations

import linecache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jax_transformer.proof import decide
from jax_transformer.proof.locating import Place
from proof.pairs import Pair, in_jax, in_torch

REAL = np.array([True, True, True, False])
SHAPES = {"x": (4, 4), **{f"{name}{layer}": (4, 4) for layer in (0, 1) for name in ("query", "value", "out")}}
FAULTS = ("query", "value", "out")


def ours(weights: Any, hides_pad_queries: bool, fault: str) -> Any:
    """Two layers of attention, in the second of which a kernel is transposed."""
    x = weights["x"]
    for layer in (0, 1):
        query, value, out = (
            weights[f"{name}{layer}"].T if layer == 1 and name == fault else weights[f"{name}{layer}"]
            for name in ("query", "value", "out")
        )
        queries = x @ query
        logits = queries @ jnp.tanh(x).T
        mask = REAL[:, None] & REAL if hides_pad_queries else REAL[None]
        chances = jax.nn.softmax(jnp.where(mask, logits, -1e9))
        values = jnp.tanh(x @ value)
        context = chances @ values
        x = x + jnp.tanh(context @ out)
    return x[:3]


def theirs(weights: Any) -> Any:
    x, hidden = weights["x"], torch.from_numpy(~REAL)
    for layer in (0, 1):
        logits = (x @ weights[f"query{layer}"]) @ torch.tanh(x).T
        chances = torch.softmax(logits + torch.zeros(4, dtype=x.dtype).masked_fill(hidden, -3e4), -1)
        context = chances @ torch.tanh(x @ weights[f"value{layer}"])
        x = x + torch.tanh(context @ weights[f"out{layer}"])
    return x[:3]


def pair(*options: Any) -> Pair:
    return Pair("", SHAPES, in_jax(lambda weights: ours(weights, *options)), in_torch(theirs))


def text_of(place: Place | None) -> str:
    assert place is not None
    path, line = place.line.rsplit(", ", 1)[1].rsplit(":", 1)
    return linecache.getline(path, int(line))


@pytest.mark.parametrize("hides_pad_queries", [False, True])
def test_padding_that_nobody_reads_may_differ(hides_pad_queries: bool) -> None:
    with jax.enable_x64(True):
        assert decide(pair(hides_pad_queries, "").task()).verdict == "proven"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("hides_pad_queries", [False, True])
def test_a_fault_of_the_second_layer_is_placed_there(hides_pad_queries: bool, fault: str) -> None:
    with jax.enable_x64(True):
        result = decide(pair(hides_pad_queries, fault).task())
    assert result.verdict == "refuted"
    assert result.difference is not None
    assert f"@ {fault}" in text_of(result.difference.candidate)
    assert f"{fault}{{layer}}" in text_of(result.difference.reference)
