"""A model's weights on the device, put there once for as long as the model is in use.

The decoder's layers are there a second time, as single steps read them fastest. Changing `model.params` in place
changes nothing here: take `dataclasses.replace(model, params=…)`.
"""

from __future__ import annotations

import threading
import weakref
from functools import cached_property

import jax

from jax_transformer.decoding.cache import Weights
from jax_transformer.model.functional import Params
from jax_transformer.storage.model_directory import Model


class _Kept:
    def __init__(self, model: Model) -> None:
        self.config, self.params = model.config, jax.device_put(model.params)

    @cached_property
    def weights(self) -> Weights:
        return Weights.of(self.config, self.params)


_KEPT: dict[int, _Kept] = {}
_LOCK = threading.Lock()


def params_of(model: Model) -> Params:
    """The same object for the same model, as long as there is one."""
    return _kept(model).params


def weights_of(model: Model) -> Weights:
    """The same object for the same model, as long as there is one: what decoding takes."""
    return _kept(model).weights


def _kept(model: Model) -> _Kept:
    number = id(model)
    with _LOCK:
        if number not in _KEPT:
            _KEPT[number] = _Kept(model)
            weakref.finalize(model, _KEPT.pop, number, None)
        return _KEPT[number]
