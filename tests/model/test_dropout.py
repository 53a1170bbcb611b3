"""Dropout: its rate, its independence, and that every place, layer and step draws its own numbers."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import dropout as module
from jax_transformer.model import functional, scope
from jax_transformer.model.dropout import Site, Words, dropout, fold

pytestmark = pytest.mark.usefixtures("quick_compilation")

SIGMAS = 5
SHAPE = (300, 400)


def kept(rate: float, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return np.asarray(dropout(jnp.ones(shape), rate, jax.random.key(seed))) != 0


# --- the function


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_rate_is_met(rate: float) -> None:
    count = math.prod(SHAPE)
    assert abs((~kept(rate)).sum() - rate * count) < SIGMAS * math.sqrt(count * rate * (1 - rate))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_kept_values_are_scaled_to_preserve_the_mean(rate: float) -> None:
    x = np.random.default_rng(0).uniform(1, 2, SHAPE).astype(np.float32)
    y = np.asarray(dropout(jnp.asarray(x), rate, jax.random.key(3)))
    np.testing.assert_allclose(y[y != 0], x[y != 0] / (1 - rate), rtol=1e-6)
    deviation = math.sqrt((x.astype(np.float64) ** 2).sum() * rate / (1 - rate))
    assert abs(y.sum(dtype=np.float64) - x.sum(dtype=np.float64)) < SIGMAS * deviation


def test_without_a_key_or_a_rate_nothing_happens() -> None:
    x = jnp.arange(5.0)
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x
    assert fold(None, 3) is None


def test_the_smallest_rate_drops_next_to_nothing() -> None:
    assert kept(1e-12, shape=(10, 10)).all()


def test_dtype_and_gradient() -> None:
    x = jnp.ones((50, 50), jnp.bfloat16)
    assert dropout(x, 0.25, jax.random.key(0)).dtype == jnp.bfloat16
    gradient = jax.grad(lambda x: dropout(x, 0.25, jax.random.key(0)).sum())(jnp.full((50, 50), 7.0))
    np.testing.assert_allclose(gradient, kept(0.25, 0, (50, 50)) / 0.75, rtol=1e-6)


def chi_square(first: np.ndarray, second: np.ndarray) -> float:
    """Of the 2 × 2 table of two masks; above 25 once in two million independent ones."""
    table = np.array(
        [[(first & second).sum(), (first & ~second).sum()], [(~first & second).sum(), (~first & ~second).sum()]], float
    )
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True) / table.sum()
    return float(((table - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_elements_are_independent(rate: float) -> None:
    mask = kept(rate)
    neighbours = {
        "column": (mask[:, :-1], mask[:, 1:]),
        "next but one": (mask[:, :-2], mask[:, 2:]),
        "row": (mask[:-1], mask[1:]),
        "diagonal": (mask[:-1, :-1], mask[1:, 1:]),
        "half": (mask[:150], mask[150:]),
        "another key": (mask, kept(rate, seed=1)),
        "a folded key": (mask, np.asarray(dropout(jnp.ones(SHAPE), rate, fold(jax.random.key(0), 1))) != 0),
    }
    for name, pair in neighbours.items():
        assert chi_square(*pair) < 25, name


def test_every_bit_is_fair() -> None:
    words = np.asarray(module._random_words(jax.random.key(5), (100_000,)))
    for bit in range(32):
        assert abs(int((words >> bit & 1).sum()) - 50_000) < SIGMAS * math.sqrt(25_000), bit


def test_places_have_distinct_keys() -> None:
    """A million places in a place, and as many places in as many: none shares a word with another of its kind more
    often than chance allows."""
    count = 2**20
    several = jax.vmap(lambda place: jnp.stack(fold(jax.random.key(0), place)))(jnp.arange(count))
    nested = jax.vmap(lambda place: jnp.stack(fold(fold(jax.random.key(0), place), 7)))(jnp.arange(count))
    pairs = {tuple(words) for words in np.concatenate([np.asarray(several), np.asarray(nested)]).tolist()}
    assert len(pairs) == 2 * count
    for word in range(2):  # of n words among 2^32, n^2 / 2^33 pairs are the same by chance: 128
        same = count - len(np.unique(np.asarray(nested)[:, word]))
        assert same < 128 + SIGMAS * math.sqrt(128)


# --- the mixing function


@pytest.mark.parametrize(("seed", "expected"), [(0, 0), (1, 0x514E28B7), (0xFFFFFFFF, 0x81F16F39)])
def test_mixing_is_murmurs(seed: int, expected: int) -> None:
    """MurmurHash3_x86_32 of no bytes is fmix32 of the seed; its published answers."""
    assert int(module._mix(jnp.uint32(seed))) == expected


@pytest.mark.parametrize("changed", ["index", "first word of the key", "second word of the key"])
def test_every_bit_of_index_and_key_changes_half_of_the_bits(changed: str) -> None:
    """Within five deviations of a half, for each of the 32 × 32 pairs of bits."""
    first, second, count = 0x9E3779B9, 0x243F6A88, 20_000

    def words(first: int, second: int) -> np.ndarray:
        return np.asarray(module._random_words(Words(jnp.uint32(first), jnp.uint32(second)), (2 * count,)))

    before = words(first, second)
    for bit in range(32 if changed != "index" else 14):
        if changed == "index":
            indices = np.arange(count)
            flipped, kept_words = before[indices ^ (1 << bit)], before[indices]
        else:
            flipped = (
                words(first ^ (1 << bit), second) if changed.startswith("first") else words(first, second ^ (1 << bit))
            )
            kept_words = before
        flips = (flipped ^ kept_words)[:, None] >> np.arange(32, dtype=np.uint32) & 1
        assert (np.abs(flips.mean(axis=0) - 0.5) < 5 * 0.5 / math.sqrt(count)).all(), bit


# --- in the model

RATES = {
    "dropout_rate": 0.5, "embedding_dropout_rate": 0.1, "attention_dropout_rate": 0.2, "feed_forward_dropout_rate": 0.3,
    "output_dropout_rate": 0.4,
}  # fmt: skip


def record(
    monkeypatch: pytest.MonkeyPatch, config: TransformerConfig, params: Any, ids: Any, dropout_key: Any
) -> tuple[list[tuple[tuple[int, ...], float]], list[np.ndarray]]:
    """Shape and rate of every dropout of a forward pass, in order, and its key's data (None where there is no key)."""
    sites: list[tuple[tuple[int, ...], float]] = []
    keys: list[Any] = []

    def recorder(x: Any, rate: float, key: Any) -> Any:
        sites.append((x.shape, rate))
        keys.append(None if key is None else jnp.stack(key))
        return x

    monkeypatch.setattr(scope, "dropout", recorder)

    def forward(params: Any, source_ids: Any, decoder_input_ids: Any, dropout_key: Any) -> Any:
        unrolled = dataclasses.replace(config, layer_loop="unrolled", remat="none")
        functional.apply.__wrapped__(unrolled, params, source_ids, decoder_input_ids, dropout_key=dropout_key)
        return [key for key in keys if key is not None]

    return sites, [np.asarray(key) for key in jax.jit(forward)(params, *ids, dropout_key)]


