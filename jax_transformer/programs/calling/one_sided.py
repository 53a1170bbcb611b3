"""Recognizes modules that can't be encoder-decoders of ids: they take one sequence, or numbers instead of ids."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jax_transformer.programs.calling.behaviour import Ids, same
from jax_transformer.programs.calling.forms import embedders, forms, header
from jax_transformer.programs.calling.outputs import describe, readings, tensors
from jax_transformer.programs.calling.roles import Parameter, parameters, words
from jax_transformer.programs.calling.search import tables
from jax_transformer.programs.calling.trials import Lookup, Outcome, Runner, first_line, place

if TYPE_CHECKING:
    import torch
    from torch import nn

FEATURES = {"feature", "features", "pixel", "pixels", "image", "images", "audio", "waveform", "mel", "spectrogram"}
"""Words in the names of parameters that take numbers."""
MASKS = ("torch.ones_like(source_ids, dtype=torch.bool)", "torch.ones(*2 * source_ids.shape[1:]).bool().tril()", "None")
"""The value for a mask that a module of one sequence requires."""
MOST_SHAPES = 120
"""The most shapes of numbers to try."""


def obstacle(runner: Runner, sizes: set[int], ids: Ids, spare: Ids, *, has_failed: bool = False) -> str:
    """Explains why a module can't be an encoder-decoder of source and target ids; "" if a few runs don't show it.

    Args:
      sizes: the sizes of the module, which include the sizes of its inputs.
      ids, spare: ids of different lengths, and different ids of the same shapes.
      has_failed: whether all other calls failed: with its encoder and decoder separately, or with embeddings.
    """
    found = _parameters(runner.module)
    if not found or any(part.holder for part in found):
        return ""
    if not has_failed and (embedders(runner.module) or any(len(form.stages) > 1 for form in forms(runner.module))):
        return ""
    if _reads_two(runner, found, ids, spare):
        return ""
    return _one_sequence(runner, found, ids, spare) or _numbers(runner, found, sizes, ids)


def _numbers(runner: Runner, found: list[Parameter], sizes: set[int], ids: Ids) -> str:
    """Describes a module that takes numbers instead of source ids; "" if it doesn't."""
    first, target = found[0], next((part for part in found[1:] if part.role == "target"), None)
    if target is not None and target.is_guess:
        target = None
    error = _run(runner, [(first, "source_ids"), *([(target, "decoder_input_ids")] if target else [])], ids).error
    if error is None:
        return ""
    for shape in itertools.islice(_shapes(runner.module, sizes, ids), MOST_SHAPES):
        made = _linspace(shape)
        others = ["decoder_input_ids", _linspace((shape[0], ids.target.shape[1], *shape[2:]))] if target else []
        for arguments in ([(first, made)], *([(first, made), (target, other)] for other in others)):
            if _run(runner, arguments, ids).succeeded:  # type: ignore[arg-type]
                return (
                    f"expected source ids; `{first.name}` of forward takes numbers in floating point, such as "
                    f"{[*shape]}, and no ids: discover reads modules of source and target ids"
                )
    if {*words(first.name)} & FEATURES:
        return (
            f"expected source ids; `{first.name}` of forward takes numbers, by its name, and ids fail at "
            f"{place(error)} ({first_line(error)}): discover reads modules of source and target ids"
        )
    return ""


def _parameters(module: nn.Module) -> list[Parameter] | None:
    """Returns the parameters of a module's forward; None if it has no forward, or none that can be read."""
    try:
        kinds = {one.kind for one in inspect.signature(module.forward).parameters.values()}
        found = parameters(module.forward)
    except (TypeError, ValueError):
        return None
    if inspect.Parameter.VAR_POSITIONAL in kinds or "_forward_unimplemented" in str(module.forward):
        return None
    return found


def _run(
    runner: Runner, arguments: Sequence[tuple[Parameter, str]], ids: Ids, lookups: list[Lookup] | None = None
) -> Outcome:
    text = ", ".join(f"{parameter.name}={value}" for parameter, value in arguments)
    return runner.run([f"return self.module({text})"], *ids, lookups=lookups)


def _reads_two(runner: Runner, found: list[Parameter], ids: Ids, spare: Ids) -> bool:
    """Returns whether the usual call runs, and its result depends on the target's ids."""
    roles = {part.role: part for part in found if part.role in ("source", "target")}
    arguments = [(part, f"{'source' if role == 'source' else 'decoder_input'}_ids") for role, part in roles.items()]
    return len(arguments) == 2 and _depends(runner, arguments, ids, Ids(ids.source, spare.target))


def _depends(runner: Runner, arguments: list[tuple[Parameter, str]], ids: Ids, others: Ids) -> bool:
    """Returns whether a call runs, and its result changes with the ids."""
    one, other = (_run(runner, arguments, each) for each in (ids, others))
    if not (one.succeeded and other.succeeded):
        return False
    pairs = zip(tensors(one.value), tensors(other.value), strict=False)
    return any(left.shape != right.shape or not left.equal(right) for left, right in pairs)


