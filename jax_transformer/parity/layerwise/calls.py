"""Define what both frameworks' sides offer: runs of the whole program, and of one layer again on other inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from jax_transformer.parity.layerwise.weights import Nudge, Weights


class Computed(NamedTuple):
    """Holds an array as a program computed it, and in float64."""

    own: np.ndarray
    """In the program's own dtype."""
    wide: np.ndarray | None
    """None if it wasn't asked for."""


@dataclass(frozen=True)
class LayerCall:
    """Holds a call of a layer, which can be repeated while it is seen."""

    path: str
    given: np.ndarray | None
    """The first floating-point array that it was called with, if it was one; in its own dtype."""
    computed: Computed
    """The first array that it returned."""
    again: Callable[[np.ndarray | None, Nudge | None, bool], Computed]
    """Calls it again on another first array, with weights moved, and in float64, too."""


Seen = Callable[[LayerCall], None]


class Layer(NamedTuple):
    """Names a part of a program."""

    path: str
    kind: str
    """The name of its class."""


class RunnableSide(Protocol):
    """Runs one program on the inputs."""

    name: str
    weights: Weights

    def layers(self) -> list[Layer]:
        """Lists all parts that can be seen, by path."""
        ...

    def run(
        self, seen: Seen | None = None, paths: Sequence[str] = (), *, nudge: Nudge | None = None, wide: bool = False
    ) -> Computed:
        """Runs the program.

        Args:
          seen: called with each call of a layer, when it ends.
          paths: the layers to look at.
          nudge: how the weights are moved.
          wide: whether to compute in float64, too.

        Raises:
          CannotRun: the program raises; an operation can't be repeated in float64.
        """
        ...


def as_float32(array: np.ndarray) -> np.ndarray:
    """Returns an array that NumPy computes with: narrower floats as float32."""
    return array.astype(np.float32) if array.dtype.name in ("bfloat16", "float16") else array


def first_array(result: Any) -> Any:
    """Returns the first array in a result: the result itself, or the first of a tuple, a list or a record; None if
    there is none."""
    if hasattr(result, "shape") and hasattr(result, "dtype"):
        return result
    several = result.values() if hasattr(result, "values") and not hasattr(result, "shape") else result
    if isinstance(result, (tuple, list)) or hasattr(result, "values"):
        return next((found for each in several if (found := first_array(each)) is not None), None)
    return None


def replaced_first(args: tuple[Any, ...], options: dict[str, Any], other: Any, is_float: Callable[[Any], bool]) -> Any:
    """Returns arguments with another array in place of the first floating-point one."""
    changed, more = list(args), dict(options)
    for number, each in enumerate(changed):
        if is_float(each):
            changed[number] = other
            return tuple(changed), more
    for name, each in more.items():
        if is_float(each):
            more[name] = other
            break
    return tuple(changed), more


def first_float(args: tuple[Any, ...], options: dict[str, Any], is_float: Callable[[Any], bool]) -> Any:
    """Returns the first floating-point array among arguments; None if there is none."""
    return next((each for each in (*args, *options.values()) if is_float(each)), None)
