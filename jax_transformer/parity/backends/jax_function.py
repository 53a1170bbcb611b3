"""A user's JAX function as a side of a parity run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.gates.compare import relative_rms
from jax_transformer.comparison.precision import in_force, in_precision, on_device, wide
from jax_transformer.comparison.sides import Arrays, CannotRun, Dtype
from jax_transformer.comparison.user_errors import shapes_of
from jax_transformer.config.decoding import DecodingConfig
from jax_transformer.parity.backends.jax_model import mean_loss
from jax_transformer.parity.backends.parameters import cast
from jax_transformer.parity.backends.side import Gradients, Hypotheses, Plan, Training, layer_by_layer
from jax_transformer.parity.problems import Problem
from jax_transformer.parity.rules import BUILT_IN, NO_PROGRAMS, Programs, Rules
from jax_transformer.programs.raised import RAISED, in_short
from jax_transformer.runtime.trees import flatten
from jax_transformer.storage.model_directory import Model

Function = Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[Any, Mapping[str, Any]]]
"""(params, {"source_ids", "decoder_input_ids"}) → (logits [B, T, V], activations by our names)."""


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
        """Does nothing: no work takes long."""

    def rest(self) -> None:
        """Does nothing: it holds no memory."""

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
        """Raises ParityError for a function that can't be called on a problem, or returns no logits of its shape."""
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
        """Returns a value of the trace as an array. Raises ParityError for anything else."""
        try:
            return wide(jnp.asarray(value))
        except (TypeError, ValueError) as error:
            raise ParityError(
                f"candidate {self.name}: expected arrays in the trace; {name} is a {type(value).__name__}"
            ) from error

    def _doubt_others(self, values: np.ndarray, plain: np.ndarray, what: str, allowed: float) -> None:
        """Doubts a function whose logits depend on how it is watched."""
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
        inputs = {
            "source_ids": on_device(problem.source_ids),
            "decoder_input_ids": on_device(problem.decoder_input_ids),
        }
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
        """Returns the gradients of parameters alone; those of activations can't be reached inside a function."""

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
