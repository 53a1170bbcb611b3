"""Builds the configured optimizer as one Optax transformation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from jax_transformer.config.run import TrainConfig
from jax_transformer.model.functional import Params
from jax_transformer.model.matrices import matrix_axes
from jax_transformer.runtime.trees import flatten, unflatten

ADAM_SIZE = 0.2
"""Typical root mean square of Adam's updates, to which Muon's are scaled (Liu et al. 2025, §2.2)."""


def make_optimizer(config: TrainConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Returns the configured optimizer: clipping by the global norm, L2 decay, the update rule, decoupled decay, and
    the learning rate, in this order.

    It equals torch's clip_grad_norm_, Adam, AdamW and SGD. adam: Kingma & Ba 2015. muon: Jordan et al. 2024
    (https://kellerjordan.github.io/posts/muon), with momentum 0.95 and Nesterov's step for the matrices of the layers,
    and Adam for everything else. adafactor: Shazeer & Stern 2018, algorithm 4, for each layer separately; it equals
    transformers' Adafactor without weight decay.

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
    decay = [optax.add_decayed_weights(config.weight_decay, _decayed(config.no_decay))] if config.weight_decay else []
    before, after = (decay, []) if config.weight_decay_kind == "l2" else ([], decay)
    return optax.chain(*clip, *before, _direction(config), *after, optax.scale_by_learning_rate(schedule))


def clip_by_norm(most: float) -> optax.GradientTransformation:
    """Returns a transformation that scales gradients by most / (global norm + 1e-6) if that is below 1, as torch's
    clip_grad_norm_ does."""

    def clip(gradients: Params, params: Params | None) -> Params:
        scale = jnp.minimum(most / (optax.tree.norm(gradients) + 1e-6), 1.0)
        return jax.tree.map(lambda gradient: gradient * scale.astype(gradient.dtype), gradients)

    return optax.stateless(clip)


def _decayed(exempt: Sequence[str]) -> Callable[[Params], Params] | None:
    """Returns a function from parameters to a mask of those that decay; None if all do."""

    def decays(params: Params) -> Params:
        paths = flatten(params)
        for pattern in exempt:
            if not any(fnmatchcase(path, pattern) for path in paths):
                raise ValueError(
                    f"train.no_decay: expected patterns of trained parameters' paths, such as {next(iter(paths))}; "
                    f"received {pattern!r}, which matches none"
                )
        return unflatten({path: not any(fnmatchcase(path, pattern) for pattern in exempt) for path in paths})

    return decays if exempt else None


def _direction(config: TrainConfig) -> optax.GradientTransformation:
    """Returns the update rule, before the learning rate and its sign."""
    if config.optimizer == "sgd":
        return optax.trace(config.momentum)
    if config.optimizer == "adafactor":
        return _adafactor(config)
    adam = _adam(config)
    if config.optimizer == "adam":
        return adam
    orthogonalised = scale_by_muon(weight_dimension_numbers=_dimension_numbers)
    muon = optax.chain(orthogonalised, optax.stateless(lambda updates, params: _sized_as_adams(updates)))
    return optax.partition({"adam": adam, "muon": muon}, _labels)


def _adam(config: TrainConfig) -> optax.GradientTransformation:
    """Returns Adam's rule, with ε added in torch's place, or in fairseq's with `adam_eps_uncorrected`.

    The moments are Optax's. Its correction of their bias, 1 - β^t, is off by up to 2e-5 of its value in float32, which
    moves the losses of a run further from those in float64 than all other rounding does.
    """
    b1, b2, eps = config.adam_b1, config.adam_b2, config.adam_eps
    adam = optax.scale_by_adam(b1=b1, b2=b2, eps=eps)

    def update(updates: Params, state: optax.OptState, params: Params | None) -> tuple[Params, optax.OptState]:
        state = adam.update(updates, state, params)[1]
        first_scale, second_scale = _bias_correction(b1, state.count), _bias_correction(b2, state.count)

        def direction(first: jax.Array, second: jax.Array) -> jax.Array:
            if config.adam_eps_uncorrected:
                found = first / first_scale * jnp.sqrt(second_scale) / (jnp.sqrt(second) + eps)
            else:
                found = first / first_scale / (jnp.sqrt(second / second_scale) + eps)
            return found.astype(first.dtype)

        return jax.tree.map(direction, state.mu, state.nu), state

    return optax.GradientTransformation(adam.init, update)


def _bias_correction(decay: float, count: jax.Array) -> jax.Array:
    """Returns 1 - decay^count in JAX's widest enabled float. In float32, the difference would lose two digits or more;
    in float64, it has digits enough, and proofs compare it with other programs'."""
    step = jnp.asarray(count, float)
    if step.dtype == jnp.float64:
        return 1.0 - decay**step
    return -jnp.expm1(step * (math.log(decay) if decay else -math.inf))


def _adafactor(config: TrainConfig) -> optax.GradientTransformation:
    """Returns Adafactor's rule: the update by factored second moments, clipped to a root mean square (RMS) of 1 and,
    with `scale_by_parameter`, multiplied by the parameter's RMS, at least 10^-3."""

    def decay(step: jax.Array, exponent: float) -> jax.Array:
        """Computes the decay in float64 if JAX has it enabled; Optax's default is always float32."""
        return 1.0 - (jnp.asarray(step, float) + 1.0) ** -exponent

    direction = optax.scale_by_factored_rms(min_dim_size_to_factor=config.factored_from, decay_rate_fn=decay)
    if config.factored_eps == "clamped":
        direction = _clamped(config.factored_from, decay)
    rule = optax.chain(
        direction,
        optax.clip_by_block_rms(1.0),
        optax.scale_by_param_block_rms(1e-3) if config.scale_by_parameter else optax.identity(),
    )

    def labels(params: Params) -> Params:
        return unflatten({path: path.split("/")[0] if "/layers/" in path else "others" for path in flatten(params)})

    return optax.partition({"encoder": _by_layer(rule), "decoder": _by_layer(rule), "others": rule}, labels)


def _clamped(factored_from: int, decay: Callable[[jax.Array, float], jax.Array]) -> optax.GradientTransformation:
    """Divides gradients by the root of their factored second moments, clamped as in torch.optim.Adafactor: the moments
    from below at the squared machine epsilon, and the mean that divides their factors at the epsilon."""
    plain = optax.scale_by_factored_rms(min_dim_size_to_factor=factored_from, decay_rate_fn=decay, epsilon=0.0)

    def direction(gradient: jax.Array, row: jax.Array, column: jax.Array, squares: jax.Array) -> jax.Array:
        eps, shape = jnp.finfo(gradient.dtype).eps, gradient.shape
        if len(shape) == 2 and min(shape) >= factored_from:
            # Optax averages v_row over the longer side, or over the second if both are equal
            first, second = (row, column) if shape[0] <= shape[1] else (column, row)
            squares = jnp.outer(first, second) / jnp.maximum(row.mean(), eps)
        return gradient * jax.lax.rsqrt(jnp.maximum(squares, eps**2))

    def update(updates: Params, state: optax.OptState, params: Params | None) -> tuple[Params, optax.OptState]:
        state = plain.update(updates, state, params)[1]
        return jax.tree.map(direction, updates, state.v_row, state.v_col, state.v), state

    return optax.GradientTransformation(plain.init, update)


def _by_layer(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns a rule that updates each layer of a stack separately, with heads merged."""

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
