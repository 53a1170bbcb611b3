"""Modules with the names of a published program: heads that are split or merged wrongly, and shared layers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from user_models import SIZES, randomised

from torch_reference.hyunwoongko import Attention, HyunwoongkoTransformer, Tap

MASKED = -10000.0


class Program(HyunwoongkoTransformer):
    """Shows what its submodules compute, and no trace."""

    def forward(self, src: Tensor, trg: Tensor) -> Tensor:
        return super().forward(src, trg)


class Laid(Attention):
    """Splits and merges heads by views."""

    splits, merges = True, True

    def forward(self, x: Tensor, y: Tensor, mask: Tensor, tap: Tap) -> Tensor:
        query, key, value = self.split(self.w_q(x)), self.split(self.w_k(y)), self.split(self.w_v(y))
        logits = query @ key.mT / math.sqrt(query.shape[-1])
        context = logits.masked_fill(~mask, MASKED).softmax(dim=-1) @ value  # [B, N, T, H]
        merged = context.transpose(1, 2) if self.merges else context
        return self.w_concat(merged.reshape(x.shape))

    def split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        if self.splits:
            return x.view(batch, length, self.num_heads, -1).transpose(1, 2)
        return x.view(batch, self.num_heads, length, width // self.num_heads)


class Unsplit(Laid):
    splits = False


class Unmerged(Laid):
    merges = False


class Neither(Unsplit, Unmerged):
    pass


def _with(kind: type[nn.Module]) -> Any:
    module = randomised(Program(**SIZES))
    for part in module.modules():
        if isinstance(part, Attention):
            part.__class__ = kind
    return module


def right() -> Any:
    return _with(Laid)


def not_split() -> Any:
    return _with(Unsplit)


def not_merged() -> Any:
    return _with(Unmerged)


def neither() -> Any:
    return _with(Neither)


class Shared(nn.ModuleList):
    """Runs its first layer in place of all."""

    def __iter__(self) -> Any:
        return iter([self[0]] * len(self))


def shared_layers() -> Any:
    module = right()
    module.encoder.layers.__class__ = Shared
    return module


class ReorderedRows(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        rows = torch.arange(len(self.weight)).view(3, -1)[[2, 0, 1]].flatten()
        return functional.linear(x, self.weight[rows], self.bias[rows])


class ReorderedColumns(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        columns = torch.arange(self.weight.shape[1]).view(3, -1)[[2, 0, 1]].flatten()
        return functional.linear(x, self.weight[:, columns], self.bias)


def reordered_heads() -> Any:
    module = right()
    for part in module.modules():
        if isinstance(part, Attention):
            for linear in (part.w_q, part.w_k, part.w_v):
                linear.__class__ = ReorderedRows
            part.w_concat.__class__ = ReorderedColumns
    return module
