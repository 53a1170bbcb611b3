"""Windows of self-attention that alternate with layers that see all: masks by hand, and the same function however it is
computed. parity_tests/test_mechanisms.py compares them with PyTorch and with transformers' masks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from truths import assert_is_the_models

from jax_transformer.comparison.gates.compare import compare
from jax_transformer.comparison.gates.tolerances import FLOAT64_RELATIVE_RMS
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.specs import Attention
from jax_transformer.config.validation import ConfigError
from jax_transformer.data.batching import pack_batch
from jax_transformer.data.planning import Shape
from jax_transformer.model import functional
from jax_transformer.model.masks import Masks
from jax_transformer.porting.one_level import obstacles

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

ALTERNATING: dict[str, Any] = {"window": 3, "full_every": 2, "num_encoder_layers": 2, "num_decoder_layers": 3}
POSITIONS: dict[str, dict[str, Any]] = {
    "sinusoidal": {},
    "rotary": {"position_kind": "rotary", "rotary_dim": 2},
    "ALiBi": {"position_kind": "alibi"},
    "biases": {"position_kind": "relative_bias", "relative_buckets": 6, "relative_max_distance": 5},
    "biases per layer": {
        "position_kind": "relative_bias",
        "relative_buckets": 6,
        "relative_max_distance": 5,
        "relative_bias_per_layer": True,
    },
    "vectors": {"position_kind": "relative_vectors", "relative_max_distance": 2},
}


@pytest.fixture
def windowed(config: TransformerConfig) -> TransformerConfig:
    """Two layers in the encoder and three in the decoder, the second of which see all."""
    return dataclasses.replace(config, **ALTERNATING)


def seen(config: TransformerConfig, params: Any, ids: Any, **options: Any) -> dict[str, np.ndarray]:
    """Which weights aren't zero, by the names of the layers' self-attentions."""
    _, trace = functional.apply(config, params, ids.source, ids.target, return_trace=True, **options)
    found = {}
    for stack, count in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
        for i in range(count):
            weights = np.asarray(trace[f"{stack}.layers.{i}.self_attention.weights"])
            found[f"{stack} {i}"] = weights[0, 0] > 0.0  # the first sentence has no padding
    return found


def band(length: int, back: int, ahead: int) -> np.ndarray:
    places = np.arange(length)
    return np.array([[-back <= key - query <= ahead for key in places] for query in places])


@pytest.mark.parametrize("loop", ["scan", "unrolled"])
def test_every_second_layer_sees_all_and_the_others_two_positions_on_each_side(
    windowed: TransformerConfig, ids: Any, random_params: Callable[..., Any], loop: Any
) -> None:
    received = seen(windowed.replace(layer_loop=loop), random_params(windowed), ids)
    for i in range(2):
        np.testing.assert_array_equal(received[f"encoder {i}"], band(6, 5, 5) if i else band(6, 2, 2))
    for i in range(3):
        np.testing.assert_array_equal(received[f"decoder {i}"], band(8, 7 if i % 2 else 2, 0))


def test_windows_stay_under_masks_that_a_caller_gives(
    windowed: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    received = seen(windowed, random_params(windowed), ids, masks=Masks(None, None, None))
    np.testing.assert_array_equal(received["encoder 0"], band(6, 2, 2))
    np.testing.assert_array_equal(received["decoder 2"], band(8, 2, 2))
    assert received["decoder 1"].all()


def test_a_window_as_long_as_the_sentences_hides_nothing(
    windowed: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    """A longer one than max_length, too; and one that is shorter by one position does."""
    params = random_params(windowed)
    expected = np.asarray(functional.apply(windowed.replace(window=None, full_every=None), params, *ids))
    for window, is_same in ((100, True), (8, True), (7, False)):
        received = functional.apply(windowed.replace(window=window), params, *ids)
        assert compare(np.asarray(received), expected).within(FLOAT64_RELATIVE_RMS) == is_same, window


OPTIONS: list[dict[str, Any]] = [
    {"window": 1},
    {"window": 2, "full_every": 3, "share_layers": True},
    *(ALTERNATING | options for options in POSITIONS.values()),
    *({**ALTERNATING, "encoder_padding": cover, "decoder_padding": cover} for cover in ("queries", "both", "none")),
    {**ALTERNATING, "decoder_causal": False, "decoder_padding": "none"},
    {**ALTERNATING, "norm_placement": "pre", "parallel_residual": True},
    {**ALTERNATING, "masked_value": -1e9, "attention_logits_cap": 0.8, "num_kv_heads": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_windows_equal_numpy(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any], options: Any
) -> None:
    config = dataclasses.replace(config, **options)
    assert_is_the_models(config, random_params(config), ids)


def test_gradients_are_the_same_however_layers_run(
    windowed: TransformerConfig, ids: Any, random_params: Callable[..., Any]
) -> None:
    """Under a scan, and one by one, computed again from their inputs."""
    config = dataclasses.replace(windowed, position_kind="alibi")
    params = random_params(config)

    def gradients(config: TransformerConfig) -> list[Any]:
        loss = lambda params: (functional.apply(config, params, *ids) ** 2).sum()  # noqa: E731
        return jax.tree.leaves(jax.jit(jax.grad(loss))(params))

    expected = gradients(config)
    received = gradients(dataclasses.replace(config, layer_loop="unrolled", remat="all"))
    largest = max(np.abs(one).max() for one in expected)
    for one, other in zip(received, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13 * largest)


@pytest.mark.parametrize("options", [*POSITIONS.values(), {"full_every": None}], ids=[*POSITIONS, "in all layers"])
def test_a_cache_gives_the_logits_of_the_whole_prefix(
    windowed: TransformerConfig, ids: Any, random_params: Callable[..., Any], options: Any
) -> None:
    """At real tokens, of two beams that change places after three; the cache is longer than what is decoded."""
    config = dataclasses.replace(windowed, **options)
    params, first, second = random_params(config), ids.target.copy(), np.roll(ids.target, 1, axis=0)
    first[:, 0] = second[:, 0] = 4
    encoded = functional.encode(config, params, ids.source)
    state = functional.start_decoding(config, params, encoded, ids.source, length=9, num_beams=2)
    for column in range(8):
        if column == 3:
            state = state.reordered(np.tile([1, 0], (5, 1)))
        beams = (first, second) if column < 3 else (second, first)
        tokens = np.stack([beam[:, column] for beam in beams], axis=1)
        logits, state = functional.decode_step(config, params, state, tokens)
        for number, beam in enumerate(beams):
            fed = beam[:, : column + 1]
            is_real = fed[:, -1] != config.target_pad_id
            if column in (2, 5, 7):
                whole = np.asarray(functional.decode(config, params, encoded, ids.source, fed))[:, -1]
                received = np.asarray(logits)[:, number]
                assert compare(received[is_real], whole[is_real]).within(FLOAT64_RELATIVE_RMS), (column, number)


def test_packed_pairs_have_the_logits_of_rows_of_their_own(
    windowed: TransformerConfig, random_params: Callable[..., Any]
) -> None:
    config = dataclasses.replace(windowed, source_pad_id=0, target_pad_id=0, max_length=20, decoder_max_length=20)
    sources = [[4, 5, 3, 7, 8], [6, 3, 9]]
    batch = pack_batch(sources, [[5, 6, 4, 9, 3], [4, 4, 5, 7]], shape=Shape(1, 9, 11))
    params = random_params(config)
    segments = {"source_segments": batch.source_segments, "target_segments": batch.target_segments}
    packed = np.asarray(functional.apply(config, params, batch.source_ids, batch.decoder_input_ids, **segments))
    assert batch.source_segments is not None
    assert batch.target_segments is not None
    for number in (1, 2):
        where = batch.target_segments[0] == number
        source, target = batch.source_ids[:, batch.source_segments[0] == number], batch.decoder_input_ids[:, where]
        assert target.shape[1] > 3
        alone = np.asarray(functional.apply(config, params, source, target))
        assert compare(packed[:, where], alone).within(FLOAT64_RELATIVE_RMS)


@pytest.mark.parametrize("path", ["flash", "xla"])
def test_other_paths_of_attention_have_the_windows(
    windowed: TransformerConfig, ids: Any, random_params: Callable[..., Any], path: Any
) -> None:
    """At real tokens."""
    params, real = random_params(windowed, "float32"), ids.target != windowed.target_pad_id
    expected = np.asarray(functional.apply(windowed, params, *ids))
    received = np.asarray(functional.apply(windowed.replace(attention_path=path), params, *ids))
    np.testing.assert_allclose(received[real], expected[real], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window must be at least 1, or null; received 0"),
        ({"window": 2.5}, "window must be an integer or null; received 2.5"),
        ({"window": 4, "full_every": 1}, "full_every must be at least 2, or null; received 1"),
        ({"full_every": 2}, "full_every must be null without window; received 2"),
    ],
)
def test_a_wrong_window_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        TransformerConfig(**options)
    assert str(error.value) == f"TransformerConfig: {message}"


@pytest.mark.parametrize("changes", [{"window": 4}, {"full_every": 2}])
def test_cross_attention_takes_no_window(changes: Any) -> None:
    decoder = dataclasses.replace(TransformerConfig().decoder, cross_attention=Attention(**changes))
    (name,) = changes
    with pytest.raises(ConfigError, match=f"decoder.cross_attention.{name} must be null, since no mask there reads it"):
        TransformerConfig(decoder=decoder)


def test_formats_that_do_not_mention_windows_refuse_them() -> None:
    found = [str(one) for one in obstacles(TransformerConfig(window=4, full_every=2), {}, ["d_model"])]
    assert found == ["window must be None; received 4", "full_every must be None; received 2"]
