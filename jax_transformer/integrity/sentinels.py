"""Programs that compilers are known to get wrong, and the model's own step: compiled, and computed in another way.

`python -m jax_transformer.integrity.sentinels NAME` runs one, in a process of its own that it may end, and prints the
largest difference relative to the largest number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import make_batch
from jax_transformer.training.state import init_state
from jax_transformer.training.step import make_train_step

EPSILONS = {"float32": 1e-5, "float64": 1e-12}


def many_rows() -> float:
    """Sums squares of products with each of 16,385 rows of an odd width (https://github.com/jax-ml/jax/issues/39103)."""
    rng = np.random.default_rng(0)
    rows, matrix = rng.standard_normal((16385, 3)), rng.standard_normal((3, 3))
    compiled = jax.jit(jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2)))(rows)
    return _apart(compiled, np.square(rows @ matrix.T).sum(axis=1))


def seven_axes() -> float:
    """Sums products along one of seven axes, in float32 (https://github.com/jax-ml/jax/issues/40412)."""
    rng = np.random.default_rng(0)
    one, other = (rng.standard_normal((3, 1, 2, 2, 8, 8, 8), np.float32) for _ in range(2))
    compiled = jax.jit(lambda one, other: jnp.sum(one * other, axis=3))(one, other)
    return _apart(compiled, (one.astype(np.float64) * other).sum(axis=3)) * EPSILONS["float64"] / EPSILONS["float32"]


def training_step() -> float:
    """Takes a step of a small model in float64, compiled as a whole and operation by operation."""
    model = TransformerConfig(
        source_vocab_size=13, target_vocab_size=11, d_model=12, num_heads=3, d_ff=10, num_encoder_layers=1,
        num_decoder_layers=1, max_length=9, dropout_rate=0.0, layer_loop="unrolled",
    )  # fmt: skip
    config = TrainConfig(optimizer="sgd", schedule="constant", learning_rate=1.0, warmup_steps=1)
    batch = make_batch([[4, 5, 6, 3], [7, 3]], [[5, 6], [4, 4, 5]])
    state = jax.device_get(init_state(model, config))
    params, optimizer = (jax.tree.map(_widened, part) for part in (state.params, state.optimizer))
    wide = state._replace(params=params, optimizer=optimizer)

    def step() -> list[np.ndarray]:
        after, metrics = make_train_step(model, config)(jax.tree.map(jnp.asarray, wide), batch)
        return [np.asarray(leaf) for leaf in jax.tree.leaves((after.params, metrics["loss"]))]

    compiled = step()
    with jax.disable_jit():
        eager = step()
    return max(map(_apart, compiled, eager))


def _widened(leaf: np.ndarray) -> np.ndarray:
    return leaf.astype(np.float64) if np.issubdtype(leaf.dtype, np.floating) else leaf


def _apart(received: object, expected: object) -> float:
    one, other = np.asarray(received, np.float64), np.asarray(expected, np.float64)
    return float(np.abs(one - other).max() / np.abs(other).max())


SENTINELS: Mapping[str, Callable[[], float]] = {
    "sums of products over 16,385 rows": many_rows,
    "sums along one of seven axes": seven_axes,
    "a training step in float64": training_step,
}
"""Name of a computation → the function, whose result is right up to 1e-12."""


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    print(SENTINELS[sys.argv[1]]())
