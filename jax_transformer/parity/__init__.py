"""Parity: check that two implementations compute the same numbers, and find out where and why they don't.

Example:
  >>> import numpy as np
  >>> from jax_transformer import parity
  >>> x = np.linspace(0, 1, 6)
  >>> parity.compare({"output": x + 1e-15}, {"output": x}).verdict
  'passed'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax_transformer.runtime.lazy import lazy_exports

if TYPE_CHECKING:
    from jax_transformer.comparison.capture import capture
    from jax_transformer.comparison.gates.arrays import ParityError
    from jax_transformer.comparison.report.report import Divergence, Report
    from jax_transformer.mapping.maps import NameMap
    from jax_transformer.parity.api import assert_parity, compare, draft_map
    from jax_transformer.parity.proofs.api import assert_same, prove
    from jax_transformer.parity.sides.options import Options, Side
    from jax_transformer.proof.certificate import Certificate
    from jax_transformer.proof.witness import Witness

_HOMES = {
    "jax_transformer.parity.api": ("assert_parity", "compare", "draft_map"),
    "jax_transformer.comparison.capture": ("capture",),
    "jax_transformer.comparison.gates.arrays": ("ParityError",),
    "jax_transformer.parity.proofs.api": ("assert_same", "prove"),
    "jax_transformer.parity.sides.options": ("Options", "Side"),
    "jax_transformer.proof.certificate": ("Certificate",),
    "jax_transformer.proof.witness": ("Witness",),
    "jax_transformer.mapping.maps": ("NameMap",),
    "jax_transformer.comparison.report.report": ("Divergence", "Report"),
}

__all__ = [
    "Certificate",
    "Divergence",
    "NameMap",
    "Options",
    "ParityError",
    "Report",
    "Side",
    "Witness",
    "assert_parity",
    "assert_same",
    "capture",
    "compare",
    "draft_map",
    "prove",
]
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
