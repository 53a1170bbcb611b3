"""The truth: a third implementation of the model, in NumPy and float64, with which both sides' traces are compared.

`nodes` returns the model as a graph, `forward` runs it, and `recompute` computes one node from another model's trace:
under the model's config to measure the local error, under another config to test a hypothesis.
"""

from jax_transformer.parity.oracle.graph import Node, Place, downstream, forward, nodes, parameter, place, recompute

__all__ = ["Node", "Place", "downstream", "forward", "nodes", "parameter", "place", "recompute"]
