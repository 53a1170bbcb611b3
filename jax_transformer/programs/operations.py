"""Groups aten's operations by their effect on elements."""

from __future__ import annotations

SAME_ORDER = frozenset(
    (
        *("view", "_unsafe_view", "reshape", "_reshape_alias", "view_copy", "clone", "detach", "alias", "contiguous"),
        *("lift_fresh", "lift_fresh_copy", "_to_copy", "unsqueeze", "squeeze"),
    )
)
"""Operations that keep all elements in their order."""
MOVES = (SAME_ORDER - {"_to_copy"}) | {
    *("t", "transpose", "permute", "expand", "expand_copy", "movedim", "slice", "slice_copy", "select", "narrow"),
    *("split", "split_with_sizes", "chunk", "unbind", "cat", "stack", "flip", "roll", "repeat", "tile", "unfold"),
    *("diagonal", "overwritten"),
}
"""Operations that only move elements."""
COPIES = ("_to_copy", "copy")
"""Operations that only move elements unless they change the dtype."""
IDLE = frozenset(
    (
        "masked_fill",
        "where",
        "mul",
        "div",
        "add",
        "sub",
        "clamp",
        "clamp_min",
        "clamp_max",
        "nan_to_num",
        "native_dropout",
    )
)
"""Operations that may change nothing, such as filling a row without masked entries."""
CLAMPS = ("clamp", "clamp_min", "clamp_max")
COMPARISONS = ("gt", "ge", "lt", "le", "eq", "ne")
FILLS = frozenset(
    ("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty")
)
"""Operations that take only a shape from their operand."""
