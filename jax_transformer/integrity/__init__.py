"""Checks that files are as they were written, and that the installed compilers compute correctly."""

from __future__ import annotations

from jax_transformer.integrity.doctor import Diagnosis, examine, versions
from jax_transformer.integrity.verify import Finding, verify

__all__ = ["Diagnosis", "Finding", "examine", "verify", "versions"]
