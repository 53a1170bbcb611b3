"""Lowers any two programs, JAX functions or PyTorch modules with the same weights, to compare them for all weights."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.comparison.capture import OWN, ModuleCall, watch
from jax_transformer.comparison.copyable import check_copyable, check_hooks
from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.precision import in_bits
from jax_transformer.comparison.sides import Arrays, CannotRun
from jax_transformer.comparison.ties import Leaf, MemoryPlace, Ties, find_ties, shared_memory
from jax_transformer.comparison.user_errors import cannot_run, shapes_of
from jax_transformer.programs.copies import copied
from jax_transformer.programs.raised import RAISED
from jax_transformer.programs.torch_precision import deterministic
from jax_transformer.proof import Program, Task, UnknownOperation
from jax_transformer.proof.jaxprs import used_inputs
from jax_transformer.proof.programs import OutOfBounds, WideIntegers
from jax_transformer.storage.tensor_files import as_arrays

if TYPE_CHECKING:
    import torch
    from torch import nn

    from jax_transformer.proof.torch_memory import Variable

GRADIENT = "gradient of "
"""Precedes the names of weights."""
INPUT = "input "
"""Precedes the names of floating-point inputs, for all of which a proof holds."""
COTANGENT = "cotangent"
"""The input that the output is multiplied by before it is differentiated."""

OF_SOFTMAX = re.compile(r"@(logits|weights)(#\d+)?$")
"""Suffixes of the names of a softmax's input and output inside a module."""


