"""The open world: faults that real programs could have and that no diagnosis knows.

A check that is tested with the very faults that it can name proves little. These were written without a look at those:
they must be seen, and at their node, and none may be given a name. Each changes the value of one activation, from that
node's own inputs; what can't be had at one node (two layers exchanged, a layer run twice) isn't here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from jax_transformer.parity.oracle.graph import Node, nodes
from selftest.unknown import Site, Unknown
from selftest.unknown_attention import OF_ATTENTION
from selftest.unknown_inputs import OF_INPUTS
from selftest.unknown_norms import OF_NORMS
from selftest.unknown_numbers import OF_NUMBERS
from selftest.unknown_products import OF_PRODUCTS
from selftest.unknown_stem import OF_STEM

if TYPE_CHECKING:
    from jax_transformer.config.model import TransformerConfig

UNKNOWNS: tuple[Unknown, ...] = (*OF_INPUTS, *OF_ATTENTION, *OF_NORMS, *OF_PRODUCTS, *OF_NUMBERS, *OF_STEM)


def applicable(config: TransformerConfig) -> Iterator[tuple[Unknown, Node]]:
    """Each fault with each node of its kinds that has what it needs, in the order of UNKNOWNS.

    What only the arrays tell (a single head, nothing padded) isn't looked at: there, `corrupt` raises LookupError.
    """
    graph = nodes(config)
    for fault in UNKNOWNS:
        for node in graph:
            if node.kind in fault.kinds and {*fault.needs} <= {*node.inputs, *node.parameters}:
                yield fault, node


__all__ = ["UNKNOWNS", "Site", "Unknown", "applicable"]
