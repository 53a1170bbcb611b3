"""Runs a JAX function of weights by name, to freeze it or to compare it with a frozen reference."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jax_transformer.comparison.capture import OWN
from jax_transformer.comparison.gates.arrays import Arrays
from jax_transformer.comparison.gates.rounding import loss_factor, nudged
from jax_transformer.comparison.precision import QUICKLY, in_bits, on_device, understood, wide
from jax_transformer.comparison.sides import CannotRun
from jax_transformer.comparison.user_errors import cannot_run, shapes_of
from jax_transformer.frozen.optimizers import OWN_OPTIMIZER, jax_optimizer
from jax_transformer.frozen.record import STEPS
from jax_transformer.frozen.runs import OWN_TYPE, Nudge, Trained, factors


def _unchanged(weights: Arrays) -> Arrays:
    return weights


class JaxRunner:
    """Runs a function (leaves by name, inputs by name) → an array, on weights that the leaves consist of.

    Args:
      dtype: the floating-point type in which it runs.
      trained: the weights to differentiate by.
      carry: weights → leaves.
      back: gradients by leaf → gradients by weight.
      loss: output → a scalar; None: the output times fixed random numbers is summed.
      optimizer: one of optax, for the steps; None: one that is stated.
    """

    def __init__(
        self,
        function: Callable[[Mapping[str, Any], Mapping[str, Any]], Any],
        name: str,
        inputs: Arrays,
        weights: Arrays,
        dtype: str,
        trained: Sequence[str],
        loss: Callable[..., Any] | None = None,
        optimizer: Any = None,
        carry: Callable[[Arrays], Arrays] = _unchanged,
        back: Callable[[Arrays], Arrays] = _unchanged,
    ) -> None:
        self.carry, self.back = carry, back
        self._forward: dict[str, Any] = {}
        self._gradient: Any = None
        self.called, self.name, self.inputs, self.held = function, name, inputs, weights
        self.dtype, self.trained, self.loss, self.optimizer = dtype, tuple(trained), loss, optimizer

    def run(self, dtype: str, nudge: Nudge | None = None) -> dict[str, np.ndarray]:
        kind = self.dtype if dtype == OWN_TYPE else dtype
        with self._running(kind), in_bits(64 if kind == "float64" else 32):
            leaves, inputs = self._leaves(self._moved(kind, nudge), kind), self._inputs(kind)
            if kind not in self._forward:
                self._forward[kind] = _compiled(lambda leaves, inputs: self.called(leaves, inputs), leaves, inputs)
            return {OWN: wide(jnp.asarray(self._forward[kind](leaves, inputs)))}

    def rounds(self) -> bool:
        with self._running("float64"), in_bits(64):
            leaves = self._leaves(self._moved("float64", None), "float64")
            traced = jax.make_jaxpr(lambda leaves, inputs: self.called(leaves, inputs))(leaves, self._inputs("float64"))
        return re.search(r"\b(f32|bf16|f16|f8\w*)\[", str(traced)) is not None

    def train(self, optimizer: Mapping[str, Any] | None, nudge: Nudge | None = None) -> Trained:
        factor = 1.0 if nudge is None else loss_factor(nudge.draw)
        with self._running("float64"), in_bits(64):
            held = {name: np.asarray(array) for name, array in self._moved("float64", nudge).items()}
            inputs = self._inputs("float64")
            made = self._optimizer(optimizer)
            own = {name: held[name] for name in self.trained}
            update, state = None, None
            steps, losses, first = list[Arrays](), list[float](), dict[str, np.ndarray]()
            for step in range(1 if made is None else STEPS):
                loss, of_leaves = self._slope(self._leaves({**held, **own}, "float64"), inputs, factor)
                found = self.back({name: np.asarray(one) for name, one in of_leaves.items()})
                gradients = {name: found[name] / factor for name in self.trained if name in found}
                losses.append(float(loss) / factor)
                first = gradients if step == 0 else first
                if made is None:
                    continue
                if update is None:
                    own = {name: jnp.asarray(one) for name, one in own.items()}  # type: ignore[misc]
                    state = jax.jit(made.init, compiler_options=_options())(own)
                    update = jax.jit(_updated(made), compiler_options=_options())
                moved, state = update(gradients, state, own)
                own = {name: np.asarray(one) for name, one in moved.items()}
                steps.append(own)
        return Trained(first, tuple(losses), tuple(steps))

    def _slope(self, leaves: Mapping[str, Any], inputs: Mapping[str, Any], factor: float) -> tuple[Any, Any]:
        """Returns the loss times a factor, and its gradients by floating-point leaf."""
        floats = {name: one for name, one in leaves.items() if one.dtype == np.float64}
        rest = {name: one for name, one in leaves.items() if name not in floats}

        def value(floats: Mapping[str, Any], rest: Mapping[str, Any], inputs: Mapping[str, Any], factor: Any) -> Any:
            return factor * self._loss({**floats, **rest}, inputs)

        given = floats, rest, inputs, np.float64(factor)
        if self._gradient is None:
            self._gradient = _compiled(jax.value_and_grad(value), *given)
        found: tuple[Any, Any] = self._gradient(*given)
        return found

    def _loss(self, weights: Mapping[str, Any], inputs: Mapping[str, Any]) -> Any:
        output = self.called(weights, inputs)
        if not jnp.issubdtype(output.dtype, jnp.floating):
            raise CannotRun(f"{self.name}: expected floating-point outputs; {output.dtype} has no gradient")
        if self.loss is None:
            return jnp.sum(output * factors(output.shape))
        loss = self.loss(output)
        if jnp.shape(loss) != ():
            raise CannotRun(f"{self.name}: expected a loss that returns one number; received {list(jnp.shape(loss))}")
        return loss

    def _optimizer(self, held: Mapping[str, Any] | None) -> Any:
        if held is None:
            return None
        return self.optimizer if held["name"] == OWN_OPTIMIZER else jax_optimizer(held)

    def _moved(self, kind: str, nudge: Nudge | None) -> Arrays:
        wide = np.float64 if kind == "float64" else np.float32
        held = {name: array.astype(wide) if _is_float(array) else array for name, array in self.held.items()}
        return held if nudge is None else nudged(held, nudge.bits, nudge.draw)

    def _leaves(self, weights: Arrays, kind: str) -> dict[str, Any]:
        carried = self.carry(weights)
        return {name: on_device(array, kind if _is_float(array) else None) for name, array in carried.items()}

    def _inputs(self, kind: str) -> dict[str, Any]:
        return {name: on_device(array, kind if _is_float(array) else None) for name, array in self.inputs.items()}

    def _running(self, kind: str) -> Any:
        return cannot_run(f"{self.name}:", f"{shapes_of(self.inputs)} in {kind}")


def _updated(optimizer: Any) -> Callable[..., Any]:
    def updated(gradients: Any, state: Any, own: Any) -> Any:
        updates, state = optimizer.update(gradients, state, own)
        return {name: one + updates[name] for name, one in own.items()}, state

    return updated


def _compiled(function: Callable[..., Any], *given: Any) -> Any:
    """Compiles a function for arguments of these types, quickly."""
    return jax.jit(function, compiler_options=_options()).lower(*given).compile()


@cache
def _options() -> Any:
    return understood(QUICKLY)


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16
