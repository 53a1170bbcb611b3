"""A place in the model: the prefix of its activations' names and the key of its dropout."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax

from jax_transformer.model.dropout import DropoutKey, Site, dropout, fold
from jax_transformer.model.trace import Tap


@dataclass(frozen=True)
class Scope:
    """Carries activation names and dropout keys through the modules of one forward pass.

    Every module receives the scope of its own place. It names its activations with `scope.tap`, applies dropout with
    `scope.dropout`, and calls a submodule with `scope(site)`. A plain `Scope()` records and drops nothing.
    """

    tap: Tap = field(default_factory=Tap)
    dropout_key: DropoutKey = None
    layer: jax.Array | int | None = None
    """The number of the layer, from 0; traced under a scan. None: outside layers."""

    def __call__(self, site: Site) -> Scope:
        """Returns the scope of the submodule at `site`: its activations are named `site.…`, its key is its own."""
        return Scope(self.tap.scope(site.name.lower()), fold(self.dropout_key, site), self.layer)

    def dropout(self, x: jax.Array, rate: float, site: Site) -> jax.Array:
        """Returns x with a share `rate` of its elements dropped; `site` distinguishes this dropout in the scope."""
        return dropout(x, rate, fold(self.dropout_key, site))
