"""How both sides train in a parity run: everything on which programs differ is switched on."""

from __future__ import annotations

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.parity.gates.tolerances import TRAJECTORY_STEPS

SETUP = TrainConfig(
    optimizer="adam",
    weight_decay=0.02,
    weight_decay_kind="decoupled",
    schedule="paper",
    warmup_steps=400,
    adam_b1=0.9,
    adam_b2=0.98,
    adam_eps=1e-8,
    clip_norm=0.7,
    label_smoothing=0.1,
    max_steps=TRAJECTORY_STEPS,
)
"""Adam with decoupled decay, clipped gradients and a warm-up; smoothed labels."""


def learning_rate(config: TransformerConfig, step: int) -> float:
    """Returns the learning rate of a step, from 1 (Vaswani et al. 2017, §5.3)."""
    return float(SETUP.learning_rate * config.d_model**-0.5 * min(step**-0.5, step * SETUP.warmup_steps**-1.5))
