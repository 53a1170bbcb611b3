"""Search for the smallest edit that makes a candidate provably the same function as its reference.

Both tapes are replayed on one builder and evaluated at one point. A value is *shared* if the other program has all of
its elements. The calls that lead from shared values to a differing output are *lost*: a few of them are wrong, and the
rest depend on them. An edit replaces a result or an operand of the candidate by a value of the reference. Its cost is
the number of lost operations that come with it. Edits are tried in order of cost and distance from shared values:
dependent values are recomputed as long as they agree with the reference. A successful edit is narrowed down to a
constant, a weight or another operand, if possible. Then the candidate's tape is replayed with it, and the proof
decides.
"""

from jax_transformer.proof.repair.causes import KINDS, Cause, Repair
from jax_transformer.proof.repair.finding import find_repair

__all__ = ["KINDS", "Cause", "Repair", "find_repair"]
