"""Prove that two programs compute the same function for all weights.

Both are lowered to exact operations on real numbers, and evaluated in prime fields with functions as keyed hashes.
"""

from jax_transformer.proof.certificate import Certificate, StageProof, TaskProof
from jax_transformer.proof.deciding import Difference, Result, Task, decide
from jax_transformer.proof.programs import Program, UnknownOperation

__all__ = [
    "Certificate",
    "Difference",
    "Program",
    "Result",
    "StageProof",
    "Task",
    "TaskProof",
    "UnknownOperation",
    "decide",
]
