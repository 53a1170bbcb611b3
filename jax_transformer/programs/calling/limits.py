"""Finds the lengths and ids that a call accepts, and the ids that it treats as padding."""

from __future__ import annotations

import numbers
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jax_transformer.programs.calling.behaviour import Ids, hides_source_padding
from jax_transformer.programs.calling.roles import PADDING, words
from jax_transformer.programs.calling.trials import Runner

if TYPE_CHECKING:
    import torch
    from torch import nn

SECONDS = 10.0
"""Seconds of processor time for the search for padding among the ids."""
MOST_ROWS, MOST_ELEMENTS = 512, 2**26
"""The most sentences in one run, and the most elements in its largest tensor."""
LONGEST = 5200
"""The longest input to try: beyond the 5000 positions of many tables."""
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)


def sizes(module: nn.Module) -> set[int]:
    """Collects the sizes of a module: the axes of its tensors, and the integers among its attributes."""
    found: set[int] = set()
    for inner in module.modules():
        for value in _values(inner):
            if isinstance(value, numbers.Integral) and not isinstance(value, bool):
                found.add(int(value))
            elif hasattr(value, "shape"):
                found |= {int(size) for size in value.shape}
    return found


def _values(module: nn.Module) -> Iterator[Any]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)
    for name, value in vars(module).items():
        if name in ("_modules", "_parameters", "_buffers", "training"):
            continue
        yield from _inside(value)


def _inside(value: Any) -> Iterator[Any]:
    """Yields a value, and the values inside a config object or a dict; not the ids of a vocabulary."""
    yield value
    if isinstance(value, Mapping):
        held = list(value.values())
        if not all(isinstance(one, int) for one in held) or {*held} != {*range(len(held))}:
            yield from held
    elif hasattr(value, "__dict__") and not callable(value) and not hasattr(value, "shape"):
        yield from vars(value).values()


def free_lengths(taken: set[int]) -> tuple[int, int, int]:
    """Chooses (batch, target length, source length): primes that aren't sizes of the module."""
    free = [prime for prime in PRIMES[1:] if prime not in taken]
    batch, target, source = [*free, 53, 59, 61][:3]
    return batch, target, source


def draw_ids(module: nn.Module, pads: set[int], batch: int, target_length: int, source_length: int) -> tuple[Ids, Ids]:
    """Draws ids without padding, and a second set that differs from them everywhere; source and target share no id."""
    import torch

    rows = [table.num_embeddings for table in module.modules() if isinstance(table, torch.nn.Embedding)]
    top = min(40, *[size for size in rows if size >= 12] or [16])
    usable = [token for token in range(top) if token not in {0, 1, 2, 3, *pads}]
    generator = torch.Generator().manual_seed(0)

    def draw(tokens: list[int], length: int) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.randint(len(tokens), (batch, length), generator=generator)
        moved = (chosen + 1 + torch.randint(len(tokens) - 1, chosen.shape, generator=generator)) % len(tokens)
        table = torch.tensor(tokens)
        return table[chosen], table[moved]

    source, target = draw(usable[::2], source_length), draw(usable[1::2], target_length)
    return Ids(source[0], target[0]), Ids(source[1], target[1])


def named_pads(module: nn.Module) -> tuple[list[int], list[int]]:
    """Lists the ids that attributes or embeddings call padding, for source and target, most likely first."""
    from torch import nn

    source: list[int] = []
    target: list[int] = []
    either: list[int] = []
    for path, inner in module.named_modules():
        if isinstance(inner, nn.Embedding) and inner.padding_idx is not None:
            _sort(path, inner.padding_idx, source, target, either)
        for name, value in _named_values(inner):
            found = {*words(name)}
            is_number = isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 0
            if is_number and found & PADDING and not found & {"len", "length", "size", "to", "multiple"}:
                _sort(f"{path}.{name}" if path else name, int(value), source, target, either)
    for name, pad in _global_pads(module):
        _sort(name, pad, source, target, either)
    return list(dict.fromkeys(source + either)), list(dict.fromkeys(target + either))


def _global_pads(module: nn.Module) -> Iterator[tuple[str, int]]:
    """Yields the global integers with names like PAD_ID in the files that define the module's classes."""
    homes = dict.fromkeys(type(inner).__module__ for inner in module.modules())
    for home in homes:
        if home.split(".")[0] == "torch" or home not in sys.modules:
            continue
        for name, value in vars(sys.modules[home]).items():
            if {*words(name)} & PADDING and isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                yield name, value


