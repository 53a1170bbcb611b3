"""A model's weights on the device, as decoding takes them, made once for as long as the model is in use."""

from __future__ import annotations

import weakref

import jax

from jax_transformer.decoding.cache import Weights
from jax_transformer.model_directory import Model

_KEPT: dict[int, Weights] = {}


def weights_of(model: Model) -> Weights:
    """The same object for the same model, as long as there is one."""
    number = id(model)
    if number not in _KEPT:
        _KEPT[number] = Weights.of(model.config, jax.device_put(model.params))
        weakref.finalize(model, _KEPT.pop, number)
    return _KEPT[number]
