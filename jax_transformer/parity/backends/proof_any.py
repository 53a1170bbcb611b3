"""Lower any two programs to be compared for all weights: JAX functions and PyTorch modules, with the same weights."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.parity.backends.capture import OWN, Watched, watch
from jax_transformer.parity.backends.copies import check_copyable, copied
from jax_transformer.parity.backends.precision import in_precision
from jax_transformer.parity.backends.proof_jax import GRADIENT, is_masked
from jax_transformer.parity.backends.side import Arrays, CannotRun
from jax_transformer.parity.backends.torch_precision import deterministic
from jax_transformer.parity.backends.user_errors import cannot_run, shapes_of
from jax_transformer.parity.gates.arrays import ParityError
from jax_transformer.proof import Program, Task, UnknownOperation
from jax_transformer.storage.tensor_mappings import as_arrays

if TYPE_CHECKING:
    import torch
    from torch import nn

INPUT = "input "
"""Precedes the names of floating-point inputs, for all of which a proof holds."""
COTANGENT = "cotangent"
"""The input that the output is multiplied by before it is differentiated."""

OF_SOFTMAX = re.compile(r"@(logits|weights)(#\d+)?$")
"""Ends the names of what a softmax inside a module reads and returns."""


@dataclass(frozen=True)
class AnyProgram:
    """A JAX function (params, inputs) → outputs or (outputs, trace), or a PyTorch module."""

    name: str
    program: Callable[..., Any] | nn.Module
    inputs: Arrays
    weights: Arrays
    """By the program's own names."""

    @cached_property
    def is_module(self) -> bool:
        return hasattr(self.program, "state_dict")

    def lower(self, *, gradients: bool) -> Program:
        """Lowers it on its inputs.

        Raises:
          UnknownOperation: an operation has no rule, or control flow depends on weights.
          CannotRun: it raises.
          ParityError: it returns something else than arrays.
        """
        with cannot_run(f"{self.name}:", f"{shapes_of(self.inputs)} in float64"):
            return self._lower_module(gradients) if self.is_module else self._lower_function(gradients)

    @property
    def floats(self) -> dict[str, np.ndarray]:
        return {
            INPUT + name: array.astype(np.float64) for name, array in self.inputs.items() if array.dtype.kind == "f"
        }

    def _lower_function(self, gradients: bool) -> Program:
        from jax_transformer.proof.jax_programs import lower

        def outputs(given: Mapping[str, Any]) -> dict[str, Any]:
            given = {name: jnp.asarray(array) for name, array in given.items()}
            inputs = {name: given.get(INPUT + name, jnp.asarray(array)) for name, array in self.inputs.items()}
            weights = {name: given[name] for name in self.weights}
            if not gradients:
                return self._called(weights, inputs)

            def product(weights: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
                found = self._called(weights, inputs)
                return (found[OWN] * given[COTANGENT]).sum(), found

            of_weights, found = jax.grad(product, has_aux=True)(weights)
            return {**found, **{GRADIENT + name: gradient for name, gradient in of_weights.items()}}

        more = {}
        with in_precision("float64"):
            if gradients:
                shape = jax.eval_shape(self._called, self._float64_weights, self._float64_inputs)[OWN].shape
                more = {COTANGENT: np.zeros(shape)}
            return lower(outputs, {**self._float64_weights, **self.floats, **more})

    def _called(self, weights: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the function's trace and output by name."""
        assert callable(self.program)
        result = self.program(weights, inputs)
        output, trace = result if isinstance(result, tuple) else (result, {})
        if not isinstance(trace, Mapping) or not hasattr(output, "shape"):
            kinds = ", ".join(type(one).__name__ for one in (output, trace))
            raise ParityError(
                f"{self.name}: expected an array, or (array, trace), the trace a mapping; received {kinds}"
            )
        return {**trace, OWN: output}

    @property
    def _float64_weights(self) -> dict[str, np.ndarray]:
        return {name: np.asarray(array, np.float64) for name, array in self.weights.items()}

    @property
    def _float64_inputs(self) -> dict[str, np.ndarray]:
        return {name: self.floats.get(INPUT + name, array) for name, array in self.inputs.items()}

    def _lower_module(self, gradients: bool) -> Program:
        import torch

        from jax_transformer.proof.torch_programs import lower
        from jax_transformer.proof.torch_reruns import check_again

        original: Any = self.program
        check_copyable(original)
        module: Any = copied(original).to(torch.float64)
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in self._float64_inputs.items()}
        held = module.state_dict(keep_vars=True)
        for name, tensor in held.items():
            if tensor.is_complex():
                raise UnknownOperation("input", "", f"{name} is complex")
        read = {name: held[name] for name in self.weights}
        read |= {name: tensors[name.removeprefix(INPUT)] for name in self.floats}
        cotangent = self._cotangent(tensors) if gradients else None
        if cotangent is not None:
            read[COTANGENT] = cotangent

        def outputs() -> dict[str, torch.Tensor]:
            given = {name: tensor.clone() for name, tensor in tensors.items()}  # which it may change
            with deterministic():
                if not gradients:
                    return _named(module, watch(module, (), given, keep_gradients=False))
                output = module(**given)
                trained = {name: one for name, one in held.items() if one.requires_grad}
                total = (output * cotangent).sum()
                of_trained = torch.autograd.grad(total, [*trained.values()], allow_unused=True) if trained else ()
            named = zip(trained.items(), of_trained, strict=True)
            gradients_by_name = {
                GRADIENT + name: torch.zeros_like(weight) if one is None else one for (name, weight), one in named
            }
            return {OWN: output, **gradients_by_name}

        program = lower(outputs, read, hidden=original.state_dict(keep_vars=True).values())
        check_again(program, outputs, read)
        return program

    def _cotangent(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns zeros of the output's shape. A copy of its own computes that: a module may keep what it computed."""
        import torch

        module: Any = copied(self.program).to(torch.float64)
        with torch.no_grad(), deterministic():
            output = module(**{name: tensor.clone() for name, tensor in tensors.items()})
        if not isinstance(output, torch.Tensor):
            raise ParityError(
                f"{self.name}: expected a module that returns one tensor; received {type(output).__name__}"
            )
        return torch.zeros_like(output)


def _named(module: nn.Module, watched: Watched) -> dict[str, Any]:
    """Returns the tensors inside a module by name. Its own output is OWN, though a submodule has that path."""
    named = dict(watched.tensors)
    if OWN in dict(module.named_modules()):
        of_part = {name: name.replace(OWN, f"{OWN}#part", 1) for name in named if re.match(rf"{OWN}($|@|#\d)", name)}
        named = {of_part.get(name, name.replace(f"{OWN}#own", OWN, 1)): tensor for name, tensor in named.items()}
    if hasattr(watched.output, "shape"):
        named[OWN] = watched.output  # which may have changed since a part returned it
    return named


def _shaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Returns rows of a softmax in another shape of as many rows: [B · H, T, S] is [B, H, T, S]."""
    alike = array.size == math.prod(shape) and array.shape[-1:] == shape[-1:]
    return array.reshape(shape) if alike else array


def _is_masked(name: str) -> bool:
    of_softmax = OF_SOFTMAX.search(name)
    return is_masked(name) or (of_softmax is not None and of_softmax[1] == "logits")


@dataclass(frozen=True)
class AnyTwo:
    """Two programs on the same inputs, and which weights of the reference are which of the candidate's."""

    candidate: AnyProgram
    reference: AnyProgram
    names: Mapping[str, str] = field(default_factory=dict)
    """The reference's names of weights → the candidate's, where they differ."""

    def task(self, *, gradients: bool) -> Task:
        """Lowers both. Raises as `AnyProgram.lower` does, and CannotRun where gradients have no partners."""
        if gradients and len({*map(self._ours, self.reference.weights)}) < len(self.reference.weights):
            raise CannotRun(f"several weights of {self.reference.name} are one of {self.candidate.name}")
        ours, theirs = (one.lower(gradients=gradients) for one in (self.candidate, self.reference))
        shapes = {self._ours(name): shape for name, shape in theirs.inputs.items()} | ours.inputs

        def draw(draw: Callable[[tuple[int, ...]], np.ndarray]) -> tuple[Arrays, Arrays]:
            drawn = {name: draw(shape) for name, shape in shapes.items()}
            mapped = {name: drawn[self._ours(name)] for name in theirs.inputs}
            return drawn, mapped

        def align(outputs: Arrays) -> Arrays:
            return {
                name: _shaped(array, ours.outputs[name].shape)
                if name in ours.outputs and OF_SOFTMAX.search(name)
                else array
                for name, array in self._renamed(outputs).items()
            }

        own = self.own(self.candidate), self.own(self.reference)
        return Task(ours, theirs, draw, align, _is_masked, None if gradients else own)

    def own(self, one: AnyProgram) -> dict[str, np.ndarray]:
        """Returns the weights and floating-point inputs that a program is given."""
        weights = {name: np.asarray(array, np.float64) for name, array in one.weights.items()}
        return {**weights, **one.floats}

    def carried(self, drawn: Arrays) -> tuple[Arrays, Arrays]:
        """Returns weights and floating-point inputs, by the candidate's names, as both programs read them."""
        theirs = {name: drawn[self._ours(name)] for name in self.own(self.reference)}
        return drawn, theirs

    def written(self, drawn: Arrays) -> tuple[Arrays, Arrays, Arrays]:
        """Returns weights, by the candidate's names, as users load them: those of both programs, and the inputs."""
        both = (
            {name: array for name, array in side.items() if not name.startswith(INPUT)} for side in self.carried(drawn)
        )
        inputs = {name: drawn.get(INPUT + name, array) for name, array in self.candidate.inputs.items()}
        return *both, inputs  # type: ignore[return-value]

    def _ours(self, name: str) -> str:
        return self.names.get(name, name)

    def _renamed(self, outputs: Arrays) -> Arrays:
        return {
            GRADIENT + self._ours(name.removeprefix(GRADIENT)) if name.startswith(GRADIENT) else name: array
            for name, array in outputs.items()
        }


def weights_of(program: Any, given: Arrays | None) -> dict[str, np.ndarray]:
    """Returns a module's floating-point tensors, or the weights that were given."""
    if hasattr(program, "state_dict"):
        held = as_arrays(program.state_dict())
        return {name: array for name, array in held.items() if jnp.issubdtype(array.dtype, jnp.floating)}
    return dict(given or {})
