"""One optimizer step as a pure function: (state, batch) → (state, metrics)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jax_transformer.config import TransformerConfig
from jax_transformer.data.batching import Batch
from jax_transformer.model import functional
from jax_transformer.model.functional import Params
from jax_transformer.run_config import TrainConfig
from jax_transformer.training.losses import chunked_cross_entropy
from jax_transformer.training.optimizers import make_optimizer
from jax_transformer.training.schedules import make_schedule


class TrainState(NamedTuple):
    """Everything that changes while training, and the constants that travel with it; a plain pytree."""

    step: jax.Array  # [] int32: optimizer steps done
    params: Params  # without constants
    constants: Params
    optimizer: optax.OptState


Metrics = dict[str, jax.Array]
TrainStep = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


def all_params(state: TrainState) -> Params:
    """The parameters as `functional` takes them, constants included."""
    return {**state.params, "constants": state.constants}


def init_state(model: TransformerConfig, config: TrainConfig) -> TrainState:
    """The state before the first step; the initial weights follow from the config's seed."""
    params = functional.init_params(model, jax.random.key(config.seed))
    constants = params.pop("constants", {})
    optimizer = make_optimizer(config, make_schedule(config, model.d_model))
    return TrainState(jnp.zeros((), jnp.int32), params, constants, optimizer.init(params))


def make_train_step(model: TransformerConfig, config: TrainConfig) -> TrainStep:
    """A jitted step that takes over (donates) the state given to it.

    Dropout is a function of the seed and the step alone. Metrics, all scalars: loss (nats per target token), tokens (target tokens that are
    no pads), gradient_norm (before clipping), learning_rate.
    """
    schedule = make_schedule(config, model.d_model)
    optimizer = make_optimizer(config, schedule)

    def loss_of(params: Params, constants: Params, batch: Batch, dropout_key: jax.Array) -> tuple[jax.Array, jax.Array]:
        total, tokens = summed_loss(model, {**params, "constants": constants}, batch, config.label_smoothing, dropout_key)
        return total / jnp.maximum(tokens, 1), tokens

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        dropout_key = jax.random.fold_in(jax.random.key(config.seed), state.step)
        (loss, tokens), gradients = jax.value_and_grad(loss_of, has_aux=True)(state.params, state.constants, batch, dropout_key)
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        metrics = {
            "loss": loss,
            "tokens": tokens,
            "gradient_norm": optax.tree.norm(gradients),
            "learning_rate": schedule(state.step),
        }
        return TrainState(state.step + 1, optax.apply_updates(state.params, updates), state.constants, optimizer_state), metrics

    return jax.jit(train_step, donate_argnums=0)


def make_evaluation_step(model: TransformerConfig) -> Callable[[Params, Batch], tuple[jax.Array, jax.Array]]:
    """A jitted function (params, batch) → (sum of cross-entropies without smoothing and dropout, number of target tokens)."""

    return jax.jit(lambda params, batch: summed_loss(model, params, batch))


def summed_loss(
    model: TransformerConfig, params: Params, batch: Batch, label_smoothing: float = 0.0, dropout_key: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """The batch's cross-entropy in nats, summed over target tokens, and how many those are."""
    hidden = functional.hidden_states(model, params, batch.source_ids, batch.decoder_input_ids, dropout_key=dropout_key)
    kernel, bias = functional.head(model, params)
    return chunked_cross_entropy(
        hidden, kernel, bias, jnp.asarray(batch.labels), pad_id=model.target_pad_id, label_smoothing=label_smoothing
    )  # fmt: skip
