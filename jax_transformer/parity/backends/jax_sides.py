"""Runs JAX programs as sides of a parity run: this library's model, or a user's function."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.gates.compare import relative_rms
from jax_transformer.comparison.precision import QUICKLY, in_force, in_precision, on_device, understood, wide
from jax_transformer.comparison.sides import Arrays, CannotRun, Dtype
from jax_transformer.comparison.user_errors import shapes_of
from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.run import TrainConfig
from jax_transformer.config.short_names import STACKS
from jax_transformer.config.specs import Dropout
from jax_transformer.data.batching import Batch
from jax_transformer.decoding.generation import generate
from jax_transformer.model import functional
from jax_transformer.model.functional import Params
from jax_transformer.parallel.mesh import AnyMesh
from jax_transformer.parallel.tracing import divide_rows, on_mesh
from jax_transformer.parity.backends.devices import Devices
from jax_transformer.parity.backends.side import (
    Gradients,
    Halt,
    Hypotheses,
    Plan,
    Training,
    layer_by_layer,
    starts_and_ends,
)
from jax_transformer.parity.problems import Problem
from jax_transformer.parity.rules import BUILT_IN, NO_PROGRAMS, Programs, Rules
from jax_transformer.programs.raised import RAISED, in_short
from jax_transformer.runtime.trees import flatten, map_leaves, unflatten
from jax_transformer.storage.model_directory import Model
from jax_transformer.training.losses import Criterion, counted_tokens, cross_entropy, without_filling
from jax_transformer.training.optimizer_state import OptimizerStateError, continue_training, training_state
from jax_transformer.training.state import TrainState, all_params, init_state
from jax_transformer.training.step import StepFunctions, make_train_step


class JaxSide:
    """Computes a model by `model.functional`, `training.step` and `decoding.generation`, without dropout, with a user's
    own loss and optimizer if there are any."""

    doubts: tuple[str, ...] = ()

    def __init__(
        self,
        name: str,
        model: Model,
        rules: Rules = BUILT_IN,
        programs: Programs = NO_PROGRAMS,
        mesh: AnyMesh | None = None,
    ) -> None:
        self.name, self.train_config, self.programs, self.devices = name, rules.train, programs, Devices(mesh)
        self.config = without_dropout(model.config).replace(attention_path="reference", compute_dtype=None)
        self.params, self.generation = model.params, model.generation
        self._programs: dict[Any, Future[Any]] = {}
        self._decoded: dict[Any, Future[Hypotheses]] = {}

    def in_force(self, dtype: Dtype) -> Mapping[str, Any]:
        return in_force(dtype)

    def rest(self) -> None:
        """Does nothing: parameters are copied to the device for each run."""

    def weights(self) -> Arrays:
        return layer_by_layer(map_leaves(np.asarray, flatten(self.params)))

    def forward(self, problem: Problem, dtype: Dtype) -> Arrays:
        devices, filled = self.devices, self.filled_up(problem)
        with in_precision(dtype), devices.tracing():
            params = devices.params(cast(problem.params, dtype))
            _, trace = _forward()(self.config, params, *devices.ids(filled))
            return {name: devices.own_rows(wide(value), problem, filled) for name, value in trace.items()}

    def gradients(self, problem: Problem) -> Gradients:
        devices, filled = self.devices, self.filled_up(problem)
        compiled = self._program(_compiled_gradients, problem).result()
        with in_precision("float64"):
            params = devices.params(cast(problem.params, "float64"))
            zeros = {
                name: np.zeros(value.shape, value.dtype) for name, value in _activations(self.config, filled).items()
            }
            factor = np.float64(problem.loss_factor)
            loss, (to_params, to_activations) = compiled(params, zeros, *filled.inputs, filled.labels, factor)
            parameters = {
                path: np.asarray(leaf) / factor
                for path, leaf in flatten(to_params).items()
                if not path.startswith("constants/")
            }
            activations = {
                name: devices.own_rows(np.asarray(to_activations[name]), problem, filled) / factor for name in zeros
            }
            return Gradients(float(loss) / problem.loss_factor, layer_by_layer(parameters), activations)

    def get_ready(self, plan: Plan) -> None:
        """Starts the slowest compilations, and decoding, in the background."""
        if {"loss", "gradients"} & {*plan.stages}:
            self._program(_compiled_gradients, plan.problem)
        if {"step", "trajectory", "resume"} & {*plan.stages}:
            self._program(_compiled_step, plan.problem)
        if plan.decoded is not None:
            work = (plan.decoded, plan.decoding)
            self._decoded[work] = _WORKER.submit(self._decode, *work)

    def train(self, problem: Problem, steps: int, *, keep_all: bool) -> Training:
        keeps_gradients = keep_all or problem.loss_factor != 1.0
        compiled = self._program(_compiled_step_with_gradients if keeps_gradients else _compiled_step, problem).result()
        with in_precision("float64"):
            params = cast(problem.params, "float64")
            state = init_state(
                self.config, self.train_config, params, optimizer=self.programs.optimizer, mesh=self.devices.real
            )
            batch = _batch(self.filled_up(problem))
            losses, parameters, gradients = [], [_trained(state)] if keep_all else [], []
            for _ in range(steps):
                if keeps_gradients:
                    state, metrics, step_gradients = compiled(state, batch, np.float64(problem.loss_factor))
                else:
                    state, metrics = compiled(state, batch)
                if keep_all:
                    gradients.append(_by_layer(step_gradients))
                    parameters.append(_trained(state))
                losses.append(float(metrics["loss"]))
            return Training(np.array(losses), tuple(parameters or [_trained(state)]), tuple(gradients))

    def resume(self, problem: Problem, steps: int, halt: Halt | None = None) -> Halt:
        if self.programs.optimizer is not None:
            raise CannotRun("the candidate's optimizer is a user's, whose state no table relates to PyTorch's")
        compiled, train = self._program(_compiled_step, problem).result(), self.train_config
        with in_precision("float64"):
            params = cast(problem.params if halt is None else halt.params, "float64")
            state = init_state(self.config, train, params, mesh=self.devices.real)
            losses = []
            try:
                state = state if halt is None else continue_training(state, halt.state, train)
                for _ in range(steps):
                    state, metrics = compiled(state, _batch(self.filled_up(problem)))
                    losses.append(float(metrics["loss"]))
                return Halt(map_leaves(np.asarray, all_params(state)), training_state(state, train), np.array(losses))
            except OptimizerStateError as reason:
                raise CannotRun(str(reason)) from None

    def _program(self, compiled: Callable[..., Any], problem: Problem) -> Future[Any]:
        """Compiles a program in the background, once for each shape of batches."""
        key = compiled, problem.source_ids.shape, problem.decoder_input_ids.shape
        if key not in self._programs:
            self._programs[key] = _WORKER.submit(
                compiled, self.config, self.train_config, self.programs, self.devices, self.filled_up(problem)
            )
        return self._programs[key]

    def filled_up(self, problem: Problem) -> Problem:
        """Appends rows to a problem until the devices divide them; see `Devices`."""
        return self.devices.filled_up(problem, self.config.target.pad_id)

    def decode(self, problem: Problem, decoding: DecodingConfig) -> Hypotheses:
        prepared = self._decoded.pop((problem, decoding), None)
        return prepared.result() if prepared is not None else self._decode(problem, decoding)

    def _decode(self, problem: Problem, decoding: DecodingConfig) -> Hypotheses:
        starts_and_ends(self.generation)
        with in_precision("float64"):
            generation = self.generation.without_decoding()  # the torch side applies no forced ids or other rules
            model = Model(self.config, cast(problem.params, "float64"), None, None, generation)
            best = generate(self.devices.prepared(model), problem.source, decoding)
            return Hypotheses(best.sequences[:, 0], best.scores[:, 0])


def without_dropout(config: TransformerConfig) -> TransformerConfig:
    stacks = {name: dataclasses.replace(getattr(config, name), dropout=Dropout(rate=0.0)) for name in STACKS}
    return dataclasses.replace(config, **stacks)


@cache
def _options() -> Any:
    """Returns the compiler's options, lazily, since this initialises the backend."""
    return understood(QUICKLY)


