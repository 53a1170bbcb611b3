"""A packed batch is the same function: every pair has the loss and the gradient that it has in a row of its own."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.parallel import ParallelConfig
from jax_transformer.config.presets import get_preset
from jax_transformer.config.run import DataConfig, RunConfig, TrainConfig
from jax_transformer.config.short_names import flat
from jax_transformer.config.validation import ConfigError
from jax_transformer.data.batching import Batch, make_batch, pack_batch
from jax_transformer.data.planning import Shape
from jax_transformer.model import functional
from jax_transformer.parallel import make_mesh, pad_rows, place_rows
from jax_transformer.runtime.trees import flatten
from jax_transformer.training.losses import Criterion
from jax_transformer.training.state import abstract_state, all_params, init_state
from jax_transformer.training.step import make_train_step, summed_loss
from jax_transformer.training.virtual_shards import VirtualShards

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")

MOST = 1e-12
"""Relative, in float64: sums round in another order."""
PADS = {"source_pad_id": 1, "target_pad_id": 2}
SPECIALS = {"bos_id": 3, "eos_id": 4, **PADS}
ROWS = Shape(4, 20, 22)
LENGTHS = [(7, 3), (1, 0), (4, 9), (6, 6), (2, 5), (5, 1), (9, 8), (3, 3), (1, 2)]

PLAIN = TransformerConfig(
    source_vocab_size=15,
    target_vocab_size=13,
    d_model=8,
    num_heads=2,
    d_ff=12,
    num_encoder_layers=1,
    num_decoder_layers=2,
    max_length=24,
    dropout_rate=0.0,
    **PADS,  # type: ignore[arg-type]
)
TIED = {"share_embeddings": True, "tie_head": True, "source_vocab_size": 13, "source_pad_id": 2}
BIASES = {"position_kind": "relative_bias", "relative_buckets": 8, "relative_max_distance": 6}
CONFIGS: dict[str, dict[str, Any]] = {
    "sinusoids, post-norm": {},
    "sinusoids in halves, counting real tokens, pre-norm": {
        "position_layout": "halves",
        "position_index": "non_pad_count",
        "position_offset": 1,
        "norm_placement": "pre",
        "final_norm": True,
    },
    "BART": {
        **TIED,
        "position_kind": "learned",
        "position_offset": 2,
        "encoder_embedding_norm": "after_positions",
        "decoder_embedding_norm": "after_positions",
        "activation": "gelu",
        "head_bias": "buffer",
        "scale_embedding": False,
    },
    "T5": {
        **TIED,
        **BIASES,
        "norm_kind": "rms_norm",
        "norm_placement": "pre",
        "norm_bias": False,
        "final_norm": True,
        "scale_head": True,
        "attention_scale": 1.0,
        "attention_bias": False,
        "feed_forward_gated": True,
        "decoder_padding": "none",
        "head_bias": "none",
    },
    "biases per layer, unrolled": {**BIASES, "relative_bias_per_layer": True, "layer_loop": "unrolled"},
    "rotary, counting real tokens, in cross-attention too": {
        "position_kind": "rotary",
        "position_index": "non_pad_count",
        "rotary_cross_attention": True,
        "num_kv_heads": 1,
    },
    "ALiBi, scaled heads": {"position_kind": "alibi", "head_scale": True},
    "relative vectors, per layer": {
        "position_kind": "relative_vectors",
        "relative_max_distance": 3,
        "relative_bias_per_layer": True,
    },
    "no positions, a decoder that sees both ways": {"position_kind": "none", "decoder_causal": False},
    "masks on both axes, of another value": {
        "encoder_padding": "both",
        "decoder_padding": "both",
        "cross_padding": "both",
        "masked_value": -1e9,
    },
}
SYSTEMS = ("floydhub", "annotated_zh", "harvard", "sayhello", "hyunwoongko")
SIZES = re.compile("source_.*|target_.*|d_.*|.*(num_|head_dim|d_ff|length|rate|padding_id).*")
SMOOTHED = {kind: Criterion(PADS["target_pad_id"], 0.1, kind) for kind in ("all", "others", "others_but_pad")}  # type: ignore[arg-type]


def config_of(name: str) -> TransformerConfig:
    """One of CONFIGS, or the numerics of one of SYSTEMS with the sizes of PLAIN."""
    if name in CONFIGS:
        return dataclasses.replace(PLAIN, **CONFIGS[name])
    sizes = {field: value for field, value in flat(PLAIN).items() if SIZES.fullmatch(field)}
    return dataclasses.replace(get_preset(name).model, **sizes)


def pairs(config: TransformerConfig) -> tuple[list[list[int]], list[list[int]]]:
    """Sentences of LENGTHS, some with a token in the middle that is the pad."""
    rng = np.random.default_rng(1)
    source = [rng.integers(4, config.source_vocab_size, length).tolist() for length, _ in LENGTHS]
    target = [rng.integers(4, config.target_vocab_size, length).tolist() for _, length in LENGTHS]
    source[0][2] = config.source_pad_id
    if not {config.decoder_padding, config.cross_padding} & {"queries", "both"}:  # such a token sees its whole row
        target[2][4] = config.target_pad_id
    return source, target


def both_batches(config: TransformerConfig) -> tuple[Batch, Batch]:
    """The pairs, one in each row, and packed."""
    ids: Any = SPECIALS | {"source_pad_id": config.source_pad_id}
    return make_batch(*pairs(config), **ids), pack_batch(*pairs(config), **ids, shape=ROWS)


def single_pair_batches(config: TransformerConfig, batch: Batch) -> list[Batch]:
    """The batch with the labels of one pair alone, for each pair, in the order of `pairs`."""
    pad = config.target_pad_id
    if batch.target_segments is None:
        masks = [np.arange(len(batch.labels))[:, None] == k for k in range(len(LENGTHS))]
    else:
        segments, row = batch.target_segments, np.arange(len(batch.labels))[:, None]
        places = [(r, s) for r, used in enumerate(segments) for s in range(1, used.max() + 1)]
        by_target = {tuple(batch.labels[r, segments[r] == s][:-1].tolist()): (r, s) for r, s in places}
        places = [by_target[tuple(target)] for target in pairs(config)[1]]
        masks = [(row == r) & (segments == s) for r, s in places]
    return [batch._replace(labels=np.where(mask, batch.labels, pad)) for mask in masks]


def assert_same(received: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    """Loss and gradients are the same. A gradient that is zero but for rounding, such as that of a key's bias, is so on
    both sides."""
    (loss, gradients), (expected_loss, expected_gradients) = received, expected
    np.testing.assert_allclose(loss, expected_loss, rtol=MOST)
    norms = {path: float(np.linalg.norm(leaf)) for path, leaf in flatten(expected_gradients).items()}
    largest = max(norms.values())
    for path, leaf in flatten(gradients).items():
        size = norms[path] if norms[path] > MOST * largest else largest
        assert np.linalg.norm(leaf - flatten(expected_gradients)[path]) <= MOST * size, path


def loss_and_gradients(config: TransformerConfig, criterion: Criterion) -> Callable[..., Any]:
    def loss(trained: Any, constants: Any, batch: Batch) -> Any:
        return summed_loss(config, {**trained, "constants": constants}, batch, criterion)[0]

    compiled = jax.jit(jax.value_and_grad(loss))

    def run(params: Any, batch: Batch) -> Any:
        trained = {name: part for name, part in params.items() if name != "constants"}
        return jax.device_get(compiled(trained, params.get("constants", {}), batch))

    return run


@pytest.mark.parametrize("name", [*CONFIGS, *SYSTEMS])
def test_every_pair_has_the_loss_and_gradient_of_a_row_of_its_own(name: str, random_params: Any) -> None:
    config = config_of(name)
    params, run = random_params(config), loss_and_gradients(config, Criterion(config.target_pad_id))
    alone, packed = both_batches(config)
    assert packed.target_segments is not None
    assert packed.target_segments.max() >= 3
    for one, other in zip(single_pair_batches(config, packed), single_pair_batches(config, alone), strict=True):
        assert np.sum(one.labels != config.target_pad_id) > 0
        assert_same(run(params, one), run(params, other))
    assert_same(run(params, packed), run(params, alone))


@pytest.mark.parametrize("smoothing", SMOOTHED)
def test_smoothed_labels(smoothing: str, random_params: Any) -> None:
    params, run = random_params(PLAIN), loss_and_gradients(PLAIN, SMOOTHED[smoothing])
    alone, packed = both_batches(PLAIN)
    assert_same(run(params, packed), run(params, alone))


def step_of(batch: Batch, params: Any, train: TrainConfig, **options: Any) -> tuple[Any, Any]:
    """The loss of a step, and the parameters after it, of plain gradient descent: they show the gradient."""
    state = init_state(PLAIN, train, jax.tree.map(jax.numpy.asarray, params))
    state, metrics = make_train_step(PLAIN, train, **options)(state, batch)
    return float(metrics["loss"]), jax.device_get(state.params)


DESCENT = TrainConfig(optimizer="sgd", schedule="constant", learning_rate=1.0, warmup_steps=0)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_step_in_parts_with_rows_of_pads(parts: int, random_params: Any) -> None:
    train, params = dataclasses.replace(DESCENT, accumulate=parts), random_params(PLAIN)
    alone, packed = (pad_rows(batch, 6, (1, 2)) for batch in both_batches(PLAIN))
    assert packed.source_segments is not None
    assert packed.source_segments[-1].max() == 0
    received, expected = (step_of(batch, params, train) for batch in (packed, alone))
    assert len(packed.labels) < len(alone.labels)
    assert_same(received, expected)


def test_a_loss_of_ones_own(random_params: Any) -> None:
    params, loss = random_params(PLAIN), optax.softmax_cross_entropy_with_integer_labels
    alone, packed = both_batches(PLAIN)
    assert_same(*(step_of(batch, params, DESCENT, loss=loss) for batch in (packed, alone)))


def test_virtual_shards(random_params: Any) -> None:
    params = jax.tree.map(jax.numpy.asarray, random_params(PLAIN))
    alone, packed = both_batches(PLAIN)
    mesh = make_mesh(ParallelConfig(virtual_shards=4), jax.devices()[:1])
    step = VirtualShards(PLAIN, DESCENT, mesh, 4)
    state, metrics = step(init_state(PLAIN, DESCENT, params, mesh=mesh), place_rows(packed, mesh))
    assert_same((float(metrics["loss"]), jax.device_get(state.params)), step_of(alone, params, DESCENT))


def test_dropout_drops(random_params: Any) -> None:
    config, params = dataclasses.replace(PLAIN, dropout_rate=0.3), random_params(PLAIN)
    _, packed = both_batches(PLAIN)
    loss = jax.jit(lambda key: summed_loss(config, params, packed, Criterion(2), key)[0])
    first, second = (float(loss(jax.random.key(seed))) for seed in (0, 1))
    assert np.isfinite([first, second]).all()
    assert first != second


def test_fused_attention_sees_the_same_masks(random_params: Any) -> None:
    config = dataclasses.replace(PLAIN, attention_path="xla", compute_dtype="float32")
    params, run = random_params(config, "float32"), loss_and_gradients(config, Criterion(2))
    alone, packed = both_batches(config)
    for one, other in zip(single_pair_batches(config, packed), single_pair_batches(config, alone), strict=True):
        np.testing.assert_allclose(run(params, one)[0], run(params, other)[0], rtol=1e-5)


# --- refusals

REFUSED: dict[str, dict[str, Any]] = {
    "position_index='batch_row', which depends on the row's number": {"position_index": "batch_row"},
    "encoder_padding='none', decoder_padding='keys', cross_padding='keys', decoder_padding_id=None, with which padding "
    "changes the result": {"encoder_padding": "none"},
    "encoder_padding='keys', decoder_padding='keys', cross_padding='queries'": {"cross_padding": "queries"},
    "decoder_padding_id=1": {"decoder_padding_id": 1},
}


@pytest.mark.parametrize("obstacle", REFUSED)
def test_a_config_that_cant_be_packed_is_refused(obstacle: str, random_params: Any) -> None:
    config = dataclasses.replace(PLAIN, **REFUSED[obstacle])
    _, packed = both_batches(PLAIN)
    assert packed.source_segments is not None
    with pytest.raises(ValueError, match="segments: expected a config whose pairs can share a row; received") as error:
        summed_loss(config, random_params(config), packed, Criterion(2))
    assert obstacle in str(error.value)
    model = dataclasses.replace(config, share_embeddings=False)
    with pytest.raises(ConfigError, match=r"^RunConfig: data\.packing must be false with model\.") as refusal:
        RunConfig(model=model, data=DataConfig(packing=True, max_length=24))
    assert obstacle in str(refusal.value)
    assert RunConfig(model=model, data=DataConfig(max_length=24)).data.packing is False


def test_unknown_tokens_that_are_pads_are_refused_where_they_see_the_whole_row() -> None:
    model, data = TransformerConfig(decoder_padding="queries"), DataConfig(packing=True, pad_id=1, unk_id=1)
    with pytest.raises(ConfigError, match=r"data\.pad_id must not be data\.unk_id=1 with data\.packing"):
        RunConfig(model=model, data=data)
    assert RunConfig(model=TransformerConfig(), data=data).data.packing


def test_pads_that_count_are_refused(random_params: Any) -> None:
    counting = TrainConfig(loss_counts_pads=True)
    with pytest.raises(ConfigError, match=r"data\.packing must be false with train\.loss_counts_pads; received true"):
        RunConfig(data=DataConfig(packing=True), train=counting)
    with pytest.raises(ValueError, match="expected one that isn't packed with loss_counts_pads"):
        make_train_step(PLAIN, counting)(abstract_state(PLAIN, counting), both_batches(PLAIN)[1])


def test_segments_of_one_side_are_refused(random_params: Any) -> None:
    _, packed = both_batches(PLAIN)
    ids = packed.source_ids, packed.decoder_input_ids
    with pytest.raises(ValueError, match="expected both source_segments and target_segments, or neither; received sou"):
        functional.hidden_states(PLAIN, random_params(PLAIN), *ids, source_segments=packed.source_segments)
    with pytest.raises(ValueError, match="received target_segments alone"):
        functional.apply(PLAIN, random_params(PLAIN), *ids, target_segments=packed.target_segments)


def test_rows_longer_than_the_position_table_are_refused(random_params: Any) -> None:
    config = dataclasses.replace(PLAIN, max_length=19)
    _, packed = both_batches(config)
    with pytest.raises(ValueError, match="source_ids has 20 tokens; the position table allows 19"):
        summed_loss(config, random_params(config), packed, Criterion(2))


def test_an_unpacked_step_has_no_segments() -> None:
    """Neither arguments nor operations."""
    alone, packed = both_batches(PLAIN)
    state, step = abstract_state(PLAIN, DESCENT), make_train_step(PLAIN, DESCENT)
    texts = [step.lower(state, batch).as_text() for batch in (alone, packed)]  # type: ignore[attr-defined]
    assert [len(jax.tree.leaves(batch)) for batch in (alone, packed)] == [3, 5]
    assert ["cummax" in text or "_segments" in text for text in texts] == [False, True]
    assert all_params(state)
