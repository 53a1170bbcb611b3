"""The model here as a side of a parity run."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.data.batching import Batch
from jax_transformer.decoding.generation import generate
from jax_transformer.model import functional
from jax_transformer.model.functional import Params
from jax_transformer.parity.backends.side import (
    Arrays,
    Dtype,
    Gradients,
    Plan,
    Training,
    layer_by_layer,
    starts_and_ends,
)
from jax_transformer.parity.backends.training_setup import SETUP
from jax_transformer.parity.problems import Problem
from jax_transformer.runtime.trees import flatten, map_leaves, unflatten
from jax_transformer.storage.model_directory import Model
from jax_transformer.training.losses import Criterion, cross_entropy
from jax_transformer.training.step import TrainState, all_params, init_state, make_train_step

QUICKLY = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""On a CPU, for programs that run once: the same operations, compiled in a third of the time."""


class JaxSide:
    """A config with parameters, computed by `model.functional`, `training.step` and `decoding.generation`, without
    dropout."""

    def __init__(self, name: str, model: Model) -> None:
        self.name = name
        self.config = dataclasses.replace(without_dropout(model.config), attention_path="reference", compute_dtype=None)
        self.params, self.generation = model.params, model.generation
        self._programs: dict[Any, Future[Any]] = {}
        self._decoded: dict[Any, Future[np.ndarray]] = {}

    def in_force(self, dtype: Dtype) -> Mapping[str, Any]:
        return in_force(dtype)

    def rest(self) -> None:
        """Parameters are put on the device anew each time."""

    def weights(self) -> Arrays:
        return layer_by_layer(map_leaves(np.asarray, flatten(self.params)))

    def forward(self, problem: Problem, dtype: Dtype) -> Arrays:
        with in_precision(dtype):
            _, trace = _forward()(self.config, cast(problem.params, dtype), *problem.ids)
            return {name: wide(value) for name, value in trace.items()}

    def gradients(self, problem: Problem) -> Gradients:
        compiled = self._program(_compiled_gradients, problem).result()
        with in_precision("float64"):
            params = cast(problem.params, "float64")
            zeros = {
                name: np.zeros(value.shape, value.dtype) for name, value in _activations(self.config, problem).items()
            }
            loss, (of_params, of_activations) = compiled(params, zeros, *problem.ids, problem.labels)
            parameters = {
                path: np.asarray(leaf) for path, leaf in flatten(of_params).items() if not path.startswith("constants/")
            }
            return Gradients(
                float(loss), layer_by_layer(parameters), {name: np.asarray(of_activations[name]) for name in zeros}
            )

    def get_ready(self, plan: Plan) -> None:
        """Compiles what takes longest, and decodes, while other things are done."""
        if {"loss", "gradients"} & {*plan.stages}:
            self._program(_compiled_gradients, plan.problem)
        if {"step", "trajectory"} & {*plan.stages}:
            self._program(_compiled_step, plan.problem)
        if plan.decoded is not None:
            work = (plan.decoded, 1, plan.max_new_tokens)
            self._decoded[work] = _WORKER.submit(self._decode, *work)

    def train(self, problem: Problem, steps: int, *, keep_all: bool) -> Training:
        compiled = self._program(_compiled_step, problem).result()
        with in_precision("float64"):
            state = init_state(self.config, SETUP, cast(problem.params, "float64"))
            losses, parameters, gradients = [], [_trained(state)] if keep_all else [], []
            for _ in range(steps):
                if keep_all:
                    gradients.append(self._parameter_gradients(problem, state))
                state, metrics = compiled(state, _batch(problem))
                losses.append(float(metrics["loss"]))
                if keep_all:
                    parameters.append(_trained(state))
            return Training(np.array(losses), tuple(parameters or [_trained(state)]), tuple(gradients))

    def _program(self, compiled: Callable[[TransformerConfig, Problem], Any], problem: Problem) -> Future[Any]:
        """Compiled once for each shape of batches."""
        key = compiled, problem.source_ids.shape, problem.decoder_input_ids.shape
        if key not in self._programs:
            self._programs[key] = _WORKER.submit(compiled, self.config, problem)
        return self._programs[key]

    def _parameter_gradients(self, problem: Problem, state: TrainState) -> Arrays:
        at = dataclasses.replace(problem, params=map_leaves(np.asarray, all_params(state)))
        return self.gradients(at).parameters

    def decode(self, problem: Problem, beam_size: int, max_new_tokens: int) -> np.ndarray:
        under_way = self._decoded.pop((problem, beam_size, max_new_tokens), None)
        return under_way.result() if under_way is not None else self._decode(problem, beam_size, max_new_tokens)

    def _decode(self, problem: Problem, beam_size: int, max_new_tokens: int) -> np.ndarray:
        starts_and_ends(self.generation)
        with in_precision("float64"):
            generation = self.generation.without_decoding()  # the torch side knows no forced ids, nor other rules
            model = Model(self.config, cast(problem.params, "float64"), None, None, generation)
            generated = generate(model, problem.source_ids, beam_size=beam_size, max_new_tokens=max_new_tokens)
            return generated.sequences[:, 0]


