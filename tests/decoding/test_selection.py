"""The largest of many: what jax.lax.top_k gives, whatever the size and whichever are equal."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_transformer.decoding.selection import BLOCK, argmax, top_k

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("size", [5, BLOCK, 16 * BLOCK, 40 * BLOCK, 40 * BLOCK + 1, 41 * BLOCK - 1])
@pytest.mark.parametrize("k", [1, 4, 16])
@pytest.mark.parametrize("values", [3, 1000])
def test_fast_selection_equals_the_slow_one(size: int, k: int, values: int) -> None:
    """With few values there are many equals, of which the first comes first; some are -inf."""
    if k > size:
        return
    rng = np.random.default_rng([size, k, values])
    scores = rng.integers(0, values, (3, 2, size)).astype(np.float32)
    scores[0, 0, rng.permutation(size)[: size - k // 2]] = -np.inf
    scores[2, 1] = -np.inf
    expected, received = jax.lax.top_k(scores, k), top_k(scores, k)
    np.testing.assert_array_equal(received[0], expected[0])
    np.testing.assert_array_equal(received[1], expected[1])
    np.testing.assert_array_equal(argmax(scores), scores.argmax(axis=-1))


@pytest.mark.parametrize("size", [8, 100, 5000])
def test_indices_have_32_bits_in_wide_programs_too(size: int) -> None:
    with jax.enable_x64(True):
        scores = jnp.arange(size, dtype=jnp.float32)[None]
        assert (top_k(scores, 2)[1].dtype, argmax(scores).dtype) == (jnp.int32, jnp.int32)
