"""The model a third time, in NumPy and float64: what a trace of JAX's and one of PyTorch's are both compared with.

`nodes` gives the model as a graph, `forward` runs it, `recompute` computes one node from what another model's trace
holds: with the config for its local error, with another config for a "what if".
"""

from jax_transformer.parity.oracle.graph import Node, Place, downstream, nodes, place
from jax_transformer.parity.oracle.replay import forward, parameter, recompute

__all__ = ["Node", "Place", "downstream", "forward", "nodes", "parameter", "place", "recompute"]
