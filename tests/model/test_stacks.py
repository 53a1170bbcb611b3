"""Running the layers: scanned, unrolled and rematerialised are the same function, gradients and dropout included."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS, has_zero_gradient
from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import dropout, functional
from jax_transformer.runtime.trees import flatten

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation", "cheap_random_words")

LOOPS: dict[str, dict[str, Any]] = {
    "scan": {"layer_loop": "scan", "remat": "none"},
    "unrolled": {"layer_loop": "unrolled", "remat": "none"},
    "scan_but_products": {"layer_loop": "scan", "remat": "all_but_products"},
    "unrolled_but_products": {"layer_loop": "unrolled", "remat": "all_but_products"},
    "scan_remat": {"layer_loop": "scan", "remat": "all"},
    "unrolled_remat": {"layer_loop": "unrolled", "remat": "all"},
}


@pytest.fixture(scope="module")
def cheap_random_words() -> Iterator[None]:
    """Random words made of key and index with less to compile; what counts here is which key is where."""

    def words(key: Any, shape: tuple[int, ...]) -> Any:
        first, second = key
        index = jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)
        return (first ^ second) * jnp.uint32(2654435769) + index * jnp.uint32(2246822519)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(dropout, "_random_words", words)
        yield


@pytest.fixture(scope="module")
def dropping(config: TransformerConfig) -> TransformerConfig:
    """Dropout in every place. No other module uses this config, so no other takes over what is compiled with cheap
    random words."""
    return dataclasses.replace(config, num_encoder_layers=2, dropout_rate=0.29, output_dropout_rate=0.11)


@pytest.fixture(scope="module")
def encoder_results(
    x64: None, cheap_random_words: None, dropping: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> dict[str, tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Under each loop: the encoder's output, and the gradients of its squares' mean. (Both stacks are run by the same
    code.)"""
    params = random_params(dropping)

    def loss(params: Any, config: TransformerConfig) -> Any:
        output = functional.encode(config, params, ids.source, dropout_key=jax.random.key(7))
        return jnp.square(output).mean(), output

    def run(loop: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        step = jax.jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
        (_, output), gradients = step(params, dataclasses.replace(dropping, **LOOPS[loop]))
        return np.asarray(output), {path: np.asarray(leaf) for path, leaf in flatten(gradients).items()}

    return {loop: run(loop) for loop in LOOPS}


@pytest.mark.parametrize("loop", [loop for loop in LOOPS if loop != "scan"])
def test_every_loop_gives_the_gradients_of_scan(encoder_results: dict[str, Any], loop: str) -> None:
    (output, gradients), (expected_output, expected_gradients) = encoder_results[loop], encoder_results["scan"]
    assert compare(output, expected_output).within(FLOAT64_RELATIVE_RMS)
    assert gradients.keys() == expected_gradients.keys()
    for path, expected in expected_gradients.items():
        if has_zero_gradient(path) or not path.startswith(("encoder/", "source_embedding/")):
            np.testing.assert_allclose(gradients[path], 0.0, atol=1e-14)
        else:
            assert np.abs(expected).reshape(len(expected), -1).max(axis=1).any(), path
            assert compare(gradients[path], expected).within(FLOAT64_RELATIVE_RMS), path


@pytest.mark.parametrize("loop", LOOPS)
def test_remat_and_scan_appear_only_on_request(
    dropping: TransformerConfig, ids: Any, random_params: Any, loop: str
) -> None:
    config = dataclasses.replace(dropping, **LOOPS[loop])
    program = str(jax.make_jaxpr(lambda params: functional.encode(config, params, ids.source))(random_params(config)))
    assert ("remat" in program or "checkpoint[" in program) == (config.remat != "none")
    assert ("scan[" in program) == (config.layer_loop == "scan")


def test_recomputed_activations_are_not_stored(config: TransformerConfig) -> None:
    """The memory of a backward pass, on long sequences: the attention weights are far larger than the products with
    weights."""
    source_ids = jnp.ones((4, 128), jnp.int32)

    def memory(remat: str) -> int:
        deep = dataclasses.replace(config, num_encoder_layers=6, max_length=128, remat=remat)
        loss = lambda params: jnp.square(functional.encode(deep, params, source_ids)).mean()  # noqa: E731
        compiled = jax.jit(jax.grad(loss)).lower(functional.abstract_params(deep)).compile()
        return int(compiled.memory_analysis().temp_size_in_bytes)

    everything, products, inputs = memory("none"), memory("all_but_products"), memory("all")
    assert everything > 2 * products > 2.2 * inputs


def test_the_whole_model_is_the_same_scanned_and_unrolled(
    dropping: TransformerConfig, ids: Any, random_params: Any
) -> None:
    """With dropout in both stacks, and the same stream of random words."""
    params = random_params(dropping)
    run = lambda loop, key: np.asarray(  # noqa: E731
        functional.apply(
            dataclasses.replace(dropping, layer_loop=loop), params, ids.source, ids.target, dropout_key=key
        )
    )
    scanned = run("scan", jax.random.key(7))
    assert compare(run("unrolled", jax.random.key(7)), scanned).within(FLOAT64_RELATIVE_RMS)
    assert not compare(run("scan", jax.random.key(8)), scanned).within(1e-2)


def test_layers_are_taken_in_order(config: TransformerConfig, ids: Any, random_params: Callable[..., Any]) -> None:
    """Each layer has its own parameters: with the two decoder layers exchanged it is another function."""
    params = random_params(config)
    exchanged = {
        **params,
        "decoder": {**params["decoder"], "layers": jax.tree.map(lambda leaf: leaf[::-1], params["decoder"]["layers"])},
    }
    expected = np.asarray(functional.apply(config, params, ids.source, ids.target))
    assert not compare(np.asarray(functional.apply(config, exchanged, ids.source, ids.target)), expected).within(1e-3)


@pytest.fixture(scope="module")
def equal_layers(
    x64: None, config: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> tuple[TransformerConfig, Callable[[TransformerConfig], tuple[np.ndarray, dict[str, np.ndarray]]]]:
    """A config whose three encoder layers share their parameters, and a function (config) → the encoder's output, and
    the gradients of its squares' mean, summed over the layers."""
    shared = dataclasses.replace(config, num_encoder_layers=3, share_layers=True)
    params = random_params(shared)

    def run(config: TransformerConfig) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        def loss(layers: Any) -> Any:
            whole = {
                **params,
                "encoder": {**params["encoder"], "layers": layers},
                "decoder": {**params["decoder"], "layers": decoder_layers},
            }
            output = functional.encode(config, whole, ids.source)
            return jnp.square(output).mean(), output

        times, decoder_times = (1, 1) if config.share_layers else (3, 2)
        decoder_layers = jax.tree.map(lambda leaf: np.repeat(leaf, decoder_times, axis=0), params["decoder"]["layers"])
        layers = jax.tree.map(lambda leaf: np.repeat(leaf, times, axis=0), params["encoder"]["layers"])
        (_, output), gradients = jax.value_and_grad(loss, has_aux=True)(layers)
        return np.asarray(output), {path: np.asarray(leaf).sum(axis=0) for path, leaf in flatten(gradients).items()}

    return shared, run


@pytest.mark.parametrize("loop", ["scan_but_products", "unrolled"])
def test_shared_layers_are_as_many_equal_ones(equal_layers: Any, loop: str) -> None:
    """Outputs, and gradients, which are the sum of those of all places."""
    shared, run = equal_layers
    output, gradients = run(dataclasses.replace(shared, **LOOPS[loop]))
    expected_output, expected = run(dataclasses.replace(shared, share_layers=False))
    assert compare(output, expected_output).within(FLOAT64_RELATIVE_RMS)
    assert gradients.keys() == expected.keys()
    for path, leaf in expected.items():
        if not has_zero_gradient(path):
            assert compare(gradients[path], leaf).within(FLOAT64_RELATIVE_RMS), path
