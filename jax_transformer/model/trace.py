"""Named activations: a forward pass can return them, or run with some of them changed.

Every forward pass makes a new `Tap` and passes it to the modules, which store nothing. An idle tap leaves the compiled
program unchanged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import jax

Trace = OrderedDict[str, jax.Array]
"""Activations by name, in execution order. (A jitted function would sort a plain dict by key; it keeps an OrderedDict's
order.)"""


class Tap:
    """Records, adds to, or replaces activations by name.

    Args:
      record: whether to collect every named activation in `trace`.
      add: arrays to add to the activations of these names. The gradient with respect to an added zero is the gradient
        of the activation.
      replace: arrays that replace the activations of these names.
    """

    def __init__(
        self,
        record: bool = False,
        add: Mapping[str, jax.Array] | None = None,
        replace: Mapping[str, jax.Array] | None = None,
    ) -> None:
        self.record = record
        self.add = add or {}
        self.replace = replace or {}
        self.trace: Trace = OrderedDict()
        self.seen: set[str] = set()
        self._prefix = ""

    @property
    def intervenes(self) -> bool:
        """Returns whether the tap adds to or replaces any activation."""
        return bool(self.add or self.replace)

    def scope(self, name: str) -> Tap:
        """Returns a tap that puts `name.` before its names and records into this one's trace."""
        scoped = Tap(self.record, self.add, self.replace)
        scoped.trace, scoped.seen, scoped._prefix = self.trace, self.seen, f"{self._prefix}{name}."
        return scoped

    def __call__(self, name: str, value: jax.Array) -> jax.Array:
        """Returns the activation that the model continues with: `value`, unless an intervention names it."""
        name = self._prefix + name
        if self.intervenes:
            self.seen.add(name)
            if name in self.replace:
                value = _same_shape(name, self.replace[name], value).astype(value.dtype)
            if name in self.add:
                value = value + _same_shape(name, self.add[name], value).astype(value.dtype)
        if self.record:
            self.trace[name] = value
        return value

    def layers(self, stacked: Mapping[str, jax.Array], count: int) -> None:
        """Records the activations of `count` scanned layers: `name` [L, …] becomes `layers.{i}.name` for every i."""
        for i in range(count):
            for name, values in stacked.items():
                self.trace[f"{self._prefix}layers.{i}.{name}"] = values[i]

    def check_all_seen(self) -> None:
        """Raises ValueError if an intervention named an activation that the model doesn't have."""
        unknown = sorted({*self.add, *self.replace} - self.seen)
        if unknown:
            raise ValueError(f"interventions name activations that this model doesn't have: {', '.join(unknown)}")


def _same_shape(name: str, intervention: jax.Array, value: jax.Array) -> jax.Array:
    if intervention.shape != value.shape:
        raise ValueError(f"intervention in {name}: expected shape {value.shape}, received {intervention.shape}")
    return intervention
