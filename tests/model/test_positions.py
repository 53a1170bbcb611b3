"""Position tables against the formulas, and the numbers that index them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model import functional
from jax_transformer.model.embeddings import Constants
from jax_transformer.model.positions import position_numbers, sinusoid_table

pytestmark = pytest.mark.usefixtures("x64", "quick_compilation")


def standard(position: int, column: int, width: int) -> float:
    """Vaswani et al. 2017, §3.5: sin in even columns, cos in odd ones."""
    angle = position / 10000 ** ((column - column % 2) / width)
    return math.cos(angle) if column % 2 else math.sin(angle)


def doubled(position: int, column: int, width: int) -> float:
    """floydhub: sin(pos / 10000^(2c/d)) in an even column c, cos(pos / 10000^(2(c+1)/d)) in column c + 1."""
    angle = position / 10000 ** (2 * column / width)
    return math.cos(angle) if column % 2 else math.sin(angle)


def inclusive(position: int, column: int, width: int) -> float:
    """fairseq's frequencies, which end at exactly 1/10000, in alternating columns."""
    angle = position * math.exp(-math.log(10000) * (column // 2) / (width // 2 - 1))
    return math.cos(angle) if column % 2 else math.sin(angle)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize(
    ("frequency", "formula"), [("standard", standard), ("doubled", doubled), ("inclusive", inclusive)]
)
def test_a_table_is_its_formula(frequency: str, formula: Callable[[int, int, int], float], layout: str) -> None:
    width, rows = 10, 60
    config = TransformerConfig(
        d_model=width, num_heads=2, max_length=rows, position_frequency=frequency, position_layout=layout
    )
    expected = np.array([[formula(position, column, width) for column in range(width)] for position in range(rows)])
    if layout == "halves":
        expected = np.concatenate([expected[:, 0::2], expected[:, 1::2]], axis=1)
    table = sinusoid_table(config.encoder)
    assert table.dtype == np.float64
    np.testing.assert_allclose(table, expected, rtol=0, atol=1e-12)


def test_the_last_inclusive_pair_has_wavelength_10000() -> None:
    config = TransformerConfig(
        d_model=8, num_heads=2, max_length=5, position_frequency="inclusive", position_layout="halves"
    )
    assert sinusoid_table(config.encoder)[4, 3] == pytest.approx(math.sin(4 / 10000), rel=1e-12)
    narrow = TransformerConfig(d_model=2, num_heads=1, max_length=5, position_frequency="inclusive")
    assert np.isfinite(sinusoid_table(narrow.encoder)).all()  # one pair: nothing to divide by


def test_each_stack_has_as_many_rows_as_it_may_need() -> None:
    config = TransformerConfig(d_model=8, num_heads=2, max_length=5, decoder_max_length=7)
    assert (config.encoder.table_rows, config.decoder.table_rows) == (5, 7)
    config = dataclasses.replace(config, position_offset=2, position_index="non_pad_count")
    assert (config.encoder.table_rows, config.decoder.table_rows) == (8, 10)
    full = np.full((1, 7), 5)  # the largest number is the last row
    assert position_numbers(config.encoder, full != 0).max() == 9


# --- numbers


def test_a_column_is_numbered_by_its_place() -> None:
    config = TransformerConfig(position_offset=3)
    numbers = np.broadcast_to(position_numbers(config.encoder, np.array([[4, 0, 4], [0, 0, 4]]) != 0), (2, 3))
    assert numbers.tolist() == [[3, 4, 5], [3, 4, 5]]


def test_a_batch_row_is_numbered_by_its_place_in_the_batch() -> None:
    config = TransformerConfig(position_index="batch_row", position_offset=1)
    numbers = np.broadcast_to(position_numbers(config.encoder, np.array([[4, 0, 4], [0, 0, 4]]) != 0), (2, 3))
    assert numbers.tolist() == [[1, 1, 1], [2, 2, 2]]


def test_real_tokens_are_counted_and_pads_are_not() -> None:
    """fairseq's make_positions: padding_idx + 1, padding_idx + 2, … for real tokens, and padding_idx for pads; the
    pads' row is zero."""
    config = TransformerConfig(d_model=8, num_heads=2, position_index="non_pad_count", position_offset=1, max_length=4)
    ids = np.array([[7, 8, 1, 9], [1, 1, 7, 7], [1, 1, 1, 1]])
    assert position_numbers(config.encoder, ids != 1).tolist() == [[2, 3, 1, 4], [1, 1, 2, 3], [1, 1, 1, 1]]
    table = sinusoid_table(config.encoder)
    assert not table[1].any()
    plain = sinusoid_table(TransformerConfig(d_model=8, num_heads=2, max_length=6).encoder)
    np.testing.assert_array_equal(table[[2, 3]], plain[[2, 3]])  # row r is position r, whatever the offset


# --- in the model


@pytest.mark.parametrize(
    "options",
    [
        {
            "position_index": "non_pad_count",
            "position_offset": 1,
            "position_layout": "halves",
            "position_frequency": "inclusive",
        },
        {"position_index": "batch_row", "position_kind": "learned", "position_offset": 2},
    ],
    ids=["fairseq", "learned"],
)
def test_terms_added_to_the_embeddings(
    config: TransformerConfig, ids: Any, random_params: Callable[..., Any], options: Any
) -> None:
    """The trace has the rows that the numbers name, from each stack's own table, and the embedding is the sum."""
    config = dataclasses.replace(config, **options)
    params = random_params(config)
    names = [
        f"{stack}.{name}" for stack in ("encoder", "decoder") for name in ("token_embedding", "positions", "embedding")
    ]

    @jax.jit
    def embed(params: Any) -> dict[str, Any]:
        trace = functional.apply(config, params, ids.source, ids.target, return_trace=True)[1]
        return {name: trace[name] for name in names}

    trace = embed(params)
    for stack, tokens, pad in (
        ("encoder", ids.source, config.source_pad_id),
        ("decoder", ids.target, config.target_pad_id),
    ):
        table = (
            params[stack]["positions"]["embedding"]
            if config.position_kind == "learned"
            else params["constants"][f"{stack}_positions"]
        )
        numbers = np.broadcast_to(position_numbers(config.encoder, tokens != pad), tokens.shape)
        positions = np.broadcast_to(trace[f"{stack}.positions"], (*tokens.shape, config.d_model))
        np.testing.assert_array_equal(positions, table[numbers])
        total = trace[f"{stack}.token_embedding"] + trace[f"{stack}.positions"]
        np.testing.assert_allclose(trace[f"{stack}.embedding"], total, rtol=1e-14)


def test_fresh_tables_are_the_sinusoids(config: TransformerConfig) -> None:
    constants = Constants(config)
    for stack, rows in (("encoder", 9), ("decoder", 10)):
        table = getattr(constants, f"{stack}_positions")[...]
        assert table.shape == (rows, 12)
        np.testing.assert_array_equal(table, sinusoid_table(getattr(config, stack)).astype(np.float32))


def test_without_positions_order_does_not_matter_to_the_encoder(
    config: TransformerConfig, ids: Any, random_params: Any
) -> None:
    config = dataclasses.replace(config, position_kind="none")
    params = random_params(config)
    assert "constants" not in params or not params["constants"]
    order = np.array([3, 1, 5, 0, 4, 2])
    straight = np.asarray(functional.encode(config, params, ids.source))
    shuffled = np.asarray(functional.encode(config, params, ids.source[:, order]))
    np.testing.assert_allclose(shuffled, straight[:, order], rtol=1e-10, atol=1e-12)


# --- too long


@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_a_sentence_longer_than_the_table_is_refused(
    config: TransformerConfig, random_params: Callable[..., Any], kind: str
) -> None:
    config = dataclasses.replace(config, position_kind=kind)
    params = random_params(config)
    fits, source, target = np.full((2, 3), 5), np.full((2, 10), 5), np.full((2, 11), 5)
    with pytest.raises(ValueError, match=r"source_ids has 10 tokens; the position table allows 9 \(max_length\)"):
        functional.apply(config, params, source, fits)
    with pytest.raises(ValueError, match="decoder_input_ids has 11 tokens; the position table allows 10"):
        functional.apply(config, params, fits, target)
    with pytest.raises(ValueError, match="source_ids has 10 tokens"):
        functional.encode(config, params, source)
    with pytest.raises(ValueError, match="the decoder's input has 11 tokens; the position table allows 10"):
        functional.start_decoding(config, params, np.zeros((2, 3, 12)), fits, length=11)


def test_a_batch_with_more_rows_than_the_table_is_refused(
    config: TransformerConfig, random_params: Callable[..., Any]
) -> None:
    config = dataclasses.replace(config, position_index="batch_row", max_length=3, decoder_max_length=2)
    params = random_params(config)
    with pytest.raises(ValueError, match=r"source_ids has 4 sentences in a batch .*; the position table allows 3"):
        functional.apply(config, params, np.full((4, 5), 5), np.full((4, 5), 5))
    with pytest.raises(
        ValueError, match=r"decoder_input_ids has 3 sentences in a batch .*; the position table allows 2"
    ):
        functional.apply(config, params, np.full((3, 5), 5), np.full((3, 5), 5))


def test_where_rows_are_numbered_a_sentence_may_be_of_any_length(
    config: TransformerConfig, random_params: Callable[..., Any]
) -> None:
    """The table bounds the batch, and nothing else: training takes a longer sentence, so decoding must too."""
    config = dataclasses.replace(config, position_index="batch_row", max_length=3, decoder_max_length=3)
    params = random_params(config)
    source = np.full((2, 5), 5)
    jax.eval_shape(lambda: functional.apply(config, params, source, np.full((2, 7), 5)))
    jax.eval_shape(lambda: functional.start_decoding(config, params, np.zeros((2, 5, 12)), source, length=7))


def test_decoding_more_rows_than_the_table_has_is_refused(
    config: TransformerConfig, random_params: Callable[..., Any]
) -> None:
    config = dataclasses.replace(config, position_index="batch_row", max_length=4, decoder_max_length=3)
    params, source = random_params(config), np.full((4, 5), 5)
    with pytest.raises(ValueError, match="4"):
        functional.start_decoding(config, params, np.zeros((4, 5, 12)), source, length=2)


def test_without_a_table_any_length_goes(config: TransformerConfig, random_params: Callable[..., Any]) -> None:
    config = dataclasses.replace(config, position_kind="none", max_length=2, decoder_max_length=2)
    jax.eval_shape(lambda: functional.apply(config, random_params(config), np.full((1, 30), 5), np.full((1, 40), 5)))


@pytest.mark.parametrize("trains_pad", [False, True])
def test_the_row_of_pads_gets_a_gradient_unless_it_is_not_trained(trains_pad: bool) -> None:
    """Other rows get theirs either way. The target begins with pads, which later tokens see."""
    config = TransformerConfig(
        source_vocab_size=7,
        target_vocab_size=7,
        d_model=4,
        num_heads=2,
        d_ff=4,
        num_encoder_layers=1,
        num_decoder_layers=1,
        max_length=5,
        target_pad_id=1,
        decoder_padding="none",
        position_kind="learned",
        position_index="non_pad_count",
        position_offset=1,
        trains_pad_position=trains_pad,
    )
    params = functional.init_params(config, jax.random.key(0))
    source, target = np.array([[3, 4]]), np.array([[1, 5, 3]])

    def last(params: Any) -> jax.Array:
        return functional.apply(config, params, source, target)[0, -1, 2]

    rows = np.asarray(jax.grad(last)(params)["decoder"]["positions"]["embedding"])
    moved = np.abs(rows).max(axis=1) > 0
    np.testing.assert_array_equal(moved, [False, trains_pad, True, True, False, False, False])
