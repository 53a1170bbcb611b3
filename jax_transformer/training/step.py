"""Builds one optimizer step as a pure function: (state, batch) → (state, metrics)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.data.batching import Batch
from jax_transformer.model import functional
from jax_transformer.model.functional import Params
from jax_transformer.model.sharding import constrain
from jax_transformer.parallel.mesh import AnyMesh, platform_of
from jax_transformer.parallel.tracing import divide_rows, lie_as_parameters, on_mesh
from jax_transformer.training.losses import (
    Criterion,
    chunk_on,
    chunked_cross_entropy,
    chunked_losses,
    counted_tokens,
    without_filling,
)
from jax_transformer.training.state import TrainState, all_params, resolve_optimizer, stored_params

Metrics = dict[str, jax.Array]
TrainStep = Callable[[TrainState, Batch], tuple[TrainState, Metrics]]
TokenLoss = Callable[[jax.Array, jax.Array], jax.Array]
"""(logits [B, T, V], labels [B, T]) → losses [B, T], such as `optax.softmax_cross_entropy_with_integer_labels`."""


def make_train_step(
    model: TransformerConfig,
    config: TrainConfig | None = None,
    *,
    optimizer: optax.GradientTransformation | None = None,
    loss: TokenLoss | None = None,
    seed: int | None = None,
    mesh: Mesh | None = None,
) -> TrainStep:
    """Returns a jitted step (state, batch) → (state, metrics), which donates the state: don't use the old one again.

    Pass `optimizer`, `config`, or both, as to `init_state`. The step splits the batch's rows into `config.accumulate`
    parts and adds their gradients; every target token counts alike, so the split changes nothing but the memory.
    Dropout is a function of the seed, the step and the part.

    Metrics, all scalars: `loss` (mean over the target tokens that count; nats with the built-in loss), `tokens` (their
    number), `gradient_norm` (before clipping), with the config's own optimizer `learning_rate`, and with label
    smoothing `plain_loss`, the mean without it.

    Args:
      model: the model's config.
      config: how to train. None: cross-entropy without label smoothing, no accumulation, nothing frozen or averaged.
      optimizer: any Optax optimizer, in place of the config's optimizer and schedule.
      loss: maps logits [B, T, V] (float32 or wider) and labels [B, T] to losses [B, T], in place of the built-in
        cross-entropy. The step averages them over the labels that aren't padding. The built-in loss never holds all
        logits at once; with `loss` they are all in memory.
      seed: seed of dropout. None: config.seed, or 0 without a config.
      mesh: the devices that share the step, as given to `init_state`. None: one device.

    Raises:
      ValueError: neither `config` nor `optimizer`. When the step is called: config.accumulate times the devices that
        share the rows doesn't divide the rows; the losses don't have the shape of the labels.

    Example:
      >>> import optax
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.data import make_batch
      >>> from jax_transformer.training import init_state, make_train_step
      >>> config = TransformerConfig(source_vocab_size=7, target_vocab_size=7, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1, max_length=8)
      >>> optimizer = optax.adamw(1e-2)
      >>> state = init_state(config, optimizer=optimizer)
      >>> step = make_train_step(config, optimizer=optimizer)
      >>> batch = make_batch([[4, 5, 3], [6, 3]], [[5, 6], [4, 4, 5]])
      >>> losses = []
      >>> for _ in range(20):
      ...     state, metrics = step(state, batch)
      ...     losses.append(float(metrics["loss"]))
      >>> losses[-1] < losses[0], int(metrics["tokens"])
      (True, 7)
    """
    step = StepFunctions.of("make_train_step", model, config, optimizer, loss=loss, seed=seed, mesh=mesh)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        batch = divide_rows(batch, step.config.accumulate)
        tokens = step.count(batch)
        key = step.dropout_key(state)
        if not step.has_plain_loss:
            mean, gradients = step.gradients(state, batch, tokens, key)
            return step.update(state, mean, tokens, gradients)
        (mean, plain), gradients = step.gradients(state, batch, tokens, key, with_plain=True)
        state, metrics = step.update(state, mean, tokens, gradients)
        return state, metrics | {"plain_loss": plain}

    return jax.jit(on_mesh(train_step, mesh), donate_argnums=0)


@dataclass(frozen=True)
class StepFunctions:
    """Holds the parts of a training step as functions to compile."""

    model: TransformerConfig
    config: TrainConfig
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule | None
    seed: int
    loss: TokenLoss | None = None
    mesh: AnyMesh | None = None

    @classmethod
    def of(
        cls,
        function: str,
        model: TransformerConfig,
        config: TrainConfig | None,
        optimizer: optax.GradientTransformation | None = None,
        *,
        seed: int | None = None,
        loss: TokenLoss | None = None,
        mesh: AnyMesh | None = None,
    ) -> StepFunctions:
        """Returns the parts for the arguments of `make_train_step`; errors begin with the name `function`."""
        config, optimizer, schedule = resolve_optimizer(function, model, config, optimizer)
        return cls(model, config, optimizer, schedule, config.seed if seed is None else seed, loss, mesh)

    @property
    def criterion(self) -> Criterion:
        config = self.config
        return Criterion(self.model.target_pad_id, config.label_smoothing, config.smoothing, config.loss_counts_pads)

    @property
    def has_plain_loss(self) -> bool:
        """Whether the step also reports a loss without label smoothing."""
        return self.loss is None and self.config.label_smoothing > 0

    def dropout_key(self, state: TrainState) -> jax.Array:
        return jax.random.fold_in(jax.random.key(self.seed), state.step)

    def count(self, batch: Batch) -> jax.Array:
        """Returns the number of target tokens that count, [] int32."""
        labels = without_filling(jnp.asarray(batch.labels), self.criterion)
        return counted_tokens(labels, self.criterion).sum(dtype=jnp.int32)

    def gradients(
        self,
        state: TrainState,
        batch: Batch,
        tokens: jax.Array | int,
        dropout_key: jax.Array,
        *,
        with_plain: bool = False,
    ) -> tuple[Any, Params]:
        """Returns the summed loss over `tokens`, and its gradients, computed in config.accumulate parts.

        Args:
          with_plain: whether to return a pair in place of the loss: the loss with and without label smoothing.
        """

        chunk = chunk_on(platform_of(self.mesh))

        def mean_loss(trained: Params, part: Batch, dropout_key: jax.Array) -> Any:
            """Returns the part's share of the loss per target token of the whole batch."""
            params = all_params(state._replace(params=trained))
            if with_plain:
                totals = _totals(self.model, params, part, self.criterion, dropout_key, chunk)
                loss, plain = (total / jnp.maximum(tokens, 1) for total in totals)
                return loss, (loss, plain)
            total, _ = summed_loss(self.model, params, part, self.criterion, dropout_key, self.loss, chunk)
            return total / jnp.maximum(tokens, 1)

        def loss_and_gradients(part: Batch, dropout_key: jax.Array) -> tuple[Any, Params]:
            found, gradients = jax.value_and_grad(mean_loss, has_aux=with_plain)(state.params, part, dropout_key)
            mean = found[1] if with_plain else found
            return mean, lie_as_parameters(gradients, state.params, self.mesh)

        return _accumulate(loss_and_gradients, batch, dropout_key, self.config.accumulate)

    def update(
        self, state: TrainState, mean: jax.Array, tokens: jax.Array, gradients: Params
    ) -> tuple[TrainState, Metrics]:
        """Returns the state after an optimizer step, and the metrics of the step."""
        updates, optimizer_state = self.optimizer.update(gradients, state.optimizer, state.params)
        updates = jax.tree.map(lambda update: update * state.rate_scale.astype(update.dtype), updates)
        params = optax.apply_updates(state.params, updates)
        decay = self.config.ema_decay
        average = _moved_average(state.average, params, state.step, decay) if decay else state.average
        metrics = {"loss": mean, "tokens": tokens, "gradient_norm": optax.tree.norm(gradients)}
        if self.schedule is not None:
            metrics["learning_rate"] = self.schedule(state.step) * state.rate_scale
        new = state._replace(params=params, optimizer=optimizer_state, average=average)
        if self.config.on_nonfinite == "skip":
            is_finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(metrics["gradient_norm"])
            new = jax.tree.map(partial(jnp.where, is_finite), new, state)
        state = new._replace(step=state.step + 1)
        return lie_as_parameters(state, stored_params(state), self.mesh), metrics


