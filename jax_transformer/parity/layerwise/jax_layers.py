"""Sees the calls of a JAX program's layers: of NNX, Linen and Equinox modules, and of functions."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jax_transformer.parity.layerwise.calls import Layer

Pure = tuple[Callable[[Any, Any, Any], Any], Any]
"""A function (weights, arguments by place, arguments by name), and the weights."""


@dataclass(frozen=True)
class CallOfLayer:
    """Holds a call of a layer."""

    path: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    output: Any
    pure: Callable[[], Pure]
    """Returns the layer as a function of its weights, which changes nothing."""


class LayersOfProgram:
    """Lists the layers of a program, and sees their calls.

    Args:
      program: an NNX, Equinox or Linen module, or a function, which has no layers that are listed.
    """

    def __init__(self, program: Any) -> None:
        self._program = program
        self.kind = "function"
        if _is(program, "flax.nnx"):
            self.kind = "nnx"
        elif _is(program, "equinox"):
            self.kind = "equinox"
        elif _is(program, "flax.linen"):
            self.kind = "linen"

    def listed(self) -> list[Layer]:
        if self.kind in ("nnx", "equinox"):
            return [Layer(path, type(part).__name__) for path, part in self._parts(self._program) if path]
        return []

    @contextlib.contextmanager
    def watched(self, paths: Sequence[str], seen: Callable[[CallOfLayer], None]) -> Iterator[None]:
        """Calls `seen` at the end of each call of the layers at these paths.

        Args:
          paths: of modules, `layers.0`; of functions, `package.module:name#0`, by the number of the call.
        """
        watching = _Watching({*paths}, seen)
        with contextlib.ExitStack() as stack:
            functions = {path.partition("#")[0] for path in paths if ":" in path}
            for function in sorted(functions):
                stack.enter_context(_patched_function(function, watching))
            if self.kind in ("nnx", "equinox"):
                kinds = {type(part) for _, part in self._parts(self._program)}
                for kind in kinds:
                    stack.enter_context(self._patched(kind, watching))
            if self.kind == "linen":
                stack.enter_context(self._intercepted(watching))
            yield

    def _parts(self, module: Any) -> Iterator[tuple[str, Any]]:
        """Yields a module and the modules inside it by path."""
        if self.kind == "nnx":
            nnx = sys.modules["flax.nnx"]
            found = [(".".join(map(str, path)), part) for path, part in nnx.iter_modules(module)]
            yield from reversed(found)
            return
        kind = sys.modules["equinox"].Module
        waiting, known = [("", module)], set[int]()
        while waiting:
            path, part = waiting.pop(0)
            if id(part) in known:
                continue
            known.add(id(part))
            start = f"{path}." if path else ""
            if isinstance(part, kind):
                yield path, part
                waiting += [(f"{start}{name}", each) for name, each in vars(part).items()]
            elif isinstance(part, list | tuple):
                waiting += [(f"{start}{number}", each) for number, each in enumerate(part)]
            elif isinstance(part, dict):
                waiting += [(f"{start}{name}", each) for name, each in part.items()]

    @contextlib.contextmanager
    def _patched(self, kind: Any, watching: _Watching) -> Iterator[None]:
        own = kind.__dict__.get("__call__")
        if own is None:
            yield
            return
        called = kind.__call__

        @functools.wraps(called)
        def call(module: Any, *args: Any, **options: Any) -> Any:
            if watching.is_paused:
                return called(module, *args, **options)
            is_first = not watching.paths_of
            if is_first:
                watching.paths_of = {id(part): path for path, part in self._parts(module)}
                watching.held = module
            path = watching.paths_of.get(id(module), "")
            output = called(module, *args, **options)
            if path in watching.wanted and path:
                watching.show(CallOfLayer(path, args, options, output, lambda: self._pure(module)))
            if is_first:
                watching.paths_of = {}
            return output

        type.__setattr__(kind, "__call__", call)
        try:
            yield
        finally:
            type.__setattr__(kind, "__call__", own)

    def _pure(self, module: Any) -> Pure:
        if self.kind == "nnx":
            nnx = sys.modules["flax.nnx"]
            definition, weights = nnx.split(module)
            return lambda params, args, options: nnx.merge(definition, params)(*args, **options), weights
        leaves, structure = jax.tree_util.tree_flatten(module)
        places = [place for place, leaf in enumerate(leaves) if hasattr(leaf, "dtype")]

        def function(params: Any, args: Any, options: Any) -> Any:
            filled = list(leaves)
            for place, leaf in zip(places, params, strict=True):
                filled[place] = leaf
            return jax.tree_util.tree_unflatten(structure, filled)(*args, **options)

        return function, [leaves[place] for place in places]

    def _intercepted(self, watching: _Watching) -> Any:
        linen = sys.modules["flax.linen"]

        def interceptor(called: Any, args: Any, options: Any, context: Any) -> Any:
            output = called(*args, **options)
            path = ".".join(context.module.path)
            if not watching.is_paused and context.method_name == "__call__" and path in watching.wanted:
                module, variables = context.module.unbind()

                def function(params: Any, args: Any, options: Any) -> Any:
                    return module.apply(params, *args, **options)

                watching.show(CallOfLayer(path, args, options, output, lambda: (function, variables)))
            return output

        return linen.intercept_methods(interceptor)


class _Watching:
    """Holds what is to be seen."""

    def __init__(self, wanted: set[str], seen: Callable[[CallOfLayer], None]) -> None:
        self.wanted, self._seen = wanted, seen
        self.is_paused = False
        self.paths_of: dict[int, str] = {}
        self.held: Any = None

    def show(self, call: CallOfLayer) -> None:
        self.is_paused = True
        try:
            self._seen(call)
        finally:
            self.is_paused = False


@contextlib.contextmanager
def _patched_function(name: str, watching: _Watching) -> Iterator[None]:
    """Sees the calls of a function whose first argument is its weights."""
    place, _, own = name.partition(":")
    module = sys.modules[place]
    function = getattr(module, own)
    calls = iter(range(sys.maxsize))

    @functools.wraps(function)
    def call(params: Any, *args: Any, **options: Any) -> Any:
        if watching.is_paused:
            return function(params, *args, **options)
        path = f"{name}#{next(calls)}"
        output = function(params, *args, **options)
        if path in watching.wanted:

            def pure(params: Any, args: Any, options: Any) -> Any:
                return function(params, *args, **options)

            watching.show(CallOfLayer(path, args, options, output, lambda: (pure, params)))
        return output

    setattr(module, own, call)
    try:
        yield
    finally:
        setattr(module, own, function)


def _is(program: Any, package: str) -> bool:
    module = sys.modules.get(package)
    return module is not None and isinstance(program, module.Module)
