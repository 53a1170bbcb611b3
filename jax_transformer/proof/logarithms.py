"""Find logarithms of zero that outputs depend on. A field has a number for log 0, and 0 · log 0 is zero there; a
program's outputs are −∞ or NaN for all weights."""

from __future__ import annotations

import numpy as np

from jax_transformer.proof.domains import Arrays, Residues, Undefined
from jax_transformer.proof.evaluating import evaluate
from jax_transformer.proof.needs import needed
from jax_transformer.proof.programs import Program
from jax_transformer.proof.signs import SHAPING

CHOOSING = ("step", "equal")
"""Operations whose zeros choose, like those of their negations: JAX and PyTorch drop unchosen values. Other zeros are
multiplied."""


def refuse_log_of_zero(program: Program, domain: Residues, weights: Arrays) -> None:
    """Evaluates a program once more. Raises Undefined if its outputs depend on the logarithm of zero."""
    constants, choosing = _constants(program), _choosing(program)
    read = {one.inputs[0] for one in program.operations if one.name == "log"} - constants
    if not read:
        return
    zeros: dict[int, np.ndarray] = {}

    def watch(node: int, array: np.ndarray) -> None:
        zeros[node] = array == 0 if node in choosing or node in read else np.broadcast_to(False, array.shape)

    evaluate(program, domain, weights, watch)
    multiplied = {
        node: array if node in choosing else np.broadcast_to(False, array.shape) for node, array in zeros.items()
    }
    outputs = [value.node for value in program.outputs.values() if value.node is not None]
    for node, need in needed(program, outputs, multiplied).items():
        one = program.operations[node]
        if one.name == "log" and one.inputs[0] in read and (need & zeros[one.inputs[0]]).any():
            raise Undefined(f"log {list(one.shape)}{f' ({one.line})' if one.line else ''}: of zero for all weights")


def _constants(program: Program) -> set[int]:
    """Returns the operations that depend on no weight. Their log 0 masks an entry, and 0 · log 0 was refused before."""
    found = set[int]()
    for node, one in enumerate(program.operations):
        if one.name == "constant" or (one.inputs and found.issuperset(one.inputs)):
            found.add(node)
    return found


def _choosing(program: Program) -> set[int]:
    """Returns the conditions s, their negations 1 − s, and reshaped ones."""
    found, ones = set[int](), set[int]()
    for node, one in enumerate(program.operations):
        if one.name == "constant" and np.all(one.attributes["array"] == 1):
            ones.add(node)
        if one.name in SHAPING:
            ones |= {node} if one.inputs[0] in ones else set()
            found |= {node} if one.inputs[0] in found else set()
        is_negation = one.name == "subtract" and one.inputs[0] in ones and one.inputs[1] in found
        if one.name in CHOOSING or is_negation:
            found.add(node)
    return found
