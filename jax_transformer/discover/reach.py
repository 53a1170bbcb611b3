"""Choose the sentence lengths on which a discovery is checked, and report the lengths left unchecked."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from jax_transformer.config.model import TransformerConfig
from jax_transformer.config.positions import Table
from jax_transformer.config.specs import Stack
from jax_transformer.discover.checking import Check
from jax_transformer.programs.calling import Call
from jax_transformer.runtime.memory import check_fits, gibibytes

ENDLESS = 1024
"""Length up to which a side is checked by default if nothing limits it."""
MOST_BYTES = 2**30
"""The most memory that a check takes by default."""
MOST_WORK = 100_000_000_000
"""The most multiplications of a run by default: half a minute or so."""
COPIES = 5
"""Arrays of attention scores or logits (whichever are larger) that a run holds at once."""


@dataclass(frozen=True)
class Reach:
    """Holds the lengths (source, target) up to which a model is checked against its module."""

    longest: tuple[int, int]
    allowed: tuple[int | None, int | None]
    """The most tokens that model and module accept. None: any number."""
    bytes_of_all: int = 0
    """The memory that a check of all allowed lengths takes; 0 if that isn't known."""


def reach(config: TransformerConfig, call: Call, parameters: int, longest: int | None = None) -> Reach:
    """Chooses the lengths to check: all that both model and module accept, within the limits of memory and time above.

    Args:
      parameters: the number of the module's parameters.
      longest: the length to check regardless of its cost. None: chosen by the constants above.

    Raises:
      ValueError: sentences of `longest` tokens don't fit into memory.
    """
    sides = ((config.encoder, call.max_source_length), (config.decoder, call.max_target_length))
    allowed = tuple(_allowed(*side) for side in sides)
    if call.equal_lengths:
        allowed = 2 * (min((one for one in allowed if one is not None), default=None),)
    source, target = allowed

    def within(most: int) -> tuple[int, int]:
        return (most if source is None else min(most, source)), (most if target is None else min(most, target))

    if longest is not None:
        check_fits(_bytes(config, *within(longest)), f"--longest {longest}")
        return Reach(within(longest), (source, target))
    top = max(ENDLESS if one is None else one for one in (source, target))

    def is_too_much(most: int) -> bool:
        lengths = within(most)
        return _bytes(config, *lengths) > MOST_BYTES or _work(config, parameters, *lengths) > MOST_WORK

    found = within(max(1, bisect_left(range(1, top + 1), True, key=is_too_much)))
    chosen = [min(one, ENDLESS) if most is None else one for one, most in zip(found, (source, target), strict=True)]
    return Reach((chosen[0], chosen[1]), (source, target), _bytes(config, *within(top)))


def coverage(reach: Reach, checks: Sequence[Check]) -> str:
    """Reports the sentences on which a model was checked, and those on which it wasn't."""
    own = [check for check in checks if check.weights == "its own"]
    lengths = [sorted({check.lengths[side] for check in own}) for side in (0, 1)]
    beyond = _beyond(reach, [one[-1] for one in lengths], max(own, key=lambda one: one.lengths))
    weights = "" if any(check.weights == "larger" for check in checks) else "; larger weights"
    listed = " and ".join(
        f"{', '.join(map(str, one))} {side} tokens" for one, side in zip(lengths, ("source", "target"), strict=True)
    )
    missing = f"other lengths{beyond}{weights}"
    return f"sentences of {listed}, by a fresh module and by one that ran before; not checked: {missing}"


def _beyond(reach: Reach, checked: Sequence[int], slowest: Check) -> str:
    """Reports the lengths beyond those checked, the option that checks them, and its cost."""
    missing = [
        (side, most, done)
        for side, most, done in zip(("source", "target"), reach.allowed, checked, strict=True)
        if most is None or done < most
    ]
    if not missing:
        return ""
    ends = " and ".join(
        f"{side}s of more than {done} tokens" + ("" if most is None else f" (up to {most})")
        for side, most, done in missing
    )
    most_allowed = [most for _, most, _ in missing if most is not None]
    if not most_allowed:
        return f", such as {ends}: --longest N"
    more = max(most_allowed)
    seconds = slowest.seconds * (more / max(slowest.lengths)) ** 2
    cost = (
        f" (about {max(1, round(seconds / 60))} min and {gibibytes(reach.bytes_of_all)})" if reach.bytes_of_all else ""
    )
    return f", such as {ends}: --longest {more}{cost}"


def _allowed(stack: Stack, accepted: int | None) -> int | None:
    """Returns the maximum length of a side; None if nothing limits it."""
    positions = stack.positions
    held = stack.max_length if isinstance(positions, Table) and positions.index != "batch_row" else None
    return min((one for one in (held, accepted) if one is not None), default=None)


def _bytes(config: TransformerConfig, source: int, target: int) -> int:
    """Estimates the memory of a run on one sentence in float64, without the weights."""
    encoder_heads, decoder_heads, cross_heads = (attention.num_heads for attention in config.attentions)
    scores = max(encoder_heads * source**2, decoder_heads * target**2, cross_heads * target * source)
    return 8 * COPIES * max(scores, target * config.target.vocab_size)


def _work(config: TransformerConfig, parameters: int, source: int, target: int) -> int:
    """Estimates the multiplications of a run on one sentence."""
    pairs = (source**2, target**2, target * source)
    stacks = (config.encoder, config.decoder, config.decoder)
    products = 0
    for stack, attention, count in zip(stacks, config.attentions, pairs, strict=True):
        shape = attention.shape(stack.d_model)
        products += 2 * stack.num_layers * shape.num_heads * shape.head_dim * count
    return parameters * (source + target) + products
