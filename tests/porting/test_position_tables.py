"""Sinusoids of a checkpoint that aren't the formula's: they are ported, and one line says so."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.model.positions import sinusoid_table
from jax_transformer.porting.position_tables import described, other_tables

CONFIG = TransformerConfig(
    source_vocab_size=11, target_vocab_size=13, d_model=8, num_heads=2, d_ff=8, max_length=600, source_pad_id=0,
    target_pad_id=0,
)  # fmt: skip


def params_of(config: TransformerConfig, table: np.ndarray) -> dict[str, Any]:
    formula = sinusoid_table(config.decoder).astype(np.float32)
    return {"constants": {"encoder_positions": table, "decoder_positions": formula}}


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_tables_that_are_only_rounded_are_the_formulas(layout: str) -> None:
    config = dataclasses.replace(CONFIG, position_layout=layout)
    formula = sinusoid_table(config.encoder)
    angles = np.arange(600, dtype=np.float32)[:, None] * np.exp(
        np.arange(0, 8, 2, dtype=np.float32) * np.float32(-np.log(10000.0) / 8)
    )
    in_float32 = {"halves": np.concatenate, "interleaved": np.stack}[layout](
        [np.sin(angles), np.cos(angles)], axis=1 if layout == "halves" else 2
    ).reshape(600, 8)
    for table in (formula, formula.astype(np.float32), in_float32, formula.astype(ml_dtypes.bfloat16)):
        assert other_tables(config, params_of(config, table)) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table + 1e-3 * np.random.default_rng(0).standard_normal(table.shape),
        lambda table: table[:, ::-1],
        lambda table: np.roll(table, 1, axis=0),
        lambda table: np.where(np.arange(8) == 3, np.nan, table),
    ],
)
def test_other_tables_are_described(change: Any) -> None:
    table = change(sinusoid_table(CONFIG.encoder)).astype(np.float32)
    (found,) = other_tables(CONFIG, params_of(CONFIG, table))
    assert found.stack == "encoder"
    assert described([found]).startswith("positions differ from the sinusoids of the formula: the encoder's by up to ")


def test_learned_positions_have_no_formula() -> None:
    learned = dataclasses.replace(CONFIG, position_kind="learned")
    assert other_tables(learned, {"constants": {}}) == []
    assert other_tables(learned, params_of(CONFIG, np.zeros((600, 8)))) == []