def without_dropout(config: TransformerConfig) -> TransformerConfig:
    rates = {
        name: 0.0 if name in ("dropout_rate", "output_dropout_rate") else None
        for name in config.__dataclass_fields__
        if name.endswith("dropout_rate")
    }
    return dataclasses.replace(config, **rates)  # type: ignore[arg-type]


def in_force(dtype: Dtype) -> dict[str, Any]:
    """Returns the precision in which JAX computes when asked for this dtype."""
    with in_precision(dtype):
        precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
        return {
            "dtype": jnp.zeros(1, dtype).dtype.name,
            "matmul precision": precision,
            "device": jax.devices()[0].platform,
        }


@contextlib.contextmanager
def in_precision(dtype: Dtype) -> Iterator[None]:
    """Matrix products as exact as the dtype; float64 where it is asked for."""
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision("highest"):
        yield


def understood(options: dict[str, Any]) -> dict[str, Any] | None:
    """The options, if this is a CPU whose compiler knows them; else none."""
    if jax.default_backend() != "cpu":
        return None
    try:
        jax.jit(jnp.negative, compiler_options=options).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:  # options come and go with XLA's versions
        return None
    return options


@cache
def _options() -> Any:
    """Returns the compiler's options. Asks the backend, so not before something is compiled."""
    return understood(QUICKLY)


@cache
def _forward() -> Any:
    apply = partial(functional.apply, return_trace=True)
    return jax.jit(apply, static_argnums=0, compiler_options=_options())


_WORKER = ThreadPoolExecutor(1)


def _compiled_gradients(config: TransformerConfig, problem: Problem) -> Any:
    """(params, zeros to be added to activations, source_ids, decoder_input_ids, labels) → the loss and its gradients to
    the first two."""
    criterion = Criterion(config.target_pad_id, SETUP.label_smoothing, SETUP.smoothing, SETUP.loss_counts_pads)

    def loss(params: Params, add: dict[str, Any], source_ids: Any, decoder_input_ids: Any, labels: Any) -> jax.Array:
        total, tokens = cross_entropy(
            functional.apply(config, params, source_ids, decoder_input_ids, add=add), labels, criterion
        )
        return total / tokens

    with in_precision("float64"):
        program = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
        lowered = program.lower(_in_float64(problem), _activations(config, problem), *problem.ids, problem.labels)
        return lowered.compile(compiler_options=_options())


def _activations(config: TransformerConfig, problem: Problem) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes of all that has a gradient."""
    _, trace = jax.eval_shape(partial(functional.apply, config, return_trace=True), _in_float64(problem), *problem.ids)
    return {name: value for name, value in trace.items() if not name.startswith("mask.")}


def _compiled_step(config: TransformerConfig, problem: Problem) -> Any:
    with in_precision("float64"):
        state = jax.eval_shape(lambda params: init_state(config, SETUP, params), _in_float64(problem))
        step: Any = make_train_step(config, SETUP)
        return step.lower(state, _batch(problem)).compile(compiler_options=_options())


def _in_float64(problem: Problem) -> Params:
    """Returns the parameters in float64."""
    return map_leaves(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.float64), problem.params)


def _batch(problem: Problem) -> Batch:
    return Batch(problem.source_ids, problem.decoder_input_ids, problem.labels)


def _trained(state: TrainState) -> Arrays:
    return layer_by_layer({path: np.asarray(leaf) for path, leaf in flatten(state.params).items()})


def cast(params: Mapping[str, Any], dtype: Dtype) -> Params:
    """The parameters in that dtype, on the device; tables of positions in bfloat16 stay as they are, as a ported
    model's do."""

    def leaf_of(path: str, leaf: Any) -> jax.Array:
        keeps = dtype == "bfloat16" and path.startswith("constants/")
        return jnp.asarray(np.asarray(leaf, np.float32 if keeps else jnp.dtype(dtype)))

    return unflatten({path: leaf_of(path, leaf) for path, leaf in flatten(params).items()})


def wide(value: jax.Array) -> np.ndarray:
    return np.asarray(value.astype(jnp.float32) if value.dtype == jnp.bfloat16 else value)