@cache
def _forward() -> Any:
    apply = partial(functional.apply, return_trace=True)
    return jax.jit(apply, static_argnums=0, compiler_options=_options())


_WORKER = ThreadPoolExecutor(1)
FACTOR = jax.ShapeDtypeStruct((), np.float64)
"""Shape of the loss's factor; see `Problem.loss_factor`."""


def mean_loss(
    config: TransformerConfig, train: TrainConfig, programs: Programs, *, is_filled_up: bool = False
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Returns a function (logits [B, T, V], labels [B, T]) → the mean loss of the labels that count, by the rule or by
    a user's program. If the batch `is_filled_up`, rows with only pads as labels never count."""
    criterion = Criterion(config.target.pad_id, train.label_smoothing, train.smoothing, train.loss_counts_pads)

    def loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
        labels = without_filling(labels, criterion) if is_filled_up else labels
        if programs.loss is None:
            total, tokens = cross_entropy(logits, labels, criterion)
        else:
            counted = counted_tokens(labels, criterion)
            total, tokens = jnp.where(counted, programs.loss(logits, labels), 0.0).sum(), counted.sum()
        return total / tokens

    return loss


def _compiled_gradients(
    config: TransformerConfig, train: TrainConfig, programs: Programs, devices: Devices, problem: Problem
) -> Any:
    """Compiles (params, zeros to add to activations, source_ids, decoder_input_ids, labels, factor) → the loss times
    the factor, and its gradients to the first two arguments."""
    mean = mean_loss(config, train, programs, is_filled_up=devices.mesh is not None)

    def loss(
        params: Params, add: dict[str, Any], source_ids: Any, decoder_input_ids: Any, labels: Any, factor: Any
    ) -> jax.Array:
        return factor * mean(functional.apply(config, params, source_ids, decoder_input_ids, add=add), labels)

    with in_precision("float64"), devices.tracing():
        program = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
        params, batch = devices.abstract_params(_in_float64(problem)), (*problem.inputs, problem.labels)
        lowered = program.lower(params, _activations(config, problem), *devices.abstract_rows(batch), FACTOR)
        return lowered.compile(compiler_options=_options())


def _activations(config: TransformerConfig, problem: Problem) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns shapes and dtypes of the activations that have gradients."""
    _, trace = jax.eval_shape(
        partial(functional.apply, config, return_trace=True), _in_float64(problem), *problem.inputs
    )
    return {name: value for name, value in trace.items() if not name.startswith("mask.")}


def _compiled_step(
    config: TransformerConfig, train: TrainConfig, programs: Programs, devices: Devices, problem: Problem
) -> Any:
    step = make_train_step(config, train, optimizer=programs.optimizer, loss=programs.loss, mesh=devices.real)
    return _compiled_for_states(step, config, train, programs, devices, problem)


def _compiled_step_with_gradients(
    config: TransformerConfig, train: TrainConfig, programs: Programs, devices: Devices, problem: Problem
) -> Any:
    """Compiles (state, batch, factor of the loss) → the next state, its metrics, and the gradients that the update
    reads. A separate program's gradients would differ in their last bits, and where gradients are nearly zero, Adam
    turns such differences into whole steps."""
    parts = StepFunctions.of("parity", config, train, programs.optimizer, loss=programs.loss, mesh=devices.mesh)

    def step(state: TrainState, batch: Batch, factor: jax.Array) -> tuple[TrainState, Any, Params]:
        batch = divide_rows(batch, train.accumulate)
        tokens = parts.count(batch)
        found = parts.gradients(state, batch, tokens / factor, parts.dropout_key(state))
        mean, computed = jax.tree.map(lambda value: value / factor, found)
        gradients = jax.lax.optimization_barrier(computed)  # otherwise the update may read a differently rounded copy
        return *parts.update(state, mean, tokens, gradients), gradients

    jitted = jax.jit(on_mesh(step, devices.real))
    return _compiled_for_states(jitted, config, train, programs, devices, problem, FACTOR)


def _compiled_for_states(
    step: Any,
    config: TransformerConfig,
    train: TrainConfig,
    programs: Programs,
    devices: Devices,
    problem: Problem,
    *more: jax.ShapeDtypeStruct,
) -> Any:
    """Compiles a function of a training state, a batch, and optionally more."""
    with in_precision("float64"):
        state = jax.eval_shape(
            lambda params: init_state(config, train, params, optimizer=programs.optimizer), _in_float64(problem)
        )
        state = devices.abstract_state(state)
        return step.lower(state, devices.abstract_rows(_batch(problem)), *more).compile(compiler_options=_options())


def _in_float64(problem: Problem) -> Params:
    """Returns the shapes of the parameters, in float64."""
    return map_leaves(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.float64), problem.params)


def _batch(problem: Problem) -> Batch:
    return Batch(problem.source, problem.decoder_input_ids, problem.labels)


def _trained(state: TrainState) -> Arrays:
    return _by_layer(state.params)


def _by_layer(params: Params) -> Arrays:
    return layer_by_layer({path: np.asarray(leaf) for path, leaf in flatten(params).items()})


def cast(params: Mapping[str, Any], dtype: Dtype) -> Params:
    """Returns the parameters in the dtype, on the device. With bfloat16, constants stay in float32, as in a ported
    model."""

    def leaf_of(path: str, leaf: Any) -> jax.Array:
        keeps = dtype == "bfloat16" and path.startswith("constants/")
        return on_device(leaf, "float32" if keeps else dtype)

    return unflatten({path: leaf_of(path, leaf) for path, leaf in flatten(params).items()})


# --- a function


Function = Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[Any, Mapping[str, Any]]]
"""(params, {"source_ids", "decoder_input_ids"}) → (logits [B, T, V], activations by our names). With a stem, source_ids
are `Features`."""


class FunctionSide:
    """Runs a function on the model's parameters, a nested dict."""

    def __init__(
        self,
        name: str,
        function: Any,
        model: Model,
        rules: Rules = BUILT_IN,
        programs: Programs = NO_PROGRAMS,
    ) -> None:
        if not callable(function):
            raise ParityError(
                f"candidate {name}: expected a function (params, inputs) → (logits, trace); received "
                f"{type(function).__name__}"
            )
        self.name, self.function, self.params, self.config = name, function, model.params, model.config
        self.doubts: dict[str, None] = {}
        self.mean_loss = mean_loss(model.config, rules.train, programs)

    def in_force(self, dtype: Dtype) -> Mapping[str, Any]:
        return in_force(dtype)

    def get_ready(self, plan: Plan) -> None:
        """Does nothing: there is no slow work."""

    def rest(self) -> None:
        """Does nothing: there is no memory to free."""

    def weights(self) -> Arrays:
        return layer_by_layer({path: np.asarray(leaf) for path, leaf in flatten(self.params).items()})

    def forward(self, problem: Problem, dtype: Dtype) -> Arrays:
        with in_precision(dtype):
            logits, trace = self._call(cast(problem.params, dtype), problem, dtype)
            found = {name: self._array(name, value) for name, value in trace.items()}
            returned = self._array("logits", logits)
        if "logits" in found:
            self._doubt_others(
                found["logits"], returned, f"its trace shows other logits ({problem.name}, {dtype})", 0.0
            )
        return found | {"logits": returned}

    def check(self, problem: Problem) -> None:
        """Raises ParityError if the function can't be called on a problem, or returns logits of the wrong shape."""
        try:
            logits = self.forward(problem, "float32")["logits"]
        except CannotRun as reason:
            raise ParityError(str(reason)) from reason
        expected = (*problem.decoder_input_ids.shape, self.config.target.vocab_size)
        if logits.shape != expected:
            raise ParityError(
                f"candidate {self.name}: expected logits {list(expected)} [B, T, V]; received {list(logits.shape)}"
            )

    def _array(self, name: str, value: Any) -> np.ndarray:
        """Converts a value of the trace to an array. Raises ParityError if that is impossible."""
        try:
            return wide(jnp.asarray(value))
        except (TypeError, ValueError) as error:
            raise ParityError(
                f"candidate {self.name}: expected arrays in the trace; {name} is a {type(value).__name__}"
            ) from error

    def _doubt_others(self, values: np.ndarray, plain: np.ndarray, what: str, allowed: float) -> None:
        """Adds a doubt if the function's logits depend on how it is called."""
        if values.shape != plain.shape:
            self.doubts[f"the candidate's logits depend on how they are asked for: {what}, of another shape"] = None
        elif not np.array_equal(values, plain, equal_nan=True):
            apart = relative_rms(values, plain)
            if not apart <= allowed:
                self.doubts[
                    f"the candidate's logits depend on how they are asked for: {what}, off by a relative RMS of "
                    f"{apart:.1e}"
                ] = None

    def _call(self, params: Any, problem: Problem, dtype: Dtype) -> tuple[Any, Mapping[str, Any]]:
        source, target = jax.tree.map(on_device, problem.inputs)
        inputs = {"source_ids": source, "decoder_input_ids": target}
        try:
            result = self.function(params, inputs)
        except RAISED as error:
            raise CannotRun(
                f"candidate {self.name}: raised {in_short(error)}, on {shapes_of(inputs)} in {dtype}"
            ) from error
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise ParityError(
                f"candidate {self.name}: expected (logits, trace), the trace a mapping; received "
                f"{type(result).__name__}"
            )
        received = jnp.asarray(result[0]).dtype
        if dtype == "float64" and received != np.float64:
            raise CannotRun(
                f"the candidate gives {received} logits for float64 parameters: they can't be judged in float64"
            )
        return result

    def gradients(self, problem: Problem) -> Gradients:
        """Returns only the gradients of parameters: those of activations inside a function are inaccessible."""

        def loss(params: Any) -> tuple[jax.Array, Any]:
            logits = self._call(params, problem, "float64")[0]
            return problem.loss_factor * self.mean_loss(logits, jnp.asarray(problem.labels)), logits

        plain = self.forward(problem, "float64")["logits"]
        with in_precision("float64"):
            given = cast(problem.params, "float64")
            try:
                (value, logits), gradients = jax.value_and_grad(loss, has_aux=True)(given)
            except (CannotRun, ParityError):
                raise
            except RAISED as error:
                raise CannotRun(f"candidate {self.name}: can't be differentiated: {in_short(error)}") from error
            self._doubt_others(
                np.asarray(logits),
                plain,
                f"they are others while JAX differentiates ({problem.name})",
                tolerances.FLOAT64_RELATIVE_RMS,
            )
            parameters = {
                path: np.asarray(leaf) / problem.loss_factor
                for path, leaf in flatten(gradients).items()
                if not path.startswith("constants/")
            }
            return Gradients(float(value) / problem.loss_factor, layer_by_layer(parameters), {})

    def train(self, problem: Problem, steps: int, *, keep_all: bool) -> Training:
        raise CannotRun("the candidate is a function, without an optimizer: leave the stage out with --stages")

    def decode(self, problem: Problem, decoding: DecodingConfig) -> Hypotheses:
        raise CannotRun("the candidate is a function, which doesn't decode: leave the stage out with --stages")
