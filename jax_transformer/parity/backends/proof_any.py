"""Lower any two programs to be compared for all weights: JAX functions and PyTorch modules, with the same weights."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.parity.backends.capture import OWN, Watched, watch
from jax_transformer.parity.backends.copies import check_copyable, copied
from jax_transformer.parity.backends.precision import in_bits
from jax_transformer.parity.backends.proof_jax import GRADIENT, is_masked
from jax_transformer.parity.backends.side import Arrays, CannotRun
from jax_transformer.parity.backends.torch_precision import deterministic
from jax_transformer.parity.backends.user_errors import RAISED, cannot_run, shapes_of
from jax_transformer.parity.gates.arrays import ParityError
from jax_transformer.proof import Program, Task, UnknownOperation
from jax_transformer.proof.programs import WideIntegers
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
        return self._lower_module(gradients) if self.is_module else self._lower_function(gradients)

    @property
    def floats(self) -> dict[str, np.ndarray]:
        """Returns the floating-point inputs by the names that a proof gives them."""
        return {INPUT + name: array for name, array in self.read_inputs.items() if array.dtype.kind == "f"}

    @cached_property
    def read_inputs(self) -> dict[str, np.ndarray]:
        """Returns the inputs in the types in which the program reads them. NumPy's own floats have 64 bits: they are
        given to programs with weights of 32 bits as such, and floats of 32 bits to programs of 64."""
        widest = self._widest
        if widest is None:
            return dict(self.inputs)
        differs = {np.dtype(np.float64): widest != np.float64, np.dtype(np.float32): widest == np.float64}
        return {
            name: array.astype(widest) if differs.get(array.dtype, False) else array
            for name, array in self.inputs.items()
        }

    @property
    def _widest(self) -> Any:
        """Returns the widest type of the weights; None without weights."""
        dtypes = [array.dtype for array in self.weights.values() if jnp.issubdtype(array.dtype, jnp.floating)]
        return max(dtypes, key=lambda dtype: dtype.itemsize, default=None)

    def _running(self, what: str) -> AbstractContextManager[None]:
        return cannot_run(f"{self.name}:", f"{shapes_of(self.inputs)} in {what}" if self.inputs else what)

    def _lower_function(self, gradients: bool) -> Program:
        """Lowers a function in 32 or 64 bits, as JAX is set. With weights of 64 bits, its floats have 64, too, as long
        as its integers fit into 32: those that don't are others there. What can't run in one way is tried in others."""
        given = {array.dtype for array in (*self.weights.values(), *self.read_inputs.values())}
        if jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            tried = [(64, 64), (32, 32)]
        else:
            fits = all(
                np.array_equal(one, one.astype(np.int32)) for one in self.inputs.values() if one.dtype == np.int64
            )
            tried = [(64, 32)] if np.dtype(np.float64) in given and fits else []
            tried += [(32, 32), (64, 64)]
        reasons = []  # not the errors: JAX would find arrays of a trace whose frames they keep, in other types
        for bits, whole_bits in tried:
            try:
                with self._running(f"{bits} bits"), in_bits(bits):
                    return self._lower_traced(gradients, whole_bits)
            except WideIntegers:
                continue
            except CannotRun as error:
                reasons.append(str(error))
        raise CannotRun(reasons[0])

    def _lower_traced(self, gradients: bool, whole_bits: int) -> Program:
        from jax_transformer.proof.jax_programs import lower

        def outputs(given: Mapping[str, Any]) -> dict[str, Any]:
            given = {name: jnp.asarray(array) for name, array in given.items()}
            inputs = {
                name: given[INPUT + name] if INPUT + name in given else jnp.asarray(array.copy())
                for name, array in self.read_inputs.items()
            }
            weights = {name: given[name] for name in self.weights}
            if not gradients:
                return self._called(weights, inputs)

            def product(weights: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
                found = self._called(weights, inputs)
                return (found[OWN] * given[COTANGENT]).sum(), found

            of_weights, found = jax.grad(product, has_aux=True)(weights)
            return {**found, **{GRADIENT + name: gradient for name, gradient in of_weights.items()}}

        more = {}
        if gradients:
            own = jax.eval_shape(self._called, self.weights, self.read_inputs)[OWN]
            is_float = jnp.issubdtype(own.dtype, jnp.floating)
            more = {COTANGENT: np.zeros(own.shape, own.dtype if is_float else np.float32)}
        return lower(outputs, {**self.weights, **self.floats, **more}, whole_bits=whole_bits)

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

    def _lower_module(self, gradients: bool) -> Program:
        """Lowers a module in its own types, and checks that it computes what was read when it runs again: in float64,
        too, where less gets lost in rounding, if it runs there and rounds to nothing narrower."""
        from jax_transformer.proof.torch_reruns import check_again

        with self._running(str(self._widest or "its types")):
            program, again, read = self._lower_copy(gradients, is_wide=False)
            check_again(program, again, read)
        if self._widest is not None and self._widest != np.float64:
            wide = None
            with contextlib.suppress(UnknownOperation, *RAISED):
                wide = self._lower_copy(gradients, is_wide=True)
            if wide is not None and not wide[0].rounds:
                with self._running("float64"):
                    check_again(*wide)
        return program

    def _lower_copy(
        self, gradients: bool, *, is_wide: bool
    ) -> tuple[Program, Callable[[], Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]:
        """Returns the program of a copy of the module, the copy, as a function of nothing, and the tensors that it
        reads.

        Args:
          is_wide: whether the copy computes in float64.
        """
        import torch

        from jax_transformer.proof.torch_programs import lower

        original: Any = self.program
        check_copyable(original)
        module: Any = copied(original)
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in self.read_inputs.items()}
        if is_wide:
            module = module.to(torch.float64)
            tensors = {name: one.double() if one.is_floating_point() else one for name, one in tensors.items()}
        held = module.state_dict(keep_vars=True)
        for name, tensor in held.items():
            if tensor.is_complex():
                raise UnknownOperation("input", "", f"{name} is complex")
        read = {name: held[name] for name in self.weights}
        read |= {name: tensors[name.removeprefix(INPUT)] for name in self.floats}
        cotangent = self._cotangent(tensors, is_wide) if gradients else None
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

        return lower(outputs, read, hidden=original.state_dict(keep_vars=True).values()), outputs, read

    def _cotangent(self, tensors: Mapping[str, torch.Tensor], is_wide: bool) -> torch.Tensor:
        """Returns zeros of the output's shape. A copy of its own computes that: a module may keep what it computed."""
        import torch

        module: Any = copied(self.program)
        module = module.to(torch.float64) if is_wide else module
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
        unknown = {**dict(ours.unknown.items()), **self._renamed(theirs.unknown)}
        reasons = {name: str(error) for name, error in unknown.items()}
        return Task(ours, theirs, draw, align, _is_masked, None if gradients else own, reasons)

    def own(self, one: AnyProgram) -> dict[str, np.ndarray]:
        """Returns the weights and floating-point inputs that a program is given."""
        return {name: np.asarray(array, np.float64) for name, array in {**one.weights, **one.floats}.items()}

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

    def _renamed(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
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
