"""Hold what is learned about a module: config fields, leaves, tables, and the evidence of each."""

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
"""Path of a parameter → elements. Layers are numbered, as in "encoder/layers/…/kernel[0]"."""


@dataclass
class Structure:
    """Holds the options, parameters and measurements of a module."""

    fields: dict[str, Any] = field(default_factory=dict)
    """Options by their paths in a TransformerConfig, such as encoder.norm.eps."""
    places: dict[str, Value] = field(default_factory=dict)
    """Path of an option → the first place in the module that shows its value."""
    leaves: Leaves = field(default_factory=dict)
    tables: dict[str, np.ndarray] = field(default_factory=dict)
    """Values of constants by name, such as encoder_positions."""
    rows: dict[str, int | None] = field(default_factory=dict)
    """Stack → the most tokens that its table of positions allows; None: any number."""
    scaled: dict[tuple[str, str, str], dict[int, Value]] = field(default_factory=dict)
    """(stack, residual or output, sublayer) → size of its trained scale (0 for none) → first place with that size."""
    is_normalised: bool = False
    """Whether the module returns log-probabilities."""
    factors: dict[str, float] = field(default_factory=dict)
    """Stack → the factor of its token embeddings."""
    distances: dict[str, frozenset[int]] = field(default_factory=dict)
    """Stack → every max_distance that fits its positions; several if the sentences were too short."""
    rounding: float = 0.0
    """Largest error of lower-precision computations, such as rotary angles, against float64."""
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
        """Adds a conclusion unless another part of the module already did."""
        one = Conclusion(what, value, residual, *(runner_up or ()))
        if one not in self.conclusions:
            self.conclusions.append(one)


@contextmanager
def with_conclusions(structure: Structure) -> Iterator[None]:
    """Attaches the conclusions reached so far to an error raised inside."""
    try:
        yield
    except DiscoverError as error:
        error.found = tuple(structure.conclusions)
        raise
