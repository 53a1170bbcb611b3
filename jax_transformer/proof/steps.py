"""Products with steps, written more simply. A step s is a function whose values are 0 and 1: s · s is s."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.proof.programs import Value

if TYPE_CHECKING:
    from jax_transformer.proof.algebra import Algebra


def simpler(b: Algebra, x: Value, y: Value) -> tuple[Value, Value] | None:
    """Returns other factors for a product with a step s, where they are simpler: x · s(x) doesn't depend on s(0),
    and s · y is s · a if y is a wherever s is 1."""
    assert x.node is not None
    assert y.node is not None
    one, negated = b.operations[y.node], b._negated.get(y.node)
    if one.name == "step" and one.inputs[0] == x.node and not one.attributes["reflects"]:
        return x, b.as_float(b._loose_step(x))
    if negated is not None and negated.node is not None:
        read = b.operations[b.operations[negated.node].inputs[0]]
        if read.name == "negate" and read.inputs[0] == x.node:
            return x, b.as_float(b._loose_step(x))
    chosen = b._chosen.get(x.node)
    if chosen is not None and chosen[0] == y.node:
        return b.broadcast(chosen[1], x.shape), y
    if chosen is not None and negated is not None and chosen[0] == negated.node:
        return b.broadcast(chosen[2], x.shape), y
    return None


def with_one(b: Algebra, x: Value, y: Value) -> Value | None:
    """Returns the product of x = a · s with y = b · s or y = s as one with a single s, if s is a step: s² = s."""
    ours, theirs = split(b, x), split(b, y)
    if ours is None:
        return None
    rest, flag = ours
    if y.node == flag.node:
        return x
    if theirs is None or theirs[1].node != flag.node:
        return None
    return b.multiply(b.multiply(rest, theirs[0]), flag)


def split(b: Algebra, x: Value) -> tuple[Value, Value] | None:
    """Returns a and s of a product a · s with a step s."""
    assert x.node is not None
    one = b.operations[x.node]
    if one.name == "multiply":
        for rest, flag in (one.inputs, one.inputs[::-1]):
            if b.operations[flag].name == "step":
                return b._values[rest], b._values[flag]
    return None
