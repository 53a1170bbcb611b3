"""A user's variants of a small Marian model: its dtypes, its buffers, wrong gradients, and optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn


def marian() -> Any:
    """Returns a model whose sinusoids are parameters that aren't trained."""
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


# --- its weights


def in_bfloat16() -> Any:
    return marian().to(torch.bfloat16)


def with_trained_sinusoids() -> Any:
    module = marian()
    with torch.no_grad():
        module.model.encoder.embed_positions.weight[3] += 0.01
    return module


# --- the bias of its logits, a buffer of zeros


class WithoutBias(transformers.MarianMTModel):
    """Drops the bias of the logits."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None, decoder_input_ids: Any = None) -> Any:
        output = super().forward(input_ids, attention_mask, decoder_input_ids)
        output.logits = output.logits - self.final_logits_bias
        return output


class WithoutBuffer(transformers.MarianMTModel):
    """Has no buffer for the bias, so that porting has nowhere to put one."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        del self.final_logits_bias
        self.final_logits_bias = 0.0


def with_bias() -> Any:
    module = marian()
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


# --- gradients that aren't the derivatives of its forward pass


def _hooked(path: str, change: Callable[[Any], Any]) -> Any:
    """Returns the model with the output of one part changed."""
    module = marian()
    module.get_submodule(path).register_forward_hook(lambda part, arguments, output: change(output))
    return module


def detached_memory() -> Any:
    def detach(output: Any) -> Any:
        return type(output)(**{**output, "last_hidden_state": output.last_hidden_state.detach()})

    return _hooked("model.encoder", detach)


def detached_attention() -> Any:
    return _hooked("model.encoder.layers.0.self_attn", lambda output: (output[0].detach(), *output[1:]))


def frozen_embedding() -> Any:
    module = marian()
    module.model.shared.weight.requires_grad_(False)
    return module


def gradient_hook() -> Any:
    module = marian()
    module.model.encoder.layers[0].fc1.weight.register_hook(lambda gradient: 2 * gradient)
    return module


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient


def wrong_backward() -> Any:
    return _hooked("model.encoder.layers.0.fc2", Doubled.apply)


class DetachedHead(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight.detach())


def tied_counted_once() -> Any:
    module = marian()
    module.lm_head.__class__ = DetachedHead
    return module


# --- optimizers, for a model whose head reads the embedding table

CONFIG = {
    "optimizer": "adam",
    "adam_b1": 0.9,
    "adam_b2": 0.98,
    "adam_eps": 1e-9,
    "weight_decay": 0.01,
    "weight_decay_kind": "decoupled",
    "clip_norm": 1.0,
    "schedule": "constant",
    "warmup_steps": 0,
    "learning_rate": 0.001,
}
"""The training that the optimizers should follow."""


class Optimizer:
    """Decays all parameters, or only those with some number of axes, and clips by the norm, or value by value."""

    def __init__(self, module: nn.Module, *, least_axes: int = 0, by_value: bool = False) -> None:
        self.parameters, self.by_value = [one for one in module.parameters() if one.requires_grad], by_value
        exempt = [one for one in self.parameters if one.ndim < least_axes]
        decayed = [one for one in self.parameters if one.ndim >= least_axes]
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": exempt, "weight_decay": 0.0}]
        self.adam = torch.optim.AdamW(groups[: 2 if exempt else 1], 1e-3, (0.9, 0.98), 1e-9, 0.01)

    def zero_grad(self) -> None:
        self.adam.zero_grad()

    def step(self) -> None:
        if self.by_value:
            nn.utils.clip_grad_value_(self.parameters, 1e-3)
        else:
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.adam.step()


def right(module: nn.Module) -> Any:
    return Optimizer(module)


def without_decay_of_biases(module: nn.Module) -> Any:
    return Optimizer(module, least_axes=2)


def clipping_values(module: nn.Module) -> Any:
    return Optimizer(module, by_value=True)
