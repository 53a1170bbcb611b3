"""Runs a JAX program, operation by operation, with weights that are read when an operation needs them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_transformer.comparison.gates.arrays import ParityError
from jax_transformer.comparison.user_errors import cannot_run, shapes_of
from jax_transformer.matching.programs import PureProgram
from jax_transformer.matching.sides import flattened
from jax_transformer.parity.layerwise import wide_jax
from jax_transformer.parity.layerwise.calls import (
    Computed,
    Layer,
    LayerCall,
    Seen,
    first_array,
    first_float,
    replaced_first,
)
from jax_transformer.parity.layerwise.jax_layers import CallOfLayer, LayersOfProgram
from jax_transformer.parity.layerwise.weights import Nudge, Weight, Weights, nudged_array, reader


class JaxSide:
    """Runs a JAX program.

    Weights that are `jax.ShapeDtypeStruct`s, as `nnx.eval_shape` makes them, are read from the checkpoint by each
    operation that needs one, and forgotten after it. Nothing is compiled as a whole: `jax.disable_jit` runs loops and
    compiled functions step by step.

    Args:
      program: the program itself, whose layers are seen.
      pure: the program as a function of its weights.
      checkpoint: see `weights.reader`.
      device: a device, or a platform such as "gpu" and "cpu:1"; None: JAX's first one.

    Raises:
      ParityError: quantised weights, or weights without numbers; no such device.
    """

    def __init__(
        self,
        program: Any,
        pure: PureProgram,
        name: str,
        inputs: Mapping[str, np.ndarray],
        checkpoint: Any = None,
        device: Any = None,
    ) -> None:
        self.name, self.inputs, self.device = name, inputs, _device(device, name)
        self._pure = pure
        leaves = jax.tree_util.tree_leaves(pure.params)
        self._names = _names(pure.params)
        known = {each: _weight(leaf, each, name) for each, leaf in zip(self._names, leaves, strict=True)}
        self.weights = Weights(name, known, None if checkpoint is None else reader(checkpoint, name))
        self._layers = LayersOfProgram(program)
        self._nudge: Nudge | None = None
        self._holds_all = False
        self._is_wide = False

    def layers(self) -> list[Layer]:
        return self._layers.listed()

    def run(
        self, seen: Seen | None = None, paths: Sequence[Any] = (), *, nudge: Nudge | None = None, wide: bool = False
    ) -> Computed:
        what = f"{shapes_of(self.inputs)}{' in float64, too' if wide else ''}"
        with contextlib.ExitStack() as stack:
            stack.enter_context(cannot_run(f"{self.name}:", what))
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))  # of modules that print
            stack.enter_context(self._nudged(nudge))
            stack.enter_context(jax.default_device(self.device))
            stack.enter_context(self._highest())
            stack.enter_context(_nnx_variables_are_read())
            given = {name: self._input(array) for name, array in self.inputs.items()}
            own = self._called(seen, paths, given)
            if not wide:
                return Computed(own, None)
            structure = jax.tree_util.tree_structure(self._pure.params)
            params = jax.tree_util.tree_unflatten(structure, [ReadLater(self, name) for name in self._names])
            return Computed(own, self._wide(self._pure.function, params, given, params))

    def _called(self, seen: Seen | None, paths: Sequence[Any], given: Any) -> np.ndarray:
        """Calls the program; with all of its weights in memory if it hands them to a loop, which takes arrays alone."""
        with self._watched(seen, paths), jax.disable_jit():
            try:
                return _own(self._pure.function(self._params(), given))
            except (TypeError, ValueError) as error:
                if self._holds_all or "__jax_array__" not in str(error):
                    raise
        self._holds_all = True
        return self._called(seen, paths, given)

    def _highest(self) -> contextlib.AbstractContextManager[Any]:
        stack = contextlib.ExitStack()
        stack.enter_context(jax.default_matmul_precision("highest"))
        stack.enter_context(jax.enable_x64(any(one.dtype == "float64" for one in self.weights.known.values())))
        return stack

    def _params(self) -> Any:
        structure = jax.tree_util.tree_structure(self._pure.params)
        kept = self.read if self._holds_all else partial(ReadLater, self)
        return jax.tree_util.tree_unflatten(structure, [kept(name) for name in self._names])

    def _input(self, array: np.ndarray) -> Any:
        """Returns an input on the device; NumPy's own floats in the type of the weights."""
        if array.dtype == np.float64:
            floats = [weight.dtype for weight in self.weights.known.values()]
            return jax.device_put(jnp.asarray(array, floats[0] if floats else "float32"), self.device)
        return jax.device_put(jnp.asarray(array), self.device)

    def _watched(self, seen: Seen | None, paths: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        if seen is None:
            return contextlib.nullcontext()
        return self._layers.watched(paths, partial(self._seen, seen))

    def _seen(self, seen: Seen, call: CallOfLayer) -> None:
        given = first_float(call.args, call.options, _is_float)
        output = first_array(call.output)
        if output is None:
            raise ParityError(f"{self.name}: {call.path} returns no array: leave it out of layers")
        computed = Computed(_own(output), None)
        seen(LayerCall(call.path, None if given is None else _own(given), computed, partial(self._again, call)))

    def _again(self, call: CallOfLayer, other: np.ndarray | None, nudge: Nudge | None, wide: bool) -> Computed:
        args, options = call.args, call.options
        if other is not None:
            mine = first_float(args, options, _is_float)
            array = jax.device_put(jnp.asarray(other).astype(mine.dtype).reshape(mine.shape), self.device)
            args, options = replaced_first(args, options, array, _is_float)
        function, params = call.pure()
        narrow = nudge if nudge is not None and not nudge.dtype else None
        with self._nudged(nudge):
            own = _own(first_array(function(self._with_moved(params, narrow), args, options)))
            moved = self._with_moved(params, nudge)

            def on_arrays(params: Any, given: Any) -> Any:
                return first_array(function(params, *given))

            return Computed(own, self._wide(on_arrays, params, (args, options), moved) if wide else None)

    @contextlib.contextmanager
    def _nudged(self, nudge: Nudge | None) -> Iterator[None]:
        before, self._nudge = self._nudge, nudge
        try:
            yield
        finally:
            self._nudge = before

    def _with_moved(self, params: Any, nudge: Nudge | None) -> Any:
        """Returns a layer's weights with those moved that it was called with as arrays: slices of a stack, say."""
        if nudge is None:
            return params
        leaves, structure = jax.tree_util.tree_flatten(params)
        arrays = {number: leaf for number, leaf in enumerate(leaves) if _is_float(leaf)}
        for number, leaf in arrays.items():
            moved = nudged_array(np.asarray(leaf), nudge, str(number))
            leaves[number] = moved if nudge.dtype else jax.device_put(jnp.asarray(moved), self.device)
        return jax.tree_util.tree_unflatten(structure, leaves)

    # --- float64

    def _wide(self, function: Callable[[Any, Any], Any], params: Any, given: Any, moved: Any) -> np.ndarray:
        """Evaluates a function of weights and other arguments in float64.

        Args:
          moved: the weights to evaluate it with; with the others, it is traced.
        """
        leaves, structure = jax.tree_util.tree_flatten((params, given), is_leaf=_is_none)
        numbers = jax.tree_util.tree_leaves((moved, given), is_leaf=_is_none)
        places = [place for place, leaf in enumerate(leaves) if _is_array(leaf)]

        def traced(*arrays: Any) -> Any:
            filled = list(leaves)
            for place, array in zip(places, arrays, strict=True):
                filled[place] = array
            return function(*jax.tree_util.tree_unflatten(structure, filled))

        shapes = [jax.ShapeDtypeStruct(leaves[place].shape, leaves[place].dtype) for place in places]
        with jax.disable_jit(False):
            closed = jax.make_jaxpr(traced)(*shapes)
        self._is_wide = True
        try:
            return np.asarray(wide_jax.evaluate(closed, [numbers[place] for place in places], self._widened)[0])
        finally:
            self._is_wide = False

    def _widened(self, each: Any) -> Any:
        if not isinstance(each, ReadLater):
            return wide_jax.wide_array(each)
        return wide_jax.wide_array(self.weights.array(each.name, self._nudge))

    def read(self, name: str) -> Any:
        """Returns a weight on the device."""
        nudge = self._nudge if self._is_wide or (self._nudge is not None and not self._nudge.dtype) else None
        return jax.device_put(jnp.asarray(self.weights.array(name, nudge)), self.device)


class ReadLater:
    """A weight that each operation reads."""

    def __init__(self, side: JaxSide, name: str) -> None:
        weight = side.weights.known[name]
        self._side, self.name = side, name
        self.shape, self.dtype = weight.shape, jnp.dtype(weight.dtype)
        self.ndim, self.size = len(weight.shape), weight.size

    def __jax_array__(self) -> Any:
        return self._side.read(self.name)

    def __getitem__(self, index: Any) -> Any:
        return self.__jax_array__()[index]

    def __len__(self) -> int:
        return self.shape[0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_side" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__jax_array__(), name)


@contextlib.contextmanager
def _nnx_variables_are_read() -> Iterator[None]:
    """Makes NNX variables return arrays for weights that are read later: JAX takes no others from them."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        yield
        return
    kind = nnx.Variable
    own = kind.get_value

    def get_value(variable: Any, **options: Any) -> Any:
        found = own(variable, **options)
        return found.__jax_array__() if isinstance(found, ReadLater) else found

    kind.get_value = get_value
    try:
        yield
    finally:
        kind.get_value = own


def _operator(name: str) -> Callable[..., Any]:
    return lambda weight, *others: getattr(weight.__jax_array__(), name)(*others)


for _each in ("add", "sub", "mul", "truediv", "matmul", "pow"):
    for _name in (f"__{_each}__", f"__r{_each}__"):
        setattr(ReadLater, _name, _operator(_name))
setattr(ReadLater, "__neg__", _operator("__neg__"))  # noqa: B010


def _names(params: Any) -> list[str]:
    """Returns the paths of the leaves of a tree of weights."""
    structure = jax.tree_util.tree_structure(params)
    numbered = jax.tree_util.tree_unflatten(structure, list(range(len(jax.tree_util.tree_leaves(params)))))
    return list(flattened(numbered)[0])


def _weight(leaf: Any, name: str, side: str) -> Weight:
    if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
        raise ParityError(f"{side}: {name}: expected an array of weights; received a {type(leaf).__name__}")
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        raise ParityError(f"{side}: {name} is shared by several processes, which isn't supported: gather it first")
    is_abstract = isinstance(leaf, jax.ShapeDtypeStruct)
    return Weight(tuple(leaf.shape), np.dtype(leaf.dtype).name, None if is_abstract else leaf)


def _device(device: Any, side: str) -> Any:
    if device is None:
        return jax.devices()[0]
    if not isinstance(device, str):
        return device
    platform, _, number = device.partition(":")
    try:
        return jax.devices(platform)[int(number or 0)]
    except (RuntimeError, IndexError, ValueError) as error:
        listed = ", ".join(f"{one.platform}:{one.id}" for one in jax.devices())
        raise ParityError(f"{side}: device: expected one of {listed}; received {device} ({error})") from error


def _own(array: Any) -> np.ndarray:
    return np.asarray(array)


def _is_float(each: Any) -> bool:
    return _is_array(each) and not isinstance(each, ReadLater) and bool(jnp.issubdtype(each.dtype, jnp.floating))


def _is_array(each: Any) -> bool:
    return isinstance(each, jax.Array | np.ndarray | ReadLater)


def _is_none(each: Any) -> bool:
    return each is None
