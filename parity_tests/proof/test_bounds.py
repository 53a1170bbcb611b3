"""What JAX reads out of bounds: NaN, a number that the program gives, or the nearest element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_transformer.parity import prove

FAR = np.array([9, 1])


def filled(value: float) -> Callable[..., Any]:
    return lambda p, i: p["w"].at[FAR].get(mode="fill", fill_value=value) * p["v"]


def read_at(*places: int) -> Callable[..., Any]:
    return lambda p, i: p["w"][np.array(places)] * p["v"]


def first_is(value: float) -> Callable[..., Any]:
    return lambda p, i: jnp.stack([value + 0 * p["w"][0], p["w"][1]]) * p["v"]


@pytest.mark.parametrize(
    ("candidate", "reference", "forward", "gradients"),
    [
        (lambda p, i: jnp.take(p["w"], FAR) * p["v"], read_at(3, 1), "unknown", "unknown"),
        (lambda p, i: jnp.take(p["w"], FAR) * 0 + p["v"], lambda p, i: 0 * p["w"][:2] + p["v"], "unknown", "unknown"),
        (filled(1.5), first_is(1.5), "proven", "proven"),
        (filled(1.5), first_is(1.25), "refuted", "refuted"),
        (filled(0.0), first_is(0.0), "proven", "proven"),
        (lambda p, i: lax.dynamic_slice(p["w"], (9,), (2,)) * p["v"], read_at(2, 3), "proven", "proven"),
        (lambda p, i: lax.dynamic_slice(p["w"], (9,), (2,)) * p["v"], read_at(1, 2), "refuted", "refuted"),
        (lambda p, i: p["w"].at[FAR].get(mode="clip") * p["v"], read_at(3, 1), "proven", None),
    ],
)
def test_is_read_as_jax_defines_it(candidate: Any, reference: Any, forward: str, gradients: str | None) -> None:
    weights = {"w": np.ones(4, np.float32), "v": np.ones(2, np.float32)}
    certificate = prove(candidate, reference, inputs={}, weights=weights, stages=("forward", "gradients"))
    found = {stage.name: stage for stage in certificate.stages}
    assert found["forward"].verdict == forward
    assert gradients in (None, found["gradients"].verdict)
    if gradients == "unknown":
        assert "out of bounds" in found["gradients"].reason
