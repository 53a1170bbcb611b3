"""Checks how logits react to changed ids: which tokens they depend on, as an encoder-decoder's must, and which not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor | None]
    Tables = tuple[torch.Tensor | None, torch.Tensor | None]


SAME = 2e-5
"""The relative change of float32 logits up to which they count as equal: the order of their sums may vary."""

MOST_COLUMNS = 8
"""Columns of ids that are changed one by one."""

WEIGHTS = {
    "is finite": 16,
    "repeats": 16,
    "keeps rows apart": 8,
    "hides later target tokens": 8,
    "uses the current target token": 4,
    "uses every source token": 4,
    "uses every earlier target token": 4,
    "hides source padding": 4,
    "hides target padding": 1,
}
"""Property → its weight when calls that run are ranked."""


TARGET_USE = ("hides later target tokens", "uses the current target token", "uses every earlier target token")


class Ids(NamedTuple):
    """Holds source_ids [B, S] and decoder_input_ids [B, T], without padding."""

    source: torch.Tensor
    target: torch.Tensor


@dataclass(frozen=True)
class Behaviour:
    """Holds the properties that a call has."""

    holds: dict[str, bool] = field(default_factory=dict)
    leak: float = 0.0
    """The largest relative change of logits by later target tokens or the embeddings of padding."""
    hidden_target_pads: tuple[int, ...] = ()
    """Candidates for the target's padding id whose embeddings change nothing."""

    @property
    def rank(self) -> tuple[int, float]:
        """Returns the sort key of calls: the weights of the properties that hold, then how little leaks."""
        return sum(WEIGHTS[name] for name, holds in self.holds.items() if holds), -round(self.leak, 3)

    @property
    def failing(self) -> list[str]:
        """Lists the properties that don't hold."""
        return [name for name in WEIGHTS if not self.holds.get(name, False)]

    @property
    def is_complete(self) -> bool:
        """Returns whether every property holds, but for the target's padding, which many models leave visible."""
        return not {*self.failing} - {"hides target padding"}


@dataclass(frozen=True)
class Probe:
    """Holds the ids that a call is tried with."""

    ids: Ids
    spare: Ids
    """Ids of the same shapes that differ from `ids` everywhere."""
    pads: tuple[list[int], list[int]]
    """Ids that may be the padding of the source, and of the target."""

    @property
    def padded(self) -> Ids:
        """Returns the ids with padding of every kind inside, and at the end of the first sentence."""
        parts = Ids(*(part.clone() for part in self.ids))
        for part, pads in zip(parts, self.pads, strict=True):
            for column, pad in enumerate(pads[: part.shape[1] - 3], start=1):
                part[:, column] = pad
            part[0, -1] = pads[0]
        return parts


def behaviour(call: Call, probe: Probe, tables: Tables, *, ignores_first: bool = False, least: int = 0) -> Behaviour:
    """Runs a call on changed ids, and checks which properties hold.

    Args:
      call: returns logits [B, T, V], or None where it fails.
      tables: the embeddings that the ids index, [rows, D]; None if unknown.
      ignores_first: whether the call is known to drop the first target token.
      least: stops as soon as the weights of the properties that hold can't reach this sum.
    """
    ids, holds = probe.ids, dict[str, bool]()
    base = call(*ids)
    holds["is finite"] = base is not None and bool(base.isfinite().all())
    if base is None or not holds["is finite"]:
        return Behaviour(holds)
    again = call(*ids)
    holds["repeats"] = again is not None and bool((again == base).all())
    if not holds["repeats"]:
        return Behaviour(holds)
    leaks: list[float] = []
    tests = (
        lambda: _target_use(call, probe, base, 1 if ignores_first else 0, leaks),
        lambda: _keeps_rows_apart(call, probe, base),
        lambda: _source_use(call, probe, base),
    )
    for test in tests:
        holds |= test()
        lost = sum(WEIGHTS[name] for name, good in holds.items() if not good)
        if sum(WEIGHTS.values()) - lost < least:
            return Behaviour(holds)
    hidden = _hides_padding(call, probe, tables, base, holds, leaks)
    return Behaviour(holds, sum(leaks), hidden)


def _hides_padding(
    call: Call, probe: Probe, tables: Tables, base: torch.Tensor, holds: dict[str, bool], leaks: list[float]
) -> tuple[int, ...]:
    """Records whether padding is hidden; returns the ids that are hidden in the target."""
    ids = probe.ids
    source = [leak(call, ids, 0, pad, tables[0]) for pad in probe.pads[0]]
    target = {pad: leak(call, ids, 1, pad, tables[1]) for pad in probe.pads[1]}
    hidden = tuple(pad for pad in target if target[pad] <= SAME)
    hides_source = min(source, default=1.0) <= SAME
    holds |= {
        "hides source padding": hides_source
        or any(hides_source_padding(call, ids, pad, base) for pad in probe.pads[0]),
        "hides target padding": bool(hidden),
    }
    leaks += [min(source, default=0.0), min(target.values(), default=0.0)]
    return hidden


