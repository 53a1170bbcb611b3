"""Parts of the model that a user writes: the computation of attention, and feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
from flax import nnx

from jax_transformer.config.positions import RelativeVectors
from jax_transformer.model.attention import AttentionFunction, check_own
from jax_transformer.model.initializers import KeyStream
from jax_transformer.model.scope import Scope
from jax_transformer.model.stack import Stack, stack_layers

MakeFeedForward = Callable[[int, nnx.Rngs], Callable[[jax.Array], jax.Array]]
"""(d_model, rngs) → a module of Flax NNX that maps [B, T, D] to [B, T, D]: one layer's."""


class OwnFeedForward(nnx.Module):
    """Calls a user's module as a sublayer."""

    def __init__(self, module: Callable[[jax.Array], jax.Array]) -> None:
        self.module = module

    def __call__(self, x: jax.Array, scope: Scope) -> jax.Array:
        """Returns the sublayer's output [B, T, D] for x [B, T, D]. Raises ValueError for another shape or dtype."""
        y = self.module(x)
        check_own("feed_forward", "outputs [B, T, D]", y, x.shape, x.dtype)
        return scope.tap("output", y)


def replace_attention(stacks: dict[str, Stack], function: AttentionFunction) -> None:
    """Lets a function compute all attention of stacks, which are changed in place.

    Raises:
      ValueError: no function; positions or a cap that it wouldn't get.
    """
    if not callable(function):
        raise ValueError(f"attention: expected a function of query, key and value; received {type(function).__name__}")
    for stack_name, stack in stacks.items():
        if isinstance(stack.stack.positions, RelativeVectors):
            raise ValueError(
                "attention: expected positions that are added, rotate or give a bias; received relative_vectors in the "
                f"{stack_name}, which only the library's attention computes"
            )
        for name in ("self_attention", "cross_attention"):
            part = getattr(stack.layers, name, None)
            if part is None:
                continue
            if part.part.path_obstacle:
                raise ValueError(
                    f"attention: expected a config without {part.part.path_obstacle}, which only the library's "
                    f"attention computes; received it in the {stack_name}'s {name}. Compute it in your function"
                )
            part.how = part.how._replace(own=function)


def replace_feed_forward(stacks: dict[str, Stack], make: MakeFeedForward, keys: KeyStream) -> None:
    """Puts a user's modules in place of all feed-forward layers of stacks, which are changed in place.

    Raises:
      ValueError: no function; no module; stacks without feed-forward layers.
    """
    if not callable(make):
        raise ValueError(
            f"feed_forward: expected a function (d_model, rngs) → a module; received {type(make).__name__}"
        )
    for name, stack in stacks.items():
        if stack.stack.feed_forward is None:
            raise ValueError(f"feed_forward: expected a config with feed-forward layers; received none in the {name}")
        count, width = 1 if stack.stack.share_layers else stack.stack.num_layers, stack.stack.d_model
        stack.layers.feed_forward = stack_layers(partial(_made, make, width), count, keys)


def _made(make: MakeFeedForward, width: int, keys: KeyStream) -> OwnFeedForward:
    module = make(width, nnx.Rngs(next(keys)))
    if not isinstance(module, nnx.Module):
        raise ValueError(
            f"feed_forward: expected a function that returns a module of Flax NNX; received {type(module).__name__}"
        )
    return OwnFeedForward(module)
