"""How JAX reduces windows, in terms of a `Builder`'s operations."""

from __future__ import annotations

from typing import Any

from jax_transformer.proof import pooling
from jax_transformer.proof.building import Builder
from jax_transformer.proof.convolutions import Window
from jax_transformer.proof.jax_rules import rule
from jax_transformer.proof.programs import Value


@rule("reduce_window_sum")
def reduce_window_sum(b: Builder, x: Value, **params: Any) -> Value:
    window = _window(x, **params)
    return b.reshape(pooling.summed(b, x, window.places()), window.output)


@rule("reduce_window_max")
def reduce_window_max(b: Builder, x: Value, **params: Any) -> Value:
    window = _window(x, **params)
    return b.reshape(pooling.largest(b, x, window.places()), window.output)


@rule("reduce_window_min")
def reduce_window_min(b: Builder, x: Value, **params: Any) -> Value:
    return b.negate(reduce_window_max(b, b.negate(x), **params))


def _window(
    x: Value,
    *,
    window_dimensions: Any,
    window_strides: Any,
    padding: Any,
    base_dilation: Any,
    window_dilation: Any,
    **params: Any,
) -> Window:
    """Returns the window, which slides along all axes."""
    return Window(
        tuple(x.shape),
        tuple(window_dimensions),
        tuple(window_strides),
        tuple(map(tuple, padding)),
        tuple(window_dilation),
        tuple(base_dilation),
    )
