"""Discover what an unknown PyTorch encoder-decoder computes: how it is called, its structure, numerics and weights.

`discover` returns a model that computes the same, and `write_discovery` writes it with its evidence.
"""

from jax_transformer.discover.api import Check, Discovery, discover
from jax_transformer.discover.comparison import prove
from jax_transformer.discover.conclusions import Conclusion, conclusion_lines
from jax_transformer.discover.problems import CannotRun, Differs, DiscoverError, Unknown
from jax_transformer.discover.writing import write_discovery
from jax_transformer.programs.calling import Call, CallError

__all__ = [
    "Call",
    "CallError",
    "CannotRun",
    "Check",
    "Conclusion",
    "Differs",
    "DiscoverError",
    "Discovery",
    "Unknown",
    "conclusion_lines",
    "discover",
    "prove",
    "write_discovery",
]
