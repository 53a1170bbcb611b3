"""Layers run one by one, operations in place, tied and frozen tensors, and modules that notice how they are run."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from styles.base import Base, style


class Layers(Base):
    """Runs nn.Transformer's submodules itself."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        masks = self.make_masks(src, tgt)
        x = self.embedded(self.source_embedding, src)
        for layer in self.transformer.encoder.layers:
            x = self.encode(layer, x, masks)
        memory = self.transformer.encoder.norm(x)
        y = self.embedded(self.target_embedding, tgt)
        for layer in self.transformer.decoder.layers:
            y = self.decode(layer, y, memory, masks)
        return self.head(self.transformer.decoder.norm(y))

    def embedded(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        return table(ids) * math.sqrt(self.d_model) + self.positions[: ids.shape[1]]

    def attend(self, attention: nn.MultiheadAttention, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        sizes = len(x), x.shape[1], y.shape[1]
        return attention(x, y, y, attn_mask=self._for_every_head(mask, *sizes), need_weights=False)[0]

    def encode(self, layer: Any, x: Tensor, masks: Any) -> Tensor:
        x = layer.norm1(x + self.attend(layer.self_attn, x, x, masks.encoder_self))
        return layer.norm2(x + layer.linear2(F.relu(layer.linear1(x))))

    def decode(self, layer: Any, y: Tensor, memory: Tensor, masks: Any) -> Tensor:
        y = layer.norm1(y + self.attend(layer.self_attn, y, y, masks.decoder_self))
        y = layer.norm2(y + self.attend(layer.multihead_attn, y, memory, masks.cross))
        return layer.norm3(y + layer.linear2(F.relu(layer.linear1(y))))


style(Layers)


@style
class LayersSequenceFirst(Layers):
    """Has [T, B, D] inside."""

    def embedded(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        return super().embedded(table, ids).transpose(0, 1)

    def attend(self, attention: nn.MultiheadAttention, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return super().attend(attention, x.transpose(0, 1), y.transpose(0, 1), mask).transpose(0, 1)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return super().forward(src, tgt).transpose(0, 1)


@style
class InPlace(Layers):
    def embedded(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        x = table(ids)
        x *= math.sqrt(self.d_model)
        x += self.positions[: ids.shape[1]]
        return x

    def encode(self, layer: Any, x: Tensor, masks: Any) -> Tensor:
        x = x.clone()
        x += self.attend(layer.self_attn, x, x, masks.encoder_self)
        x = layer.norm1(x)
        h = F.relu(layer.linear1(x), inplace=True)
        return layer.norm2(layer.linear2(h).add_(x))


@style
class Unusual(InPlace):
    """Takes [T, B], the target first, and returns log-probabilities [T, B, V]."""

    def forward(self, trg_seq: Tensor, src_seq: Tensor) -> dict[str, Tensor]:
        return {"out": super().forward(src_seq.T, trg_seq.T).log_softmax(dim=-1).transpose(0, 1)}


@style
class DoubledLogits(Base):
    """Scales what its head returns."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return 2 * self.logits_of(src, tgt)


@style
class InPlaceHead(Base):
    """Adds to the logits in place, after the head."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits = self.logits_of(src, tgt)
        logits += 0.0
        return logits


@style
class WritesInputs(Base):
    """Writes over its arguments."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits = self.logits_of(src, tgt)
        src.fill_(0)
        tgt.fill_(0)
        return logits


@style
class TiedTwice(Base):
    """Lists the head's weight a second time."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.decoder = nn.Module()
        self.decoder.output_projection = nn.Linear(1, 1, bias=False)
        self.decoder.output_projection.weight = self.head.weight

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt)


@style
class Undivided(Base):
    """Keeps the module that it wraps in a list, which hides it."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt)

    def extra_repr(self) -> str:
        raise RuntimeError("no text")


@style
class NoCopies(Base):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("cannot pickle '_thread.lock' object")

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt)


@style
class OtherWithGradients(Base):
    """Does otherwise when gradients are wanted."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits = self.logits_of(src, tgt)
        return 1.001 * logits if torch.is_grad_enabled() else logits


@style
class SeesHooks(Base):
    """Does otherwise when it is watched."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits = self.logits_of(src, tgt)
        return logits if self.head._forward_hooks else 1.001 * logits


@style
class SeesHooksOfLongTargets(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits = self.logits_of(src, tgt)
        return logits if self.head._forward_hooks or tgt.shape[1] == 9 else 1.001 * logits
