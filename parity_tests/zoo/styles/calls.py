"""Other arguments, layouts and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from styles.base import Base, style


@style
class Short(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt)


@style
class TargetFirst(Base):
    def forward(self, trg: Tensor, src: Tensor) -> Tensor:
        return self.logits_of(src, trg)


@style
class Ids(Base):
    def forward(self, decoder_input_ids: Tensor, input_ids: Tensor) -> Tensor:
        return self.logits_of(input_ids, decoder_input_ids)


@style
class Sequences(Base):
    def forward(self, src_seq: Tensor, trg_seq: Tensor) -> Tensor:
        return self.logits_of(src_seq, trg_seq)


@style
class Inputs(Base):
    def forward(self, enc_inputs: Tensor, dec_inputs: Tensor) -> Tensor:
        return self.logits_of(enc_inputs, dec_inputs)


@style
class Fairseq(Base):
    def forward(self, src_tokens: Tensor, src_lengths: Tensor | None, prev_output_tokens: Tensor) -> tuple[Any, Any]:
        return self.logits_of(src_tokens, prev_output_tokens), {"attn": [None], "inner_states": None}


@style
class Letters(Base):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.logits_of(x, y)


@style
class KeywordsOnly(Base):
    def forward(self, *, source: Tensor, target: Tensor) -> Tensor:
        return self.logits_of(source, target)


@style
class Anything(Base):
    def forward(self, *args: Tensor, **kwargs: Any) -> Tensor:
        return self.logits_of(*args)


@style
class Options(Base):
    def forward(self, src: Tensor, tgt: Tensor, teacher_forcing_ratio: float = 0.5, src_mask: Any = None) -> Tensor:
        return self.logits_of(src, tgt)


@style
class SequenceFirst(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src.T, tgt.T).transpose(0, 1)


@style
class SequenceFirstInBatchFirstOut(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src.T, tgt.T)


@style
class OneBatch(Base):
    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.logits_of(batch["src"], batch["tgt"])


@style
class Masked(Base):
    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor, tgt_mask: Tensor) -> Tensor:
        assert src_mask.shape[-1] == src.shape[1]
        return self.logits_of(src, tgt)


@style
class PaddingMasks(Base):
    def forward(self, src: Tensor, tgt: Tensor, src_key_padding_mask: Tensor, tgt_key_padding_mask: Tensor) -> Tensor:
        assert torch.equal(src_key_padding_mask, src == self.source_pad_id)
        return self.logits_of(src, tgt)


@style
class Lengths(Base):
    def forward(self, src: Tensor, src_lengths: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt)


@style
class TraceFlag(Base):
    def forward(self, src: Tensor, tgt: Tensor, trace: bool = False) -> Any:
        logits = self.logits_of(src, tgt)
        return (logits, {}) if trace else logits


@style
class TracePrinter(Base):
    def forward(self, src: Tensor, tgt: Tensor, trace: Any = None) -> Tensor:
        if trace is not None:
            trace.write("forward\n")
        return self.logits_of(src, tgt)


@style
class TraceList(Base):
    def forward(self, src: Tensor, tgt: Tensor, trace: Any = None) -> Tensor:
        logits = self.logits_of(src, tgt)
        if trace is not None:
            trace["head"] = logits
        return logits


@style
class EmbedsToo(Base):
    def forward(self, src: Tensor, tgt: Tensor, memory: Tensor) -> Tensor:
        return self.logits_of(src, tgt)


# --- what it returns


@style
class Dict(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> dict[str, Any]:
        return {"prediction": self.logits_of(src, tgt), "count": 1, "ids": tgt}


@style
class DictOfTwo(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> dict[str, Any]:
        logits = self.logits_of(src, tgt)
        return {"probabilities": logits.softmax(-1), "logits": logits}


@style
class TupleLast(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Any:
        logits = self.logits_of(src, tgt)
        return torch.zeros(3, 2), [logits, None]


@dataclass
class Output:
    """Not a mapping."""

    scores: Tensor
    hidden: Tensor


@style
class Record(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Any:
        return Output(self.logits_of(src, tgt), src)


@style
class Flat(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt).flatten(0, 1)


@style
class VocabularySecond(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt).transpose(1, 2)


@style
class LogProbabilities(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return F.log_softmax(self.logits_of(src, tgt), dim=-1)


@style
class Probabilities(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt).softmax(dim=-1)


@style
class LogProbabilitiesOfRows(Base):
    """Normalises [B·T, V], and returns [B, T, V]."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits = self.logits_of(src, tgt)
        return F.log_softmax(logits.flatten(0, 1), dim=-1).unflatten(0, tgt.shape)


@style
class KeepsLogits(Base):
    """Keeps what it computed last, with its gradients' graph, which PyTorch doesn't copy."""

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.last = [self.head.weight * 1.0]

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        self.last = [self.logits_of(src, tgt)]
        return self.last[0]


@style
class NormalisesItself(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits = self.logits_of(src, tgt)
        return logits - logits.exp().sum(dim=-1, keepdim=True).log()


@style
class Tokens(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt).argmax(-1)


@style
class OnlyLast(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt)[:, -1]


@style
class Nothing(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> None:
        self.logits_of(src, tgt)


@style
class TwoAlike(Base):
    def forward(self, src: Tensor, tgt: Tensor) -> Any:
        logits = self.logits_of(src, tgt)
        return [2 * logits, logits]


@style
class TargetShifted(Base):
    """Drops the last token itself, as training loops do."""

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.logits_of(src, tgt[:, :-1])
