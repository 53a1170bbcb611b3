"""Modules whose logits have a bias that is a buffer, of zeros in their own weights."""

from __future__ import annotations

from typing import Any

import torch
import transformers
import user_dtypes


class WithoutBias(transformers.MarianMTModel):
    """Drops the bias of the logits."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None, decoder_input_ids: Any = None) -> Any:
        output = super().forward(input_ids, attention_mask, decoder_input_ids)
        output.logits = output.logits - self.final_logits_bias
        return output


class WithoutBuffer(transformers.MarianMTModel):
    """Holds no such buffer, so that nothing carries a bias over."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        del self.final_logits_bias
        self.final_logits_bias = 0.0


def with_bias() -> Any:
    module = user_dtypes.marian()
    module.final_logits_bias.zero_()
    return module


def without_bias() -> Any:
    module = with_bias()
    module.__class__ = WithoutBias
    return module


def without_buffer() -> Any:
    own = with_bias()
    module = WithoutBuffer(own.config)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            tensor.copy_(own.state_dict()[name])
    return module.eval()
