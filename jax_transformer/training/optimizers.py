"""The configured optimizer as one Optax transformation."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from jax_transformer.config.run import TrainConfig
from jax_transformer.model.functional import Params
from jax_transformer.model.lora import KERNEL, A, B
from jax_transformer.runtime.trees import flatten, unflatten

ADAM_SIZE = 0.2
"""Typical root mean square of Adam's updates, to which Muon's are scaled (Liu et al. 2025, §2.2)."""


def make_optimizer(config: TrainConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Returns the configured optimizer: clipping by the global norm, L2 decay, the update rule, decoupled decay, and
    the learning rate, in this order.

    It equals torch's clip_grad_norm_, Adam, AdamW and SGD. adam: Kingma & Ba 2015. muon: Jordan et al. 2024
    (https://kellerjordan.github.io/posts/muon), with momentum 0.95 and Nesterov's step for the matrices of the layers,
    and Adam for everything else. adafactor: Shazeer & Stern 2018, algorithm 4, for each layer's parameters by
    themselves; it equals transformers' Adafactor without weight decay.

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
    if config.optimizer == "adafactor":
        return _adafactor(config.factored_from)
    adam = optax.scale_by_adam(b1=config.adam_b1, b2=config.adam_b2, eps=config.adam_eps)
    if config.optimizer == "adam":
        return adam
    orthogonalised = scale_by_muon(weight_dimension_numbers=_dimension_numbers)
    muon = optax.chain(orthogonalised, optax.stateless(lambda updates, params: _sized_as_adams(updates)))
    return optax.partition({"adam": adam, "muon": muon}, _labels)


def _adafactor(factored_from: int) -> optax.GradientTransformation:
    """Returns Adafactor's rule: the update by factored second moments, clipped to a root mean square of 1, times the
    parameter's own, but 10^-3 at least."""

    def decay(step: jax.Array, exponent: float) -> jax.Array:
        """Optax has this in float32, whatever the parameters are in."""
        return 1.0 - (jnp.asarray(step, float) + 1.0) ** -exponent

    rule = optax.chain(
        optax.scale_by_factored_rms(min_dim_size_to_factor=factored_from, decay_rate_fn=decay),
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(1e-3),
    )

    def labels(params: Params) -> Params:
        return unflatten({path: path.split("/")[0] if "/layers/" in path else "others" for path in flatten(params)})

    return optax.partition({"encoder": _by_layer(rule), "decoder": _by_layer(rule), "others": rule}, labels)


def _by_layer(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns a rule that updates the parameters of each layer of a stack by themselves, heads merged."""

    def merged(tree: Params) -> Params:
        return unflatten({path: _heads_merged(path, leaf) for path, leaf in flatten(tree).items()})

    def init(params: Params) -> optax.OptState:
        if not jax.tree.leaves(params):  # all are frozen
            return optax.EmptyState()
        return jax.vmap(rule.init)(merged(params))

    def update(updates: Params, state: optax.OptState, params: Params) -> tuple[Params, optax.OptState]:
        if not jax.tree.leaves(updates):
            return updates, state
        found, state = jax.vmap(rule.update)(merged(updates), state, merged(params))
        return jax.tree.map(lambda leaf, like: leaf.reshape(like.shape), found, updates), state

    return optax.GradientTransformation(init, update)


def _heads_merged(path: str, leaf: jax.Array | optax.MaskedNode) -> jax.Array | optax.MaskedNode:
    """Returns a stacked parameter as [layers, in, out], or a bias as [layers, features]."""
    if isinstance(leaf, optax.MaskedNode):
        return leaf
    sides = matrix_axes(path, leaf)
    if sides is not None:
        return leaf.reshape(leaf.shape[0], *(math.prod(leaf.shape[axis] for axis in side) for side in sides))
    return leaf.reshape(leaf.shape[0], -1) if path.endswith("/bias") else leaf


def matrix_axes(path: str, leaf: jax.Array) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Returns the input and output axes of a parameter that is one matrix per layer; None for any other.

    The first axis is the layer. Kernels of query, key and value are [layers, in, heads, head_dim], those of the
    attentions' outputs [layers, heads, head_dim, out]; each is one matrix over all heads. LoRA's A is [layers, *in,
    rank], and its B [layers, rank, *out].
    """
    name = path.rsplit("/", 1)[-1]
    if "/layers/" not in path or name not in (KERNEL, A, B):
        return None
    axes = tuple(range(1, leaf.ndim))
    split = -1 if name == A or path.endswith(f"attention/output/{KERNEL}") else 1
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
