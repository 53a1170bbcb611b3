"""Builds the state of training, one pytree of parameters, optimizer state and moving average."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.model import functional
from jax_transformer.model.arguments import check_config
from jax_transformer.model.functional import Params
from jax_transformer.model.lora import merge_adapters, split_adapters
from jax_transformer.parallel.placement import place_params
from jax_transformer.parallel.rules import check_divides, tree_shardings
from jax_transformer.training.adapters import add_adapters
from jax_transformer.training.freezing import join_frozen, split_frozen
from jax_transformer.training.optimizers import make_optimizer
from jax_transformer.training.schedules import make_schedule


class TrainState(NamedTuple):
    """Holds everything that a training step changes, and the parameters it leaves unchanged; a plain pytree.

    Example:
      >>> import jax, optax
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.training import init_state
      >>> config = TransformerConfig(source_vocab_size=7, target_vocab_size=7, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1, max_length=8)
      >>> state = init_state(config, optimizer=optax.sgd(0.1))
      >>> int(state.step), sorted(state.params)
      (0, ['decoder', 'encoder', 'head', 'source_embedding', 'target_embedding'])
    """

    step: jax.Array  # [] int32: optimizer steps done
    params: Params  # the trained parameters; with config.lora, the adapters
    frozen: Params  # the parameters that config.freeze matches; with config.lora, all parameters of the model
    constants: Params
    optimizer: optax.OptState
    average: Params  # moving average of params with config.ema_decay; else empty
    rate_scale: jax.Array  # []: every update is multiplied by it (config.plateau_patience)


PLAIN = TrainConfig(label_smoothing=0.0)
"""The settings if a caller passes only an optimizer: cross-entropy, no accumulation, nothing frozen or averaged."""


def all_params(state: TrainState) -> Params:
    """Returns the complete parameters for `apply`: trained, frozen, and constants, with adapters merged.

    Example:
      >>> import optax
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.training import all_params, init_state
      >>> config = TransformerConfig(source_vocab_size=7, target_vocab_size=7, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1, max_length=8)
      >>> "constants" in all_params(init_state(config, optimizer=optax.sgd(0.1)))
      True
    """
    return merge_adapters(stored_params(state))


def stored_params(state: TrainState) -> Params:
    """Returns the complete parameters in their stored form, without merging adapters into their kernels."""
    return functional.join_constants(join_frozen(state.params, state.frozen), state.constants)


def evaluation_params(state: TrainState) -> Params:
    """Returns the complete parameters for evaluating and saving: the moving average if there is one.

    Example:
      >>> import numpy as np
      >>> from jax_transformer import TrainConfig, TransformerConfig
      >>> from jax_transformer.training import evaluation_params, init_state
      >>> config = TransformerConfig(source_vocab_size=7, target_vocab_size=7, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1, max_length=8)
      >>> state = init_state(config, TrainConfig(ema_decay=0.99))
      >>> evaluation_params(state)["head"] is state.average["head"]
      True
    """
    return all_params(with_average(state))


def with_average(state: TrainState) -> TrainState:
    """Returns the state with the moving average in place of the trained parameters, if there is one."""
    return state._replace(params=state.average) if state.average else state


def init_state(
    model: TransformerConfig,
    config: TrainConfig | None = None,
    params: Params | None = None,
    *,
    optimizer: optax.GradientTransformation | None = None,
    seed: int | None = None,
    mesh: Mesh | None = None,
) -> TrainState:
    """Returns the state before the first step.

    Pass `optimizer`, `config`, or both, and the same to `make_train_step`. With a mesh, no device ever holds more than
    its part of the state.

    Args:
      model: the model's config, with its vocabulary sizes set.
      config: how to train: optimizer, schedule, frozen parameters or adapters, moving average, seed.
      params: the initial parameters, which are copied and keep their dtype; they may include adapters. None: float32
        weights drawn by the seed.
      optimizer: any Optax optimizer, in place of the config's optimizer and schedule.
      seed: seed of the drawn weights and adapters. None: config.seed, or 0 without a config.
      mesh: the devices that share the state; see `make_mesh`. None: JAX's default device holds it.

    Raises:
      AdapterError: config.lora has a pattern that matches no kernel; adapters in `params` don't fit it.
      ConfigError: the mesh doesn't divide the model's heads, feed-forward units or features.
      FreezeError: config.freeze has a pattern that matches nothing, or leaves nothing to train.
      ValueError: neither `config` nor `optimizer`; a vocabulary size of 0.

    Example:
      >>> import optax
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.training import init_state
      >>> config = TransformerConfig(source_vocab_size=7, target_vocab_size=7, d_model=8, num_heads=2, d_ff=8,
      ...                            num_encoder_layers=1, num_decoder_layers=1, max_length=8)
      >>> int(init_state(config, optimizer=optax.adamw(1e-3), seed=1).step)
      0
    """
    config, optimizer, _ = resolve_optimizer("init_state", model, config, optimizer)
    seed = config.seed if seed is None else seed
    key = jax.random.key(seed)
    make = partial(_first_state, config, optimizer, seed)
    if mesh is None:
        if params is None:
            return jax.jit(make)(functional.init_params(model, key))
        return jax.jit(lambda given: make(jax.tree.map(jnp.copy, given)))(params)  # the first step overwrites them
    check_divides(model, mesh)
    if params is None:
        abstract = functional.abstract_params(model)
        params = functional.init_params(model, key, tree_shardings(abstract, abstract, mesh))
    elif mesh.is_multi_process:
        params = place_params(jax.tree.map(np.array, params), mesh)
    else:  # copied, since the first step overwrites the state's arrays
        params = jax.device_put(params, tree_shardings(params, params, mesh), may_alias=False)
    state = jax.eval_shape(make, params)
    return jax.jit(make, out_shardings=tree_shardings(state, stored_params(state), mesh))(params)


def _first_state(config: TrainConfig, optimizer: optax.GradientTransformation, seed: int, params: Params) -> TrainState:
    """Returns the initial state with these complete parameters."""
    others, constants = functional.split_constants(params)
    if config.lora.rank or split_adapters(others)[1]:
        trained, frozen = add_adapters(others, config.lora, seed)
    else:
        trained, frozen = split_frozen(others, config.freeze)
    average = jax.tree.map(jnp.copy, trained) if config.ema_decay else {}
    return TrainState(
        jnp.zeros((), jnp.int32), trained, frozen, constants, optimizer.init(trained), average, jnp.ones(())
    )


def abstract_state(
    model: TransformerConfig,
    config: TrainConfig | None = None,
    *,
    optimizer: optax.GradientTransformation | None = None,
    mesh: Mesh | None = None,
) -> TrainState:
    """Returns the shapes, dtypes and shardings of `init_state` as `jax.ShapeDtypeStruct`s.

    Args:
      model: as in `init_state`.
      config: as in `init_state`.
      optimizer: as in `init_state`.
      mesh: the devices, or those of a topology that isn't attached.

    Raises:
      ConfigError, FreezeError, ValueError: see `init_state`.

    Example:
      >>> import optax
      >>> from jax_transformer import TransformerConfig
      >>> from jax_transformer.training import abstract_state
      >>> config = TransformerConfig(source_vocab_size=7, target_vocab_size=7, d_model=8, num_heads=2, d_ff=8)
      >>> abstract_state(config, optimizer=optax.sgd(0.1)).params["head"]["kernel"].shape
      (8, 7)
    """
    drawn = functional.abstract_params(model)
    state = state_shapes(model, config, drawn, optimizer=optimizer)
    if mesh is None:
        return state
    check_divides(model, mesh)
    shardings = tree_shardings(state, stored_params(state), mesh)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state, shardings
    )


def state_shapes(
    model: TransformerConfig,
    config: TrainConfig | None,
    params: Params,
    *,
    optimizer: optax.GradientTransformation | None = None,
) -> TrainState:
    """Returns the shapes and dtypes of `init_state` for initial parameters of these shapes.

    Raises:
      AdapterError, FreezeError, ValueError: see `init_state`.
    """
    config, optimizer, _ = resolve_optimizer("init_state", model, config, optimizer)
    state: TrainState = jax.eval_shape(partial(_first_state, config, optimizer, config.seed), params)
    return state


def resolve_optimizer(
    function: str, model: TransformerConfig, config: TrainConfig | None, optimizer: optax.GradientTransformation | None
) -> tuple[TrainConfig, optax.GradientTransformation, optax.Schedule | None]:
    """Returns the config, the optimizer and, if the optimizer is the config's own, its learning rates.

    Raises:
      ValueError: neither `config` nor `optimizer`, or values of the wrong type.
    """
    check_config(function, model)
    if config is not None and not isinstance(config, TrainConfig):
        raise ValueError(f"{function}: config: expected a TrainConfig; received {type(config).__name__}")
    if optimizer is not None and not isinstance(optimizer, optax.GradientTransformation):
        raise ValueError(
            f"{function}: optimizer: expected an Optax optimizer, such as optax.adamw(1e-3); received "
            f"{type(optimizer).__name__}"
        )
    if optimizer is not None:
        return config or PLAIN, optimizer, None
    if config is None:
        raise ValueError(
            f"{function}: expected optimizer=, such as optax.adamw(1e-3), or config=, a TrainConfig; received neither"
        )
    schedule = make_schedule(config, model.d_model)
    return config, make_optimizer(config, schedule), schedule
