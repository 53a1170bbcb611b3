"""One optimizer step as a pure function: (state, batch) → (state, metrics)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import Batch
from jax_transformer.model import functional
from jax_transformer.model.functional import Params
from jax_transformer.training.freezing import join_frozen, split_frozen
from jax_transformer.training.losses import Criterion, chunked_cross_entropy, counted_tokens, without_filling
from jax_transformer.training.optimizers import make_optimizer
from jax_transformer.training.schedules import make_schedule


class TrainState(NamedTuple):
    """Everything that changes while training, and what travels with it; a plain pytree."""

    step: jax.Array  # [] int32: optimizer steps done
    params: Params  # those that are trained
    frozen: Params  # those that config.freeze names
    constants: Params
    optimizer: optax.OptState
    average: Params  # moving average of params, with config.ema_decay; else empty
    rate_scale: jax.Array  # []: the learning rate is multiplied by it (config.plateau_patience)


Metrics = dict[str, jax.Array]
TrainStep = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]


def all_params(state: TrainState) -> Params:
    """The parameters that are being trained, as `functional` takes them, with what is frozen and the constants."""
    return {**join_frozen(state.params, state.frozen), "constants": state.constants}


def kept_params(state: TrainState) -> Params:
    """The parameters that are evaluated and kept: the moving average where there is one."""
    return all_params(state._replace(params=state.average) if state.average else state)


def init_state(model: TransformerConfig, config: TrainConfig, params: Params | None = None) -> TrainState:
    """The state before the first step, of `params`, or of weights drawn by the config's seed.

    Raises:
      FreezeError: config.freeze has a pattern that matches nothing, or leaves nothing to train.
    """
    params = (
        functional.init_params(model, jax.random.key(config.seed))
        if params is None
        else jax.tree.map(jnp.asarray, params)
    )
    constants = params.pop("constants", {})
    trained, frozen = split_frozen(params, config.freeze)
    optimizer = make_optimizer(config, make_schedule(config, model.d_model))
    average = jax.tree.map(jnp.copy, trained) if config.ema_decay else {}
    return TrainState(
        jnp.zeros((), jnp.int32), trained, frozen, constants, optimizer.init(trained), average, jnp.ones(())
    )


def make_train_step(model: TransformerConfig, config: TrainConfig) -> TrainStep:
    """A jitted step that takes over (donates) the state given to it.

    The batch's rows are taken in `config.accumulate` parts, one after another; each target token counts alike, so that
    the parts make no difference but to memory. Dropout is a function of the seed, the step and the part.

    Metrics, all scalars: loss (nats per target token), tokens (target tokens that count), gradient_norm (before
    clipping), learning_rate.
    """
    schedule = make_schedule(config, model.d_model)
    optimizer = make_optimizer(config, schedule)
    criterion = Criterion(model.target_pad_id, config.label_smoothing, config.smoothing, config.loss_counts_pads)

    def mean_loss(
        trained: Params, state: TrainState, part: Batch, tokens: jax.Array, dropout_key: jax.Array
    ) -> jax.Array:
        """The part's share of the loss per target token of the whole batch."""
        total, _ = summed_loss(model, all_params(state._replace(params=trained)), part, criterion, dropout_key)
        return total / jnp.maximum(tokens, 1)

    def loss_and_gradients(
        state: TrainState, batch: Batch, tokens: jax.Array, dropout_key: jax.Array
    ) -> tuple[jax.Array, Params]:
        if config.accumulate == 1:
            return jax.value_and_grad(mean_loss)(state.params, state, batch, tokens, dropout_key)

        def of_part(number: jax.Array, part: Batch) -> tuple[jax.Array, Params]:
            return jax.value_and_grad(mean_loss)(
                state.params, state, part, tokens, jax.random.fold_in(dropout_key, number)
            )

        def add(
            sums: tuple[jax.Array, Params], numbered: tuple[jax.Array, Batch]
        ) -> tuple[tuple[jax.Array, Params], None]:
            return jax.tree.map(jnp.add, sums, of_part(*numbered)), None

        parts = jnp.arange(config.accumulate), _split_rows(batch, config.accumulate)
        nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(of_part, *jax.tree.map(lambda array: array[0], parts)))
        return jax.lax.scan(add, nothing, parts)[0]

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        dropout_key = jax.random.fold_in(jax.random.key(config.seed), state.step)
        tokens = counted_tokens(without_filling(jnp.asarray(batch.labels), criterion), criterion).sum(dtype=jnp.int32)
        loss, gradients = loss_and_gradients(state, batch, tokens, dropout_key)
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
        updates = jax.tree.map(lambda update: update * state.rate_scale.astype(update.dtype), updates)
        params = optax.apply_updates(state.params, updates)
        average = (
            _moved_average(state.average, params, state.step, config.ema_decay) if config.ema_decay else state.average
        )
        metrics = {
            "loss": loss,
            "tokens": tokens,
            "gradient_norm": optax.tree.norm(gradients),
            "learning_rate": schedule(state.step) * state.rate_scale,
        }
        return state._replace(step=state.step + 1, params=params, optimizer=optimizer_state, average=average), metrics

    return jax.jit(train_step, donate_argnums=0)


def _split_rows(batch: Batch, parts: int) -> Batch:
    """[B, …] → [parts, B / parts, …]. Every part gets its share of the rows that are all padding, if there are any."""
    rows = len(batch.labels)
    if rows % parts:
        raise ValueError(f"accumulate: expected batches whose rows are a multiple of {parts}; received {rows}")
    return jax.tree.map(lambda array: jnp.swapaxes(jnp.reshape(array, (rows // parts, parts, -1)), 0, 1), batch)


def _moved_average(average: Params, params: Params, step: jax.Array, decay: float) -> Params:
    """The average after a step. It keeps less of itself at first, (1 + t) / (10 + t), so that the initial weights are
    soon forgotten."""
    t = step.astype(jnp.float32)
    kept = jnp.minimum(decay, (1.0 + t) / (10.0 + t))
    return jax.tree.map(lambda mean, new: mean + ((1.0 - kept) * (new - mean)).astype(mean.dtype), average, params)


def make_evaluation_step(model: TransformerConfig) -> Callable[[Params, Batch], tuple[jax.Array, jax.Array]]:
    """A jitted function (params, batch) → (sum of cross-entropies without smoothing and dropout, number of target
    tokens)."""

    return jax.jit(lambda params, batch: summed_loss(model, params, batch, Criterion(model.target_pad_id)))


def summed_loss(
    model: TransformerConfig, params: Params, batch: Batch, criterion: Criterion, dropout_key: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """The batch's cross-entropy in nats, summed over the target tokens that count, and how many those are."""
    hidden = functional.hidden_states(model, params, batch.source_ids, batch.decoder_input_ids, dropout_key=dropout_key)
    kernel, bias = functional.head(model, params)
    return chunked_cross_entropy(hidden, kernel, bias, without_filling(jnp.asarray(batch.labels), criterion), criterion)
