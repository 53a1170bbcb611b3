"""Modules that lack gradients, mix precisions, or raise."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from styles.base import Base, style
from styles.inside import Layers


@style
class WithoutGradients(Base):
    @torch.no_grad()
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt)


@style
class Inference(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        with torch.inference_mode():
            return self.logits_of(src, tgt)


@style
class Float32Inside(Layers):
    """A table of float32 that is no buffer."""

    def embedded(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        x = table(ids) * math.sqrt(self.d_model) + self.positions[: ids.shape[1]]
        return x + torch.zeros(1, dtype=torch.float32)


@style
class CastsToFloat32(Layers):
    def embedded(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        return super().embedded(table, ids).float()


@style
class Bfloat16Fails(Layers):
    def attend(self, attention: nn.MultiheadAttention, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        if x.dtype == torch.bfloat16:
            x = x.float()
        return super().attend(attention, x, y, mask)


@style
class FixedLength(Base):
    """Adds the whole table."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        self.positions + self.source_embedding(src)
        return self.logits_of(src, tgt)


@style
class FixedMask(Base):
    """Takes its mask from a buffer of 10 rows, fewer than the table."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.register_buffer("future", torch.ones(10, 10).tril().bool())

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        future = self.future[: tgt.shape[1], : tgt.shape[1]]
        assert torch.equal(future & (tgt != self.target_pad_id)[:, None], self.make_masks(src, tgt).decoder_self[:, 0])
        return self.logits_of(src, tgt)


@style
class FixedBatch(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt) + torch.zeros(2, 1, 1, dtype=self.head.weight.dtype)


@style
class Nan(Layers):
    """Masks with -inf, so that a sentence of padding alone gives NaN."""

    def additive(self, mask: Tensor) -> Tensor:
        return torch.zeros(mask.shape, dtype=self.head.weight.dtype).masked_fill(~mask, -math.inf)


@style
class NanGradients(Base):
    """Has the slope of a root at zero, times zero."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt) + 0 * (0 * self.head.weight).sqrt().sum()


@style
class Checks(Base):
    """Refuses sentences of padding alone."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        if (src == self.source_pad_id).all(dim=1).any():
            raise ValueError("a sentence is empty")
        return self.logits_of(src, tgt)


@style
class Raises(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        raise KeyError("hidden")


@style
class RaisesInside(Layers):
    def attend(self, attention: nn.MultiheadAttention, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return self.head(attention(x, y, y)[0][..., :5])


@style
class Exits(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        raise SystemExit(1)
