"""Hold what is found about a module: fields of a config, leaves, tables, and how sure each is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jax_transformer.discover.conclusions import Conclusion
from jax_transformer.discover.norms import Norm
from jax_transformer.discover.problems import DiscoverError, Unknown
from jax_transformer.programs.trace import Value

Leaves = dict[str, np.ndarray]
"""Path of a parameter, those of a layer with its number, as in "encoder/layers/…/kernel[0]" → elements."""


@dataclass
class Structure:
    """Holds what a module computes."""

    fields: dict[str, Any] = field(default_factory=dict)
    """Options by their paths in a TransformerConfig, such as encoder.norm.eps."""
    places: dict[str, Value] = field(default_factory=dict)
    """Path of an option → where the module first shows its value."""
    leaves: Leaves = field(default_factory=dict)
    tables: dict[str, np.ndarray] = field(default_factory=dict)
    """Values of constants by name, such as encoder_positions."""
    rows: dict[str, int | None] = field(default_factory=dict)
    """Stack → the most tokens that its table of positions allows; None: any number."""
    scaled: dict[tuple[str, str, str], dict[int, Value]] = field(default_factory=dict)
    """(stack, residual or output, sublayer) → the sizes of trained scales there, 0 for none, and where first."""
    is_normalised: bool = False
    """Whether the module returns log-probabilities."""
    factors: dict[str, float] = field(default_factory=dict)
    """Stack → the factor of its token embeddings."""
    distances: dict[str, frozenset[int]] = field(default_factory=dict)
    """Stack → every max_distance of its positions that fits; several if sentences were too short to tell."""
    rounding: float = 0.0
    """The largest residual of what the module computes in lower precision than float64, such as rotary angles."""
    conclusions: list[Conclusion] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def agree(self, name: str, value: Any, where: Value) -> None:
        """Sets an option, which must have the same value in all layers."""
        known = self.fields.setdefault(name, value)
        first = self.places.setdefault(name, where)
        if known != value and not (isinstance(value, float) and np.isclose(known, value, rtol=1e-12, atol=0)):
            raise Unknown(where, f"{name} {value!r} here and {known!r} at {first.place}")

    def leaf(self, path: str, elements: np.ndarray, layer: int | None) -> None:
        """Adds a leaf, of a layer or of none."""
        self.leaves[path if layer is None else f"{path}[{layer}]"] = elements

    def norm(self, path: str, norm: Norm, layer: int | None) -> None:
        """Adds the options and leaves of a norm, of a layer or of none.

        Raises:
          Unknown: an RMSNorm with a bias; the stack has another kind of norm elsewhere.
        """
        if norm.bias is not None and norm.candidate.kind == "rms_norm":
            raise Unknown(norm.value, "an RMSNorm with a bias")
        for name, value in norm.fields:
            self.agree(f"{path.partition('/')[0]}.norm.{name}", value, norm.value)
        if norm.scale is not None:
            self.leaf(f"{path}/scale", norm.scale, layer)
        if norm.bias is not None:
            self.leaf(f"{path}/bias", norm.bias, layer)
        what = path if layer is None else f"{path}[{layer}]"
        self.conclude(what, str(norm.candidate), norm.residual, norm.runner_up)

    def conclude(self, what: str, value: str, residual: float, runner_up: tuple[str, float] | None = None) -> None:
        """Adds a conclusion, once for what several parts of the module read."""
        one = Conclusion(what, value, residual, *(runner_up or ()))
        if one not in self.conclusions:
            self.conclusions.append(one)


@contextmanager
def telling(structure: Structure) -> Iterator[None]:
    """Gives a refusal inside what was concluded before it."""
    try:
        yield
    except DiscoverError as error:
        error.found = tuple(structure.conclusions)
        raise
