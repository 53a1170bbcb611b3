"""Roots that meet other operations, written out by the axiom "roots"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.proof.programs import Operation, Value

if TYPE_CHECKING:
    from jax_transformer.proof.algebra import Algebra


def written_out(b: Algebra, one: Operation, x: Value) -> Value | None:
    """Returns √x where it follows from the roots of what x is computed from; None if it doesn't.

    Args:
      one: the operation that computes x.
    """
    inputs = [b._values[each] for each in one.inputs]
    if one.name == "inverse":
        return b.inverse(b.root(inputs[0]))
    if one.name == "reshape":
        return b.reshape(b.root(inputs[0]), x.shape)
    if one.name == "power" and one.attributes["exponent"] % 2 == 0:
        return b.power(b.absolute(inputs[0]), one.attributes["exponent"] // 2)
    if one.name == "multiply" and one.inputs[0] == one.inputs[1]:
        return b.absolute(inputs[0])
    is_scaled = any(each.known is not None for each in inputs)
    signs = [b._signs.never_negative(each) for each in one.inputs]
    if one.name == "multiply" and not is_scaled and (all(signs) or any(map(b._signs.positive, one.inputs))):
        return b.multiply(*map(b.root, inputs))
    return None


def radicand(b: Algebra, x: Value) -> Value | None:
    """Returns what x consists of the roots of; None if it doesn't."""
    one = b.operations[x.node or 0]
    if one.name == "root":
        return b._values[one.inputs[0]]
    if one.name not in ("reshape", "broadcast", "concatenate"):
        return None
    parts = [radicand(b, b._values[each]) for each in one.inputs]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    if one.name == "concatenate":
        return b.concatenate(found, one.attributes["axis"])
    return (b.reshape if one.name == "reshape" else b.broadcast)(found[0], x.shape)


def met(b: Algebra, x: Value, y: Value) -> Value | None:
    """Reads a radicand v that is multiplied or divided by its own root as the root's square (axiom "roots").

    (1/√v)/v becomes (1/√v)³: JAX's derivative of 1/√v has the first, PyTorch's the second.
    """
    if x.node == y.node and (squared := radicand(b, x)) is not None:
        return squared
    x, y = b._inner(x), b._inner(y)
    if x.node is None or y.node is None:
        return None
    left, right = b.operations[x.node], b.operations[y.node]
    if left.name == "inverse" and b.operations[left.inputs[0]].name == "root":
        read = b.operations[left.inputs[0]].inputs[0]
        if right.name == "inverse" and right.inputs[0] == read:
            return b.power(x, 3)
        if y.node == read:
            return b._values[left.inputs[0]]
    if left.name == "root" and right.name == "inverse" and right.inputs[0] == left.inputs[0]:
        return b.inverse(x)
    return None
