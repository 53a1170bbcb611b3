"""Computes the candidate's outputs for a proof, as functions of its leaves, under the names that the proof compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jax_transformer.comparison.lowering import GRADIENT
from jax_transformer.comparison.sides import CannotRun
from jax_transformer.model import functional
from jax_transformer.parallel.tracing import divide_rows
from jax_transformer.parity.backends.jax_sides import FunctionSide, JaxSide, mean_loss
from jax_transformer.parity.backends.side import layer_by_layer
from jax_transformer.parity.problems import Problem
from jax_transformer.runtime.trees import flatten
from jax_transformer.training.optimizers import make_optimizer
from jax_transformer.training.state import init_state
from jax_transformer.training.step import StepFunctions

LOSS = "loss"
RATES = "learning rates"
"""Name of the input with the rate of each step, [steps]: steps are proven for all rates."""


def after(step: int) -> str:
    """Returns the prefix of parameters' paths after a number of steps."""
    return f"after step {step}: "


def outputs(side: JaxSide | FunctionSide, params: Any, problem: Problem, *, gradients: bool) -> dict[str, Any]:
    """Returns activations, the loss, and its gradients."""
    loss: Callable[[Any], tuple[Any, Mapping[str, Any]]]
    if isinstance(side, FunctionSide):
        loss = partial(_function_loss, side, problem)
    else:
        loss = partial(_model_loss, side, problem)
    with _tracing(side):
        if not gradients:
            value, trace = loss(params)
            return {**trace, LOSS: value}
        (value, trace), to_params = jax.value_and_grad(loss, has_aux=True)(params)
        return {**trace, LOSS: value, **_named(GRADIENT, to_params)}


def _function_loss(side: FunctionSide, problem: Problem, params: Any) -> tuple[Any, Mapping[str, Any]]:
    logits, trace = side._call(params, problem, "float64")
    return side.mean_loss(logits, jnp.asarray(problem.labels)), {**trace, "logits": logits}


def _model_loss(side: JaxSide, problem: Problem, params: Any) -> tuple[Any, Mapping[str, Any]]:
    """Computes on the side's devices, and drops the rows that were appended for them."""
    devices, filled = side.devices, side.filled_up(problem)
    mean = mean_loss(side.config, side.train_config, side.programs, is_filled_up=devices.mesh is not None)
    logits, trace = functional.apply(side.config, params, *jax.tree.map(jnp.asarray, filled.inputs), return_trace=True)
    own = jax.tree.map(lambda value: devices.own_rows(value, problem, filled), trace)  # in execution order
    return mean(logits, jnp.asarray(filled.labels)), own


def _tracing(side: JaxSide | FunctionSide) -> AbstractContextManager[Any]:
    return nullcontext() if isinstance(side, FunctionSide) else side.devices.tracing()


def steps(
    side: JaxSide | FunctionSide, params: Any, rates: Any, problem: Problem, shown: tuple[int, ...]
) -> dict[str, Any]:
    """Returns the parameters after some optimizer steps, and the first loss. (Every loss is the same function of the
    current parameters.)

    Args:
      rates: the learning rates, [steps].
      shown: numbers of steps after which to return the parameters.

    Raises:
      CannotRun: the side is a function, which has no optimizer.
    """
    if isinstance(side, FunctionSide):
        raise CannotRun("the candidate is a function, without an optimizer")
    from jax_transformer.data.batching import Batch
    from jax_transformer.proof.jax_programs import cut

    train = replace(side.train_config, schedule="constant", warmup_steps=0)
    optimizer = side.programs.optimizer or make_optimizer(train, lambda count: rates[count])
    state = init_state(side.config, train, params, optimizer=optimizer)
    step = StepFunctions.of("parity", side.config, train, optimizer, loss=side.programs.loss, mesh=side.devices.mesh)
    filled = side.filled_up(problem)
    found: dict[str, Any] = {}
    with _tracing(side):
        batch = divide_rows(Batch(filled.source, filled.decoder_input_ids, filled.labels), train.accumulate)
        for number in range(1, max(shown) + 1):
            tokens = step.count(batch)
            mean, gradients = step.gradients(state, batch, tokens, step.dropout_key(state))
            state, _ = step.update(state, mean, tokens, cut(gradients, is_weight=False))
            found.setdefault(LOSS, mean)
            if number in shown:
                found |= _named(after(number), state.params)
            state = state._replace(params=cut(state.params, is_weight=True))
    return found


def _named(prefix: str, tree: Any) -> dict[str, Any]:
    trained = {path: leaf for path, leaf in flatten(tree).items() if not path.startswith("constants/")}
    return {prefix + path: leaf for path, leaf in layer_by_layer(trained).items()}