def leak(call: Call, ids: Ids, side: int, pad: int, table: torch.Tensor | None) -> float:
    """Measures how much the embedding of a pad in the source (0) or target (1) changes the logits after it; 1 if the
    call fails.

    Leaves out the pad's own column and a shift of all logits, since the head may share the table. Changes the table
    during a run and restores it.
    """
    if table is None or pad >= len(table) or ids[side].shape[1] < 3:
        return 1.0
    parts = [part.clone() for part in ids]
    parts[side][:, 1] = pad
    before = call(parts[0], parts[1])
    kept = table[pad].clone()
    try:
        table[pad] += 1.0 + table.std() * _noise(kept)
        after = call(parts[0], parts[1])
    finally:
        table[pad] = kept
    if before is None or after is None or not bool(before.isfinite().all() and after.isfinite().all()):
        return 1.0
    columns = [column for column in range(before.shape[-1]) if column != pad]
    one, other = (logits[:, 2 * side :, columns] for logits in (before, after))
    one, other = (logits - logits.median(-1, keepdim=True).values for logits in (one, other))
    return float((one - other).abs().max() / _scale(one))


def _noise(like: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.linspace(-1.0, 1.0, like.numel(), dtype=like.dtype).sin()


def hides_source_padding(call: Call, ids: Ids, pad: int, base: torch.Tensor | None = None) -> bool:
    """Returns whether the logits stay the same with padding at the end of all sentences, and of only one."""
    base = call(*ids) if base is None else base
    together = call(_padded(ids.source, pad), ids.target)
    if base is None or together is None or not same(together, base):
        return False
    one_padded = ids.source.clone()
    one_padded[0, -1] = pad
    shorter, alone = call(one_padded, ids.target), call(ids.source[:1, :-1], ids.target[:1])
    return shorter is not None and alone is not None and same(shorter[:1], alone)


def _padded(ids: torch.Tensor, pad: int) -> torch.Tensor:
    """Returns the ids with two columns of padding."""
    import torch

    return torch.cat([ids, ids.new_full((len(ids), 2), pad)], 1)


def _keeps_rows_apart(call: Call, probe: Probe, base: torch.Tensor) -> dict[str, bool]:
    ids, spare = probe.ids, probe.spare
    source, target = ids.source.clone(), ids.target.clone()
    source[1], target[1] = spare.source[1], spare.target[1]
    logits = call(source, target)
    others = [row for row in range(len(source)) if row != 1]
    apart = logits is not None and same(logits[others], base[others]) and not same(logits[1], base[1])
    return {"keeps rows apart": apart}


def _source_use(call: Call, probe: Probe, base: torch.Tensor) -> dict[str, bool]:
    used = (
        _differ(call(_with_column(probe.ids.source, probe.spare.source, column), probe.ids.target), base)
        for column in _columns(0, probe.ids.source.shape[1])
    )
    return {"uses every source token": all(used)}


def _target_use(call: Call, probe: Probe, base: torch.Tensor, first: int, leaks: list[float]) -> dict[str, bool]:
    ids, spare = probe.ids, probe.spare
    current, earlier, ahead = True, True, 0.0
    for column in _columns(first, ids.target.shape[1]):
        logits = call(ids.source, _with_column(ids.target, spare.target, column))
        if logits is None:
            return dict.fromkeys(TARGET_USE, False)
        ahead = max(ahead, _change(logits[:, :column], base[:, :column]))
        current = current and not same(logits[:, column], base[:, column])
        earlier = earlier and not same(logits[:, -1], base[:, -1])
    leaks.append(ahead)
    return dict(zip(TARGET_USE, (ahead <= SAME, current, earlier), strict=True))


def _columns(first: int, length: int) -> list[int]:
    """Returns the columns to change: all of a short sequence, a few of a long one."""
    columns = list(range(first, length))
    step = -(-len(columns) // MOST_COLUMNS)
    return sorted({*columns[::step], *columns[-1:]})


def _with_column(ids: torch.Tensor, spare: torch.Tensor, column: int) -> torch.Tensor:
    changed = ids.clone()
    changed[:, column] = spare[:, column]
    return changed


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether logits are equal up to rounding."""
    return one.shape == other.shape and _change(one, other) <= SAME


def _change(one: torch.Tensor, other: torch.Tensor) -> float:
    """Returns the largest difference of logits of one shape, relative to their size; infinite for NaN or infinity."""
    if one.numel() == 0:
        return 0.0
    change = float((one - other).abs().max()) / _scale(other)
    return change if math.isfinite(change) else math.inf


def _scale(logits: torch.Tensor) -> float:
    """Returns the size of logits, ignoring ids that a module rules out with a large number."""
    sizes = logits.abs()
    return max(min(float(sizes.max()), 1e3 * float(sizes.median()) or math.inf), 1e-30)


def _differ(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    return one is not None and not same(one, other)
