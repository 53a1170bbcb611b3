"""The plan of a stack: its sublayers in order, and how each joins the residual stream.

The modules of the model, the rules that port weights, the names of activations, and the counts of parameters walk it,
so that the wiring is derived once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal, TypeAlias

from jax_transformer.config.specs import Attention, FeedForward, NormPlacement, Stack

SublayerName: TypeAlias = Literal["self_attention", "cross_attention", "feed_forward"]


@dataclass(frozen=True)
class Sublayer:
    """One sublayer of every layer of a stack. Names are those of the modules that hold its parameters; "" is none."""

    name: SublayerName
    part: Attention | FeedForward
    """The computation of the sublayer."""
    norm: str
    """The norm of its input or of the residual stream after it, by `placement`."""
    placement: NormPlacement
    output_norm: str
    """The norm of its output."""
    stream_scale: str
    """The trained scale of the residual stream where its output is added."""
    output_scale: str
    """The trained scale of its output."""


@functools.cache
def plan(stack: Stack) -> tuple[Sublayer, ...]:
    """Returns the sublayers of a stack's layers, in the order in which they run.

    Example:
      >>> from jax_transformer.config.plan import plan
      >>> from jax_transformer.config.specs import Stack
      >>> [(sublayer.name, sublayer.norm) for sublayer in plan(Stack())]
      [('self_attention', 'self_attention_norm'), ('feed_forward', 'feed_forward_norm')]
    """
    parts: list[tuple[SublayerName, Attention | FeedForward | None]] = [
        ("self_attention", stack.self_attention),
        ("cross_attention", stack.cross_attention),
        ("feed_forward", stack.feed_forward),
    ]
    return tuple(_sublayer(stack, name, part) for name, part in parts if part is not None)


def _sublayer(stack: Stack, name: SublayerName, part: Attention | FeedForward) -> Sublayer:
    placement: NormPlacement = "none" if stack.norm is None else stack.norm_placement
    own_norm = "shared_norm" if stack.share_norms else f"{name}_norm"
    return Sublayer(
        name,
        part,
        norm=own_norm if placement != "none" else "",
        placement=placement,
        output_norm=f"{name}_output_norm" if part.output_norm else "",
        stream_scale=f"{name}_residual_scale" if stack.residual.stream_scale in ("all", name) else "",
        output_scale=f"{name}_output_scale" if stack.residual.output_scale != "none" else "",
    )
