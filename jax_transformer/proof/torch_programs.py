"""Lower PyTorch programs: record the ATen operations of one run, and repeat each in a `Builder`.

The run computes on real tensors. Its results that depend on weights are never read; integers and masks are. Memory is
modelled as in PyTorch: tensors are views of storages, so views, expansions and in-place changes need no rules.

Numbers that depend on weights may not leave PyTorch: `torch_exits` refuses the visible ways, and `torch_reruns` detects
the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from jax_transformer.programs.sites import ModulePaths, Site, as_stack, is_of_framework, python_stack
from jax_transformer.proof import torch_choices
from jax_transformer.proof.building import Builder
from jax_transformer.proof.complex_numbers import by_parts, computed
from jax_transformer.proof.complex_numbers import constant as complex_constant
from jax_transformer.proof.programs import Program, UnknownOperation, Value
from jax_transformer.proof.tape import origins_of
from jax_transformer.proof.torch_access import (
    EACH,
    among,
    are_views,
    check_memory,
    check_rows,
    flat,
    is_tensor,
    returns_view,
    unread_by,
    written_by,
)
from jax_transformer.proof.torch_complex import COMPLEX_RULES, apply_to_complex
from jax_transformer.proof.torch_exits import Exits, unwatched
from jax_transformer.proof.torch_memory import Memory, Variable, as_array
from jax_transformer.proof.torch_promotion import as_computed, as_scalar_argument, digits, type_of
from jax_transformer.proof.torch_rules import MOVES, RULES

READS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "allclose")
"""Operations whose results a program can branch on."""
ABOUT_SHAPES = ("is_same_size", "_has_same_storage_numel")
BACKWARD = "_engine_run_backward"
"""PyTorch's function that runs a backward pass, and hooks in it."""
HIDDEN = "it reads a tensor of the module that was copied: a function, a hook or an attribute of it holds that"


@dataclass
class _Call:
    """Holds a call of an operation, and its operands."""

    func: Any
    name: str
    """The name of its rule."""
    args: Any
    kwargs: Any
    inputs: Sequence[torch.Tensor]
    written: Sequence[torch.Tensor]
    unread: Sequence[torch.Tensor]
    arguments: Any = None
    """Values of its arguments, if there is a rule."""
    depends: bool = False
    """Whether any depends on weights."""
    values: Sequence[Any] = ()
    """The values of the tensors that it reads, if none depends on weights and some were computed."""
    error: UnknownOperation | None = None
    """Reason why they can't be read."""