def _accumulate(
    loss_and_gradients: Callable[[Batch, jax.Array], tuple[Any, Params]],
    batch: Batch,
    dropout_key: jax.Array,
    parts: int,
) -> tuple[Any, Params]:
    """Returns the sums of the losses and of the gradients of a batch's parts, computed one after another."""
    if parts == 1:
        return loss_and_gradients(batch, dropout_key)

    @partial(jax.jit, inline=True)  # traced once, both for its shapes and in the loop
    def part_sums(number: jax.Array, part: Batch) -> tuple[Any, Params]:
        return loss_and_gradients(part, jax.random.fold_in(dropout_key, number))

    def add(sums: tuple[Any, Params], numbered: tuple[jax.Array, Batch]) -> tuple[tuple[Any, Params], None]:
        return jax.tree.map(jnp.add, sums, part_sums(*numbered)), None

    numbered = jnp.arange(parts), _split_rows(batch, parts)
    zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(part_sums, *jax.tree.map(lambda array: array[0], numbered)))
    return jax.lax.scan(add, zeros, numbered)[0]


def _split_rows(batch: Batch, parts: int) -> Batch:
    """Reshapes [B, …] to [parts, B / parts, …]. Row k goes to part k mod parts, which spreads padding rows evenly."""

    def split(array: jax.Array) -> jax.Array:
        by_part = jnp.reshape(array, (len(array) // parts, parts, -1))  # contiguous rows stay on their device
        return constrain(jnp.swapaxes(by_part, 0, 1), None, "rows", None)

    return jax.tree.map(split, batch)


def _moved_average(average: Params, params: Params, step: jax.Array, decay: float) -> Params:
    """Returns the average after a step. Its decay starts at (1 + t) / (10 + t), so that it soon forgets the initial
    weights."""
    t = step.astype(jnp.float32)
    decay_now = jnp.minimum(decay, (1.0 + t) / (10.0 + t))
    return jax.tree.map(lambda mean, new: mean + ((1.0 - decay_now) * (new - mean)).astype(mean.dtype), average, params)


def make_evaluation_step(
    model: TransformerConfig, mesh: Mesh | None = None
) -> Callable[[Params, Batch], tuple[jax.Array, jax.Array]]:
    """Returns a jitted function (params, batch) → (cross-entropy summed in nats, number of target tokens), without
    label smoothing and dropout.

    Args:
      model: the model's config.
      mesh: the devices that share the rows and the parameters. None: one device.

    Example:
      >>> import math
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.data import make_batch
      >>> from jax_transformer.model.functional import init_params
      >>> from jax_transformer.training import make_evaluation_step
      >>> import jax
      >>> config = TransformerConfig(source_vocab_size=7, target_vocab_size=7, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1, max_length=8)
      >>> evaluate = make_evaluation_step(config)
      >>> total, tokens = evaluate(init_params(config, jax.random.key(0)), make_batch([[4, 3]], [[5, 6]]))
      >>> int(tokens), bool(total / tokens > 0)
      (3, True)
    """

    def evaluate(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        criterion, chunk = Criterion(model.target_pad_id), chunk_on(platform_of(mesh))
        return summed_loss(model, params, divide_rows(batch, 1), criterion, chunk=chunk)

    return jax.jit(on_mesh(evaluate, mesh))


def summed_loss(
    model: TransformerConfig,
    params: Params,
    batch: Batch,
    criterion: Criterion,
    dropout_key: jax.Array | None = None,
    loss: TokenLoss | None = None,
    chunk: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Returns the batch's loss, summed over the target tokens that count, and their number.

    Args:
      loss: as in `make_train_step`. None: cross-entropy in nats, as `criterion` describes it.
      chunk: as in `chunked_cross_entropy`.
    """
    labels = _labels(batch, criterion)
    if loss is None:
        operands = _hidden_and_head(model, params, batch, dropout_key)
        return chunked_cross_entropy(*operands, labels, criterion, chunk, cap=model.head.cap)
    inputs = _other_inputs(batch, dropout_key)
    logits = functional.apply(model, params, batch.source_ids, batch.decoder_input_ids, **inputs)
    losses = loss(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)), jnp.asarray(batch.labels))
    if jnp.shape(losses) != labels.shape:
        raise ValueError(
            f"loss: expected one loss per label, an array of shape {labels.shape}; received shape {jnp.shape(losses)}; "
            "return the losses without summing them"
        )
    counted = counted_tokens(labels, criterion)
    return jnp.where(counted, losses, 0.0).sum(), counted.sum(dtype=jnp.int32)


def _totals(
    model: TransformerConfig,
    params: Params,
    batch: Batch,
    criterion: Criterion,
    dropout_key: jax.Array | None,
    chunk: int | None,
) -> tuple[jax.Array, ...]:
    """Returns the batch's loss with and without label smoothing, summed over the target tokens that count."""
    operands = _hidden_and_head(model, params, batch, dropout_key)
    return chunked_losses(*operands, _labels(batch, criterion), criterion, chunk, with_plain=True, cap=model.head.cap)


def _labels(batch: Batch, criterion: Criterion) -> jax.Array:
    if criterion.counts_pads and batch.target_segments is not None:
        raise ValueError("batch: expected one that isn't packed with loss_counts_pads; received segments")
    return without_filling(jnp.asarray(batch.labels), criterion)


def _other_inputs(batch: Batch, dropout_key: jax.Array | None) -> dict[str, Any]:
    return {
        "dropout_key": dropout_key,
        "source_segments": batch.source_segments,
        "target_segments": batch.target_segments,
    }


def _hidden_and_head(
    model: TransformerConfig, params: Params, batch: Batch, dropout_key: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Returns the decoder's output, and the head's kernel and bias."""
    inputs = _other_inputs(batch, dropout_key)
    hidden = functional.hidden_states(model, params, batch.source_ids, batch.decoder_input_ids, **inputs)
    return hidden, *functional.head(model, params)
