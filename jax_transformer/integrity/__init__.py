"""Whether files are as they were written: runs, models, caches, exports."""

from __future__ import annotations

from jax_transformer.integrity.verify import Finding, verify

__all__ = ["Finding", "verify"]
