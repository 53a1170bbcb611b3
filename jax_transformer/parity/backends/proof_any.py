"""Lower any two programs to be compared for all weights: JAX functions and PyTorch modules, with the same weights."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.parity.backends.capture import OWN, Watched, watch
from jax_transformer.parity.backends.copies import check_copyable, check_hooks, copied
from jax_transformer.parity.backends.precision import in_precision
from jax_transformer.parity.backends.proof_jax import GRADIENT, is_masked
from jax_transformer.parity.backends.side import Arrays
from jax_transformer.parity.backends.ties import Leaf, Lies, Ties, find_ties, shared_memory
from jax_transformer.parity.backends.torch_precision import deterministic
from jax_transformer.parity.backends.user_errors import cannot_run, shapes_of
from jax_transformer.parity.gates.arrays import ParityError
from jax_transformer.proof import Program, Task, UnknownOperation
from jax_transformer.proof.jaxprs import used_inputs
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


class Wanted(NamedTuple):
    """Says what to lower beside the output."""

    gradients: frozenset[str] | None
    """The variables to differentiate by, in place of activations; None: activations."""
    of_frozen: bool
    """Whether a module's weight that takes no gradient counts as one with a gradient of zero."""


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

    @cached_property
    def parameters(self) -> frozenset[str]:
        """Returns the weights that a module calls its parameters; all of a function's."""
        if not self.is_module:
            return frozenset(self.weights)
        module: Any = self.program
        own = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        own |= {name for name, tensor in module.named_buffers(remove_duplicate=False) if tensor.requires_grad}
        return frozenset(own & {*self.weights})

    def shared_memory(self) -> dict[str, Lies]:
        """Returns where those weights lie that share numbers. Raises UnknownOperation for two dtypes in one memory."""
        program: Any = self.program
        return shared_memory(program, list(self.weights)) if self.is_module else {}

    def lower(self, leaves: Mapping[str, Leaf], shapes: Mapping[str, tuple[int, ...]], wanted: Wanted) -> Program:
        """Lowers it on its inputs.

        Args:
          leaves: which parts of variables its weights are.
          shapes: the variables by name.

        Raises:
          UnknownOperation: an operation has no rule, or control flow depends on weights.
          CannotRun: it raises.
          ParityError: it returns something else than arrays.
        """
        given = {leaf.variable: shapes[leaf.variable] for leaf in leaves.values()}
        with cannot_run(f"{self.name}:", f"{shapes_of(self.inputs)} in float64"):
            return (self._lower_module if self.is_module else self._lower_function)(leaves, given, wanted)

    def reads(self, names: Collection[str]) -> set[str]:
        """Returns which of these weights it may read; of a function, those that its output depends on."""
        if self.is_module:
            return {*names}
        with in_precision("float64"):
            closed = jax.make_jaxpr(self._called)(self._float64_weights, self._float64_inputs)
        used = used_inputs(closed)[: len(self.weights)]  # of a dict, in the order of its keys
        return {name for name, is_used in zip(sorted(self.weights), used, strict=True) if is_used} & {*names}

    @property
    def floats(self) -> dict[str, np.ndarray]:
        return {
            INPUT + name: array.astype(np.float64) for name, array in self.inputs.items() if array.dtype.kind == "f"
        }

    def _lower_function(
        self, leaves: Mapping[str, Leaf], shapes: Mapping[str, tuple[int, ...]], wanted: Wanted
    ) -> Program:
        from jax_transformer.proof.jax_programs import lower

        def outputs(given: Mapping[str, Any]) -> dict[str, Any]:
            given = {name: jnp.asarray(array) for name, array in given.items()}
            inputs = {name: given.get(INPUT + name, jnp.asarray(array)) for name, array in self.inputs.items()}

            def called(variables: Mapping[str, Any]) -> dict[str, Any]:
                held = {**given, **variables}
                return self._called({name: leaf.of(held[leaf.variable]) for name, leaf in leaves.items()}, inputs)

            if wanted.gradients is None:
                return called({})

            def product(variables: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
                found = called(variables)
                return (found[OWN] * given[COTANGENT]).sum(), found

            trained = {name: given[name] for name in shapes if name in wanted.gradients}
            of_weights, found = jax.grad(product, has_aux=True)(trained)
            return {**found, **{GRADIENT + name: gradient for name, gradient in of_weights.items()}}

        more = {}
        with in_precision("float64"):
            if wanted.gradients is not None:
                shape = jax.eval_shape(self._called, self._float64_weights, self._float64_inputs)[OWN].shape
                more = {COTANGENT: np.zeros(shape)}
            variables = {name: np.zeros(shape) for name, shape in shapes.items()}
            return lower(outputs, {**variables, **self.floats, **more})

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

    def _lower_module(
        self, leaves: Mapping[str, Leaf], shapes: Mapping[str, tuple[int, ...]], wanted: Wanted
    ) -> Program:
        import torch

        from jax_transformer.proof.torch_memory import Variable
        from jax_transformer.proof.torch_programs import lower
        from jax_transformer.proof.torch_reruns import check_again

        original: Any = self.program
        check_copyable(original)
        if wanted.gradients is not None:
            check_hooks(original)
        module: Any = copied(original).to(torch.float64)
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in self._float64_inputs.items()}
        held = module.state_dict(keep_vars=True)
        for name, tensor in held.items():
            if tensor.is_complex():
                raise UnknownOperation("input", "", f"{name} is complex")
            if not tensor.is_leaf:  # the copy of a script computes it from another tensor
                tensor.detach_().requires_grad_()
        variables = {name: Variable(shape, tuple(_parts(held, leaves, name))) for name, shape in shapes.items()}
        read: dict[str, Any] = {**variables, **{name: tensors[name.removeprefix(INPUT)] for name in self.floats}}
        cotangent = None if wanted.gradients is None else self._cotangent(tensors)
        if cotangent is not None:
            read[COTANGENT] = cotangent

        def outputs() -> dict[str, torch.Tensor]:
            given = {name: tensor.clone() for name, tensor in tensors.items()}  # which it may change
            with deterministic():
                if wanted.gradients is None:
                    return _named(module, watch(module, (), given, enable_gradients=True))
                module.zero_grad(set_to_none=True)
                with torch.enable_grad():
                    output = module(**given)
                    total = (output * cotangent).sum()
                if total.requires_grad:
                    total.backward()  # with all hooks, as training runs them
                found = {OWN: output}
                for name in filter(wanted.gradients.__contains__, variables):
                    trained = [part for part in variables[name].parts if part[0].requires_grad]
                    if trained or wanted.of_frozen:
                        found[GRADIENT + name] = _gradient(variables[name].shape, trained)
                module.zero_grad(set_to_none=True)
            return found

        hidden = original.state_dict(keep_vars=True).values()
        program = lower(outputs, read, hidden=hidden, fixed=dict(module.named_parameters()))
        check_again(program, outputs, read)
        return program

    def _cotangent(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns zeros of the output's shape. A copy of its own computes that: a module may keep what it computed."""
        import torch

        module: Any = copied(self.program).to(torch.float64)
        with torch.enable_grad(), deterministic():
            output = module(**{name: tensor.clone() for name, tensor in tensors.items()})
        if not isinstance(output, torch.Tensor):
            raise ParityError(
                f"{self.name}: expected a module that returns one tensor; received {type(output).__name__}"
            )
        return torch.zeros_like(output, requires_grad=False)


def _parts(held: Mapping[str, Any], leaves: Mapping[str, Leaf], variable: str) -> Iterator[tuple[Any, Any]]:
    """Yields the tensors that are parts of a variable, each once, and which."""
    seen = set[int]()
    for name, leaf in leaves.items():
        if leaf.variable == variable and id(held[name]) not in seen:
            seen.add(id(held[name]))
            yield held[name], leaf.places


def _gradient(shape: tuple[int, ...], trained: Iterable[tuple[torch.Tensor, Any]]) -> torch.Tensor:
    """Returns the sum of the gradients that arrived at the tensors of a variable."""
    import torch

    total = torch.zeros(shape, dtype=torch.float64)
    for tensor, places in trained:
        if not tensor.is_leaf or tensor.grad is None:
            continue
        if places is None:
            total = total + tensor.grad
        else:
            total = total.index_put((torch.from_numpy(places),), tensor.grad, accumulate=True)
    return total


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

    @cached_property
    def ties(self) -> Ties:
        """Returns which weights are one. Raises UnknownOperation for weights that share memory in two dtypes."""
        both = self.candidate, self.reference
        weights = tuple({name: np.shape(array) for name, array in one.weights.items()} for one in both)
        names = {name: self.names.get(name, name) for name in self.reference.weights}
        return find_ties(weights, names, tuple(one.shared_memory() for one in both))  # type: ignore[arg-type]

    @cached_property
    def conditions(self) -> tuple[str, ...]:
        """Returns for which weights alone the programs are compared, one text for each condition."""
        found = []
        for apart in self.ties.apart:
            side, other = ("candidate", "reference")[:: -1 if apart.side else 1]
            read = (self.candidate, self.reference)[apart.side].reads(apart.names)
            names = [name for name in apart.names if name in read]
            if len(names) > 1:
                found.append(f"{' and '.join(names)} of the {side} are equal, as they are one in the {other}")
            elif len(apart.names) == 1:
                found.append(f"elements of {apart.names[0]} of the {side} are equal, as they are one in the {other}")
        return tuple(found)

    def task(self, *, gradients: bool) -> Task:
        """Lowers both. Raises as `AnyProgram.lower` does."""
        wanted = Wanted(self._trained if gradients else None, self.candidate.is_module and self.reference.is_module)
        both = zip((self.candidate, self.reference), self.ties.leaves, strict=True)
        ours, theirs = _without_zeros(*(one.lower(leaves, self.ties.shapes, wanted) for one, leaves in both))
        shapes = {**theirs.inputs, **ours.inputs}

        def draw(draw: Callable[[tuple[int, ...]], np.ndarray]) -> tuple[Arrays, Arrays]:
            drawn = {name: draw(shape) for name, shape in shapes.items()}
            return drawn, drawn

        def align(outputs: Arrays) -> Arrays:
            return {
                name: _shaped(array, ours.outputs[name].shape)
                if name in ours.outputs and OF_SOFTMAX.search(name)
                else array
                for name, array in outputs.items()
            }

        own = self.own()
        return Task(ours, theirs, draw, align, _is_masked, None if gradients else (own, own))

    @cached_property
    def _trained(self) -> frozenset[str]:
        """Returns the variables that programs differentiate: the parameters of modules, or all weights of functions.
        Whether a module's buffer is trained isn't a question to a function."""
        both = tuple(zip((self.candidate, self.reference), self.ties.leaves, strict=True))
        chosen = [pair for pair in both if pair[0].is_module] or both
        return frozenset(leaves[name].variable for one, leaves in chosen for name in one.parameters)

    def own(self) -> dict[str, np.ndarray]:
        """Returns the candidate's weights as variables, and floating-point inputs."""
        found = {name: np.zeros(shape) for name, shape in self.ties.shapes.items()}
        for name, leaf in self.ties.leaves[0].items():
            array = np.asarray(self.candidate.weights[name], np.float64)
            if leaf.places is None:
                found[leaf.variable] = array
            else:
                found[leaf.variable][leaf.places] = array
        return {**found, **self.candidate.floats}

    def carried(self, drawn: Arrays) -> tuple[Arrays, Arrays]:
        """Returns weights and floating-point inputs as both programs read them."""
        return drawn, drawn

    def written(self, drawn: Arrays) -> tuple[Arrays, Arrays, Arrays]:
        """Returns variables as users load them: the weights of both programs, and the inputs."""
        ours, theirs = (
            {name: leaf.of(drawn[leaf.variable]) for name, leaf in leaves.items()} for leaves in self.ties.leaves
        )
        return ours, theirs, {name: drawn.get(INPUT + name, array) for name, array in self.candidate.inputs.items()}


def _without_zeros(ours: Program, theirs: Program) -> tuple[Program, Program]:
    """Leaves out gradients that one program alone has, and that are zero whatever the weights: such as one that is
    stopped, of a weight that the other program doesn't train."""

    def kept(program: Program, other: Program) -> Program:
        left_out = [
            name
            for name, value in program.outputs.items()
            if name.startswith(GRADIENT)
            and name not in other.outputs
            and value.known is not None
            and not value.known.any()
        ]
        return program.restricted([name for name in program.outputs if name not in left_out]) if left_out else program

    return kept(ours, theirs), kept(theirs, ours)


def weights_of(program: Any, given: Arrays | None) -> dict[str, np.ndarray]:
    """Returns a module's floating-point tensors, or the weights that were given."""
    if hasattr(program, "state_dict"):
        held = as_arrays(program.state_dict())
        return {name: array for name, array in held.items() if jnp.issubdtype(array.dtype, jnp.floating)}
    return dict(given or {})
