"""The same steps of training, here and in transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import torch

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import Batch
from jax_transformer.parity.backends.jax_sides import cast
from jax_transformer.programs.modes import wide
from jax_transformer.training.state import init_state
from jax_transformer.training.step import make_train_step


def train_in_jax(
    model: TransformerConfig, train: TrainConfig, params: Any, steps: list[Batch]
) -> tuple[list[float], Any]:
    """Returns the loss of each step, and the trained parameters."""
    state, step = init_state(model, train, cast(params, "float64")), make_train_step(model, train)
    losses = []
    for batch in steps:
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"]))
    return losses, jax.device_get(state.params)


def train_in_torch(
    model: Any,
    steps: list[Batch],
    optimizer: torch.optim.Optimizer,
    lower_rate: Callable[[], None] | None,
    clip_norm: float,
) -> list[float]:
    """Returns the loss of each step."""
    losses, pad_id = [], model.config.pad_token_id
    for batch in steps:
        source_ids, decoder_input_ids, labels = (torch.from_numpy(ids).long() for ids in batch[:3])
        with wide(model):
            loss = model(
                input_ids=source_ids,
                attention_mask=source_ids != pad_id,
                decoder_input_ids=decoder_input_ids,
                labels=labels.masked_fill(labels == pad_id, -100),
                use_cache=False,
            ).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        if lower_rate:
            lower_rate()
        losses.append(loss.item())
    return losses