def _named_values(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yields the attributes of a module and its classes, and the values inside a config among them."""
    from torch import nn

    for kind in type(module).__mro__[: type(module).__mro__.index(nn.Module)]:
        yield from vars(kind).items()
    for name, value in vars(module).items():
        if name in ("_modules", "_parameters", "_buffers"):
            continue
        yield name, value
        if isinstance(value, Mapping):
            yield from ((str(key), inner) for key, inner in value.items())
        elif hasattr(value, "__dict__") and not callable(value) and not hasattr(value, "shape"):
            yield from vars(value).items()


def _sort(path: str, pad: int, source: list[int], target: list[int], either: list[int]) -> None:
    found = {*words(path)}
    if found & {"src", "source", "enc", "encoder", "input"}:
        source.append(pad)
    elif found & {"tgt", "trg", "target", "dec", "decoder", "output"}:
        target.append(pad)
    else:
        either.append(pad)


def source_pads(call: Callable[..., Any], ids: Ids, vocab_size: int, rows: int) -> list[int]:
    """Finds the ids that leave the logits unchanged at the end of the source. Tries the lowest ids, as many as fit in
    a few seconds.

    Args:
      rows: the most sentences in a run.
    """
    import torch

    end = time.process_time() + SECONDS

    row = Ids(ids.source[:1], ids.target[:1])
    base = call(*row)
    if base is None:
        return []
    found: list[int] = []
    for start in range(0, min(vocab_size, 4096), rows):
        if time.process_time() > end:
            break
        tried = torch.arange(start, min(start + rows, vocab_size))
        source = torch.cat([row.source.expand(len(tried), -1), tried[:, None], tried[:, None]], 1)
        logits = call(source, row.target.expand(len(tried), -1))
        if logits is None:
            return found
        near = (logits - base).abs().flatten(1).amax(1) <= 2e-5 * base.abs().max()
        found += tried[near].tolist()
    return [pad for pad in found[:4] if hides_source_padding(call, ids, pad)]


def vocab_size(accepts: Callable[[int], bool], known: int | None) -> int | None:
    """Returns the number of accepted ids: `known`, or the result of a search."""
    if known is not None:
        return known
    top = 64
    while accepts(top):
        top *= 4
        if top > 4_000_000:
            return None
    return _bisect(accepts, 0, top) + 1


def longest(accepts: Callable[[int], bool], known: Iterable[int], start: int) -> int | None:
    """Finds the longest accepted input; None if LONGEST is accepted.

    Args:
      accepts: returns whether an input of a length is accepted.
      known: sizes of the module; the limit is likely one of them.
      start: an accepted length.
    """
    first = next((length for length in (max(600, 2 * start), LONGEST) if not accepts(length)), None)
    if first is None:
        return None
    near = sorted({size + more for size in known for more in (-2, -1, 0, 1)})
    likely = [size for size in near if start < size < first]
    low, high = start, first
    while likely:
        middle = likely[len(likely) // 2]
        if accepts(middle):
            low = middle
        else:
            high = middle
        likely = [size for size in likely if low < size < high]
    return _bisect(accepts, low, high)


def _bisect(accepts: Callable[[int], bool], low: int, high: int) -> int:
    """Returns the last accepted number; `low` is accepted and `high` isn't."""
    return low + bisect_left(range(low + 1, high), True, key=lambda number: not accepts(number))


def accepts_length(runner: Runner, lines: tuple[str, ...], ids: Ids, sides: Sequence[int]) -> Callable[[int], bool]:
    """Makes a test of lengths: whether a source (side 0), a target (1), or both of that length are accepted."""

    def accepts(length: int) -> bool:
        row = [part[:1] for part in ids]
        for side in sides:
            times = -(-length // row[side].shape[1])
            row[side] = row[side].repeat(1, times)[:, :length]
        outcome = runner.run(lines, row[0], row[1])
        return outcome.succeeded or outcome.was_stopped

    return accepts


def accepts_id(runner: Runner, lines: tuple[str, ...], ids: Ids, side: int) -> Callable[[int], bool]:
    """Makes a test of ids: whether an id is accepted in the source (0) or the target (1)."""

    def accepts(token: int) -> bool:
        parts: list[torch.Tensor] = [part.clone() for part in ids]
        parts[side][0, 0] = token
        return runner.run(lines, parts[0], parts[1]).succeeded

    return accepts
