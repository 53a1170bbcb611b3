"""Faults as they are put into a system: one activation of its PyTorch program gets another value, and what follows,
follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.config.model import TransformerConfig
from jax_transformer.parity.faults import Replay, Variant, catalogue
from jax_transformer.parity.oracle.graph import MODEL_INPUTS, Node, nodes, parameter
from jax_transformer.parity.problems import Problem
from selftest.open_world import Site, applicable

if TYPE_CHECKING:
    import torch

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Injection:
    """A fault at a node."""

    name: str
    node: Node
    known: bool
    """Whether the catalogue has it, so that it must be named; else it must not be."""
    value: Callable[[TransformerConfig, Mapping[str, Any], Arrays], np.ndarray]
    """(config, params, what was computed before, by name) → the faulty value. Raises LookupError or ValueError where it
    makes no sense."""


def known_faults(config: TransformerConfig, rng: np.random.Generator) -> Iterator[Injection]:
    """Every variant of the catalogue at the nodes of its kinds, in a drawn order."""
    for variant in catalogue(config):
        able = [node for node in nodes(config) if node.kind in variant.kinds]
        for node in drawn(able, rng):
            yield Injection(variant.name, node, True, _Known(variant, node))


def unknown_faults(config: TransformerConfig, rng: np.random.Generator) -> Iterator[Injection]:
    """Every fault of the open world at the nodes that it applies to, in a drawn order."""
    by_fault: dict[str, list[Injection]] = {}
    for fault, node in applicable(config):
        seed = int(rng.integers(2**32))
        by_fault.setdefault(fault.name, []).append(Injection(fault.name, node, False, _Unknown(fault, node, seed)))
    for injections in by_fault.values():
        yield from drawn(injections, rng)


def drawn(choices: Sequence[Any], rng: np.random.Generator) -> list[Any]:
    """All of them, in another order."""
    return [choices[i] for i in rng.permutation(len(choices))]


@dataclass(frozen=True)
class _Known:
    variant: Variant
    node: Node

    def __call__(self, config: TransformerConfig, params: Mapping[str, Any], before: Arrays) -> np.ndarray:
        inputs, parameters = _of_node(self.node, params, before)
        return self.variant.compute(Replay(config, self.node, inputs, parameters, before, params))


@dataclass(frozen=True)
class _Unknown:
    fault: Any
    node: Node
    seed: int

    def __call__(self, config: TransformerConfig, params: Mapping[str, Any], before: Arrays) -> np.ndarray:
        value: np.ndarray = self.fault.corrupt(
            Site(config, self.node, *_of_node(self.node, params, before), np.random.default_rng(self.seed))
        )
        return value


def _of_node(
    node: Node, params: Mapping[str, Any], before: Arrays
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    inputs = {argument: before[name] for argument, name in node.inputs.items()}
    return inputs, {argument: parameter(params, path) for argument, path in node.parameters.items()}


class Corruption:
    """What becomes of each activation of one forward pass on a problem: the injected one gets its faulty value."""

    def __init__(self, injection: Injection, config: TransformerConfig, problem: Problem) -> None:
        self.injection, self.config, self.problem = injection, config, problem
        self.changed = False
        """Whether the faulty value was any other than the right one, both computed alike."""

    def __call__(self, name: str, before: Mapping[str, torch.Tensor], right: torch.Tensor) -> torch.Tensor:
        import torch

        if name != self.injection.node.name:
            return right
        arrays = {other: tensor.detach().numpy() for other, tensor in before.items()}
        arrays |= dict(zip(MODEL_INPUTS, self.problem.ids, strict=True)) | {name: right.detach().numpy()}
        with np.errstate(all="ignore"):
            value = self.injection.value(self.config, self.problem.params, arrays)
            alike = self.injection.node.compute(
                self.config, *_of_node(self.injection.node, self.problem.params, arrays)
            )
        shape = np.broadcast_shapes(value.shape, tuple(right.shape))
        value = np.broadcast_to(value, shape)
        self.changed = not np.array_equal(value, np.broadcast_to(alike, shape), equal_nan=value.dtype != bool)
        return torch.tensor(np.array(value)).to(right.dtype)
