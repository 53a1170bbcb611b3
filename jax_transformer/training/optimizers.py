"""The optimizer as one optax transformation."""

from __future__ import annotations

import optax

from jax_transformer.run_config import TrainConfig


def make_optimizer(config: TrainConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Adam (Kingma & Ba 2015), after clipping by the global norm where the config asks for it."""
    clip = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm else []
    return optax.chain(
        *clip,
        optax.scale_by_adam(b1=config.adam_b1, b2=config.adam_b2, eps=config.adam_eps),
        optax.scale_by_learning_rate(schedule),
    )
