"""Look at how logits react to changes of the ids: what an encoder-decoder's must depend on, and what not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor | None]
    Tables = tuple[torch.Tensor | None, torch.Tensor | None]

Pads = tuple[list[int], list[int]]
"""Ids that may be padding: of the source, of the target."""

SAME = 2e-5
"""The relative change of float32 logits up to which they count as the same: their sums have another order."""

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
"""Property → how much it counts among calls that run."""


class Ids(NamedTuple):
    """Holds source_ids [B, S] and decoder_input_ids [B, T], without padding."""

    source: torch.Tensor
    target: torch.Tensor


@dataclass(frozen=True)
class Behaviour:
    """Says which properties hold of a call."""

    holds: dict[str, bool] = field(default_factory=dict)

    @property
    def score(self) -> int:
        """Returns the weights of the properties that hold."""
        return sum(WEIGHTS[name] for name, holds in self.holds.items() if holds)

    @property
    def failing(self) -> list[str]:
        """Returns the properties that don't hold."""
        return [name for name in WEIGHTS if not self.holds.get(name, False)]

    @property
    def is_complete(self) -> bool:
        """Returns whether every property holds, but for the target's padding, which many models leave visible."""
        return not {*self.failing} - {"hides target padding"}


def behaviour(
    call: Call, ids: Ids, spare: Ids, pads: Pads, tables: Tables, *, ignores_first: bool = False
) -> Behaviour:
    """Runs a call on changed ids, and says which properties hold.

    Args:
      call: returns logits [B, T, V], or None where it fails.
      spare: ids of the same shapes that differ from `ids` everywhere.
      pads: ids that may be the padding of the source, and of the target.
      tables: the embeddings that the ids index, [rows, D]; None where they aren't known.
      ignores_first: whether the call is known to drop the first target token.
    """
    base = call(*ids)
    if base is None or not bool(base.isfinite().all()):
        return Behaviour({"is finite": False})
    again = call(*ids)
    holds = {"is finite": True, "repeats": again is not None and bool((again == base).all())}
    if not holds["repeats"]:
        return Behaviour(holds)
    holds["keeps rows apart"] = _keeps_rows_apart(call, ids, spare, base)
    holds |= _target_use(call, ids, spare, base, first=1 if ignores_first else 0)
    holds["uses every source token"] = all(
        _differ(call(_with_column(ids.source, spare.source, column), ids.target), base)
        for column in range(ids.source.shape[1])
    )
    holds["hides source padding"] = any(
        hides_source_padding(call, ids, pad, base) or hides_row(call, ids, 0, pad, tables[0]) for pad in pads[0]
    )
    holds["hides target padding"] = any(hides_row(call, ids, 1, pad, tables[1]) for pad in pads[1])
    return Behaviour(holds)


def hides_row(call: Call, ids: Ids, side: int, pad: int, table: torch.Tensor | None) -> bool:
    """Returns whether the embedding of a pad in the source (0) or target (1) has no effect on the logits after it.

    The pad's own column is left aside, and so is a shift of all logits: the head may share the table. The table is
    changed for the time of a run.
    """
    if table is None or pad >= len(table) or ids[side].shape[1] < 3:
        return False
    parts = [part.clone() for part in ids]
    parts[side][:, 1] = pad
    before = call(parts[0], parts[1])
    kept = table[pad].clone()
    try:
        table[pad] += 1.0 + table.std() * _noise(kept)
        after = call(parts[0], parts[1])
    finally:
        table[pad] = kept
    if before is None or after is None or not bool(before.isfinite().all()):
        return False
    columns = [column for column in range(before.shape[-1]) if column != pad]
    one, other = (logits[:, 2 * side :, columns] for logits in (before, after))
    return _same(one - one[..., :1], other - other[..., :1])


def _noise(like: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.linspace(-1.0, 1.0, like.numel(), dtype=like.dtype).sin()


def hides_source_padding(call: Call, ids: Ids, pad: int, base: torch.Tensor | None = None) -> bool:
    """Returns whether padding at the end of all sentences, and of one alone, leaves the logits as they are."""
    base = call(*ids) if base is None else base
    together = call(_padded(ids.source, pad), ids.target)
    if base is None or together is None or not _same(together, base):
        return False
    beside = ids.source.clone()
    beside[0, -1] = pad
    shorter, alone = call(beside, ids.target), call(ids.source[:1, :-1], ids.target[:1])
    return shorter is not None and alone is not None and _same(shorter[:1], alone)


def _padded(ids: torch.Tensor, pad: int) -> torch.Tensor:
    """Returns the ids with two columns of padding."""
    import torch

    return torch.cat([ids, ids.new_full((len(ids), 2), pad)], 1)


def _keeps_rows_apart(call: Call, ids: Ids, spare: Ids, base: torch.Tensor) -> bool:
    source, target = ids.source.clone(), ids.target.clone()
    source[1], target[1] = spare.source[1], spare.target[1]
    logits = call(source, target)
    others = [row for row in range(len(source)) if row != 1]
    return logits is not None and _same(logits[others], base[others]) and not _same(logits[1], base[1])


def _target_use(call: Call, ids: Ids, spare: Ids, base: torch.Tensor, first: int) -> dict[str, bool]:
    length = ids.target.shape[1]
    hides, current, earlier = True, True, True
    for column in range(first, length):
        logits = call(ids.source, _with_column(ids.target, spare.target, column))
        if logits is None:
            hides = current = earlier = False
            break
        hides = hides and _same(logits[:, :column], base[:, :column])
        current = current and not _same(logits[:, column], base[:, column])
        earlier = earlier and not _same(logits[:, -1], base[:, -1])
    return {
        "hides later target tokens": hides,
        "uses the current target token": current,
        "uses every earlier target token": earlier,
    }


def _with_column(ids: torch.Tensor, spare: torch.Tensor, column: int) -> torch.Tensor:
    changed = ids.clone()
    changed[:, column] = spare[:, column]
    return changed


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if one.numel() == 0:
        return True
    scale = max(float(other.abs().max()), 1e-30)
    return bool((one - other).abs().max() <= SAME * scale)


def _differ(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    return one is not None and not _same(one, other)
