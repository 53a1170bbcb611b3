"""Find wrong nodes and their causes, by replaying each node on its own inputs.

The walk follows the correct graph in execution order. It compares each captured node with the correct value for the
captured values before it, and then continues from the captured value. Later nodes are thus judged by their own inputs,
and every fault is found independently. Uncaptured nodes are computed; a fault among them shows at the next captured
node, where every variant of each of them is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_transformer.comparison.findings import Finding
from jax_transformer.comparison.gates import tolerances
from jax_transformer.comparison.gates.arrays import Arrays
from jax_transformer.comparison.gates.rounding import nudged
from jax_transformer.parity.diagnosis.explaining import Explained, Step, explain
from jax_transformer.parity.diagnosis.head_orders import permuted_heads
from jax_transformer.parity.diagnosis.judging import GATE, Apart, measure, rows_of
from jax_transformer.parity.diagnosis.padding import zeroed_padding
from jax_transformer.parity.diagnosis.placement import misplaced_norms
from jax_transformer.parity.oracle.graph import MODEL_INPUTS, Node, input_names, nodes, parameter, recompute

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig


def diagnose(config: TransformerConfig, params: Mapping[str, Any], captured: Arrays) -> list[Finding]:
    """Returns all faulty nodes in execution order, each judged by its own inputs, and notes on masked logits.

    Args:
      params: the parameters that the model should have.
      captured: its ids, and its known masks and activations, by name.
    """
    return [finding for _, finding in walk(config, params, captured) if finding is not None]


def walk(
    config: TransformerConfig, params: Mapping[str, Any], captured: Arrays
) -> Iterator[tuple[Step, Finding | None]]:
    """Yields every captured node in execution order with its local error, and its explanation if it is wrong."""
    yield from _Walk(config, params, captured).steps()


@dataclass
class _Walk:
    """Walks through one side's trace."""

    config: TransformerConfig
    params: Mapping[str, Any]
    captured: Arrays
    known: dict[str, np.ndarray] = field(init=False)
    """All values so far by name, captured or computed."""
    graph: tuple[Node, ...] = field(init=False)
    masks: dict[str, str] = field(init=False)
    """The mask's name by the name of the attention's logits and weights."""
    done: set[str] = field(default_factory=set)
    """The nodes of a layer that was explained as a whole."""
    hidden: dict[str, set[str]] = field(default_factory=dict)
    """Uncaptured nodes → their names and those of the uncaptured nodes that lead to them."""

    def __post_init__(self) -> None:
        self.graph = nodes(self.config)
        self.known = {name: np.asarray(self.captured[name]) for name in input_names(self.config)}
        logits = {node.name: node.inputs["mask"] for node in self.graph if "mask" in node.inputs}
        self.masks = logits | {
            node.name: logits[node.inputs["logits"]]
            for node in self.graph
            if node.kind == "attention_weights" and node.inputs["logits"] in logits
        }

    def steps(self) -> Iterator[tuple[Step, Finding | None]]:
        for node in self.graph:
            if node.name in self.done:
                continue
            before = set[str]().union(*(self.hidden.get(name, ()) for name in node.inputs.values()))
            computed = recompute(node, self.config, self.known, self.params)
            if node.name not in self.captured:
                self.hidden[node.name] = before | {node.name}
                self.known[node.name] = computed
                continue
            step = self._step(node, computed, before)
            yield step, self._judged(step, computed)

    def _step(self, node: Node, computed: np.ndarray, before: set[str]) -> Step:
        received, hidden = self.captured[node.name], self._named(before)
        if not _fits(received, computed):
            return Step(node, Apart(np.inf), hidden, self.known, fits=False)
        rows = rows_of(node, self.known, hidden, self.masks)
        step = Step(node, measure(received, computed, rows), hidden, self.known, rows, received)
        has_softmax = any(one.kind == "attention_weights" for one in (*hidden, node))
        if not has_softmax or step.apart.seen <= GATE or not step.apart.seen <= tolerances.MOST_FOR_ROUNDING:
            return step
        return step._replace(gate=max(GATE, self._rounding(step, computed)))

    def _judged(self, step: Step, computed: np.ndarray) -> Finding | None:
        """Explains a step if it is wrong, and adopts its value."""
        name = step.node.name
        if not step.fits:
            self.known[name] = computed
            return Finding(name, step.node.kind, np.inf, (), None)
        result = Explained(None)
        if not step.passes:
            result = (
                zeroed_padding(step, computed, self.config, self.params)
                or permuted_heads(step, self.config, self.params, self.captured, self.masks)
                or misplaced_norms(step, self.config, self.params, self.captured, self.masks)
                or self._explained(step)
            )
        elif step.apart.fill > GATE:
            result = self._explained(step)
        self.done |= result.done
        self.known |= {name: step.received, **result.values}
        return result.finding

    def _explained(self, step: Step) -> Explained:
        return explain(step, self.config, self.params)

    def _named(self, names: set[str]) -> tuple[Node, ...]:
        return tuple(node for node in self.graph if node.name in names) if names else ()

    def _rounding(self, step: Step, computed: np.ndarray) -> float:
        """Returns the distance that rounding alone explains: a multiple of the change in the correct value when all its
        inputs change in their last bit."""
        chain = (*step.hidden, step.node)
        own = {node.name for node in chain}
        moved = nudged({name: self.known[name] for node in chain for name in node.inputs.values() if name not in own})
        for node in chain:
            inputs = {argument: moved[name] for argument, name in node.inputs.items()}
            exact = {argument: parameter(self.params, path) for argument, path in node.parameters.items()}
            with np.errstate(all="ignore"):
                moved[node.name] = node.compute(self.config, inputs, nudged(exact))
        allowed = tolerances.FACTOR_ROUNDING * measure(moved[step.node.name], computed, step.rows).seen
        return allowed if allowed <= tolerances.MOST_FOR_ROUNDING else 0.0


def _fits(received: np.ndarray, expected: np.ndarray) -> bool:
    """Returns whether later nodes can be computed from it: masks must broadcast with the expected ones, and expected
    numbers to the received."""
    try:
        shape = np.broadcast_shapes(received.shape, expected.shape)
    except ValueError:
        return False
    is_mask = expected.dtype == bool
    return (received.dtype == bool) == is_mask and (is_mask or shape == received.shape)


def with_ids(
    captured: Arrays, source_ids: np.ndarray, decoder_input_ids: np.ndarray, **features: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the trace with the model's inputs added under their names, and the FEATURE_INPUTS of one with a stem."""
    return {**captured, **dict(zip(MODEL_INPUTS, (source_ids, decoder_input_ids), strict=True)), **features}
