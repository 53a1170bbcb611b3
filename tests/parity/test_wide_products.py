"""Products with transposed weights are repeated in float64 without a transposed copy of the weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_transformer.parity.layerwise import wide_jax


class Weight:
    """A weight that is read when an operation needs it."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype


def widened(value: Any) -> Any:
    return wide_jax.wide_array(value.array if isinstance(value, Weight) else value)


PRODUCTS: dict[str, tuple[tuple[int, ...], Callable[..., Any], bool]] = {
    "a tied head": ((7, 5), lambda x, w: x @ w.T, False),
    "heads": ((2, 3, 5), lambda x, w: jnp.einsum("bd,dhk->bhk", x, w.transpose(2, 0, 1)), False),
    "heads in the other order": ((2, 3, 5), lambda x, w: jnp.einsum("bd,dkh->bkh", x, w.transpose(2, 1, 0)), True),
    "in a function of its own": ((7, 5), lambda x, w: jax.jit(jnp.matmul)(x, w.T), False),
    "no product": ((7, 5), lambda x, w: jnp.sin(w.T)[0] + x.sum(), True),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_transposed_weights_are_read_as_they_are_stored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, product, is_copied = PRODUCTS[name]
    rng = np.random.default_rng(0)
    weight, x = (rng.standard_normal(each).astype(np.float32) for each in (shape, (3, 5)))
    closed, turned = jax.make_jaxpr(product)(x, weight), list[Any]()

    def read(value: Any) -> Any:
        array = widened(value)
        if not isinstance(value, Weight):
            return array
        own = type(array).transpose
        monkeypatch.setattr(type(array), "transpose", lambda self, *axes: turned.append(axes) or own(self, *axes))
        return array

    found = wide_jax.evaluate(closed, [x, Weight(weight)], read)[0]
    monkeypatch.undo()
    with jax.enable_x64(True):
        expected = product(*(jnp.asarray(each, jnp.float64) for each in (x, weight)))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    assert bool(turned) == is_copied
