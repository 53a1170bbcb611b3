"""Learning rates by step, counted from 0 as optax does; the first step's rate is schedule(0)."""

from __future__ import annotations

import jax.numpy as jnp
import optax

from jax_transformer.run_config import TrainConfig


def make_schedule(config: TrainConfig, d_model: int) -> optax.Schedule:
    """The schedule that the config names, warm-up included."""
    if config.schedule == "paper":
        return inverse_square_root(config.learning_rate, d_model, config.warmup_steps)
    decay_steps = max(config.max_steps - config.warmup_steps, 1)
    after_warmup = {
        "constant": optax.constant_schedule(config.learning_rate),
        "linear": optax.linear_schedule(config.learning_rate, 0.0, decay_steps),
        "cosine": optax.cosine_decay_schedule(config.learning_rate, decay_steps),
    }[config.schedule]
    if config.warmup_steps == 0:
        return after_warmup
    # the first step already has a rate above 0, and step number `warmup_steps` (from 1) is the first at the peak
    warmup = optax.linear_schedule(config.learning_rate / config.warmup_steps, config.learning_rate, max(config.warmup_steps - 1, 1))
    return optax.join_schedules([warmup, after_warmup], [config.warmup_steps])


def inverse_square_root(factor: float, d_model: int, warmup_steps: int) -> optax.Schedule:
    """factor · d_model^-½ · min(t^-½, t · warmup^-1.5) with t = step + 1 (Vaswani et al. 2017, §5.3)."""

    def schedule(step: jnp.ndarray) -> jnp.ndarray:
        t = jnp.asarray(step, jnp.float32) + 1.0
        return factor * d_model**-0.5 * jnp.minimum(t**-0.5, t * warmup_steps**-1.5)

    return schedule
