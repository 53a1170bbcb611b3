"""Finds the logits in a module's result: a tensor, or one inside tuples, dicts and records, in some layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

HINTS = ("logit", "output", "pred", "prob", "score")


@dataclass(frozen=True)
class Reading:
    """Describes how to take the logits from a result."""

    path: str
    """Path of the tensor: "output", "output[0]", "output.logits", "self.module.logits"."""
    layout: str
    """Text appended to the expression to make it [B, rows, V]."""
    rows: int
    """Rows in excess of the target's length: -1, 0 or 1."""
    width: int
    """The size of the last axis."""

    @property
    def text(self) -> str:
        """Returns the expression of the logits."""
        return f"{self.path}{self.layout}"


def readings(result: Any, batch: int, target_length: int, name: str = "output") -> list[Reading]:
    """Lists the tensors in a result of this name that can be read as [B, T or T ± 1, anything], plain ones first."""
    found = []
    for path, tensor in _tensors(result, name):
        if not tensor.is_floating_point():
            continue
        for rows in (0, -1, 1):
            layout = _layout(tuple(tensor.shape), batch, target_length + rows)
            if layout is not None:
                found.append(Reading(path, *layout[:1], rows, layout[1]))
                break
    return sorted(found, key=lambda one: (one.rows != 0, not any(hint in one.path for hint in HINTS)))


def kept_readings(module: nn.Module, batch: int, target_length: int) -> list[Reading]:
    """Lists the tensors that a module stored as attributes during its run."""
    kept = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return [
        reading
        for name, value in kept.items()
        for reading in readings(value, batch, target_length, f"self.module.{name}")
    ]


def _layout(shape: tuple[int, ...], batch: int, length: int) -> tuple[str, int] | None:
    """Returns the text that brings a shape to [B, length, V], and V."""
    if len(shape) == 3:
        if shape[:2] == (batch, length):
            return "", shape[2]
        if shape[:2] == (length, batch):
            return ".transpose(0, 1)", shape[2]
        if (shape[0], shape[2]) == (batch, length):
            return ".transpose(1, 2)", shape[1]
        if shape[1:] == (batch, length):
            return ".permute(1, 2, 0)", shape[0]
    if len(shape) == 2 and shape[0] == batch * length:
        return ".unflatten(0, (source_ids.shape[0], -1))", shape[1]
    if len(shape) == 4 and shape[:2] == (batch, length) and shape[2] == 1:
        return ".squeeze(2)", shape[3]
    return None


def _tensors(result: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    import torch

    if isinstance(result, torch.Tensor):
        yield path, result
    elif depth > 3:
        return
    elif isinstance(result, Mapping):
        for key, value in result.items():
            yield from _tensors(value, f"{path}[{key!r}]", depth + 1)
    elif isinstance(result, (tuple, list)):
        names = getattr(result, "_fields", None)
        for number, value in enumerate(result):
            yield from _tensors(value, f"{path}.{names[number]}" if names else f"{path}[{number}]", depth + 1)
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        for field in dataclasses.fields(result):
            yield from _tensors(getattr(result, field.name), f"{path}.{field.name}", depth + 1)
    elif hasattr(result, "__dict__") and not isinstance(result, torch.nn.Module):
        for name, value in vars(result).items():
            if not name.startswith("_"):
                yield from _tensors(value, f"{path}.{name}", depth + 1)


def tensors(result: Any) -> list[Any]:
    """Lists the tensors in a result, in its order."""
    return [tensor for _, tensor in _tensors(result, "output")]


def describe(result: Any) -> str:
    """Describes a result in a few words: its type, and the shapes of its tensors."""
    shapes = [
        f"{path.removeprefix('output') or 'it'} {list(tensor.shape)}" for path, tensor in _tensors(result, "output")
    ]
    return f"{type(result).__name__} with {', '.join(shapes[:6]) or 'no tensors'}"