class Lowering(TorchDispatchMode):
    """Lowers the code that runs inside it to a builder's program.

    Example: `with Lowering(builder) as lowering: outputs = module(ids)`, after `lowering.name(tensor, "weight")` for
    each weight."""

    def __init__(self, builder: Builder) -> None:
        super().__init__()
        self.builder = builder
        self.memory = Memory(builder)
        self._sites: dict[int, Site] = {}
        self._paths = ModulePaths()
        self._decompositions = _decompositions()
        self._is_inside = False
        """Whether a decomposition of PyTorch's is running."""

    def name(self, weight: torch.Tensor | Variable, name: str) -> None:
        """Declares a tensor, or the variable that several tensors are parts of, to be an input of the program."""
        variable = Variable.of(weight)
        if not all(tensor.is_floating_point() for tensor, _ in variable.parts):
            raise UnknownOperation("input", "", f"the weight {name} holds no real numbers")
        value = self.builder.input(name, variable.shape)
        for tensor, places in variable.written():
            self.memory.write(tensor, value if places is None else self.builder.take(value, places))

    def output(self, tensor: torch.Tensor) -> Value | UnknownOperation:
        """Returns a tensor's value, or the reason why it is unknown."""
        try:
            value = self.memory.read(tensor)
        except UnknownOperation as error:
            return error
        if isinstance(value, Value):
            return value
        return UnknownOperation("output", "", "it is complex: return its real and imaginary parts")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with unwatched():
            return self._dispatched(func, args, kwargs or {})

    def _dispatched(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = func._schema.name.split("::")[1]
        if not func._schema.name.startswith("aten::"):
            return self._foreign(func, args, kwargs)
        self.builder.site = site = self._site(name)
        self.builder.line = f"{name}, {site.line}"
        if name in ABOUT_SHAPES:
            return func(*args, **kwargs)
        rule_name = name.removesuffix("_") if func._schema.is_mutable else name
        if name in READS:
            self._check_known(name, args)
            return func(*args, **kwargs)
        if not _has_rule(rule_name):
            result = self._decomposed(func, rule_name, args, kwargs)
            if result is not NotImplemented:
                return result
        written = written_by(func, args, kwargs)
        inputs = [each for each in flat(args, kwargs) if is_tensor(each)]
        check_memory(name, func, written, inputs, site.line)
        if name.startswith(EACH) and written:
            check_rows(name, site.line, [each for each in args if isinstance(each, list | tuple)])
        unread = unread_by(name, func, written, args)
        call = _Call(func, rule_name, args, kwargs, inputs, written, unread)
        if not returns_view(func):
            self._read(call)
        result = func(*args, **kwargs)
        if returns_view(func) and not are_views(result, inputs):  # a copy if such a view doesn't exist
            self._read(call)
        try:
            if call.error is not None:
                raise call.error
            self._follow(call, result)
        except UnknownOperation as error:
            if _has_shape_of_data(call):
                raise
            self._spoil(written or _tensors_of(result), error)
        return result

    def _decomposed(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Runs the decomposition of an operation. The numbers of PyTorch's own formulas are exact, as in rules."""
        outer = self._is_inside
        if not outer:
            dtype = type_of(name, args, kwargs)
            args, kwargs = tree_map(lambda each: as_scalar_argument(each, dtype), (args, kwargs))
        self._is_inside = True
        try:
            with self:
                return self._decompositions.get(func, func.decompose)(*args, **kwargs)
        finally:
            self._is_inside = outer

    def _spoil(self, tensors: Sequence[torch.Tensor], error: UnknownOperation) -> None:
        """Notes that no rule computes these tensors."""
        if any(each.layout is not torch.strided or each.is_quantized for each in tensors):
            raise error
        for each in tensors:
            self.memory.spoil(each, error)

    # --- operations

    def _read(self, call: _Call) -> None:
        """Records the values of a call's arguments if it has a rule, whether any depends on weights, and the values of
        those that don't."""
        try:
            if _has_rule(call.name):
                call.arguments = self._arguments(call)
            read = [each for each in call.inputs if not among(each, call.unread)]
            call.depends = any(self.memory.depends_on_weights(each) for each in read)
            if not call.depends and not self._runs_alone(call.inputs) and not call.written:
                call.values = [self.memory.read(each) for each in call.inputs]
        except UnknownOperation as error:
            call.error = error

    def _follow(self, call: _Call, result: Any) -> None:
        """Assigns values to the results of an operation."""
        name, written, inputs = call.name, call.written, call.inputs
        tensors = _tensors_of(result)
        strange = [each for each in flat(result, {}) if is_tensor(each) and each.layout is not torch.strided]
        if strange:
            raise UnknownOperation(name, self._line(), f"it returns a tensor of {strange[0].layout}")
        if name.startswith(("empty", "new_empty")) and not written:
            for each in tensors:
                self.memory.forget(each)
            return
        if not written and are_views(result, inputs):
            return
        targets = written or tensors
        if self._runs_alone(inputs) and self._needs_no_rule(inputs, targets):
            for each in targets:
                self.memory.note_made(each, self.builder.site)
            return  # computed from ids and masks alone
        self.builder.read[name] = self.builder.read.get(name, 0) + 1
        try:
            values = self._values(call, targets)
        except UnknownOperation:
            if call.depends:
                raise
            values = self._as_run(call, targets)
        if len(values) != len(targets):
            raise UnknownOperation(name, self._line(), f"its rule returns {len(values)} values for {len(targets)}")
        floats = [each.dtype for each in inputs if each.is_floating_point() and not among(each, written)]
        for target, value in zip(targets, values, strict=True):
            if isinstance(value, UnknownOperation):
                self.memory.spoil(target, value)
                continue
            if value.shape != tuple(target.shape) and not written:
                raise UnknownOperation(name, self._line(), f"its rule returns {list(value.shape)}")
            is_narrowed = self._narrows(target, floats)
            if is_narrowed or (target.is_floating_point() and value.fills is not None):
                value = self.builder.in_range(value, partial(_cast, dtype=target.dtype))
            if call.depends and value.known is not None:
                _overwrite(target, value.known)
            if not call.depends and target.is_floating_point() and value.shape == tuple(target.shape):
                value = self.builder.rounded(value, as_array(target, self.builder.line))
            self.memory.write(target, value)

    def _as_run(self, call: _Call, targets: Sequence[torch.Tensor]) -> list[Any]:
        """Returns the run's own results of an operation without a rule that depends on no weight."""
        found = [as_array(each, self.builder.line) for each in targets]
        if call.written or not call.values:
            return [
                complex_constant(self.builder, each) if each.dtype.kind == "c" else self.builder.constant(each)
                for each in found
            ]

        def run(arrays: list[np.ndarray]) -> list[np.ndarray]:
            replaced = {
                id(old): torch.from_numpy(np.array(array)).to(old.dtype)
                for old, array in zip(call.inputs, arrays, strict=True)
            }
            args, kwargs = tree_map(lambda each: replaced.get(id(each), each), (list(call.args), call.kwargs))
            with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
                return [as_array(each, "") for each in _tensors_of(call.func(*args, **kwargs))]

        self.builder.tape.origins = origins_of(call.values)
        try:
            return computed(self.builder, run, call.values, found)
        finally:
            self.builder.tape.origins = ()

    def _runs_alone(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Returns whether an operation reads no value that a rule has computed."""
        return not any(self.memory.holds(each) for each in inputs)

    def _needs_no_rule(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
        """Returns whether results can be read from the run: integers, booleans, and floats made from none."""
        floats = any(each.is_floating_point() or each.is_complex() for each in outputs)
        return not floats or not inputs

    def _narrows(self, target: torch.Tensor, floats: Sequence[torch.dtype]) -> bool:
        """Returns whether an operation's floats are narrower than its operands, and records it."""
        is_narrower = target.is_floating_point() and any(digits(each) > digits(target.dtype) for each in floats)
        if is_narrower:
            self.builder.narrow(str(target.dtype).removeprefix("torch."))
        return is_narrower

    def _values(self, call: _Call, targets: Sequence[torch.Tensor]) -> list[Any]:
        name, is_complex = call.name, any(each.is_complex() for each in (*targets, *call.inputs))
        if call.arguments is None:
            raise UnknownOperation(name, self._line())
        args, kwargs = call.arguments
        self.builder.tape.origins = origins_of(flat(args, kwargs))
        try:
            if any(isinstance(each, Value) and each.table is not None for each in flat(args, kwargs)):
                if is_complex:
                    raise UnknownOperation(name, self._line(), "complex numbers at places that depend on weights")
                found = torch_choices.apply(self.builder, name, args, kwargs)
                return list(found) if isinstance(found, tuple | list) else [found]
            if name.startswith(EACH):
                return self._on_lists(name, args, kwargs)
            if name in MOVES:
                found = by_parts(lambda source: self._move(call.func, name, [source, *args[1:]], kwargs), args[0])
            elif is_complex:
                found = apply_to_complex(self.builder, name, args, kwargs)
            elif name not in RULES:
                raise UnknownOperation(name, self._line())
            else:
                found = RULES[name](self.builder, *args, **kwargs)
        except TypeError as error:  # an overload with different arguments
            raise UnknownOperation(name, self._line(), f"no rule covers this overload: {error}") from None
        finally:
            self.builder.tape.origins = ()
        return list(found) if isinstance(found, tuple | list) else [found]

    def _on_lists(self, name: str, args: Any, kwargs: Any) -> list[Value]:
        """Applies a rule to each tensor of a list, with its partners in other lists."""
        rule, count = RULES[name.removeprefix(EACH)], len(args[0])
        rows = [[each[i] if isinstance(each, list | tuple) else each for each in args] for i in range(count)]
        return [rule(self.builder, *row, **kwargs) for row in rows]

    def _move(self, func: Any, name: str, args: Any, kwargs: Any) -> Value:
        """Lowers a move of elements: runs the operation on the places of its first argument's elements, plus one, so
        that 0 marks filled zeros."""
        source, *rest = args
        rest = tree_map(_as_tensor, rest)
        indices = torch.arange(1, source.size + 1).reshape(source.shape)
        with torch._C._DisableTorchDispatch():
            moved = func(indices, *rest, **tree_map(_as_tensor, kwargs))
        return self.builder.take(source, moved.numpy() - 1)

    def _foreign(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        tensors = [each for each in flat(args, kwargs) if is_tensor(each)]
        if any(self.memory.holds(each) for each in tensors):
            raise UnknownOperation(str(func), self._line())  # the shapes of its results may depend on weights
        return result

    def _check_known(self, name: str, args: Any) -> None:
        for each in flat(args, {}):
            if is_tensor(each) and self.memory.holds(each) and self.memory.read(each).known is None:
                raise UnknownOperation(
                    name, self._line(), "the program branches on, or reads, numbers that depend on weights"
                )

    def _arguments(self, call: _Call) -> Any:
        kept = {
            key: each
            for key, each in call.kwargs.items()
            if key not in ("out", "memory_format", "layout", "device", "pin_memory")
        }
        dtype = type_of(call.name, call.args, kept)

        def value(each: Any) -> Any:
            if is_tensor(each) and among(each, call.unread):
                return Value(tuple(each.shape), "float")  # isn't read
            read = self.memory.read(each) if is_tensor(each) else each
            is_exact = self._is_inside and isinstance(each, float)
            return read if dtype is None or is_exact else as_computed(self.builder, call.name, each, read, dtype)

        return tree_map(value, list(call.args)), tree_map(value, kept)

    # --- source lines

    def _line(self) -> str:
        return self._site("").line

    def _site(self, operation: str) -> Site:
        """Returns the site of the current operation; for a backward pass, the site of its forward operation."""
        node, frame = torch._C._current_autograd_node(), sys._getframe(1)
        if node is not None:
            forward = self._sites.get(node._sequence_nr(), Site())
            hook = user_line(within=BACKWARD)
            line = hook or (f"backward of {forward.line}" if forward.line else "backward")
            return replace(forward, operation=operation, line=line)
        calls = python_stack(frame, lower.__code__)
        module = self._paths.path(self._paths.running(frame))
        site = Site(operation, _line_of(calls), module, frames=partial(as_stack, calls))
        self._sites[torch._C._autograd._get_sequence_nr() - 1] = site
        return site


def lower(
    program: Callable[..., Mapping[str, torch.Tensor]],
    weights: Mapping[str, torch.Tensor | Variable],
    *args: Any,
    hidden: Iterable[torch.Tensor] = (),
    fixed: Mapping[str, torch.Tensor] = MappingProxyType({}),
) -> Program:
    """Lowers a run of a program that returns named tensors.

    Args:
      program: called with `args`, under PyTorch's mathematical definition of attention.
      weights: tensors that the program reads, by the names of the inputs.
      hidden: tensors that it may not read, such as those of the module whose copy it runs.
      fixed: weights by name that it may not change.

    Raises:
      UnknownOperation: the run needs an operation without a rule, branches on weights, or changes fixed ones.
    """
    builder = Builder()
    lowering = Lowering(builder)
    for tensor in hidden:
        lowering.memory.forget(tensor, HIDDEN)
    for name, weight in weights.items():
        lowering.name(weight, name)
    before = {name: lowering.memory.read(tensor).node for name, tensor in fixed.items()}
    exits = Exits(lowering.memory.depends_on_weights, lowering._line)
    with defined(), exits.watching(), lowering:
        found = program(*args)
    for name, tensor in fixed.items():
        if lowering.memory.read(tensor).node != before[name]:
            raise UnknownOperation("weight", "", f"the program, or a hook of it, changes {name} while it runs")
    return builder.program({name: lowering.output(tensor) for name, tensor in found.items()})


def cut(tensors: Iterable[torch.Tensor], *, is_weight: bool) -> None:
    """Marks tensors as values of an unknown function of them, like `jax_programs.cut`; does nothing outside
    lowering."""
    for lowering in torch.utils._python_dispatch._get_current_dispatch_mode_stack():
        if isinstance(lowering, Lowering):
            with unwatched():
                for tensor in tensors:
                    value = lowering.builder.cut(lowering.memory.read(tensor), is_weight=is_weight)
                    lowering.memory.write(tensor, value)


def defined() -> Any:
    """Returns a context in which attention is computed by its definition, not by a kernel, and nothing is compiled."""
    from contextlib import ExitStack

    from torch.nn.attention import SDPBackend, sdpa_kernel

    stack = ExitStack()
    stack.enter_context(sdpa_kernel(SDPBackend.MATH))
    stack.enter_context(torch.compiler.set_stance("force_eager"))
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    stack.callback(torch.backends.mha.set_fastpath_enabled, before)
    return stack


def _has_shape_of_data(call: _Call) -> bool:
    """Returns whether the shape of an operation's results may depend on the numbers that it reads."""
    if call.name in ("index", "index_put", "_index_put_impl", "_unsafe_index_put"):
        return any(each.dtype in (torch.bool, torch.uint8) for each in call.inputs[1:])
    return torch.Tag.dynamic_output_shape in call.func.tags or torch.Tag.data_dependent_output in call.func.tags


def _tensors_of(result: Any) -> list[torch.Tensor]:
    return [each for each in (result if isinstance(result, tuple | list) else [result]) if is_tensor(each)]


@cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Returns PyTorch's own definitions of operations by others: those that its compiler uses, and of interpolation.

    PyTorch builds its table anew in a second whenever it is asked, for operations that a user may have added meanwhile.
    Those aren't needed here: what isn't in the table decomposes itself.
    """
    from torch._decomp import core_aten_decompositions, get_decompositions

    interpolations = get_decompositions([torch.ops.aten.upsample_bilinear2d, torch.ops.aten.upsample_bicubic2d])
    own = {operation: _unless_same_size(each) for operation, each in interpolations.items()}
    return {**dict(core_aten_decompositions().items()), **own}


def _unless_same_size(interpolate: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an interpolation that returns what has the wanted size already, as it is. The sum of neighbours, of which
    all but one count for 0, is the same, but a map of weights doesn't follow it."""

    def interpolated(x: Any, size: Any, align_corners: bool, *scales: Any, **named: Any) -> Any:
        has_scales = any(each is not None for each in (*scales, *named.values()))
        is_same = size is not None and not has_scales and tuple(size) == tuple(x.shape[2:])
        return x.clone() if is_same else interpolate(x, size, align_corners, *scales, **named)

    return interpolated


def _has_rule(name: str) -> bool:
    return name in MOVES or name.removeprefix(EACH) in RULES or name in COMPLEX_RULES


def _cast(constants: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return np.asarray(torch.tensor(constants).to(dtype).double().numpy())


def _as_tensor(each: Any) -> Any:
    if not isinstance(each, Value):
        return each
    if each.known is None:
        raise UnknownOperation("index", "", "an index depends on weights")
    return torch.from_numpy(np.ascontiguousarray(each.known))


def _overwrite(tensor: torch.Tensor, known: np.ndarray) -> None:
    """Overwrites the run's numbers by the values that a rule knows for almost all weights, such as [w · w > 0] if w is
    0 in the run."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        tensor.copy_(torch.from_numpy(np.array(known)))


def user_line(within: str = "") -> str:
    """Returns the user's file and line that run; "" if none do.

    Args:
      within: the name of a function that has to run it. "": any.
    """
    return _line_of(python_stack(sys._getframe(1), lower.__code__), within)


def _line_of(calls: Iterable[tuple[Any, int]], within: str = "") -> str:
    """Returns the innermost line that is a program's own; "" if none is."""
    for code, line in calls:
        if code.co_name == within:
            return ""
        if not _is_library(code):
            return f"{code.co_filename}:{line}"
    return ""


def _is_library(code: Any) -> bool:
    """Returns whether a function is a framework's, or another mode that watches operations."""
    return is_of_framework(code.co_filename) or code.co_name == "__torch_dispatch__"
