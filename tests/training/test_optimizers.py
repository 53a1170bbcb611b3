"""The optimizers: the parameters that each updates, and the updates, against singular value decompositions in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.model.functional import Params, init_params
from jax_transformer.model.matrices import matrix_axes
from jax_transformer.runtime.trees import flatten, unflatten
from jax_transformer.training.optimizers import make_optimizer

pytestmark = pytest.mark.usefixtures("quick_compilation")

RATE = 0.5
MODEL = TransformerConfig(
    source_vocab_size=11,
    target_vocab_size=12,
    d_model=8,
    num_heads=2,
    d_ff=12,
    num_encoder_layers=2,
    num_decoder_layers=1,
    max_length=8,
    share_embeddings=False,
)
LAYER = {
    "encoder": ("self_attention/query", "self_attention/key", "self_attention/value", "self_attention/output"),
    "decoder": (
        "self_attention/query",
        "self_attention/key",
        "self_attention/value",
        "self_attention/output",
        "cross_attention/query",
        "cross_attention/key",
        "cross_attention/value",
        "cross_attention/output",
    ),
}
MATRICES = {
    f"{stack}/layers/{name}/kernel"
    for stack, names in LAYER.items()
    for name in (*names, "feed_forward/hidden", "feed_forward/output")
}


@pytest.fixture(scope="module")
def params() -> Params:
    tree = init_params(MODEL, jax.random.key(0))
    tree.pop("constants")
    return tree


def gradients_like(params: Params, seed: int) -> Params:
    generator = np.random.default_rng(seed)
    return unflatten(
        {path: jnp.asarray(generator.normal(size=leaf.shape), jnp.float32) for path, leaf in flatten(params).items()}
    )


def updates_of(config: TrainConfig, params: Params, gradients: list[Params]) -> Params:
    """Returns the last step's update of the parameters."""
    optimizer = make_optimizer(config, optax.constant_schedule(RATE))
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for some in gradients:
        updates, state = update(some, state, params)
    return updates


def as_matrices(path: str, leaf: np.ndarray) -> np.ndarray:
    """[layers, in, out], with all heads in one axis."""
    layers, *shape = leaf.shape
    into = int(np.prod(shape[:-1])) if path.endswith("attention/output/kernel") else shape[0]
    return leaf.reshape(layers, into, -1)


def orthogonalised(matrix: np.ndarray) -> np.ndarray:
    """Five steps s → 3.4445 s - 4.775 s³ + 2.0315 s⁵ of the singular values (Jordan et al. 2024), and Adam's size."""
    left, values, right = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    values = values / np.linalg.norm(matrix)
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    return 0.2 * np.sqrt(max(matrix.shape)) * (left * values) @ right


def test_only_the_matrices_of_the_layers_are_selected(params: Params) -> None:
    assert {path for path, leaf in flatten(params).items() if matrix_axes(path, leaf)} == MATRICES


def test_matrices_move_by_orthogonalised_gradients(params: Params) -> None:
    """The first step: each layer's matrix by itself, over all heads."""
    gradients = gradients_like(params, 1)
    updates, given = flatten(updates_of(TrainConfig(optimizer="muon"), params, [gradients])), flatten(gradients)
    for path in MATRICES:
        expected = [-RATE * orthogonalised(matrix) for matrix in as_matrices(path, np.asarray(given[path]))]
        np.testing.assert_allclose(as_matrices(path, np.asarray(updates[path])), expected, atol=2e-5)


def test_matrices_move_by_momentum(params: Params) -> None:
    """The second step: of gradients g₁ and g₂ along Nesterov's 0.95 m + 0.05 g₂, with m the mean 0.95 g₁ + g₂, each
    without its bias."""
    first, second = gradients_like(params, 1), gradients_like(params, 2)
    updates, one, two = (
        flatten(tree) for tree in (updates_of(TrainConfig(optimizer="muon"), params, [first, second]), first, second)
    )
    for path in MATRICES:
        g1, g2 = (as_matrices(path, np.asarray(some[path], np.float64)) for some in (one, two))
        mean = 0.05 * (0.95 * g1 + g2)
        direction = 0.95 * mean / (1 - 0.95**3) + 0.05 * g2 / (1 - 0.95**2)
        expected = [-RATE * orthogonalised(matrix) for matrix in direction]
        np.testing.assert_allclose(as_matrices(path, np.asarray(updates[path])), expected, atol=2e-5)


def test_all_else_moves_as_by_adam(params: Params) -> None:
    gradients = [gradients_like(params, seed) for seed in (1, 2, 3)]
    adam, muon = (flatten(updates_of(TrainConfig(optimizer=name), params, gradients)) for name in ("adam", "muon"))
    assert adam.keys() == muon.keys()
    for path in adam.keys() - MATRICES:
        np.testing.assert_array_equal(muon[path], adam[path])
    for path in MATRICES:
        assert not np.allclose(muon[path], adam[path], atol=0.05)