class Selection(NamedTuple):
    """Selects the values to lower in addition to the output."""

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
        """Returns a module's parameters; for a function, all weights."""
        if not self.is_module:
            return frozenset(self.weights)
        module: Any = self.program
        own = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        own |= {name for name, tensor in module.named_buffers(remove_duplicate=False) if tensor.requires_grad}
        return frozenset(own & {*self.weights})

    def shared_memory(self) -> dict[str, MemoryPlace]:
        """Locates weights that share numbers. Raises UnknownOperation if weights of two dtypes share memory."""
        program: Any = self.program
        return shared_memory(program, list(self.weights)) if self.is_module else {}

    def lower(self, leaves: Mapping[str, Leaf], shapes: Mapping[str, tuple[int, ...]], wanted: Selection) -> Program:
        """Lowers the program on its inputs.

        Args:
          leaves: the part of a variable that each weight is.
          shapes: the variables by name.

        Raises:
          UnknownOperation: an operation has no rule, or control flow depends on weights.
          CannotRun: the program raises.
          ParityError: it returns anything but arrays.
        """
        given = {leaf.variable: shapes[leaf.variable] for leaf in leaves.values()}
        found = (self._lower_module if self.is_module else self._lower_function)(leaves, given, wanted)
        error = found.unknown.get(OWN)
        if wanted.gradients is not None and isinstance(error, OutOfBounds):
            raise error  # the gradients of no number
        return found

    def reads(self, names: Collection[str]) -> set[str]:
        """Returns the weights among these that the program may read. For a function, the output depends on them in at
        least one of the types in which the function may be read."""
        if self.is_module:
            return {*names}
        found = set[str]()
        for bits in {bits for bits, _ in self._tried_bits}:
            with contextlib.suppress(*RAISED), in_bits(bits):
                closed = jax.make_jaxpr(self._called)(dict(self.weights), self.read_inputs)
                used = used_inputs(closed)[: len(self.weights)]  # of a dict, in the order of its keys
                found |= {name for name, is_used in zip(sorted(self.weights), used, strict=True) if is_used}
        return found & {*names}

    @property
    def floats(self) -> dict[str, np.ndarray]:
        """Returns the floating-point inputs by the names that a proof gives them."""
        return {INPUT + name: array for name, array in self.read_inputs.items() if _is_float(array)}

    @cached_property
    def read_inputs(self) -> dict[str, np.ndarray]:
        """Returns the inputs in the types in which the program reads them. NumPy's own floats have 64 bits, so programs
        with narrower weights receive them in the weights' type; 64-bit programs receive 32-bit floats in 64 bits."""
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

    @property
    def _tried_bits(self) -> list[tuple[int, int]]:
        """Lists the bits that floats and integers may have in a function, the likeliest first: JAX's current setting.
        With 64-bit weights, floats have 64 bits too if all integers fit into 32, since larger ones would change."""
        if jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            return [(64, 64), (32, 32)]
        given = {array.dtype for array in (*self.weights.values(), *self.read_inputs.values())}
        wholes = [one for one in self.inputs.values() if one.dtype == np.int64]
        fits = all(np.array_equal(one, one.astype(np.int32)) for one in wholes)
        return [*([(64, 32)] if np.dtype(np.float64) in given and fits else []), (32, 32), (64, 64)]

    def _lower_function(
        self, leaves: Mapping[str, Leaf], shapes: Mapping[str, tuple[int, ...]], wanted: Selection
    ) -> Program:
        """Lowers a function in 32 or 64 bits, and tries the next width if one can't run."""
        reasons = []  # not the errors: JAX would find arrays of a trace whose frames they keep, in other types
        for bits, whole_bits in self._tried_bits:
            try:
                with self._running(f"{bits} bits"), in_bits(bits):
                    return self._lower_traced(leaves, shapes, wanted, whole_bits)
            except WideIntegers:
                continue
            except CannotRun as error:
                reasons.append(str(error))
        raise CannotRun(reasons[0])

    def _lower_traced(
        self, leaves: Mapping[str, Leaf], shapes: Mapping[str, tuple[int, ...]], wanted: Selection, whole_bits: int
    ) -> Program:
        from jax_transformer.proof.jax_programs import lower

        def outputs(given: Mapping[str, Any]) -> dict[str, Any]:
            given = {name: jnp.asarray(array) for name, array in given.items()}
            inputs = {
                name: given[INPUT + name] if INPUT + name in given else jnp.asarray(array.copy())
                for name, array in self.read_inputs.items()
            }

            def called(variables: Mapping[str, Any]) -> dict[str, Any]:
                held = {**given, **variables}
                weights = {
                    name: leaf.select(held[leaf.variable]).astype(
                        jax.dtypes.canonicalize_dtype(self.weights[name].dtype)
                    )
                    for name, leaf in leaves.items()
                }
                return self._called(weights, inputs)

            if wanted.gradients is None:
                return called({})

            def product(variables: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
                found = called(variables)
                return (found[OWN] * given[COTANGENT]).sum(), found

            trained = {name: given[name] for name in shapes if name in wanted.gradients}
            of_weights, found = jax.grad(product, has_aux=True)(trained)
            return {**found, **{GRADIENT + name: gradient for name, gradient in of_weights.items()}}

        more = {}
        own = {name: np.zeros(shape, self._dtype_of(name, leaves)) for name, shape in shapes.items()}
        if wanted.gradients is not None:
            output = jax.eval_shape(self._called, dict(self.weights), self.read_inputs)[OWN]
            is_float = jnp.issubdtype(output.dtype, jnp.floating)
            more = {COTANGENT: np.zeros(output.shape, output.dtype if is_float else np.float32)}
        return lower(outputs, {**own, **self.floats, **more}, whole_bits=whole_bits)

    def _dtype_of(self, variable: str, leaves: Mapping[str, Leaf]) -> Any:
        """Returns a type that holds all weights of a variable."""
        return reduce(
            jnp.promote_types, [self.weights[name].dtype for name, leaf in leaves.items() if leaf.variable == variable]
        )

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

    def _lower_module(
        self, leaves: Mapping[str, Leaf], shapes: Mapping[str, tuple[int, ...]], wanted: Selection
    ) -> Program:
        """Lowers a module in its own types, and checks the program against a second run. Checks it in float64, too,
        where rounding hides less, if the module runs there and rounds to nothing narrower."""
        from jax_transformer.proof.torch_reruns import check_again

        with self._running(str(self._widest or "its types")):
            program, again, read = self._lower_copy(leaves, shapes, wanted, is_wide=False)
            check_again(program, again, read)
        if self._widest is not None and self._widest != np.float64:
            wide = None
            with contextlib.suppress(UnknownOperation, *RAISED):
                wide = self._lower_copy(leaves, shapes, wanted, is_wide=True)
            if wide is not None and not wide[0].rounds:
                with self._running("float64"):
                    check_again(*wide)
        return program

    def _lower_copy(
        self, leaves: Mapping[str, Leaf], shapes: Mapping[str, tuple[int, ...]], wanted: Selection, *, is_wide: bool
    ) -> tuple[Program, Callable[[], Mapping[str, torch.Tensor]], dict[str, torch.Tensor | Variable]]:
        """Lowers a copy of the module. Returns the program, the copy as a function without arguments, and the tensors
        that it reads.

        Args:
          is_wide: whether the copy computes in float64.
        """
        import torch

        from jax_transformer.proof.torch_memory import Variable, as_tensor
        from jax_transformer.proof.torch_programs import lower

        original: Any = self.program
        check_copyable(original)
        if wanted.gradients is not None:
            check_hooks(original)
        module: Any = copied(original)
        tensors = {name: as_tensor(array) for name, array in self.read_inputs.items()}
        if is_wide:
            module = module.to(torch.float64)
            tensors = {name: one.double() if one.is_floating_point() else one for name, one in tensors.items()}
        held = module.state_dict(keep_vars=True)
        for name, tensor in held.items():
            if tensor.is_complex():
                raise UnknownOperation("input", "", f"{name} is complex")
            if not tensor.is_leaf:  # the copy of a script computes it from another tensor
                tensor.detach_().requires_grad_()
        variables = {name: Variable(shape, tuple(_parts(held, leaves, name))) for name, shape in shapes.items()}
        read: dict[str, Any] = {**variables, **{name: tensors[name.removeprefix(INPUT)] for name in self.floats}}
        cotangent = None if wanted.gradients is None else self._cotangent(tensors, is_wide)
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
        return lower(outputs, read, hidden=hidden, fixed=dict(module.named_parameters())), outputs, read

    def _cotangent(self, tensors: Mapping[str, torch.Tensor], is_wide: bool) -> torch.Tensor:
        """Returns zeros of the output's shape. Runs a separate copy, since a module may keep computed tensors."""
        import torch

        module: Any = copied(self.program)
        module = module.to(torch.float64) if is_wide else module
        with torch.enable_grad(), deterministic():
            output = module(**{name: tensor.clone() for name, tensor in tensors.items()})
        if not isinstance(output, torch.Tensor):
            raise ParityError(
                f"{self.name}: expected a module that returns one tensor; received {type(output).__name__}"
            )
        return torch.zeros_like(output, requires_grad=False)


def _parts(held: Mapping[str, Any], leaves: Mapping[str, Leaf], variable: str) -> Iterator[tuple[Any, Any]]:
    """Yields the tensors that are parts of a variable, each once, with the part."""
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
            total = total.index_put((torch.from_numpy(places),), tensor.grad.double(), accumulate=True)
    return total


def _named(module: nn.Module, watched: ModuleCall) -> dict[str, Any]:
    """Returns the tensors inside a module by name. Its own output is OWN, though a submodule has that path."""
    named = dict(watched.tensors)
    if OWN in dict(module.named_modules()):
        of_part = {name: name.replace(OWN, f"{OWN}#part", 1) for name in named if re.match(rf"{OWN}($|@|#\d)", name)}
        named = {of_part.get(name, name.replace(f"{OWN}#own", OWN, 1)): tensor for name, tensor in named.items()}
    if hasattr(watched.output, "shape"):
        named[OWN] = watched.output  # which may have changed since a part returned it
    return named


def _is_float(array: np.ndarray) -> bool:
    return bool(jnp.issubdtype(array.dtype, jnp.floating))


def _shaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Reshapes the rows of a softmax to another shape with as many rows: [B · H, T, S] to [B, H, T, S]."""
    alike = array.size == math.prod(shape) and array.shape[-1:] == shape[-1:]
    return array.reshape(shape) if alike else array


def is_masked(name: str) -> bool:
    """Returns whether a softmax reads an activation, so that another fill of its masked entries changes nothing."""
    return name.endswith("attention.logits")


def _is_masked(name: str) -> bool:
    """Returns whether an activation is the input of a softmax of the program, or has the name of one."""
    of_softmax = OF_SOFTMAX.search(name)
    return is_masked(name) or (of_softmax is not None and of_softmax[1] == "logits")


@dataclass(frozen=True)
class AnyTwo:
    """Holds two programs on the same inputs, and the correspondence of their weights."""

    candidate: AnyProgram
    reference: AnyProgram
    names: Mapping[str, str] = field(default_factory=dict)
    """The reference's names of weights → the candidate's, where they differ."""

    @cached_property
    def ties(self) -> Ties:
        """Finds the weights that are one. Raises UnknownOperation for weights that share memory in two dtypes."""
        both = self.candidate, self.reference
        weights = tuple({name: np.shape(array) for name, array in one.weights.items()} for one in both)
        names = {name: self.names.get(name, name) for name in self.reference.weights}
        return find_ties(weights, names, tuple(one.shared_memory() for one in both))  # type: ignore[arg-type]

    @cached_property
    def conditions(self) -> tuple[str, ...]:
        """Lists the conditions on the weights under which the programs are compared, one text each."""
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
        wanted = Selection(self._trained if gradients else None, self.candidate.is_module and self.reference.is_module)
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
        reasons = {name: str(error) for name, error in {**ours.unknown, **theirs.unknown}.items()}
        return Task(ours, theirs, draw, align, _is_masked, None if gradients else (own, own), reasons)

    @cached_property
    def _trained(self) -> frozenset[str]:
        """Returns the variables that programs differentiate: the parameters of modules, or all weights of functions. A
        function doesn't distinguish parameters from buffers."""
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
        return {**found, **{name: array.astype(np.float64) for name, array in self.candidate.floats.items()}}

    def carried(self, drawn: Arrays) -> tuple[Arrays, Arrays]:
        """Returns weights and floating-point inputs as both programs read them."""
        return drawn, drawn

    def written(self, drawn: Arrays) -> tuple[Arrays, Arrays, Arrays]:
        """Returns variables as users load them: the weights of both programs, and the inputs."""
        ours, theirs = (
            {name: leaf.select(drawn[leaf.variable]) for name, leaf in leaves.items()} for leaves in self.ties.leaves
        )
        return ours, theirs, {name: drawn.get(INPUT + name, array) for name, array in self.candidate.inputs.items()}


def _without_zeros(ours: Program, theirs: Program) -> tuple[Program, Program]:
    """Drops gradients that only one program has and that are zero for all weights, such as a stopped gradient of a
    weight that the other program doesn't train."""

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
