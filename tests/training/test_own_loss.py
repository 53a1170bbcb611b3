"""Runs with a loss of the caller's own: it replaces cross-entropy in training, and a run resumes with no other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny_runs import rows, tiny_run

from jax_transformer.config.parallel import ParallelConfig
from jax_transformer.storage.model_directory import load_model
from jax_transformer.training.interruption import Interrupted
from jax_transformer.training.loop import train
from jax_transformer.training.run_directory import RunError

pytestmark = pytest.mark.usefixtures("quick_compilation")
same = optax.softmax_cross_entropy_with_integer_labels


def halved(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Returns half the cross-entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels) / 2


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}], ids=str)
def test_cross_entropy_as_a_function_trains_as_the_built_in_one(options: dict[str, Any], tmp_path: Path) -> None:
    config = tiny_run(tmp_path, label_smoothing=0.0, max_steps=4, log_every=1, **options)
    own = train(config, loss=same)
    built_in = train(dataclasses.replace(config, run_dir=str(tmp_path / "built_in")))
    for mine, theirs in zip(rows(own.run), rows(built_in.run), strict=True):
        for name in ("loss", "gradient_norm", "valid_loss"):
            if name in theirs:
                assert mine[name] == pytest.approx(theirs[name], rel=1e-5)
        assert "perplexity" not in mine


@pytest.mark.parametrize("shards", [0, 2])
def test_a_run_resumes_with_its_loss(
    shards: int, tmp_path: Path, stopped_after: Callable[[int], AbstractContextManager[None]]
) -> None:
    config = tiny_run(tmp_path, max_steps=4, log_every=1)
    config = dataclasses.replace(config, parallel=ParallelConfig(virtual_shards=shards))
    whole = train(config, loss=halved)
    losses = [record["loss"] for record in rows(whole.run) if "loss" in record]
    assert losses[0] == pytest.approx(np.log(load_model(whole.run).config.target_vocab_size) / 2, rel=0.05)
    part = dataclasses.replace(config, run_dir=str(tmp_path / "part"))
    with stopped_after(3), pytest.raises(Interrupted):
        train(part, loss=halved)
    with pytest.raises(
        RunError, match=r"loss: expected the function that the run began with, .*halved: train.config, "
    ):
        train(part, resume=True)
    with pytest.raises(RunError, match=r"halved.*; received optax.*integer_labels"):
        train(part, resume=True, loss=same)
    train(part, resume=True, loss=halved)
    assert rows(Path(part.run_dir)) == rows(whole.run)


def test_a_run_without_one_takes_none_later(tmp_path: Path) -> None:
    config = tiny_run(tmp_path, max_steps=1)
    train(config)
    with pytest.raises(RunError, match=r"loss: expected none, as the run began; received .*halved"):
        train(config, resume=True, loss=halved)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("halved", "train: loss: expected a function of logits and labels; received str"),
        (lambda logits, labels: jnp.float32(0), "loss: expected one loss per label"),
    ],
)
def test_what_is_no_loss_is_refused(loss: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train(tiny_run(tmp_path, max_steps=1), loss=loss)