def test_frozen_matrices_are_no_matter(params: Params) -> None:
    rest = unflatten({path: leaf for path, leaf in flatten(params).items() if path not in MATRICES})
    adam, muon = (
        flatten(updates_of(TrainConfig(optimizer=name), rest, [gradients_like(rest, 1)])) for name in ("adam", "muon")
    )
    for path, leaf in adam.items():
        np.testing.assert_array_equal(muon[path], leaf)


def test_steps_are_of_one_size(params: Params) -> None:
    """Adam's and Muon's, so that one learning rate serves both: noise makes about a fifth of it."""
    gradients = [gradients_like(params, seed) for seed in range(30)]
    for name in ("adam", "muon"):
        updates = flatten(updates_of(TrainConfig(optimizer=name), params, gradients))
        sizes = [float(jnp.sqrt(jnp.mean(jnp.square(updates[path])))) / RATE for path in sorted(MATRICES)]
        assert 0.1 < np.mean(sizes) < 0.35


def test_clipping_comes_first(params: Params) -> None:
    gradients = gradients_like(params, 1)
    for name in ("adam", "muon"):
        config = TrainConfig(optimizer=name, clip_norm=1e-12)
        updates = flatten(updates_of(config, params, [gradients]))
        largest = max(float(jnp.abs(leaf).max()) for path, leaf in updates.items() if path not in MATRICES)
        assert largest < RATE * 1e-2, "gradients far below Adam's epsilon"


# --- Adafactor


@pytest.mark.parametrize("factored_from", [1, 128])
def test_adafactor_updates_each_layer_separately(params: Params, factored_from: int) -> None:
    """As Optax's does a layer's parameters alone, its heads merged; clipping and scales are by layer, too."""
    config = TrainConfig(optimizer="adafactor", factored_from=factored_from)
    optimizer = make_optimizer(config, optax.constant_schedule(RATE))
    state, received = optimizer.init(params), None
    for seed in range(3):
        received, state = optimizer.update(gradients_like(params, seed), state, params)
    alone = optax.adafactor(RATE, min_dim_size_to_factor=factored_from)
    flat = flatten(params)
    for path, number, shape in (
        ("encoder/layers/self_attention/query/kernel", 1, (8, 8)),
        ("encoder/layers/self_attention/output/kernel", 0, (8, 8)),
        ("encoder/layers/self_attention/query/bias", 1, (8,)),
        ("decoder/layers/feed_forward/hidden/kernel", 0, (8, 12)),
        ("encoder/layers/feed_forward_norm/scale", 0, (8,)),
    ):
        leaf = flat[path][number].reshape(shape)
        expected, single = None, alone.init(leaf)
        for seed in range(3):
            gradient = flatten(gradients_like(params, seed))[path][number].reshape(shape)
            expected, single = alone.update(gradient, single, leaf)
        np.testing.assert_allclose(flatten(received)[path][number].reshape(shape), expected, rtol=1e-5, err_msg=path)
    expected, single = None, alone.init(flat["source_embedding/embedding"])
    for seed in range(3):
        gradient = flatten(gradients_like(params, seed))["source_embedding/embedding"]
        expected, single = alone.update(gradient, single, flat["source_embedding/embedding"])
    np.testing.assert_allclose(flatten(received)["source_embedding/embedding"], expected, rtol=1e-5)


def test_adafactor_keeps_sums_instead_of_moments(params: Params) -> None:
    states = [
        make_optimizer(TrainConfig(optimizer="adafactor", factored_from=least), optax.constant_schedule(RATE)).init(
            params
        )
        for least in (1, 128)
    ]
    few, many = (sum(leaf.size for leaf in jax.tree.leaves(state)) for state in states)
    assert few < 0.6 * many


@pytest.mark.parametrize("uncorrected", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 20])
def test_adam_corrects_the_bias_to_the_last_digits_of_float32(uncorrected: bool, steps: int) -> None:
    """Of a constant gradient, the corrected moments are the gradient and its square, at each step. A plain 1 - 0.999^t
    is off by up to 2e-5 of its value."""
    config = TrainConfig(adam_b1=0.9, adam_b2=0.999, adam_eps=0.0, adam_eps_uncorrected=uncorrected)
    with jax.enable_x64(False):
        gradient = {"x": jnp.asarray([0.3, -2.0], jnp.float32)}
        updates = updates_of(config, {"x": jnp.zeros(2)}, [gradient] * steps)
    np.testing.assert_allclose(updates["x"], [-RATE, RATE], rtol=5e-7)
