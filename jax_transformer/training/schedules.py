"""Computes learning rates by step, counted from 0 as in Optax: the rate of the first step is schedule(0)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jax_transformer.config.run import TrainConfig

Rates = Callable[[jax.Array], jax.Array]


def make_schedule(config: TrainConfig, d_model: int) -> optax.Schedule:
    """Returns the configured schedule, including warm-up, in float64 if JAX has it enabled.

    Args:
      config: the schedule's fields.
      d_model: width of the model, on which schedule="paper" depends.

    Example:
      >>> from jax_transformer import TrainConfig
      >>> from jax_transformer.training import make_schedule
      >>> schedule = make_schedule(TrainConfig(schedule="constant", learning_rate=0.5, warmup_steps=2), d_model=8)
      >>> [float(schedule(step)) for step in range(3)]
      [0.25, 0.5, 0.5]
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    if config.schedule == "paper":
        whole = inverse_square_root(peak, d_model, warmup)
        rates = (lambda t: whole(t - 1.0)) if config.warmup_from_zero else whole
    elif config.schedule == "relative":
        rates = relative_step(peak, config.relative_step, warmup)
    else:
        after = _after_warmup(config)

        def rates(t: jax.Array) -> jax.Array:
            """Returns the rate of step t, counted from 1; step `warmup` is the first at the peak."""
            risen = t - 1.0 if config.warmup_from_zero else t
            return jnp.where(t <= warmup, peak * risen / max(warmup, 1), peak * after(t - 1.0 - warmup))

    def schedule(step: jax.Array) -> jax.Array:
        count = jnp.asarray(step, float)
        return rates(jnp.maximum(count, 1.0) if config.repeats_first_rate else count + 1.0)

    return schedule


def peak_rate(config: TrainConfig, d_model: int) -> float:
    """Returns the highest rate of a schedule, before any plateau."""
    if config.schedule == "paper":
        return config.learning_rate * (d_model * config.warmup_steps) ** -0.5
    if config.schedule == "relative":
        return config.learning_rate * config.relative_step
    return config.learning_rate


def inverse_square_root(factor: float, d_model: int, warmup_steps: int) -> Rates:
    """Returns factor · d_model^-½ · min(t^-½, t · warmup^-1.5) for steps t from 1 (Vaswani et al. 2017, §5.3)."""
    return lambda t: factor * d_model**-0.5 * jnp.minimum(t**-0.5, t * warmup_steps**-1.5)


def relative_step(factor: float, most: float, warmup_steps: int) -> Rates:
    """Returns factor · min(most, t^-½) for steps t from 1 (Shazeer & Stern 2018, §8, with `most` = 10^-2), times
    t / warmup during the warm-up."""
    return lambda t: factor * jnp.minimum(most, t**-0.5) * jnp.minimum(t / max(warmup_steps, 1), 1.0)


def _after_warmup(config: TrainConfig) -> Rates:
    """Returns the share of the peak rate as a function of the steps since the warm-up."""
    steps = max(config.max_steps - config.warmup_steps, 1)
    return {
        "constant": jnp.ones_like,
        "linear": lambda done: 1.0 - jnp.clip(done / steps, 0.0, 1.0),
        "cosine": lambda done: _half_cosine(jnp.clip(done / steps, 0.0, 1.0)),
        "cosine_restarts": lambda done: _half_cosine(_share_of_cycle(config, done)),
    }[config.schedule]


def _half_cosine(share: jax.Array) -> jax.Array:
    """Returns half a cosine, which falls from 1 at 0 to 0 at 1."""
    return 0.5 * (1.0 + jnp.cos(jnp.pi * share))


def _share_of_cycle(config: TrainConfig, done: jax.Array) -> jax.Array:
    """Returns the completed share of the current cycle. Cycles have T, fT, f²T, … steps (Loshchilov & Hutter 2017)."""
    starts, length = [0], config.restart_steps
    while starts[-1] <= config.max_steps:
        starts.append(starts[-1] + length)
        length *= config.restart_factor
    begins = np.array(starts, np.float64)
    number = jnp.clip(jnp.searchsorted(jnp.asarray(begins), done, side="right") - 1, 0, len(begins) - 2)
    begin = jnp.asarray(begins)[number]
    return (done - begin) / jnp.asarray(np.diff(begins))[number]


def plateau_scale(
    config: TrainConfig, losses: Sequence[float], threshold: float = 1e-4, least_change: float = 1e-8
) -> float:
    """Returns the factor of the learning rate after these validation losses: torch's ReduceLROnPlateau in "rel" mode.

    Skips changes of the rate by `least_change` or less, which ends the decay of small rates.
    """
    scale, best, bad = 1.0, float("inf"), 0
    if not config.plateau_patience:
        return scale
    for loss in losses[config.plateau_start :]:
        is_better = loss < best * (1.0 - threshold)
        best, bad = (loss, 0) if is_better else (best, bad + 1)
        if bad > config.plateau_patience:
            bad = 0
            if config.learning_rate * scale * (1.0 - config.plateau_factor) > least_change:
                scale *= config.plateau_factor
    return scale