def _one_sequence(runner: Runner, found: list[Parameter], ids: Ids, spare: Ids) -> str:
    """Describes a module that takes a single sequence, and its kind; "" if it may take two."""
    first = next((part for part in found if part.role == "source" and not part.is_guess), found[0])
    needed = [part for part in found if part.is_required and part is not first]
    if len(needed) > 2 or not all(part.is_mask for part in needed):
        return ""
    for masks in itertools.product(MASKS, repeat=len(needed)):
        arguments = [(first, "source_ids"), *zip(needed, masks, strict=True)]
        outcome = _run(runner, arguments, ids)
        if outcome.succeeded:
            break
    else:
        return ""
    others = [part for part in found if part is not first and part not in needed]
    if any(_is_sequence(runner, arguments, part, ids, spare) for part in others):
        return ""
    return _kind(runner, arguments, outcome.value, ids, spare)


def _is_sequence(runner: Runner, arguments: list[tuple[Parameter, str]], part: Parameter, ids: Ids, spare: Ids) -> bool:
    """Returns whether a parameter may take a second sequence: ids of another length change the result and index a
    table; or, if it is named like a target, ids of any length change the result. A loss that depends on them doesn't
    count if logits are returned too."""
    both, is_named = [*arguments, (part, "decoder_input_ids")], part.role == "target" and not part.is_guess
    if _depends(runner, both, ids, Ids(ids.source, spare.target)) and (is_named or _looks_up(runner, both, ids)):
        return True
    if not is_named:
        return False
    length = min(ids.source.shape[1], ids.target.shape[1])
    short, other = (Ids(ids.source[:, :length], one.target[:, :length]) for one in (ids, spare))
    if not _depends(runner, both, short, other):
        return False
    one, two = (_run(runner, both, each).value for each in (short, other))
    reading = next(iter(readings(one, len(ids.source), length)), None)
    return reading is None or not same(_taken(one, reading.path), _taken(two, reading.path))


def _looks_up(runner: Runner, arguments: list[tuple[Parameter, str]], ids: Ids) -> bool:
    """Returns whether the target's ids index a table."""
    lookups: list[Lookup] = []
    _run(runner, arguments, ids, lookups)
    return tables(lookups, ids)[1] is not None


def _taken(value: Any, path: str) -> torch.Tensor:
    """Returns the tensor at a reading's path."""
    found: torch.Tensor = eval(path, {"output": value})  # a path that `readings` wrote
    return found


def _kind(runner: Runner, arguments: list[tuple[Parameter, str]], value: Any, ids: Ids, spare: Ids) -> str:
    """Describes a module of one sequence: whether a token's output depends on later tokens, unless a mask argument
    decides that."""
    batch, length = ids.source.shape
    head = (
        f"expected an encoder-decoder with source and target ids; {header(runner.module)} takes one sequence, "
        f"`{arguments[0][0].name}`"
    )
    reading = next((one for one in readings(value, batch, length) if one.rows == 0), None)
    if reading is None or reading.layout:
        return f"{head}, and returns {describe(value)}"
    if len(arguments) > 1:
        return head
    changed = ids.source.clone()
    changed[:, -1] = spare.source[:, -1]
    other = _run(runner, arguments, Ids(changed, ids.target)).value
    one, two = (_taken(each, reading.path)[:, :-1] for each in (value, other))
    if same(one, two):
        return f"{head}, and no token's output depends on later tokens: the module is decoder-only"
    return f"{head}, and a token's output depends on later tokens: the module is encoder-only"


def _shapes(module: nn.Module, sizes: set[int], ids: Ids) -> Iterator[tuple[int, ...]]:
    """Yields shapes of numeric inputs that may replace source ids: [B, S, F], [B, F, S], [B, C, H, H]."""
    from torch import nn

    batch, length = ids.source.shape
    widths: dict[int, None] = {}
    channels: dict[int, None] = {}
    for part in module.modules():
        if isinstance(part, nn.Linear):
            widths.setdefault(part.in_features)
        elif isinstance(part, nn.Conv1d):
            widths.setdefault(part.in_channels)
        elif isinstance(part, nn.Conv2d):
            channels.setdefault(part.in_channels)
        elif isinstance(part, nn.MultiheadAttention):
            widths.setdefault(part.embed_dim)
    first = [*widths][:4]
    for width in first:
        yield batch, length, width
        yield batch, width, length
    near = sorted(size for size in sizes if 8 <= size <= 2048)
    for count in [*channels][:1]:
        yield from ((batch, count, size, size) for size in near if size <= 512)
        yield from ((batch, length, size) for size in near if size <= 512)
    for width in first[:2]:
        yield from ((batch, width, times * size) for times in (1, 2) for size in near)


def _linspace(shape: tuple[int, ...]) -> str:
    """Writes an expression for an array of numbers of a shape."""
    count = 1
    for size in shape:
        count *= size
    return f"torch.linspace(-1, 1, {count}).sin().reshape({', '.join(map(str, shape))})"