def test_every_place_has_its_rate(
    config: TransformerConfig, ids: Any, random_params: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(config, **RATES)
    sites, _ = record(monkeypatch, config, random_params(config, "float32"), ids, None)
    b, s, t, d = 5, 6, 8, 12
    encoder_layer = [((b, 3, s, s), 0.2), ((b, s, d), 0.5), ((b, s, 7), 0.3), ((b, s, d), 0.5)]
    decoder_layer = [
        ((b, 2, t, t), 0.2),
        ((b, t, d), 0.5),
        ((b, 2, t, s), 0.2),
        ((b, t, d), 0.5),
        ((b, t, 14), 0.3),
        ((b, t, d), 0.5),
    ]
    encoder = [((b, s, d), 0.1), *encoder_layer, ((b, s, d), 0.4)]
    decoder = [((b, t, d), 0.1), *decoder_layer, *decoder_layer, ((b, t, d), 0.4)]
    assert sites == [*encoder, *decoder]


def test_rates_that_are_not_set_are_dropout_rate(
    config: TransformerConfig, ids: Any, random_params: Any, monkeypatch: Any
) -> None:
    config = dataclasses.replace(config, dropout_rate=0.5)
    sites, _ = record(monkeypatch, config, random_params(config, "float32"), ids, None)
    assert Counter(rate for _, rate in sites) == {0.5: 18, 0.0: 2}  # nothing on the stacks' outputs


def test_no_two_places_share_a_key(
    config: TransformerConfig, ids: Any, random_params: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over all sublayers and layers of both stacks, and over steps, whose keys are folded from one."""
    config = dataclasses.replace(config, num_encoder_layers=3, **RATES)
    params, seed = random_params(config, "float32"), jax.random.key(0)
    steps = [record(monkeypatch, config, params, ids, fold(seed, step))[1] for step in range(3)]
    keys = [tuple(key.tolist()) for step in steps for key in step]
    assert len(keys) == 3 * (2 * 2 + 3 * 4 + 2 * 6)
    assert len(set(keys)) == len(keys)


def test_no_two_sites_have_one_number() -> None:
    assert len({int(site) for site in Site}) == len(Site.__members__)


def test_the_same_key_gives_the_same_numbers(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    """And another key others, and no key none. (That scan and unrolled loop drop the same is tested in
    test_stacks.py.)"""
    config = dataclasses.replace(config, dropout_rate=0.0, output_dropout_rate=0.5)
    params = random_params(config, "float32")
    run = lambda key: np.asarray(functional.apply(config, params, ids.source, ids.target, dropout_key=key))  # noqa: E731
    first, again, other, none = run(jax.random.key(0)), run(jax.random.key(0)), run(jax.random.key(1)), run(None)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1
    assert np.abs(first - none).max() > 0.1
