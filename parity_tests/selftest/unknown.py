"""A fault that no diagnosis knows: what it is, the node it is put into, and when it is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jax_transformer.comparison.gates.compare import relative_rms
from jax_transformer.comparison.gates.tolerances import LEAST_FAULT_RELATIVE_RMS
from jax_transformer.parity.oracle import formulas
from jax_transformer.parity.oracle.graph import Kind, Node

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig
    from jax_transformer.config.specs import Stack


@dataclass(frozen=True)
class Site:
    """A node of a model, with what it computes from and where the fault's choices (which head, which weight) come
    from."""

    config: TransformerConfig
    node: Node
    inputs: Mapping[str, np.ndarray]
    """By argument; float64, but for ids and masks."""
    parameters: Mapping[str, np.ndarray]
    """By argument; float64."""
    rng: np.random.Generator

    def compute(
        self,
        inputs: Mapping[str, np.ndarray] | None = None,
        parameters: Mapping[str, np.ndarray] | None = None,
        config: TransformerConfig | None = None,
    ) -> np.ndarray:
        """The node's value, with these inputs, parameters or this config in place of its own."""
        with np.errstate(all="ignore"):
            return self.node.compute(
                config or self.config, {**self.inputs, **(inputs or {})}, {**self.parameters, **(parameters or {})}
            )

    @property
    def parts(self) -> Mapping[str, Any]:
        """The parts of the config that the node's formula reads, by argument."""
        return self.node.parts_of(self.config)

    @property
    def stack(self) -> Stack:
        """The config of the node's stack; of nodes of neither, the decoder's."""
        return self.config.encoder if self.node.name.startswith("encoder.") else self.config.decoder

    def pick(self, count: int) -> int:
        """One of so many.

        Raises:
          LookupError: there is none.
        """
        require(count > 0, "nothing to choose from")
        return int(self.rng.integers(count))

    def pick_two(self, count: int) -> list[int]:
        """Two different ones of so many, in any order.

        Raises:
          LookupError: there are fewer.
        """
        require(count > 1, "needs two to choose from")
        return [int(i) for i in self.rng.choice(count, 2, replace=False)]


Wrong = Callable[[Site, np.ndarray], np.ndarray]
"""(site, its right value) → a wrong value, which may be the right one by chance."""


class Unknown(NamedTuple):
    """A fault in none of the lists of known ones."""

    name: str
    """The name in reports: "one head's output is dropped"."""
    kinds: tuple[Kind, ...]
    """Of the nodes that may have it."""
    corrupt: Callable[[Site], np.ndarray]
    """The node's wrong value, of the right one's shape and dtype. Raises LookupError where the fault makes no sense or
    changes nothing."""
    needs: tuple[str, ...] = ()
    """Arguments of the formula, inputs or parameters, without which it makes no sense."""


def unknown(name: str, kinds: tuple[Kind, ...], wrong: Wrong, needs: tuple[str, ...] = ()) -> Unknown:
    """The fault of that wrong value. What is masked stays so: faults of masks are put into masks."""

    def corrupt(site: Site) -> np.ndarray:
        for argument in needs:
            require(
                argument in site.inputs or argument in site.parameters, f"{name}: {site.node.name} has no {argument}"
            )
        right = site.compute()
        with np.errstate(all="ignore"):
            value = wrong(site, right)
        counts = np.ones(right.shape, bool)
        if site.node.kind == "attention_logits":
            counts = right != formulas.masked_value(site.parts["spec"])
            value = np.where(counts, value, right)
        require(_differs(value, right, counts), f"{name}: changes nothing of {site.node.name} on these inputs")
        return value

    return Unknown(name, kinds, corrupt, needs)


def _differs(value: np.ndarray, right: np.ndarray, counts: np.ndarray) -> bool:
    if right.dtype == bool:
        return not np.array_equal(value, right)
    return bool(counts.any()) and not relative_rms(value, right, counts) <= LEAST_FAULT_RELATIVE_RMS


def require(holds: bool, otherwise: str) -> None:
    """Raises LookupError saying so, unless it holds."""
    if not holds:
        raise LookupError(otherwise)


# --- numbers of fewer bits


def float32(array: np.ndarray) -> np.ndarray:
    """float64 as float32; what is beyond its largest number is that. Ids and masks as they are."""
    if array.dtype != np.float64:
        return array
    most = float(np.finfo(np.float32).max)
    return np.clip(array, -most, most).astype(np.float32)


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """float64 rounded to the nearest bfloat16, ties to even. Not of what is beyond its largest number."""
    bits = float32(array).view(np.uint32)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return nearest.view(np.float32).astype(np.float64)


def to_int8(array: np.ndarray) -> np.ndarray:
    """Rounded to 127 steps up to the largest of them, and as many down."""
    step = np.abs(array).max() / 127
    require(bool(step > 0), "all zero")
    return np.round(array / step) * step
