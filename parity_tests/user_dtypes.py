"""A user's modules whose tensors have unusual dtypes, or are frozen: all compute what their weights say."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from user_models import SIZES, randomised

from torch_reference.pytorch import PytorchTransformer


def marian() -> Any:
    """A model whose sinusoids are parameters that aren't trained."""
    config = transformers.MarianConfig(
        vocab_size=31,
        d_model=12,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=20,
        decoder_ffn_dim=20,
        max_position_embeddings=16,
        pad_token_id=29,
        decoder_start_token_id=29,
        eos_token_id=0,
        scale_embedding=True,
    )
    module = transformers.MarianMTModel(config)
    generator = torch.Generator().manual_seed(0)
    trained = [(name, one) for name, one in module.named_parameters() if one.requires_grad]
    with torch.no_grad():
        for name, tensor in [*trained, ("", module.final_logits_bias)]:
            tensor.copy_(0.4 * torch.randn(tensor.shape, generator=generator) + name.endswith("norm.weight"))
    return module.eval()


def marian_in_bfloat16() -> Any:
    return marian().to(torch.bfloat16)


def in_bfloat16() -> Any:
    return randomised(PytorchTransformer(**SIZES)).to(torch.bfloat16)


def in_float16() -> Any:
    return randomised(PytorchTransformer(**SIZES)).half()


class WithPhases(PytorchTransformer):
    """Turns logits by complex constants of modulus 1, there and back."""

    def __init__(self) -> None:
        super().__init__(**SIZES)
        exponents = torch.arange(SIZES["target_vocab_size"])
        self.register_buffer("phases", torch.tensor([1, 1j, -1, -1j])[exponents % 4], persistent=False)

    def forward(self, source_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        logits = super().forward(source_ids, decoder_input_ids)
        return (logits * self.phases * self.phases.conj()).real.to(logits.dtype)


def with_phases() -> Any:
    return randomised(WithPhases())


class Turned(nn.Module):
    """Multiplies by a complex constant, and returns the imaginary part."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("turn", torch.tensor([1 + 2j, 3 - 1j]))

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) * self.turn).imag


def marian_with_trained_sinusoids() -> Any:
    module = marian()
    with torch.no_grad():
        module.model.encoder.embed_positions.weight[3] += 0.01
    return module
