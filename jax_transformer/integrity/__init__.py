"""Whether files are as they were written, and whether the installed compilers compute what they are asked to."""

from __future__ import annotations

from jax_transformer.integrity.doctor import Diagnosis, examine, versions
from jax_transformer.integrity.verify import Finding, verify

__all__ = ["Diagnosis", "Finding", "examine", "verify", "versions"]
