"""The configured optimizer as one Optax transformation."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from jax_transformer.config.run import TrainConfig
from jax_transformer.model.functional import Params
from jax_transformer.runtime.trees import flatten, unflatten

ADAM_SIZE = 0.2
"""Typical root mean square of Adam's updates, to which Muon's are scaled (Liu et al. 2025, §2.2)."""


def make_optimizer(config: TrainConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Returns the configured optimizer: clipping by the global norm, L2 decay, the update rule, decoupled decay, and
    the learning rate, in this order.

    It equals torch's clip_grad_norm_, Adam, AdamW and SGD. adam: Kingma & Ba 2015. muon: Jordan et al. 2024
    (https://kellerjordan.github.io/posts/muon), with momentum 0.95 and Nesterov's step for the matrices of the layers,
    and Adam for everything else.

    Args:
      config: the optimizer's fields.
      schedule: the learning rate by step, counted from 0.

    Example:
      >>> import optax
      >>> from jax_transformer import TrainConfig
      >>> from jax_transformer.training import make_optimizer
      >>> optimizer = make_optimizer(TrainConfig(optimizer="sgd"), optax.constant_schedule(0.5))
      >>> updates, _ = optimizer.update({"kernel": 2.0}, optimizer.init({"kernel": 1.0}))
      >>> float(updates["kernel"])
      -1.0
    """
    clip = [clip_by_norm(config.clip_norm)] if config.clip_norm else []
    decay = [optax.add_decayed_weights(config.weight_decay)] if config.weight_decay else []
    before, after = (decay, []) if config.weight_decay_kind == "l2" else ([], decay)
    return optax.chain(*clip, *before, _direction(config), *after, optax.scale_by_learning_rate(schedule))


def clip_by_norm(most: float) -> optax.GradientTransformation:
    """Returns a transformation that scales gradients by most / (global norm + 1e-6) if that is below 1, as torch's
    clip_grad_norm_ does."""

    def clip(gradients: Params, params: Params | None) -> Params:
        scale = jnp.minimum(most / (optax.tree.norm(gradients) + 1e-6), 1.0)
        return jax.tree.map(lambda gradient: gradient * scale.astype(gradient.dtype), gradients)

    return optax.stateless(clip)


def _direction(config: TrainConfig) -> optax.GradientTransformation:
    """Returns the update rule, before the learning rate and its sign."""
    if config.optimizer == "sgd":
        return optax.trace(config.momentum)
    adam = optax.scale_by_adam(b1=config.adam_b1, b2=config.adam_b2, eps=config.adam_eps)
    if config.optimizer == "adam":
        return adam
    orthogonalised = scale_by_muon(weight_dimension_numbers=_dimension_numbers)
    muon = optax.chain(orthogonalised, optax.stateless(lambda updates, params: _sized_as_adams(updates)))
    return optax.partition({"adam": adam, "muon": muon}, _labels)


def matrix_axes(path: str, leaf: jax.Array) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns the input and output axes of a parameter that is one matrix per layer; None for any other.

    The first axis is the layer. Kernels of query, key and value are [layers, in, heads, head_dim], those of the
    attentions' outputs [layers, heads, head_dim, out]; each is one matrix over all heads.
    """
    if "/layers/" not in path or not path.endswith("/kernel"):
        return None
    axes = tuple(range(1, leaf.ndim))
    split = -1 if path.endswith("attention/output/kernel") else 1
    return axes[:split], axes[split:]


def _labels(params: Params) -> Params:
    return unflatten({path: "muon" if matrix_axes(path, leaf) else "adam" for path, leaf in flatten(params).items()})


def _dimension_numbers(updates: Params) -> Params:
    """Returns the axes in Optax's form; parameters that aren't matrices are masked."""
    axes = {path: matrix_axes(path, leaf) for path, leaf in flatten(updates).items()}
    return unflatten(
        {path: MuonDimensionNumbers(*sides) if sides else optax.MaskedNode() for path, sides in axes.items()}
    )


def _sized_as_adams(updates: Params) -> Params:
    """Scales orthogonal updates to Adam's size: the entries of an orthogonal m × n matrix have a root mean square of
    1 / sqrt(max(m, n))."""

    def sized(path: str, leaf: jax.Array) -> jax.Array:
        sides = matrix_axes(path, leaf)
        if sides is None:
            return leaf  # masked
        return leaf * (ADAM_SIZE * math.sqrt(max(math.prod(leaf.shape[axis] for axis in side) for side in sides)))

    return unflatten({path: sized(path, leaf) for path, leaf in flatten(updates).items()})
