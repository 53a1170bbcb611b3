"""Tests training in bfloat16 with float32 weights and sums against float32, by the loss curves on the phrasebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import DataConfig, RunConfig, TrainConfig
from jax_transformer.data.preparation import prepare
from jax_transformer.training.batch_schedule import BatchSchedule
from jax_transformer.training.fitting import fit_config
from jax_transformer.training.state import TrainState, init_state
from jax_transformer.training.step import make_train_step

pytestmark = pytest.mark.usefixtures("quick_compilation")

STEPS = 40
CURVE = 1e-3
"""Relative, of each step's loss. Products round to 8 bits, but their errors are independent and average out: 40 steps
differed by 3.3e-4 at most. With a loss summed in bfloat16, they differed by 5.2e-3."""


def curve(folder: Path, dtype: str | None) -> tuple[np.ndarray, TrainState]:
    """Returns the losses of the first steps, and the state after them."""
    config = RunConfig(
        model=TransformerConfig(
            d_model=32, num_heads=2, d_ff=64, num_encoder_layers=1, num_decoder_layers=1, max_length=32,
            compute_dtype=dtype,
        ),
        data=DataConfig(
            phrasebook_pairs=600, valid_pairs=5, test_pairs=5, max_length=32, batch_tokens=1024, num_shapes=1,
            cache_dir=str(folder),
        ),
        train=TrainConfig(max_steps=STEPS, learning_rate=5e-3, warmup_steps=10, schedule="cosine", ema_decay=0.9),
    )  # fmt: skip
    corpus = prepare(config.data)
    model = fit_config(config.model, corpus)
    state: TrainState = init_state(model, config.train)
    step: Any = make_train_step(model, config.train)
    losses = []
    for batch, _ in zip(BatchSchedule(config, corpus).batches_from(0), range(STEPS), strict=False):
        state, metrics = step(state, batch)
        losses.append(metrics["loss"])
    return np.array(losses), state


@pytest.mark.nightly
def test_the_loss_curve_is_that_of_float32(tmp_path: Path) -> None:
    wide, _ = curve(tmp_path, None)
    narrow, state = curve(tmp_path, "bfloat16")
    assert wide[-1] < wide[0] - 1.0  # it learns
    np.testing.assert_allclose(narrow, wide, rtol=CURVE)
    assert not np.array_equal(narrow, wide)
    kept = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert {leaf.dtype for leaf in kept} == {jnp.dtype("float32")}  # weights, moments and the moving average
