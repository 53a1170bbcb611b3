"""Prove that two programs compute the same function for all weights.

Both are lowered to exact operations on real numbers and evaluated in prime fields, with functions as keyed hashes.
"""

from jax_transformer.proof.programs import Program, UnknownOperation
from jax_transformer.proof.proving import Difference, Result, Task, prove

__all__ = ["Difference", "Program", "Result", "Task", "UnknownOperation", "prove"]
